"""Arguments of public functions: unknown names are refused, and a text is a list of one."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from .errors import UnknownName, unknown

P = ParamSpec("P")
R = TypeVar("R")
TERMS = {name: f"terms=cm.Terms({name}=…)" for name in ("minutes", "delta", "aa")}  # what comparisons take instead of options
NO_HINTS: Mapping[str, str] = MappingProxyType({})

OTHER_NAMES = {  # of arguments, in other libraries and singular or plural
    "prompts": "prompt text texts caption captions",
    "labels": "label class_label class_labels class_id class_ids classes y",
    "seeds": "seed generator n num_images num_images_per_prompt num_samples num_return_sequences num_seeds images samples count limit",
    "guidance": "cfg cfg_scale guidance_scale cfg_weight",
    "batch": "batch_size bs",
    "method": "methods name cache press past_key_values",
    "methods": "method name cache caches press",
    "budget": "budgets ratio keep fraction",
    "budgets": "budget ratio ratios keep fraction",
    "model": "models name model_name",
    "models": "model",
    "name": "model model_name repo pretrained_model_name_or_path",
    "weights": "checkpoint ckpt path pretrained",
    "dtype": "torch_dtype precision",
    "device": "device_map machine gpu",
    "machine": "device gpu",
    "decoder": "decoders",
    "codec": "codecs quantization",
    "grid": "size height width resolution",
    "plugins": "plugin file files",
    "store": "db database",
    "seconds": "time minutes budget limit",
    "run": "number id",
    "path": "output out file",
}


def refusal(call: str, name: str, known: Iterable[str], hints: Mapping[str, str] = NO_HINTS) -> UnknownName:
    """Return the error for an argument that ``call`` does not have.

    ``hints``: what to write instead, by name. Otherwise the known argument of another name, or the nearest one.
    """
    names = [*known]
    instead = hints.get(name) or next((f"{ours}=" for ours in names if name in OTHER_NAMES.get(ours, "").split()), "")
    if instead:
        return UnknownName(f"{call} has no argument {name!r}.", remedy=f"Write {instead}.")
    return unknown(f"argument of {call}", name, names)


def strict(call: str, hints: Mapping[str, str] = NO_HINTS) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises :func:`refusal` for unknown keyword arguments, not TypeError."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code: Any = inspect.unwrap(function).__code__
        known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name not in ("self", "cls")]

        @functools.wraps(function)
        def checked(*args: P.args, **arguments: P.kwargs) -> R:
            for name in arguments:
                if name not in known:
                    raise refusal(call, name, known, hints)
            return function(*args, **arguments)

        return checked

    return decorate


def listed(value: Any) -> tuple[Any, ...]:
    """Return a sequence as a tuple, a single object or text as a tuple of one, and None as ()."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable) else tuple(value)


class Hinted:
    """A class whose unknown attributes name what to write instead: ``_instead`` maps guesses to that."""

    _instead: Mapping[str, str] = NO_HINTS

    def __getattr__(self, name: str) -> Any:
        hint = f" Write {self._instead[name]}." if name in self._instead else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.{hint}", name=name, obj=self)
