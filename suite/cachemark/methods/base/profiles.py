"""Profiles: the full cache, measuring facts for the calibration of methods. Not meant for benchmarks.

One instance serves many generations and averages over their rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cache.arena import Memory
from ...cache.attention import fold
from ...cache.layout import Grid, Layout, RowRun, Site, Step
from ...cache.slot import Slot
from ...contract.method import Method

RECENCY = "recency"  # a part of LineProfile
WINDOW = 8  # latest queries of a line whose mean attention concentrates, as many as Ada-KV selects by
STRONGEST = 16  # weights on earlier tokens that count in ASI; ScaleKV's K' is not stated


def rounded(values: Any, decimals: int) -> Any:
    """Round the fractions in nested lists and dictionaries."""
    if isinstance(values, dict):
        return {name: rounded(value, decimals) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value, decimals) for value in values]
    return round(values, decimals) if isinstance(values, float) else values


def stated_scales(layout: Layout) -> list[int | list[int]]:
    """Return the token maps as calibrations store them: the side of a square one, else rows and columns."""
    return [rows if rows == columns else [rows, columns] for rows, columns in layout.scales]


# -- heads of a next-scale model: HeatKV, ScaleKV, HACK and HACK++ -----------------------------------------------------
class AttentionProfile(Method):
    """Measures attention weights of every layer, head and scale over conditional rows, in fp64.

    ``parts`` names the requested facts. It computes all weights of a head in fp32: 172 MB for one row of the last scale at 1024 pixels.
    """

    def __init__(self, *parts: str) -> None:
        assert parts
        assert set(parts) <= {"scas", "mass", "variance", "asi"}, parts
        self.parts, self.rows = parts, 0

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        if not self.rows:
            scales, heads = len(layout.scales), (layout.layers, layout.kv_heads)
            self._mass, self._asi, self._variance = (torch.zeros(shape, dtype=torch.float64)
                                                     for shape in ((*heads, scales, scales), (layout.layers, scales), heads))
        self._asked = [row for row, branch in enumerate(layout.branches) if not branch]
        self.rows += len(self._asked)

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        staged = slot.live[0] == step.first  # the last scale stays in the workspace, after the others
        k, _ = (self.workspace if staged and self.workspace is not None else slot).read(slot.bank.runs[0], slot.live[0])
        sizes = list(self.layout.scale_tokens[: step.scale])
        queries = fold(q, k.size(1))
        for row in self._asked:
            for head in range(k.size(1)):
                weights = (queries[row, head].float() @ k[row, head].float().mT * q.size(-1) ** -0.5).softmax(-1)
                self._note(site.layer, head, step, weights, sizes)

    def _note(self, layer: int, head: int, step: Step, weights: Tensor, sizes: list[int]) -> None:
        """Add the weights (queries, keys) of one row."""
        shares = torch.stack([part.sum(-1).mean() for part in weights.split(sizes, -1)]).double().cpu()
        self._mass[layer, head, step.index, : step.scale] += shares
        if "asi" in self.parts and step.index:
            earlier = weights[:, : step.first]
            strongest = earlier.topk(min(STRONGEST, step.first), -1).values.sum(-1).mean()
            self._asi[layer, step.index] += float(shares[-1]) * float(strongest) / self.layout.kv_heads
        if "variance" in self.parts and step.last:
            self._variance[layer, head] += float(weights.double().var(0, correction=0).sum())

    @property
    def mass(self) -> Tensor:
        """Mean attention, (layers, heads, query scale, source scale) fp64; 0 for later sources."""
        return self._mass / self.rows

    @property
    def scas(self) -> Tensor:
        """S-CAS of HeatKV: mean attention to a scale over all later ones, (layers, heads, source scale) fp64.

        NaN for the last scale.
        """
        mass, last = self.mass, len(self.layout.scales) - 1
        later = torch.stack([mass[:, :, source + 1 :, source].sum(-1) for source in range(last + 1)], -1)
        return later / torch.tensor([*range(last, 0, -1), torch.nan], dtype=torch.float64)

    @property
    def asi(self) -> Tensor:
        """ASI of ScaleKV, (layers, query scale from the second on) fp64.

        The attention to the scale's own tokens times that to the ``STRONGEST`` earlier ones, averaged over rows and heads. Every query
        counts; the paper samples some.
        """
        return self._asi[:, 1:] / self.rows

    @property
    def variance(self) -> Tensor:
        """Variance of keys' weights over the last scale's queries, summed over keys, (layers, heads) fp64."""
        return self._variance / self.rows

    @property
    def facts(self) -> Mapping[str, Any]:
        """The requested parts as lists, with their shape; S-CAS without the last scale."""
        layout = self.layout
        parts = {part: getattr(self, part)[..., : -1 if part == "scas" else None].tolist() for part in self.parts}
        return {"layers": layout.layers, "heads": layout.kv_heads, "scales": stated_scales(layout),
                **{part: rounded(values, 9) for part, values in parts.items()}}


# -- layers of a next-scale model: AMS-KV -----------------------------------------------------------------------------
def inter_scale(k: Tensor, before: Tensor, grids: Sequence[Grid]) -> Tensor:
    """Return S of AMS-KV (Eq. 3) as minus the mean of (k − k̂)², a scalar fp32 tensor.

    The mean is over rows, heads, tokens and channels. ``k`` (rows, heads, tokens, head_dim): keys of a scale as cached, after
    normalization if any. ``before``: **all** keys of the previous scale, here resized bilinearly to the map of ``k`` (corners not aligned).
    ``grids``: of both maps, the previous one first. 0 is equal, lower is less similar. Eq. 3 prints a norm without its normalization; the
    mean square is our reading, which fits the paper's thresholds near −0.01.
    """
    def maps(x: Tensor, grid: Grid) -> Tensor:
        """Reshape (rows, heads, h·w, head_dim) to (rows·heads, head_dim, h, w) fp32."""
        return x.flatten(0, 1).transpose(1, 2).unflatten(2, grid).float()

    earlier, own = grids
    with torch.autocast(k.device.type, enabled=False):
        resized = F.interpolate(maps(before, earlier), size=own, mode="bilinear", align_corners=False)
        return -(maps(k, own) - resized).square().mean()


class ScaleProfile(Method):
    """Measures inter-scale similarity in each layer, over all rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._similarity: dict[tuple[int, int], float] = defaultdict(float)
        self._before: dict[Site, Tensor] = {}

    def begin(self, layout: Layout, sites: Sequence[Site], memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.rows += layout.rows

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if step.index:
            grids = self.layout.scales[step.index - 1 : step.scale]
            self._similarity[site.layer, step.index] += float(inter_scale(k, self._before[site], grids)) * k.size(0)
        self._before[site] = k
        return super().attend(site, step, q, k, v)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that :meth:`AMSKV.calibrate` takes."""
        return {"scales": stated_scales(self.layout), "similarity": self.similarity}

    @property
    def similarity(self) -> list[list[float]]:
        """S of every layer at scale 2, 3, …: (layers, scales − 1)."""
        scales = range(1, len(self.layout.scales))
        return [[self._similarity[layer, scale] / self.rows for scale in scales] for layer in range(self.layout.layers)]


# -- heads of a next-token model: SSD heads and Ada-KV ------------------------------------------------------------------
class LineProfile(Method):
    """Measures each head's attention to the latest or strongest visual tokens, line by line.

    Means over conditional rows, in fp64. ``parts``: ``recency``, of every query, and ``concentration``, of the mean attention of the 8
    latest queries at each line's end.
    """

    needs_mass = True

    def __init__(self, *parts: str) -> None:
        self.parts, self.rows = parts, 0

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        if not self.rows:
            self._votes = defaultdict[tuple[int, int], list[Tensor]](list)
            self._shares = {part: torch.zeros(layout.layers, layout.kv_heads, layout.lines, dtype=torch.float64) for part in self.parts}
        self._asked = [[row for row in range(run.start, run.stop) if not layout.branches[row]] for run in layout.runs]
        self.rows += sum(map(len, self._asked))

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        if step.count:
            for run, rows in zip(slot.bank.runs, self._asked, strict=True):
                self._note(site.layer, step, run, mass[rows])

    def _note(self, layer: int, step: Step, run: RowRun, mass: Tensor) -> None:
        """Add the masses (rows, kv_heads, live) of a token's queries, if more lines are visible than counted."""
        tokens, line = step.first + step.count, self.layout.line
        visual, lines = mass[..., run.condition : run.condition + tokens].double(), (tokens - 1) // line
        for part, total in self._shares.items():
            if part == RECENCY:
                ordered = visual.flip(-1)
            else:
                votes = self._votes[layer, run.start]
                votes.append(visual)
                if tokens % line:
                    continue
                latest = [F.pad(each, (0, tokens - each.size(-1))) for each in votes[-WINDOW:]]
                votes.clear()
                ordered = torch.stack(latest).sum(0).sort(-1, descending=True).values
            shares = ordered.cumsum(-1)
            total[layer, :, :lines] += (shares[..., line - 1 : lines * line : line] / shares[..., -1:]).sum(0).cpu()

    def share(self, part: str) -> Tensor:
        """Fraction of attention to the latest or strongest 1, 2, … lines of tokens, (layers, kv_heads, lines).

        In fp64: the mean over passes, or ends of lines, with more visual tokens than these lines have; 1 without such passes. Only
        attention to visual tokens counts.
        """
        layout, lines = self.layout, torch.arange(1, self.layout.lines + 1)
        passes = layout.visual - 1 - layout.line * lines if part == RECENCY else layout.lines - 1 - lines
        return torch.where(passes > 0, self._shares[part] / (self.rows * passes.clamp_min(1)), 1.0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The requested tables as lists, with their shape."""
        layout = self.layout
        return {"layers": layout.layers, "heads": layout.kv_heads, "lines": layout.lines, "line": layout.line,
                **{part: rounded(self.share(part).tolist(), 6) for part in self.parts}}
