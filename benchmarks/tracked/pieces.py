"""Hot functions of generations with the bundled models, each as a call that can be repeated.

A generation runs until the first call of the function and stops there, so that the call has real arguments and can be repeated. If a call
changes the cache, the number of live entries is reset; the storage after them then has other contents, which take the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.attention import attention
from cachemark.contract.method import Method
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS

SEEDS = (0,)


class _Reached(Exception):
    """The generation has reached the function."""


def entry(model: str) -> ModelEntry:
    """Load a model by name."""
    found: ModelEntry = MODELS.get(model)
    return found


def built(model: str, method: str, budget: str | None = None, **parameters: Any) -> Method:
    """Return a method with the parameters of a budget, or with its own size; ``parameters`` override both."""
    cls: type[Method] = METHODS.get(method)
    layout = entry(model).shape(entry(model).presets["paper"], len(SEEDS))
    return cls.build({**(cls.parameters_for(Fraction(budget), layout) if budget else {}), **parameters})


def generation(model: str, method: Callable[[], Method], loaded: Loaded | None = None) -> Callable[[], torch.Tensor]:
    """Return a function that generates and decodes one image, with the same storage each time."""
    held, memory = loaded or entry(model).load(Request()), Memory()
    sampling, labels = entry(model).presets["paper"], torch.tensor([k % entry(model).classes for k in SEEDS])

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return held.decode(held.generator.generate(labels, SEEDS, method(), sampling, memory))

    return run


def _reach(model: str, method: Method, scope: str, due: Callable[..., bool]) -> tuple[Method, tuple[Any, ...]]:
    """Return the method and the arguments of the first call of its ``scope`` that meets ``due``."""
    cls, found = type(method), []

    def caught(self: Method, *given: Any) -> Any:
        if not due(self, *given):
            return getattr(cls, scope)(self, *given)
        found.append((self, given))
        raise _Reached

    watched = type(cls.__name__, (cls,), {scope: caught, "__module__": cls.__module__})
    seen: Any = watched(**method.parameters())
    try:
        generation(model, lambda: seen)()
    except _Reached:
        return found[0]
    raise AssertionError(f"{model} never comes to {scope} of {cls.__name__}")


def _repeated(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            work()

    return run


def line_end(method: str = "linear") -> Callable[[], None]:
    """Return the eviction at a line's end, or of one token, for tiny-llamagen at half of the cache."""
    def due(self: Any, step: Any, slots: Any) -> bool:
        return bool(slots.live_visual >= self.B + (self.evict_after == "token") and step.line < self.layout.lines)

    held, (step, slots) = _reach("tiny-llamagen", built("tiny-llamagen", method, "1/2"), "evict", due)
    live = [list(slot.live) for slot in slots.slots]
    cls: Any = type(held).__mro__[1]

    def work() -> None:
        cls.evict(held, step, slots)
        for slot, before in zip(slots.slots, live, strict=True):
            slot.live[:] = before

    return _repeated(work)


def scale_update() -> Callable[[], None]:
    """Return AMS-KV's selection and writing of entries of a scale that does not fit, for tiny-var without demanding layers."""
    held, (site, step, slot, seen) = _reach("tiny-var", built("tiny-var", "ams_kv", demanding=[]), "survivors",
                                            lambda self, site, step, slot, seen: step.count <= self.budget[site])
    live, cls = list(slot.live), type(held).__mro__[1]
    workspace = held.workspace
    assert workspace is not None

    def work() -> None:
        slot.absorb(workspace, cls.survivors(held, site, step, slot, seen))
        slot.live[:] = live

    return _repeated(work)


def selection() -> Callable[[], None]:
    """Return the computation of LazyMAR's scores, which select the computed tokens, for tiny-mar."""
    held, (step, values) = _reach("tiny-mar", built("tiny-mar", "lazymar"), "scores", lambda self, step, values: True)
    cls: Any = type(held).__mro__[1]
    return _repeated(lambda: cls.scores(held, step, values))


def read() -> Callable[[], None]:
    """Return one attention of a new token to half an image, for tiny-llamagen's full cache."""
    held, (site, _, q, *_) = _reach("tiny-llamagen", built("tiny-llamagen", "full"), "attend",
                                         lambda self, site, step, q, k, v: step.index == self.layout.visual // 2)
    slot = held.slots[site]
    return _repeated(lambda: attention(q, slot))


def page(cases: int = 24) -> Callable[[], None]:
    """Return the creation of a report with invented cases, from outcomes to HTML."""
    from cachemark.analysis import report_view
    from cachemark.core.result import Environment, Outcome, Status
    from cachemark.core.spec import Case, Sampling
    from cachemark.report.page import render
    from cachemark.store.rows import RunRecord

    base = Case("invented", "9c2e5b71d0aa44f3", (16, 16), "classes-10", Sampling(), "full", role="baseline")
    candidates = [replace(base, method=f"method-{k}", budget="1/2", role="candidate") for k in range(cases - 1)]
    outcomes = [
        Outcome(case, Status.OK, {"latency": [1.0, 1.1, 0.9], "kv_allocated": [1e6], "kl": [0.1 * (k % 7)] * 32, "psnr": [20.0 + k] * 32})
        for k, case in enumerate((base, *candidates))]
    run = RunRecord(1, "invented", {}, "2026-03-05T09:14:22+00:00", None, "finished", Environment("CPU", "cpu", "f"), {})
    return lambda: void(render.render(report_view.build(run, outcomes)))


def void(_: object) -> None:
    """Do nothing."""


PIECES: dict[str, Callable[[], Callable[[], None]]] = {
    "evict at a line's end": line_end, "ams_kv update of a scale": scale_update, "lazymar selection": selection,
    "attention of one token": read, "report of 24 cases": page,
}
