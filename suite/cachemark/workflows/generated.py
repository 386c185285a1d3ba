"""Images of a generation with its costs, shown in a notebook or saved as a grid."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from ..core.calls import Hinted
from ..core.errors import Unsupported
from ..core.files import output, writing
from ..core.formatting import percent
from ..core.spec import ENTRIES, FULL, Budget, Case
from ..core.wording import on_one_line
from ..export.captions import captioned
from ..machine.environment import slug
from ..metrics.compute.image_bytes import nearest_bytes

SHOWN = 64  # images of a grid in a notebook, at most
GAP = 8  # white pixels between two grids
WHITE = 255
VISIBLE = 0.05  # relative difference of a budget


@dataclass(frozen=True)
class Generated(Hinted):
    """Images of one generation, a sequence of PIL images: ``im[0]``, ``len(im)``.

    A notebook shows them as a grid.

    ``images`` (n, 3, H, W) fp32 in [−1, 1]; ``tokens`` (n, N), of a masked model (n, N, C). ``kv_bytes`` of live keys and values at the
    fullest step of the largest batch, None for a model that keeps none; ``state_bytes`` of everything else that the method stores.
    ``seconds`` of the generation, image decoding included and without a warm-up; ``tokens_per_s`` of the first and the last half, None
    for a single step: :func:`cachemark.measure` measures speed. ``case`` names the method with every parameter resolved.
    ``true_budget``: the fraction of the full cache that is kept, None for a method without a budget.
    """

    images: Tensor
    tokens: Tensor
    kv_bytes: int | None
    state_bytes: int
    seconds: float
    tokens_per_s: tuple[float, float] | None
    case: Case
    labels: tuple[int, ...]
    seeds: tuple[int, ...]
    true_budget: float | None = None

    _instead = {
        "pil": "im[0]", "to_pil": "im[0]", "image": "im[0]", "show": "im[0].show(), or im alone in a notebook",
        "display": "im in a notebook",
        "to_numpy": "im.numpy()", "cpu": "im.numpy()", "shape": "im.images.shape", "time": "im.seconds", "memory": "im.kv_bytes",
        "latency": "im.seconds, or cm.measure for a benchmark",
    }

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Image.Image]:
        return (Image.fromarray(pixels) for pixels in self.numpy())

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> list[Image.Image]: ...
    def __getitem__(self, index: int | slice) -> Image.Image | list[Image.Image]:
        return [*self][index] if isinstance(index, slice) else Image.fromarray(self.numpy()[index])

    def numpy(self) -> NDArray[np.uint8]:
        """Return the images as bytes, (n, H, W, 3)."""
        return np.ascontiguousarray(nearest_bytes(self.images).cpu().numpy().transpose(0, 2, 3, 1))

    @property
    def other_budget(self) -> str:
        """The kept fraction in words, where it differs visibly from the case's budget; else an empty text.

        A method cannot always meet a budget."""
        budget = float(Budget.parse(self.case.budget).ratio)
        if self.true_budget is None or self.case.method == FULL or abs(self.true_budget - budget) <= VISIBLE * budget:
            return ""
        what = "entries" if self.case.budget_kind == ENTRIES else self.case.budget_kind
        return f"{percent(self.true_budget)} of the {what} instead of {percent(budget)}"

    def __repr__(self) -> str:
        rates = "" if self.tokens_per_s is None else ", {:.4g} and {:.4g} tokens/s in the two halves".format(*self.tokens_per_s)
        kv = "" if self.kv_bytes is None else f", {self.kv_bytes / 2**20:.2f} MiB of keys and values"
        kept = f", {self.other_budget}" if self.other_budget else ""
        return f"<{len(self.images)} images of {self.case.title}: {self.seconds:.2f} s{rates}{kv}{kept}>"

    def save(self, path: str | Path, left: Generated | None = None) -> Path:
        """Write a PNG grid of all images, or into a folder a PNG of each, and return the path.

        A folder is a path that exists as one, or that ends in a slash; files are named by case, number, label and seed. ``left``: images of
        the same number and size, for the left side of a grid with captions. Raises Unsupported for another suffix or other images, and the
        errors of writing a file.
        """
        folder, path = str(path).endswith(("/", os.sep)) or Path(path).is_dir(), Path(path)
        if folder and left is None:
            return self._save_each(path)
        if path.suffix.lower() != ".png":
            raise Unsupported(f"{str(path)!r} does not end in .png.", remedy=f"Save the grid as {path.with_suffix('.png').name!r}.")
        grids = [self.grid()]
        if left is not None:
            if left.images.shape != self.images.shape:
                raise Unsupported(f"Images of shape {tuple(left.images.shape)} and {tuple(self.images.shape)} do not fit side by side.",
                                  remedy="Generate both with the same model and the same seeds.")
            height = len(grids[0])
            grids = [left.grid(), torch.full((height, GAP, grids[0].size(2)), WHITE, dtype=torch.uint8), grids[0]]
        with writing(path), output(path, "PNG image") as part:
            picture = _picture(torch.cat(grids, 1))
            (captioned(picture, [left.case.label, self.case.label]) if left else picture).save(part, "PNG")
        return path

    def _save_each(self, folder: Path) -> Path:
        with writing(folder, "Name another folder."):
            folder.mkdir(parents=True, exist_ok=True)
            for number, (image, label, seed) in enumerate(zip(self, self.labels, self.seeds, strict=True)):
                with output(folder / f"{slug(self.case.label)}-{number:05}-label{label}-seed{seed}.png", "PNG image") as part:
                    image.save(part, "PNG")
        return folder

    def grid(self, most: int = 0) -> Tensor:
        """Return a nearly square grid of the images, (height, width, 3) bytes.

        At most ``most`` images (0: all).
        """
        pixels = nearest_bytes(self.images[: most or None]).cpu()
        columns = math.ceil(math.sqrt(len(pixels)))
        tiles = pad(pixels, (0, 0, 0, 0, 0, 0, 0, -len(pixels) % columns), value=WHITE)
        _, channels, height, width = tiles.shape
        return tiles.view(-1, columns, channels, height, width).permute(0, 3, 1, 4, 2).reshape(-1, columns * width, channels)

    def _repr_png_(self) -> bytes:
        """The grid of the first images."""
        file = io.BytesIO()
        _picture(self.grid(SHOWN)).save(file, "PNG")
        return file.getvalue()

    def _repr_html_(self) -> str:
        """The grid with its method, time and bytes."""
        png = base64.b64encode(self._repr_png_()).decode()
        return (f'<figure><img alt="generated images" src="data:image/png;base64,{png}"/>'
                f"<figcaption>{escape(on_one_line(repr(self)[1:-1], 200))}</figcaption></figure>")


def _picture(grid: Tensor) -> Image.Image:
    return Image.fromarray(grid.contiguous().numpy())
