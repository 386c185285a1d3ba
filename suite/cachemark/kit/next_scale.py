"""Next-scale cells: one method in one mode, with one codec, driven by random queries, keys and values."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step, scale_steps
from ..contract.method import Method
from .common import MethodCell, Poison, calibration
from .driver import Onlooker, Outputs, watched
from .oracle import TOLERANCE, Apart, apart, masked

SIDES = (1, 2, 3, 4, 5, 6)  # 91 tokens, of which later passes read 55
HEADS, LAYERS, DIM = 4, 3, 16
KV_HEADS = {"mha": 4, "gqa": 1}
DEMANDING, UNDEMANDING = -0.02, -0.004  # on either side of AMS-KV's threshold
BUDGET = Fraction(7, 11)  # 35 of 55: from the fourth scale on something has to go


def layout_of(kv_heads: int = 4, rows: int = 3, sides: Sequence[int] = SIDES, layers: int = LAYERS, heads: int = HEADS) -> Layout:
    """A next-scale layout; each row is a sample of its own."""
    seeds = tuple(range(100, 100 + rows))
    return Layout("next-scale", (0,) * rows, 0, 0, heads, kv_heads, DIM, layers, seeds, (0,) * rows, scales=tuple(sides))


class ScaleFeed:
    """Queries, keys and values of every pass and site, drawn once, for rows that may be fed in another order."""

    def __init__(self, layout: Layout, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.rows: list[int] = list(range(layout.rows))
        self.tokens: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        for step in scale_steps(layout):
            for layer in range(layout.layers):
                q, k, v = (torch.randn(layout.rows, heads, step.count, layout.head_dim, generator=draw)
                           for heads in (layout.heads, layout.kv_heads, layout.kv_heads))  # fmt: skip
                self.tokens[step.index, layer] = 1.5 * q, k, v

    def at(self, step: Step, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """Those of a pass and a site."""
        q, k, v = (part[self.rows] for part in self.tokens[step.index, site.layer])
        return q, k, v


def drive(method: Method, layout: Layout, feed: ScaleFeed, memory: Memory) -> Outputs:
    """Run all passes; what attention gave at each pass and site."""
    sites = [Site("decoder", layer) for layer in range(layout.layers)]
    method.begin(layout, sites, memory)
    out: Outputs = {}
    with torch.inference_mode():
        for step in scale_steps(layout):
            for site in sites:
                if method.needs_raw_queries:
                    method.observe_raw(site, step, feed.at(step, site)[0].flip(-1))
                out[step.index, site] = method.attend(site, step, *feed.at(step, site))
            method.end_step(step)
    return out


def made_up(layout: Layout) -> dict[str, Any]:
    """Inter-scale similarity of a model that nobody has measured: every second layer is demanding to AMS-KV."""
    return {"similarity": [[DEMANDING if layer % 2 else UNDEMANDING] * (len(layout.scales) - 1) for layer in range(layout.layers)]}


@dataclass(frozen=True)
class ScaleCell(MethodCell):
    """One method in one mode, with one codec, on one kind of attention and size of layout."""

    sides: tuple[int, ...] = SIDES
    layers: int = LAYERS
    heads: int = HEADS

    @property
    def size(self) -> str:
        return f"{self.blocks(self.layers, self.heads)}, scales {', '.join(map(str, self.sides))}, codec {self.codec}"

    @property
    def seeds(self) -> Sequence[int]:
        return self.layout.seeds

    @property
    def layout(self) -> Layout:
        """Shape of its reference run."""
        return layout_of(1 if self.attention == "gqa" else self.heads, sides=self.sides, layers=self.layers, heads=self.heads)

    @property
    def online(self) -> bool:
        """True of a mode that decides while images are made."""
        return dict(self.mode).get("decide") == "online"

    def knobs(self, budget: Fraction) -> dict[str, Any]:
        """Those of a budget, and the mode's."""
        given = {**calibration(self.cls, self.layout), **dict(self.mode)}
        asked = {} if {"c_min", "c_max"} & given.keys() else self.cls.build(given).fit(budget, self.layout)
        return {**asked, **given}

    def at(self, budget: Fraction, neutral: Mapping[str, Any] | None = None) -> Method:
        """The method at a budget, with the knobs of its mode and those that make it ``neutral``; what it would fill in from a measurement
        follows from made-up facts."""
        method = self.cls.build({**self.knobs(budget), **(neutral or {})})
        if self.cls.profiler() is not None:
            method.calibrate(made_up(self.layout))
            method.resolve(self.layout)
        return method

    def tight(self) -> Method:
        """The method at a budget that makes it work."""
        return self.at(BUDGET if self.cls.evicts else Fraction(1))

    # -- what the checks ask of a run; a cell of a method whose heads differ answers otherwise -------------------------
    def run(self, method: Method, *watches: Onlooker, memory: Memory | None = None, feed: ScaleFeed | None = None,
            layout: Layout | None = None) -> Any:  # fmt: skip
        """Drive a method, recorded and shadowed."""
        return run(self, method, *watches, memory=memory, feed=feed, layout=layout)

    @property
    def reference(self) -> Any:
        """The recorded run at the tight budget."""
        return recorded(self)

    def poison(self) -> Onlooker:
        """The watch that spoils storage beyond the live entries."""
        return Poison()

    def declared(self, method: Method) -> dict[Site, int]:
        """The entries of all heads of each site that the method declares, in one row."""
        return {site: method.layout.kv_heads * method.capacity(method.layout, site) for site in method.slots}

    def contents(self, record: Any) -> list[dict[Site, list[Tensor]]]:
        """After each pass the visual tokens of each head of each site, (rows, live)."""
        return [{site: list(numbers.long().unbind(1)) for site, numbers in sites.items()} for sites in record.contents]

    def expects_full_use(self, method: Method) -> bool:
        """True where the fullest pass must fill what is declared."""
        return self.cls.evicts and hasattr(method, "B")


class ScaleShadow(Onlooker):
    """Evicting equals masking: keeps all keys and values as the codec would hold them, and answers by a plain fp64 softmax that
    hides what the method did not hold before the pass. What is held is read from ``slot.visual``; where a key lies is never asked."""

    def __init__(self) -> None:
        self.worst, self.largest, self.hidden = 0.0, 0.0, 0
        self.first: Apart | None = None
        self._kept: dict[Site, tuple[Tensor, Tensor]] = {}
        self._visible: Tensor | None = None

    def before(self, method: Method, site: Site, step: Step) -> None:
        slot = method.slots[site]
        held = slot.visual[..., : slot.live[0]].long()
        self._visible = torch.zeros(*held.shape[:2], step.first, dtype=torch.bool).scatter_(-1, held, True)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        assert self._visible is not None
        codec, dtype = method.slots[site].bank.codec, method.layout.dtype
        before = self._kept.get(site, (k[:, :, :0], v[:, :, :0]))
        keys, values = (torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True))
        seen = torch.cat((self._visible, torch.ones(*self._visible.shape[:2], step.count, dtype=torch.bool)), -1)
        seen = seen & self.looked(method, step, seen.size(-1))
        self.hidden += int((~seen).sum())
        expected = masked(q, keys, values, seen[:, :, None])
        self.largest = max(self.largest, float(expected.abs().max()))
        self.worst = max(self.worst, float((expected - out.double()).abs().max()))
        self.first = self.first or apart(expected, out.double(), step, site, TOLERANCE)
        rounded = (codec.decode(codec.encode(part), dtype) for part in (k, v))
        self._kept[site] = tuple(torch.cat(pair, 2) for pair in zip(before, rounded, strict=True))  # type: ignore[assignment]

    @staticmethod
    def looked(method: Method, step: Step, tokens: int) -> Tensor:
        """Tokens that the method looks at of those that it holds: all, but for the ablation that hides a group of scales."""
        groups = [getattr(method, "group", lambda *_: "")(scale, step.index) for scale in range(step.scale)]
        sizes = torch.tensor([side**2 for side in method.layout.scales[: step.scale]])
        return torch.tensor([group != getattr(method, "remove", None) for group in groups]).repeat_interleave(sizes)[:tokens]


@dataclass
class ScaleRecord(Onlooker):
    """Live entries of each site after each pass, and what they are."""

    live: list[dict[Site, int]] = field(default_factory=list)
    contents: list[dict[Site, Tensor]] = field(default_factory=list)

    def settled(self, method: Method, step: Step) -> None:
        self.live.append({site: slot.live[0] for site, slot in method.slots.items()})
        self.contents.append({site: slot.visual[..., : slot.live[0]].clone() for site, slot in method.slots.items()})


@dataclass
class ScaleRun:
    """A driven generation."""

    out: Outputs
    method: Method
    memory: Memory
    record: ScaleRecord
    shadow: ScaleShadow


def run(cell: ScaleCell, method: Method, *watches: Onlooker, memory: Memory | None = None, feed: ScaleFeed | None = None,
        layout: Layout | None = None) -> ScaleRun:  # fmt: skip
    """Drive a method, recorded and shadowed."""
    memory, record, shadow, layout = memory or cell.memory(), ScaleRecord(), ScaleShadow(), layout or cell.layout
    seen = watched(method, shadow, record, *watches)
    out = drive(seen, layout, feed or ScaleFeed(cell.layout), memory)
    return ScaleRun(out, seen, memory, record, shadow)


@functools.cache
def recorded(cell: ScaleCell) -> ScaleRun:
    """The reference run of a cell at its tight budget."""
    return run(cell, cell.tight())
