"""Masked cells: methods × modes × codec, on a tiny MAR with random weights."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.codec import Codec
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Site, Step
from cachemark.contract.method import Method
from cachemark.kit import masked as kit
from cachemark.kit.common import KitRun
from cachemark.kit.driver import Onlooker
from cachemark.kit.masked import CONFIG
from cachemark.kit.oracle import masked

from .cells import ALONE, modes_of

OFF = dict.fromkeys(("token_cache", "condition_cache", "encoder_cache", "head_cache"), False)
SCHEDULE = {"schedule": "published", "start": 2, "period": 5, "layer": 1, "table": [0.6] * 4 + [0.4] * 4, "extra": 1}
# Modes of a method, all with passes that leave tokens behind or rows out.
MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "disa": ({"most": 1.0, "least": 0.5}, {"most": 1.0, "annealing": "two-stage", "steps": 5}),
    "fewer_steps": ({"steps": 5}, {"steps": 6, "head_annealing": "constant"}),
    "gtr": ({"steps": 5}, {"steps": 6, "detail": 0.4, "most": 1.0, "least": 0.5}, {"steps": 5, "stages": 2, "rate": "cosine"}),
    "halton": ({"steps": 5}, {"steps": 6, "rate": "arccos", "roll": True}, {"steps": 5, "rate": "arccos", "order": "sample"}),
    "lazymar": (SCHEDULE, *({**SCHEDULE, **OFF, switch: True} for switch in OFF), {**SCHEDULE, "select": "min-similarity"},
                {**SCHEDULE, "select": "predicted"}, {**SCHEDULE, "forced": "always"},
                {**SCHEDULE, "head_annealing": "cosine", "head_most": 1.0}),
    "marche": ({"active": 14}, {"active": 14, "refresh": "low"}, {"active": 14, "refresh": "blind"},
               {"active": 14, "encoder_cache": True, "refresh_layers": [4]}, {"active": 14, "generating": False},
               {"active": 14, "caching": False}, {"active": 14, "partitioned": True}, {"active": 1, "select_layer": 1}),
    "random_tokens": (SCHEDULE,),
    "recap": ({"full_steps": 2}, {"full_steps": 0, "partial_steps": 3}, {"full_steps": 1, "partial_steps": 2, "cache_buffer": True},
              {"full_steps": 4, "order": "sample", "head_fraction": 1.0}),
}


@dataclass(frozen=True)
class MaskedCell(kit.MaskedCell):
    """A cell whose label leaves out what is usual."""

    @property
    def label(self) -> str:
        shown_parameters = [f"{parameter}={value}" for parameter, value in self.mode if SCHEDULE.get(parameter) != value]
        return "-".join([self.cls.name, *shown_parameters, self.codec]).replace(" ", "")


def cells() -> list[MaskedCell]:
    """Return a method's first mode with every codec, the others with the native one."""
    return [MaskedCell(cls, mode, codec) for cls, number, mode in modes_of(lambda cls: "masked" in cls.paradigms, MODES)
            for codec in ALONE if codec == "native" or number == 0]


class SkipShadow(Onlooker):
    """Oracle for skipped tokens: fp64 attention over the last keys and values of every token.

    ``worst``: the greatest deviation. ``skipped``: tokens that were not computed, all sites together. ``chosen``: positions computed in
    each partial pass, ``forced``: those predicted in it or the previous one.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec, self.worst, self.skipped = codec, 0.0, 0
        self.chosen, self.forced = dict[int, Tensor](), dict[int, Tensor]()
        self._kept: dict[Site, tuple[Tensor, Tensor]] = {}
        self._places: Tensor | None = None
        self._since_full: list[Tensor] = []  # positions predicted since the last full pass, of each pass

    def before(self, method: Method, site: Site, step: Step) -> None:
        self._places = self.places(method, site, step)

    def places(self, method: Any, site: Site, step: Step) -> Tensor | None:
        """Where the tokens of this pass stand: (rows, m), None for all of the decoder's."""
        if site.stack == "decoder":
            return method.chosen if getattr(method, "rest", None) is not None else None
        fresh = getattr(method, "encoder", None) is not None and not method.full[step.index]
        whole_group = method.name == "recap"
        if site.layer == 0:
            self._since_full = [*(self._since_full if fresh and whole_group else ()), *((step.previous,) if fresh else ())]
        known = torch.cat(self._since_full, 1).sort(1).values if fresh else step.known
        buffer = torch.arange(0 if fresh and getattr(method, "cache_buffer", False) else CONFIG.buffer).expand(len(known), -1)
        return torch.cat((buffer, CONFIG.buffer + known), 1)

    def after(self, method: Any, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        layout = method.layout
        if site.stack == "decoder" and getattr(method, "rest", None) is not None:
            self.chosen[step.index] = method.chosen
            self.forced[step.index] = CONFIG.buffer + torch.cat((step.generating, step.previous), 1)[: len(q)]
        shape = (layout.rows, k.size(1), layout.places, k.size(3))
        keys, values = self._kept.setdefault(site, (torch.full(shape, float("nan")), torch.full(shape, float("nan"))))
        rows, places = len(q), torch.arange(layout.places).expand(len(q), -1) if self._places is None else self._places[: len(q)]
        at = places[:, None, :, None].expand(-1, k.size(1), -1, k.size(3))
        keys[:rows].scatter_(2, at, k)
        values[:rows].scatter_(2, at, v)
        live = torch.ones(rows, layout.places, dtype=torch.bool)
        if site.stack == "encoder":
            live = torch.zeros_like(live).scatter(1, CONFIG.buffer + step.known[:rows], True)
            live[:, : CONFIG.buffer] = True
        expected = masked(q, keys[:rows].nan_to_num(), values[:rows].nan_to_num(), live[:, None, None])
        self.worst = max(self.worst, float((expected - out.double()).abs().max()))
        self.skipped += int(live.sum()) - places.numel()
        for kept, part in ((keys, k), (values, v)):
            kept[:rows].scatter_(2, at, self.codec.decode(self.codec.encode(part), layout.dtype))


def run(cell: MaskedCell) -> tuple[KitRun, SkipShadow]:
    shadow = SkipShadow(CODECS[cell.codec])
    return cell.run(cell.tight(), shadow, bare=True), shadow


@functools.cache
def recorded(cell: MaskedCell) -> tuple[KitRun, SkipShadow]:
    return run(cell)
