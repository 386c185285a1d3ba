"""Scores of human preference by ImageReward and HPSv2, if their packages are installed.

Xu et al., "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation" (NeurIPS 2023); Wu et al., "Human
Preference Score v2" (2023). Each is the authors' code with local weights; the worker runs it offline.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from abc import abstractmethod
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.errors import Unsupported
from .base import ImageBatch, ImageMetric, MetricContext

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


class PreferenceMetric(ImageMetric):
    """A score by a network trained on human choices; ``weights``: a folder, ``published``: their source."""

    prompted = True
    options = ("weights",)
    package: ClassVar[str]
    module: ClassVar[str]  # of the package: what is used
    completion: ClassVar[str]  # how to complete an installation that lacks a part
    weights: ClassVar[tuple[str, ...]]
    published: ClassVar[str]

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        from .compute.pretrained import files_identity, required_files

        if importlib.util.find_spec(cls.package) is None:
            raise Unsupported(f"not measured: needs {cls.package}, get it with: pip install {cls.packages[0]}")
        return {"weights": files_identity(required_files(setting.options["weights"], cls.weights, " ".join((cls.published, *cls.weights))))}

    def measure(self, batch: ImageBatch) -> Tensor:
        import torch
        from PIL.Image import fromarray

        from .compute.image_bytes import nearest_bytes

        score = self.setting.once(self.name, self._load)
        pixels = nearest_bytes(batch.images).permute(0, 2, 3, 1).cpu().numpy()
        with torch.inference_mode():
            values = [score(fromarray(image), self.setting.prompts[label]) for image, label in zip(pixels, batch.labels, strict=True)]
        return torch.tensor(values, dtype=torch.float64)

    def _load(self) -> Callable[[Image, str], float]:
        """Load the network; raise Unsupported for what is missing, BadCheckpoint for wrong files."""
        from .compute.pretrained import built

        self.identity(self.setting)
        folder = self.setting.options["weights"]
        with redirect_stdout(io.StringIO()):  # both print while loading, and the worker's output is a protocol
            try:
                module = importlib.import_module(self.module)
            except Exception as error:  # other people's code, which may lack a file or a library
                raise Unsupported(f"not measured: the library {self.package} cannot be imported: {type(error).__name__}: "
                                  f"{' '.join(str(error).split())[:200]}.", remedy=self.completion) from error
            return built(folder, self.package, lambda: self.build(module, Path(folder)))

    @abstractmethod
    def build(self, package: Any, folder: Path) -> Callable[[Image, str], float]:
        """Return the function that scores an image and its prompt."""


class ImageReward(PreferenceMetric):
    """The score of ImageReward."""

    name = "image_reward"
    title = "ImageReward"
    meaning = "Human preference for an image and its prompt, by ImageReward: mean 0 and deviation 1 over its authors' data."
    plan_name = "image_reward"
    ceiling = 10.0  # above every score
    packages = ("image-reward",)
    package = module = "ImageReward"
    completion = "It needs OpenAI's clip, which it does not require: pip install git+https://github.com/openai/CLIP"
    weights = ("ImageReward.pt", "med_config.json")
    published = "THUDM/ImageReward"

    def build(self, package: Any, folder: Path) -> Callable[[Image, str], float]:
        weights, config = (str(folder / name) for name in self.weights)
        model = package.load(weights, device=self.setting.device, med_config=config)
        return lambda image, prompt: float(model.score(prompt, image))


class HumanPreference(PreferenceMetric):
    """The score of HPSv2."""

    name = "hpsv2"
    title = "HPSv2"
    meaning = "Human preference for an image and its prompt, by HPSv2: the cosine of their embeddings."
    plan_name = "hpsv2"
    within = (-1, 1)
    ceiling = 1.0
    packages = ("hpsv2",)
    package, module = "hpsv2", "hpsv2.src.open_clip"
    completion = "Its release on PyPI lacks the vocabulary file; install it from its repository: " \
                 "pip install git+https://github.com/tgxs002/HPSv2"
    weights = ("HPS_v2.1_compressed.pt",)
    published = "xswu/HPSv2"

    def build(self, package: Any, folder: Path) -> Callable[[Image, str], float]:
        """Build the scorer from HPSv2's parts, in fp32, since its own function would load 4 GB per image."""
        import torch

        device = self.setting.device
        model, _, ready = package.create_model_and_transforms("ViT-H-14", None, precision="fp32", device=device, output_dict=True)
        model.load_state_dict(torch.load(folder / self.weights[0], map_location=device, weights_only=True)["state_dict"])
        model, tokenizer = model.eval(), package.get_tokenizer("ViT-H-14")

        def score(image: Image, prompt: str) -> float:
            output = model(ready(image).unsqueeze(0).to(device), tokenizer([prompt]).to(device))
            return float((output["image_features"] * output["text_features"]).sum())

        return score
