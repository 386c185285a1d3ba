"""Run a model of the transformers library with one of the cache methods."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..adapters.decoding import MethodDecoding
from ..adapters.families import entry_of, require_transformers
from ..contract.method import Method
from ..core.calls import refusal
from ..core.errors import Unsupported
from ..core.spec import FULL, Budget
from ..methods.registry import METHODS
from ..plans.expand import resolve
from ..plugins import loading as plugins
from . import arguments

if TYPE_CHECKING:
    from ..adapters.transformers_cache import AttachedCache

OUTER = ("stack", "block")  # scopes that other libraries' blocks do not call


def attach(
    model: Any, method: str | Method | type[Method] = FULL, budget: str | float | None = None, *, grid: tuple[int, int] | None = None,
    **parameters: Any,
) -> AbstractContextManager[AttachedCache]:
    """Return a context manager inside which ``model.generate`` runs with a cache method.

    Its value is the cache to pass as ``past_key_values``, or as ``cache``, its name since transformers 5.24::

        with cm.attach(model, "linear", budget="1/4") as cache:
            tokens = model.generate(**inputs, generation_mode="image", past_key_values=cache)

    ``model``: a ``JanusForConditionalGeneration`` (image mode) or ``Emu3ForConditionalGeneration`` of transformers ≥ 5.5. ``budget``:
    fraction of the full cache that is kept (default: 1/2). ``grid``: size of the image in tokens, (height, width), for models that generate
    any size. ``parameters``: parameters of the method. After the block the model is unchanged. Raises UnknownName, BadBudget, BadParameter,
    and Unsupported for another model or a method that is not for next-token models.
    """
    entry = entry_of(model)
    require_transformers()
    from ..adapters.transformers_cache import AttachedCache  # needs transformers

    layout = entry.layout(model, grid)
    table = arguments.method_table(method) | parameters
    cls: type[Method] = METHODS.get(table.pop("name"))
    for name in table:
        if name not in cls.parameter_names():
            raise refusal(f"attach with {cls.name}", name, ["method", "budget", "grid", *cls.parameter_names()])
    build = partial(cls.build, _parameters(cls, budget, layout, table))
    decoder = model.get_submodule(entry.decoder)
    if len(devices := {str(parameter.device) for parameter in decoder.parameters()}) > 1:
        raise Unsupported(f"The decoder is spread over {', '.join(sorted(devices))}.", remedy="Load it on one device.")
    decodings = [MethodDecoding(build, layout, entry.branches, branch, entry.closing) for branch in range(3 - entry.branches)]
    return AttachedCache(*decodings).attached_to(model, decoder, model.get_submodule(entry.text) if entry.text else None)


def _parameters(cls: type[Method], budget: str | float | None, layout: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of a method that attention alone can run. Raises Unsupported for others."""
    if layout.paradigm not in cls.paradigms:
        raise Unsupported(f"{cls.name} is a method for {' and '.join(cls.paradigms)} models, and this model predicts the next token.",
                          remedy=f"Use one of: {', '.join(name for name in METHODS if layout.paradigm in METHODS.get(name).paradigms)}.")
    if overridden := [scope for scope in OUTER if getattr(cls, scope) is not getattr(Method, scope)]:
        raise Unsupported(f"{cls.name} overrides {' and '.join(overridden)}, which attach cannot run.",
                          remedy="Use a method that overrides attend or an inner scope.")
    if budget is None:
        budget = 1 if cls.name == FULL else "1/2"
    with plugins.answering(cls):
        return resolve(cls, Budget.parse(budget), layout, parameters)

