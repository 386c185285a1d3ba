"""Infinity under HeatKV and ScaleKV, along the file's bits, with the weights and texts of the file of kind ``small`` that it names."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Grid, Layout, Site, Step, Tokens, scale_steps, squares
from cachemark.contract.block import Block
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.base import calibrations
from cachemark.methods.base.profiles import AttentionProfile, stated_scales
from cachemark.methods.heatkv import HeatKV, Shape, orders_of, removed
from cachemark.methods.scalekv import LayerBudgets, ScaleKV, spread
from cachemark.models.infinity import Infinity
from cachemark.models.vision.bsq import packed_bits

from ..checks import LOGITS, Check, Kind, Vector, apart, below, beside, compare, differing, filled, worst
from .infinity import config_of, finest_of, guided_by_scale, logits_of
from .var import HiddenStates

SHORT, LONG = "full/0/bits", "long/bits"  # of HeatKV's file
MASK = 2**32 - 1


@dataclass
class Noting(HiddenStates, HeatKV):
    """HeatKV that records live entries (layers, heads) before each scale."""

    live: list[Tensor] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if not site.layer:
            self.live.append(torch.tensor(self.lengths))
        return super().block(site, step, tokens, block)


class Rival:
    """The model of the file's weights, for a schedule of scales and one text."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        self.models: dict[tuple[Grid, ...], Infinity] = {}

    @cached_property
    def small(self) -> Vector:
        stated = str(self.vector.facts.get("weights") or self.vector.facts["config"]["weights"])
        return beside(self.vector, Path(stated.partition(",")[0]).stem)

    @property
    def prompt(self) -> int:
        """The text of the generations, unless a check names another."""
        return int(self.vector.facts["config"].get("prompts_of_the_weights_file", [0])[0])

    def scales(self, bits: str) -> tuple[Grid, ...]:
        shapes = [self.vector[name].shape for name, _ in self.vector.matching(f"{bits}/*")]
        return tuple((rows, columns) for _, _, rows, columns, _ in shapes)

    def model(self, scales: tuple[Grid, ...]) -> Infinity:
        """Return the model for these scales, cached."""
        if scales not in self.models:
            small = self.small
            config = replace(config_of(small.facts), scales=scales, finest=finest_of(scales, self.vector.facts["config"].get("h_div_w")))
            model = Infinity(config, small["text/kv"].split(small.facts["config"]["text_lens"]))
            self.models[scales] = filled(model, below(small.weights(), "var/"))
        return self.models[scales]

    def sampling(self, model: Infinity) -> Sampling:
        """Guide a model as the file states, by one number or one per scale, and return the greedy sampling."""
        facts = self.vector.facts["config"]
        return guided_by_scale(model, facts.get("cfg_list") or [facts["cfg"]] * len(model.config.scales))

    def generate(self, method: Method, bits: str, prompt: int = 0) -> Layout:
        bits_by_scale = [self.vector[name].flatten(1, 3) for name, _ in self.vector.matching(f"{bits}/*")]
        model = self.model(self.scales(bits))
        sampling = self.sampling(model)
        model.generate(torch.tensor([prompt]), [0], method, sampling, Memory(), forced=packed_bits(torch.cat(bits_by_scale, 1)))
        return model.layout([0], sampling)

    def logits(self, hidden: Sequence[Tensor], bits: str, prompt: int = 0) -> list[Tensor]:
        return logits_of(self.model(self.scales(bits)), hidden, [prompt], len(hidden[0]))


def codes_of(orders: Tensor, heads: int) -> list[list[int]]:
    return [[layer * heads + head for head, layer in pairs] for pairs in orders.tolist()]


class Heat(Rival):
    """HeatKV: S-CAS, and generations under its plans."""

    def __init__(self, vector: Vector) -> None:
        super().__init__(vector)
        self.done: dict[str, Noting] = {}

    @cached_property
    def scas(self) -> list[Tensor]:
        """S-CAS after the first prompt, and after both."""
        profile = AttentionProfile("scas")
        tables = []
        for prompt in self.vector.facts["config"]["prompts_of_the_weights_file"]:
            self.generate(profile, f"full/{prompt}/bits", prompt)
            tables.append(profile.scas)
        return tables

    @property
    def sink(self) -> int:
        return int(self.vector.facts["config"]["sink_scales"])

    def stated(self, name: str) -> tuple[str, Shape, list[list[int]], int]:
        """Return of a budget the bits of its generation, their shape, the file's orders, and the most entries."""
        orders, bits = ("long/orders", LONG) if name.startswith("long/") else ("calibration/orders", SHORT)
        config = config_of(self.small.facts)
        shape = Shape(tuple(rows * columns for rows, columns in self.scales(bits)), config.depth, config.heads, self.sink)
        limit = int(float(name.rpartition("_")[2]) * shape.pairs * shape.before[-1])
        return bits, shape, codes_of(self.vector[orders], shape.heads), limit

    def plan(self, name: str) -> Tensor:
        """Return the plan (target, source, layer, head) of a budget, from the file's orders."""
        _, *stated = self.stated(name)
        gone = removed(*stated)
        tables = torch.zeros_like(self.vector[f"{name}/removed"])
        for target, sources in enumerate(gone):
            for source, pairs in sources.items():
                if source < target:
                    tables[target, source].view(-1)[list(pairs)] = 1
        return tables

    def ran(self, name: str) -> Noting:
        """Return the generation under a budget, with the file's orders as calibration; cached."""
        if name in self.done:
            return self.done[name]
        bits, shape, orders, limit = self.stated(name)
        layout = self.model(self.scales(bits)).layout([0], Sampling())
        facts: dict[str, Any] = {"model": name, "layers": shape.layers, "heads": shape.heads, "scales": stated_scales(layout),
                                 "first_source": shape.sink, "orders": orders}
        method = Noting(calibration=calibrations.remember("heatkv", facts), limit=limit, sink=shape.sink)
        self.generate(method, bits, self.prompt)
        self.done[name] = method
        return method


def scas(subject: Heat, vector: Vector) -> float:
    """Compare sources other than sinks, which have no number in the file."""
    after = zip(subject.scas, ("calibration/scas_after_prompt_0", "calibration/scas"), strict=True)
    return worst(apart(measured[..., subject.sink : -1], vector[name][..., subject.sink : -1]) for measured, name in after)


def orders(subject: Heat, vector: Vector) -> float:
    """Compare orders from measured scores, and from the file's long scores."""
    def share(name: str, scores: Tensor) -> float:
        layers, heads, scales = scores.shape
        codes = orders_of({"scas": scores.tolist()}, Shape((1,) * scales, layers, heads, subject.sink))
        return differing(torch.tensor(codes), torch.tensor(codes_of(vector[name], heads)))

    return max(share("calibration/orders", subject.scas[1]), share("long/orders", vector["long/scas"]))


def logits(subject: Heat, vector: Vector, which: str, part: str = "budget_*/logits_pre/*", every: int = 1) -> float:
    name, bits = part.partition("/logits")[0].replace("*", which), LONG if part.startswith("long/") else SHORT
    actual = subject.logits(subject.ran(name).hidden, bits, subject.prompt)
    return worst(apart(actual[int(scale)][:, ::every], vector[at]) for at, scale in vector.matching(part.replace("*", which, 1)))


# -- ScaleKV ----------------------------------------------------------------------------------------------------------
@dataclass
class NotingScores(HiddenStates, ScaleKV):
    """ScaleKV under the file's budgets that records retained entries."""

    retained: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    budgets: LayerBudgets | None = None

    def resolve(self, layout: Layout) -> None:
        self.plan = self.budgets

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        self.retained |= {(step.index, site.layer): slot.visual[..., : slot.live[0]].clone() for site, slot in self.slots.items()}


class Scaled(Rival):
    """ScaleKV: a generation under the file's budgets, and its selection at full size."""

    @cached_property
    def ran(self) -> NotingScores:
        facts = self.vector.facts["config"]
        tokens = tuple(h * w for _, h, w in facts["scale_schedule"])
        plan = LayerBudgets(tokens, facts["depth"], facts["base_capacity"], (), facts["window_size"])
        rows = facts["cache_sizes[scale_ind + 2][layer]"]
        vars(plan)["budgets"] = [rows[str(scale + 2)] for scale in range(plan.first, len(tokens) - 1)]
        method = NotingScores(budgets=plan)
        self.generate(method, "e2e/bits", self.prompt)
        return method

    @cached_property
    def plain(self) -> list[Tensor]:
        return self.logits(self.ran.hidden, "e2e/bits", self.prompt)

    @cached_property
    def asi(self) -> Tensor:
        """ASI of the conditional row, (layers, scales from the second on)."""
        profile = AttentionProfile("asi")
        self.generate(profile, "e2e/bits", self.prompt)
        return profile.asi

    @cached_property
    def cluster(self) -> dict[tuple[int, int], Tensor]:
        """Retained entries of synthetic keys under published budgets: by scale and layer (heads, m)."""
        facts, heads, dim = self.vector.facts["cluster"], self.vector.facts["cluster"]["heads"], self.vector.facts["cluster"]["head_dim"]
        published = calibrations.packaged("scalekv")[f"infinity-{facts['model']}"]
        layout = Layout("next-scale", (0,), 0, 0, heads, heads, dim, published["layers"], (0,), (0,), scales=squares(published["scales"]))
        method = ScaleKV(calibration=calibrations.remember("scalekv", {**published, "heads": heads}), mean=650)
        sites = [Site("decoder", layer) for layer in facts["layers"]]
        method.begin(layout, sites, Memory())
        tokens: dict[tuple[int, int], Tensor] = {}
        for step in scale_steps(layout)[:-1]:
            for site in sites:
                k, q = (made_up(step, heads, dim, site.layer, kind + facts["salt"]) for kind in (0, 1))
                method.observe_raw(site, step, q)
                method.attend(site, step, q, k, k)
                slot = method.slots[site]
                tokens[step.index, site.layer] = slot.visual[0, :, : slot.live[0]].clone()
            method.end_step(step)
        return tokens


def made_up(step: Step, heads: int, dim: int, layer: int, kind: int) -> Tensor:
    """Return synthetic values (1, heads, tokens, dim) by the file's recipe, exact in fp32."""
    t, head, ch = (torch.arange(n, dtype=torch.int64) for n in (step.count, heads, dim))
    x = ((t + step.first)[None, :, None] * 2654435761 + ch * 40503 + head[:, None, None] * 97 + layer * 1009 + kind * 7919) & MASK
    x = ((x ^ (x >> 15)) * 739982445) & MASK
    x = ((x ^ (x >> 12)) * 695872825) & MASK
    x = x ^ (x >> 15)
    return (((x & 511) - 256).float() / 256)[None]


def scored(subject: Scaled, vector: Vector, which: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the file's queries and keys of the first layer at a scale, and window positions."""
    scale, scales = int(which), subject.scales("e2e/bits")
    tokens = [rows * columns for rows, columns in scales]
    before, own, first = vector[f"e2e/kept/{scale - 1}/0"].long(), tokens[scale], sum(tokens[:scale])
    places = torch.cat((before, torch.arange(first, first + own).expand(*before.shape[:2], -1)), -1)
    k = vector["e2e/k/0"].gather(2, places[..., None].expand(-1, -1, -1, vector["e2e/k/0"].size(-1)))
    return vector[f"e2e/window_q/{which}/0"], k, spread(scales[scale]) + places.size(-1) - own


def pooled(subject: Scaled, vector: Vector, which: str) -> float:
    """Compare pooled scores of the file's keys and queries; −inf must match."""
    actual, expected = ScaleKV().pooled(*scored(subject, vector, which)), vector[f"e2e/pooled/{which}/0"]
    same = bool(((actual == -torch.inf) == (expected == -torch.inf)).all())
    return apart(actual.masked_fill(actual == -torch.inf, 0), expected.masked_fill(expected == -torch.inf, 0)) if same else float("inf")


def asi(subject: Scaled, vector: Vector) -> float:
    current, top = (vector[f"asi/{part}"][0].double() for part in ("current", "top"))
    return apart(subject.asi, (current * top).mean(1)[:, 1:])


KINDS = {
    "scalekv": Kind(Scaled, (
        compare("windows", "e2e/window/*", lambda subject, vector, scale: spread(subject.scales("e2e/bits")[int(scale)]).to(torch.int16),
                0.0, by=differing),
        Check("pooled_*", 1e-5, pooled, ("e2e/pooled/*/0",)),
        compare("kept", "e2e/kept/*/*", lambda subject, vector, *where: subject.ran.retained[tuple(map(int, where))].to(torch.int16), 0.0,
                by=differing),
        compare("logits", "e2e/logits_pre/*", lambda subject, vector, scale: subject.plain[int(scale)]),
        Check("asi", 1e-5, asi, ("asi/current", "asi/top")),
        compare("cluster", "cluster/kept/*/*", lambda subject, vector, *where: subject.cluster[tuple(map(int, where))].to(torch.int16), 0.0,
                by=differing),
    ), "Infinity under ScaleKV: a generation along the file's bits, and its selection alone over all scales of 1024 pixels", ("scalekv",)),
    "heatkv": Kind(Heat, (
        Check("scas", 1e-6, scas, ("calibration/scas", "full/0/bits/0", "full/1/bits/0")),
        Check("orders", 0.0, orders, ("calibration/orders", "long/scas", "long/orders")),
        compare("plan_*", "budget_*/removed", lambda subject, vector, which: subject.plan(f"budget_{which}"), 0.0, by=differing),
        compare("live_*", "budget_*/live", lambda subject, vector, which: torch.stack(
            subject.ran(f"budget_{which}").live).to(torch.int16), 0.0, by=differing),
        Check("logits_*", LOGITS, logits, ("budget_*/logits_pre/6",)),
        compare("long_plan_*", "long/budget_*/removed", lambda subject, vector, which: subject.plan(f"long/budget_{which}"), 0.0,
                by=differing),
        Check("long_logits_*", LOGITS, partial(logits, part="long/budget_*/logits_pre_every_8th/*", every=8),
              ("long/budget_*/logits_pre_every_8th/12",)),
    ), "Infinity under HeatKV: scores, orders and plans of two and of thirteen scales, and generations along the file's bits", ("heatkv",)),
}
