"""Image generators of the transformers library that a cache can be attached to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..cache.layout import Layout
from ..core.errors import BadParameter, Unsupported

LEAST = (5, 5)  # before, image generation with Janus fed the whole prompt at every step
INSTALL = "Install it with: pip install 'cachemark[attach]'."


@dataclass(frozen=True)
class SupportedModel:
    """A supported class of models.

    ``decoder``: path of its decoder. ``branches``: 2 if a batch contains the unconditional rows. ``closing``: tokens that may follow the
    image; all but the last are fed. ``line_end``: each line ends with an end-of-line token. ``text``: path of the module that only text
    generation runs, if any.
    """

    decoder: str
    branches: int = 1
    closing: int = 0
    line_end: bool = False
    text: str = ""

    def layout(self, model: Any, grid: tuple[int, int] | None) -> Layout:
        """Return the layout of one image of ``grid`` = (height, width) tokens.

        Raise BadParameter for an unusable grid.
        """
        config = model.get_submodule(self.decoder).config
        lines, line = self._grid(model, grid)
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Layout("next-token", (1,) * self.branches, lines, line + self.line_end, heads, config.num_key_value_heads or heads, head_dim,
                      config.num_hidden_layers, line_ends=self.line_end)

    def _grid(self, model: Any, grid: tuple[int, int] | None) -> tuple[int, int]:
        if grid is not None and not (isinstance(grid, tuple | list) and [type(side) for side in grid] == [int, int]):
            raise BadParameter(f"grid = {grid!r} is not a size.", remedy="Use two numbers of tokens, (height, width).")
        if not self.line_end:
            side = math.isqrt(model.config.vision_config.num_image_tokens)
            if grid is not None and tuple(grid) != (side, side):
                raise BadParameter(f"grid = {tuple(grid)} does not fit this model.",
                                   remedy=f"Leave it out: images have {side}×{side} tokens.")
            return side, side
        if grid is None:
            raise BadParameter(f"{type(model).__name__} generates images of any size.",
                               remedy="Pass the size in tokens: grid = (height, width).")
        if min(grid) < 1:
            raise BadParameter(f"grid = {tuple(grid)} is out of range.", remedy="Use a height and a width of at least 1 token.")
        return grid


FAMILIES = {
    "JanusForConditionalGeneration": SupportedModel("model.language_model", branches=2, text="model"),
    "Emu3ForConditionalGeneration": SupportedModel("model.text_model", closing=3, line_end=True),
}


def require_transformers() -> None:
    """Raise Unsupported without a usable version of transformers."""
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        raise Unsupported("attach needs the library transformers, which is not installed.", remedy=INSTALL) from None
    if tuple(int(part) for part in installed.split(".")[:2]) < LEAST:
        raise Unsupported(f"attach needs transformers {'.'.join(map(str, LEAST))} or newer (got {installed}).", remedy=INSTALL)


def entry_of(model: Any) -> SupportedModel:
    """Return the entry of a model. Raises Unsupported for classes that are not supported."""
    for cls in type(model).__mro__:
        if cls.__name__ in FAMILIES:
            return FAMILIES[cls.__name__]
    raise Unsupported(f"A cache cannot be attached to {type(model).__name__}.", remedy=f"Supported: {', '.join(FAMILIES)}.")
