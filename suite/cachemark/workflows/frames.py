"""Lists and estimates as pandas frames, for notebooks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..core.calls import listed, strict
from ..core.errors import Unsupported
from .session import DEFAULT_STORE, Machine

if TYPE_CHECKING:
    from ..plans.schema import Plan
    from .list import Kind


class NothingStored(UserWarning):
    """An answer without a result of the model, whose table is empty."""


def _listing(kind: Kind, plugins: Sequence[str | Path], model: str = "") -> pd.DataFrame:
    from .list import listing

    return pd.DataFrame(listing(kind, plugins=plugins, model=model)).set_index("name")


@strict("methods")
def methods(model: str = "", *, plugins: Sequence[str | Path] = ()) -> pd.DataFrame:
    """Return the cache methods by name: summary, source, parameters and paradigms.

    ``model``: only those that run on it. Raises UnknownName for another model.
    """
    frame = _listing("methods", plugins, model)
    return frame[frame["unsupported_reason"] == ""].drop(columns="unsupported_reason") if model else frame


@strict("models")
def models(*, plugins: Sequence[str | Path] = ()) -> pd.DataFrame:
    """Return the models by name: summary, family, grid, presets and bytes of the full cache."""
    return _listing("models", plugins)


@strict("plans")
def plans() -> pd.DataFrame:
    """Return the shipped plans by name: group, summary, and estimated hours, memory and weights."""
    return _listing("plans", ())


@strict("score", {"reference": "against=", "real": "against=", "batch_size": "no batch; it is chosen"})
def score(
    images: str | Path, against: str | Path = "", *, preset: str = "", weights: str | Path = "", prompts: str | Path = "",
    metrics: Sequence[str | tuple[str, Mapping[str, str]]] = (), grid: str | Path = "", device: str = "cpu",
    unpaired: bool = False,
) -> pd.DataFrame:
    """Score images of any tool, and return the values by metric with the ends of their 95 % intervals.

    Arguments and errors are those of :func:`cachemark.workflows.score.score`; ``images`` come first, then the reference.
    ``attrs["absent"]`` has the reasons for missing values, ``attrs["pairs"]`` the values of each pair, and ``attrs["notes"]`` doubts.
    """
    from .score import Score, score as scored

    if unread := [each for each in (images, against) if not isinstance(each, str | os.PathLike)]:
        raise Unsupported(f"score reads files, not {type(unread[0]).__name__}.",
                          remedy='Write them first, and pass the name: images.save("folder/") of generated images, or '
                                 'np.savez("samples.npz", array) of an array of bytes (N, H, W, 3).')
    named = [(each, {}) if isinstance(each, str) else each for each in listed(metrics)]
    scores = scored(images, against, preset_name=preset, weights=weights, grid=grid, device=device, prompts=prompts, metrics=named,
                    unpaired=unpaired)
    fields = [*Score.__dataclass_fields__]
    frame = pd.DataFrame([asdict(value) for value in scores.values.values()], index=pd.Index(scores.values, name="metric"), columns=fields)
    pairs = [{"name": pair.name, **pair.values} for pair in scores.pairs]
    frame.attrs = {"absent": dict(scores.absent), "notes": list(scores.notes), "pairs": pairs, "preset": scores.preset}
    return frame


@strict("price", {"on": "card=", "gpu": "card="})
def price(
    plan: Plan | str | Path, store: str | Path | None = None, *, machine: Machine | str = "cpu", card: str = "",
    plugins: Sequence[str | Path] = (), methods: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the estimated cost of a plan by model: cases, device hours, bytes of disk and memory.

    ``attrs`` has the number of cases, those to run, missing files and the free disk. See :func:`cachemark.workflows.price.price_list`.
    """
    from .price import price_list

    costs = price_list(plan, store, machine=machine, on=card, plugins=plugins, methods=methods)
    frame = pd.DataFrame([asdict(each) for each in costs.models]).set_index("model")
    frame.attrs = {name: value for name, value in vars(costs).items() if name != "models"} | {"hours": costs.hours}
    return frame


@strict("advise", {"gpu": "card="})
def advise(
    model: str, card: str, *, batch: int = 1, memory: int = 0, max_loss: float | None = None, store: str | Path | None = DEFAULT_STORE,
    plugins: Sequence[str | Path] = (),
) -> pd.DataFrame:
    """Return the methods for a model on a card, the best first; ``attrs["text"]`` is the recommendation.

    ``memory``: bytes (0: all of the card). Without a stored result of the model there is no method, and the text is a warning. See
    :func:`cachemark.workflows.advise.advise`.
    """
    from .advise import AdvisedMethod, Wishes, advise as answer

    advice = answer(Wishes(model, card, batch, memory, max_loss), store, plugins=plugins)
    lines: list[Any] = [*advice.ranked, *advice.not_recommended]
    frame = pd.DataFrame([asdict(line) for line in lines], columns=[*AdvisedMethod.__dataclass_fields__])
    frame.insert(0, "recommended", [*(True for _ in advice.ranked), *(False for _ in advice.not_recommended)])
    if not lines:
        call = f'cm.run("{advice.plan}")' if advice.plan else f'cm.measure("{model}", methods=[…])'
        warnings.warn(f"{advice.text} To measure it: {call}", NothingStored, stacklevel=3)  # the caller's line
    frame.attrs = {"text": advice.text, "recommended": advice.recommended}
    return frame


@strict("roofline", {"gpu": "card=", "batch": "batches="})
def roofline(
    model: str, card: str = "h200", *, methods: Sequence[str] = (), budgets: Sequence[str] = (), batches: int | Sequence[int] = 1,
    dtype: str = "bfloat16",
) -> pd.DataFrame:
    """Return bounds on speed by method, budget and batch, from data sheets of a card and arithmetic alone."""
    from .roofline import device_rates, roofline_times

    rates = device_rates(card, dtype)
    rows = roofline_times(model, rates, methods=listed(methods), budgets=listed(budgets), batches=listed(batches), dtype=dtype)
    return pd.DataFrame([asdict(row) for row in rows])
