"""Models by name; looking up a model imports its file of the catalogue."""

from __future__ import annotations

from ..core.registry import Registry
from .protocol import ModelEntry

CATALOGUE = {  # file of models/catalogue: the models that it registers
    "composites": tuple(f"{pair}-n{drafted}" for pair, numbers in (("tiny-var+d2", "567"), ("var-d30+d16", "6789")) for drafted in numbers),
    "masked_models": ("mar-b", "mar-h", "mar-l", "tiny-mar"),
    "next_scale": ("tiny-var", "tiny-var-d2", "var-d16", "var-d20", "var-d24", "var-d30", "var-d36-512"),
    "next_token": ("llamagen-3b", "llamagen-b", "llamagen-l", "llamagen-xl", "llamagen-xxl", "tiny-llamagen"),
    "text_to_image": (
        "emu3-gen", "glm-image", "infinity-2b", "infinity-2b-256", "infinity-2b-512", "infinity-8b", "infinity-8b-512", "janus-pro-1b",
        "janus-pro-7b", "llamagen-t2i-256", "llamagen-t2i-512", "lumina-mgpt-7b-1024", "lumina-mgpt-7b-768", "tiny-t2i",
    ),
}
MODELS: Registry[ModelEntry] = Registry(
    "model", ModelEntry, built_in={name: f"{__package__}.catalogue.{file}" for file, names in CATALOGUE.items() for name in names})
model = MODELS.add
"""Registers the entry of a model: ``model("mine")(ModelEntry(...))``."""
