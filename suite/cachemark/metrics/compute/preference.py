"""Scores of human preference by ImageReward and HPSv2, if their packages are installed.

Xu et al., "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation" (NeurIPS 2023); Wu et al., "Human
Preference Score v2" (2023). Each is the authors' code with local weights; the worker runs it offline.
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
    """A preference network: its package and distribution, its files in a folder, their source, and a builder of the score."""

    package: str
    distribution: str
    files: tuple[str, ...]
    published: str
    build: Callable[[Any, Path, str], Score]

    def identity(self, folder: str) -> str:
        """Return the hash of the weights. Raises Unsupported for missing files."""
        if importlib.util.find_spec(self.package) is None:
            raise Unsupported(f"not measured: needs {self.package}, get it with: pip install {self.distribution}")
        if missing := [name for name in self.files if not is_readable(Path(folder) / name)]:
            raise Unsupported(f"not measured: needs {', '.join(missing)} in {folder!r}, get it with: "
                              f"hf download {self.published} {' '.join(self.files)} --local-dir {folder}")
        return files_identity([Path(folder) / name for name in self.files])

    def load(self, folder: str, *, device: str = "cpu") -> Score:
        """Return the score function. Raises Unsupported for missing files, BadCheckpoint for wrong ones."""
        self.identity(folder)
        with redirect_stdout(io.StringIO()):  # both print while loading, and the worker's output is a protocol
            return built(folder, self.package, lambda: self.build(importlib.import_module(self.package), Path(folder), device))


def _image_reward(package: Any, folder: Path, device: str) -> Score:
    model = package.load(str(folder / "ImageReward.pt"), device=device, med_config=str(folder / "med_config.json"))
    return lambda image, prompt: float(model.score(prompt, image))


def _hpsv2(package: Any, folder: Path, device: str) -> Score:
    """Call the parts of HPSv2's function, which would load 4 GB per image; in fp32 instead of half precision."""
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
    """Scores the images of a list of prompts."""

    def __init__(self, prompts: Sequence[str], score: Score) -> None:
        self._prompts, self._score = prompts, score

    @torch.inference_mode()
    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the scores of images (n, 3, H, W) in [−1, 1] of the prompts ``labels``, (n,) fp64 on the CPU."""
        pixels = nearest_bytes(images).permute(0, 2, 3, 1).cpu().numpy()
        scores = [self._score(Image.fromarray(image), self._prompts[label]) for image, label in zip(pixels, labels, strict=True)]
        return torch.tensor(scores, dtype=torch.float64)
