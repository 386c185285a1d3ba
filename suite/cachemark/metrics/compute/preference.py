"""Scores of what people prefer, by networks that were trained on their choices: ImageReward and HPSv2, where their packages are installed.

Xu et al., "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation" (NeurIPS 2023); Wu et al., "Human
Preference Score v2" (2023). Each is its authors' own code with weights from a path. A trial that asks for one is told that it is offline,
so that nothing is fetched.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ...core.errors import Unsupported
from ...core.files import is_readable
from .image_bytes import nearest_bytes
from .pretrained import built, files_identity

Score = Callable[[Image.Image, str], float]


@dataclass(frozen=True)
class Preference:
    """A network of others: its package and the distribution that brings it, the files that it needs in a folder, where they are published,
    and what makes a score of the folder and a device."""

    package: str
    distribution: str
    files: tuple[str, ...]
    published: str
    build: Callable[[Any, Path, str], Score]

    def identity(self, folder: str) -> str:
        """The part of a case's identity that the weights decide. Raises Unsupported, with how to get it, for what is lacking."""
        if importlib.util.find_spec(self.package) is None:
            raise Unsupported(f"not measured: needs {self.package}, get it with: pip install {self.distribution}")
        if lacking := [name for name in self.files if not is_readable(Path(folder) / name)]:
            raise Unsupported(f"not measured: needs {', '.join(lacking)} in {folder!r}, get it with: "
                              f"hf download {self.published} {' '.join(self.files)} --local-dir {folder}")
        return files_identity([Path(folder) / name for name in self.files])

    def load(self, folder: str, *, device: str = "cpu") -> Score:
        """The network. Raises what :meth:`identity` raises, and BadCheckpoint for files that do not fit it."""
        self.identity(folder)
        with redirect_stdout(io.StringIO()):  # both say what they load; the output of a trial is a protocol
            return built(folder, self.package, lambda: self.build(importlib.import_module(self.package), Path(folder), device))


def _image_reward(package: Any, folder: Path, device: str) -> Score:
    model = package.load(str(folder / "ImageReward.pt"), device=device, med_config=str(folder / "med_config.json"))
    return lambda image, prompt: float(model.score(prompt, image))


def _hpsv2(package: Any, folder: Path, device: str) -> Score:
    """Their own function reads four gigabytes for every image, so its parts are called, in fp32 on any device (theirs: half precision)."""
    parts = importlib.import_module("hpsv2.src.open_clip")
    model, _, ready = parts.create_model_and_transforms("ViT-H-14", None, precision="fp32", device=device, output_dict=True)
    model.load_state_dict(torch.load(folder / "HPS_v2.1_compressed.pt", map_location=device, weights_only=True)["state_dict"])
    model, tokenizer = model.eval(), parts.get_tokenizer("ViT-H-14")

    def score(image: Image.Image, prompt: str) -> float:
        output = model(ready(image).unsqueeze(0).to(device), tokenizer([prompt]).to(device))
        return float((output["image_features"] * output["text_features"]).sum())

    return score


PREFERENCES = {
    "image_reward": Preference("ImageReward", "image-reward", ("ImageReward.pt", "med_config.json"), "THUDM/ImageReward", _image_reward),
    "hpsv2": Preference("hpsv2", "hpsv2", ("HPS_v2.1_compressed.pt",), "xswu/HPSv2", _hpsv2),
}


class PreferenceScore:
    """Scores the pictures of a list of prompts."""

    def __init__(self, prompts: Sequence[str], score: Score) -> None:
        self._prompts, self._score = prompts, score

    @torch.inference_mode()
    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Images (n, 3, H, W) in [−1, 1] whose prompts are those of ``labels``: (n,) fp64 on the CPU."""
        pixels = nearest_bytes(images).permute(0, 2, 3, 1).cpu().numpy()
        scores = [self._score(Image.fromarray(image), self._prompts[label]) for image, label in zip(pixels, labels, strict=True)]
        return torch.tensor(scores, dtype=torch.float64)
