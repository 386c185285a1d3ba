"""Decoders of a plan: parameters, and why one, or a codec, cannot run with a method and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cache.codec import Codec
from ..cache.codecs import codec
from ..cache.layout import Layout
from ..contract.decoder import Decoder, beyond, check_fronts, horizon, widest
from ..contract.method import Method
from ..core.errors import BadBudget, BadParameter, Unsupported
from ..core.spec import FULL, SEQUENTIAL, Case
from ..core.units import is_finite
from ..core.wording import shown
from ..decoders.registry import DECODERS
from ..plugins import loading as plugins
from .schema import MethodTable

NAMING = ("name", "variant")  # keys of a case's decoder that are no parameters
LARGEST_PARAMETER = 1e15  # floats and tensors represent every integer up to this one
BATCHES = 16  # at most this many batches are timed under a decoder, whose time depends on the images


def resolved_decoder(decoder_table: str | MethodTable) -> dict[str, Any]:
    """Return a decoder as a case stores it: name, parameters and variant; empty for the sequential one.

    Raises UnknownName and BadParameter."""
    table = MethodTable(name=decoder_table) if isinstance(decoder_table, str) else decoder_table
    cls: type[Decoder] = DECODERS.get(table.name)
    check_numbers(cls.name, parameters := table.model_extra or {})
    decoder = cls.build(parameters)
    decoder.check()
    if wrong := plugins.unusable(decoder.parameters()):
        raise BadParameter(f"{cls.name}: {wrong}.", remedy=plugins.PARAMETERS)
    if cls.name == SEQUENTIAL:
        return {}
    return {"name": cls.name, **decoder.parameters(), **({"variant": table.variant} if table.variant else {})}


def check_model(cls: type[Method], layout: Layout) -> None:
    """Raise BadBudget for a method that does not run on a model of this layout."""
    if layout.paradigm not in cls.paradigms:
        raise BadBudget(f"{cls.name} does not run on {layout.paradigm} models.", remedy=f"It runs on: {', '.join(cls.paradigms)}.")
    if layout.drafter is not None and cls.name != FULL:
        raise BadBudget(f"{cls.name} does not run on a composite model, whose two models have caches of their own.",
                        remedy="Run it on one of the two models.")


def check_numbers(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise BadParameter for an infinite or too large number among the parameters of a plan."""
    for parameter, value in parameters.items():
        if isinstance(value, int | float) and not (is_finite(value) and abs(value) <= LARGEST_PARAMETER):
            problem = f"beyond ±{LARGEST_PARAMETER:g}" if is_finite(value) else "not finite"
            raise BadParameter(f"{name}: {parameter} = {shown(value, 20)} is {problem}.", remedy="Use a smaller number.")


def decoder_class(case: Case) -> type[Decoder]:
    """Return the class of a case's decoder."""
    cls: type[Decoder] = DECODERS.get(case.decoder.get("name", SEQUENTIAL))
    return cls


def refused_decoder(case: Case, cls: type[Method], parameters: Mapping[str, Any], layout: Layout) -> str:
    """Return the reason why a case's decoder cannot run with a method, or an empty text."""
    if not case.decoder:
        return ""
    name = case.decoder["name"]
    if layout.paradigm != "next-token":
        return f"{name} generates several tokens per pass instead of one, and a {layout.paradigm} model generates many anyway"
    if case.engine == "reference":
        return f"{name} generates several tokens per pass, and the reference engine runs the full cache like papers' code, one at a time"
    if codec(case.codec).grouped:
        return f"{case.codec} gives keys a range by groups of tokens that stay, and {name} feeds tokens that may not; int8 and int4 do not"
    decoder = decoder_class(case).build({parameter: value for parameter, value in case.decoder.items() if parameter not in NAMING})
    try:
        if check_fronts(decoder, method := cls.build(parameters), layout):
            return ""
    except (BadParameter, Unsupported) as error:
        return str(error)
    if widest(method, layout) == 1:
        return f"{cls.name} states no horizon, so it runs one token per pass, and {name} cannot draft ahead"
    firsts = range(layout.visual)
    if all(horizon(method, first) >= layout.visual - first for first in firsts) or any(beyond(method, first) for first in firsts):
        return ""
    if decoder.ahead:
        return f"{cls.name} allows nothing to be fed beyond its horizon, so look_ahead of {name} has no effect"
    return ""


def refused_codec(stored: Codec, layout: Layout) -> str:
    """Return the reason why a codec cannot store a model's keys and values, or an empty text."""
    if stored.grouped and layout.paradigm != "next-token":
        return f"{stored.name} groups keys in the order of their arrival, which only next-token models have; int4 stores each by itself"
    try:
        stored.widths(layout.head_dim, layout.dtype)
    except Unsupported as error:
        return str(error)
    return ""
