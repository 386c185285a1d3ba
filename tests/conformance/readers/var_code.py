"""A drafter and a refiner (kind ``code``): generations of CoDe's published code, on VARs of another file or inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core.spec import Sampling
from cachemark.models.relay import Relay
from cachemark.models.sampling import filter_logits, guide_scale
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer

from ..checks import LOGITS, Check, Kind, Vector, apart, below, compressed, differing, filled, slot_apart, worst
from . import var

OURS = Path(__file__).parent.parent / "vectors" / "var"


@dataclass
class Ran:
    """A generation: its relay, guided logits by scale, the refiner's method, and tokens."""

    relay: Relay
    sampling: Sampling
    labels: Tensor
    method: var.Watched = field(default_factory=var.Watched)
    guided: list[Tensor] = field(default_factory=list)
    tokens: Tensor = field(default_factory=lambda: torch.empty(0))

    def generate(self, forced: Tensor | None) -> Ran:
        seeds = [0] * len(self.labels)
        self.tokens = self.relay.generate(self.labels, seeds, self.method, self.sampling, Memory(), forced=forced,
                                          see=lambda _, logits: self.guided.append(logits.clone()))
        return self

    def maps(self) -> list[Tensor]:
        """Return the feature map before each scale, and after the last."""
        quantizer = self.relay.refiner.quantizer
        maps = [quantizer.empty(len(self.labels))]
        for scale, part in enumerate(quantizer.split(self.tokens)):
            maps.append(quantizer.add(maps[-1], part, scale))
        return maps


@dataclass
class Subject:
    """The subject of the checks: both models, and a generation of each run along the file's tokens."""

    drafter: VAR
    refiner: VAR
    vector: Vector

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {name: self.run(name, forced=True) for name in self.vector.facts["runs"]}

    def run(self, name: str, *, forced: bool) -> Ran:
        facts = self.vector.facts["runs"][name]
        sampling = Sampling(cfg_scale=facts["cfg"], cfg_schedule="linear", temperature=0.0)
        relay = Relay("relay", self.drafter, self.refiner, facts["N"])
        return Ran(relay, sampling, torch.tensor(facts["labels"])).generate(tokens_of(self.vector, name) if forced else None)


def tokens_of(vector: Vector, name: str) -> Tensor:
    return torch.cat([vector[f"{name}/tokens/{scale}"] for scale in range(len(vector.facts["config"]["patch_nums"]))], 1).long()


def subject(vector: Vector) -> Subject:
    c, inside = vector.facts["config"], below(vector.weights(), "")
    if vector.facts["weights"] is None:
        drafter, quantize = below(inside, "drafter."), below(inside, "quantize.")
    else:
        own = vector.path.parent / "golden_small.safetensors"
        small = Vector.load(own if own.exists() or compressed(own).exists() else OURS / own.name).weights()
        drafter, quantize = below(small, "var/"), below(small, "vae/quantize.")
    quantizer = filled(MultiScaleQuantizer(c["patch_nums"], c["vocab"], c["Cvae"], phis=c["share_quant_resi"], ratio=c["quant_resi"]),
                       quantize)

    def model(size: dict[str, int], weights: dict[str, Tensor]) -> VAR:
        built = VAR(VARConfig(size["depth"], size["heads"], size["dim"], tuple(c["patch_nums"]), c["vocab"], c["num_classes"], c["Cvae"],
                              c["attn_l2_norm"], c["shared_aln"], c["norm_eps"]), quantizer)
        return filled(built, {name: tensor for name, tensor in weights.items() if name in built.state_dict()})

    return Subject(model(c["drafter"], drafter), model(c["refiner"], below(inside, "refiner.")), vector)


def over(pattern: str, measure: Callable[[Ran, Vector, str, int, Tensor], float], name: str, tolerance: float = LOGITS) -> Check:
    """Check the largest deviation over runs and scales; ``measure`` takes the run, its name, the scale and the stored tensor."""

    def measured(subject: Subject, vector: Vector) -> float:
        def each() -> Iterator[float]:
            for run, ran in subject.runs.items():
                for stored, scale in vector.matching(f"{run}/{pattern}"):
                    yield measure(ran, vector, run, int(scale or 0), vector[stored])
        return worst(each())

    return Check(name, tolerance, measured, (f"*/{pattern}",))


def drafted(ran: Ran, vector: Vector, run: str, scale: int, expected: Tensor) -> float:
    return apart(ran.guided[scale], guide_scale(expected, ran.sampling, scale, len(ran.guided)))


def refined(ran: Ran, vector: Vector, run: str, scale: int, expected: Tensor) -> float:
    model, labels = ran.relay.refiner, torch.cat((ran.labels, torch.full_like(ran.labels, vector.facts["config"]["num_classes"])))
    assert isinstance(model, VAR)
    hidden = ran.method.hidden[scale]
    return apart(model.logits(hidden, model.class_emb(labels)[: len(hidden)]), expected[: len(hidden)])


def first_pass(ran: Ran, vector: Vector, run: str, _: int, expected: Tensor) -> float:
    model, labels = ran.relay.refiner, torch.cat((ran.labels, torch.full_like(ran.labels, vector.facts["config"]["num_classes"])))
    assert isinstance(model, VAR)
    return apart(model.teacher(labels, ran.tokens.repeat(2, 1))[:, : expected.size(1)], expected)


def kept(ran: Ran, vector: Vector, run: str, scale: int, expected: Tensor) -> float:
    facts = vector.facts["runs"][run]
    allowed = filter_logits(ran.guided[scale], Sampling(top_k=facts["top_k"][scale], top_p=facts["top_p"])).isfinite()
    return differing(allowed, expected.bool())


def handed(ran: Ran, vector: Vector, run: str, _: int, expected: Tensor) -> float:
    quantizer, maps = ran.relay.refiner.quantizer, ran.maps()
    inputs = [quantizer.next_map(maps[scale], scale) for scale in range(1, ran.relay.drafted + 1)]
    return max(apart(torch.cat(inputs, 1), expected), apart(maps[ran.relay.drafted], vector[f"{run}/given/f_hat"]))


def drawn(subject: Subject, vector: Vector) -> float:
    """Compare the tokens of greedy runs, drawn freely; drawn ones are forced, and followed."""
    runs = {name: subject.run(name, forced=False) if set(facts["top_k"]) == {1} else subject.runs[name]
            for name, facts in vector.facts["runs"].items()}
    return worst(differing(ran.tokens, tokens_of(vector, name)) for name, ran in runs.items())


KINDS = {
    "code": Kind(subject, (
        Check("tokens", 0.0, drawn, ("*/tokens/*", "json/runs")),
        over("given/maps", handed, "handed_over"),
        over("drafter/logits/*", drafted, "draft"),
        over("refiner/logits/*", refined, "refined"),
        over("refiner/first_pass", first_pass, "first_pass"),
        over("guided/*", lambda ran, vector, run, scale, expected: apart(ran.guided[scale], expected), "guided"),
        over("kept/*", kept, "kept", 0.0),
        over("refiner/k_block0", lambda ran, vector, run, _, expected: slot_apart(
            0, ran.method.slots[ran.relay.refiner.sites[0]], expected), "k", 1e-5),
        over("refiner/v_block0", lambda ran, vector, run, _, expected: slot_apart(
            1, ran.method.slots[ran.relay.refiner.sites[0]], expected), "v", 1e-5),
        over("final", lambda ran, vector, run, _, expected: apart(ran.maps()[-1], expected), "final"),
    ), "generations of CoDe's published code: what the drafter hands over, and what the refiner makes of it", ("full",)),
}
