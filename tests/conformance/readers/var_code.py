"""A drafter and a refiner (kind ``code``): generations of CoDe's published code, on VARs of another file or inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core.spec import Sampling
from cachemark.models.relay import Relay
from cachemark.models.sampling import filter_logits, guide_scale
from cachemark.models.var import VAR, VARConfig

from ..checks import LOGITS, Check, Kind, Vector, apart, below, beside, compare, differing, of_runs, slot_apart, worst
from . import var


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

    @property
    def refiner(self) -> Any:
        return self.relay.refiner

    @property
    def both_labels(self) -> Tensor:
        """Classes, and the null class of as many unconditional rows."""
        return torch.cat((self.labels, torch.full_like(self.labels, self.refiner.config.classes)))

    def maps(self) -> list[Tensor]:
        return var.maps_of(self.refiner.quantizer, self.tokens)


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
        small = beside(vector, "golden_small").weights()
        drafter, quantize = below(small, "var/"), below(small, "vae/quantize.")
    quantizer = var.quantizer_of(c, quantize)
    return Subject(*(var.transformer(VARConfig(
        c[role]["depth"], c[role]["heads"], c[role]["dim"], tuple(c["patch_nums"]), c["vocab"], c["num_classes"], c["Cvae"],
        c["attn_l2_norm"], c["shared_aln"], c["norm_eps"]), quantizer, weights)
        for role, weights in (("drafter", drafter), ("refiner", below(inside, "refiner.")))), vector)


def drafted(subject: Subject, vector: Vector) -> float:
    return worst(apart(ran.guided[int(scale)], guide_scale(vector[stored], ran.sampling, int(scale), len(ran.guided)))
                 for run, ran in subject.runs.items() for stored, scale in vector.matching(f"{run}/drafter/logits/*"))


def refined(ran: Ran, scale: int) -> Tensor:
    hidden = ran.method.hidden[scale]
    return ran.refiner.logits(hidden, ran.refiner.class_emb(ran.both_labels)[: len(hidden)])


def kept(subject: Subject, vector: Vector, run: str, scale: str) -> Tensor:
    facts = vector.facts["runs"][run]
    return filter_logits(subject.runs[run].guided[int(scale)], Sampling(top_k=facts["top_k"][int(scale)], top_p=facts["top_p"])).isfinite()


def handed(subject: Subject, vector: Vector) -> float:
    """Compare the inputs of the refiner's first pass, and the map that the drafter leaves."""
    def far(run: str, ran: Ran) -> float:
        maps, drafted = ran.maps(), ran.relay.drafted
        inputs = [ran.refiner.quantizer.next_map(maps[scale], scale) for scale in range(1, drafted + 1)]
        return max(apart(torch.cat(inputs, 1), vector[f"{run}/given/maps"]), apart(maps[drafted], vector[f"{run}/given/f_hat"]))
    return worst(far(run, ran) for run, ran in subject.runs.items())


def drawn(subject: Subject, vector: Vector) -> float:
    """Compare the tokens of greedy runs, drawn freely; drawn ones are forced, and followed."""
    runs = {name: subject.run(name, forced=False) if set(facts["top_k"]) == {1} else subject.runs[name]
            for name, facts in vector.facts["runs"].items()}
    return worst(differing(ran.tokens, tokens_of(vector, name)) for name, ran in runs.items())


KINDS = {
    "code": Kind(subject, (
        Check("tokens", 0.0, drawn, ("*/tokens/*", "json/runs")),
        Check("handed_over", LOGITS, handed, ("*/given/maps",)),
        Check("draft", LOGITS, drafted, ("*/drafter/logits/*",)),
        of_runs("refined", "*/refiner/logits/*", refined, by=lambda actual, expected: apart(actual, expected[: len(actual)])),
        of_runs("first_pass", "*/refiner/first_pass", lambda ran: ran.refiner.teacher(ran.both_labels, ran.tokens.repeat(2, 1)),
                by=lambda actual, expected: apart(actual[:, : expected.size(1)], expected)),
        of_runs("guided", "*/guided/*", lambda ran, scale: ran.guided[scale]),
        compare("kept", "*/kept/*", kept, 0.0, by=lambda actual, expected: differing(actual, expected.bool())),
        *(of_runs(kind, f"*/refiner/{kind}_block0", lambda ran: ran.method.slots[ran.refiner.sites[0]], 1e-5, by=partial(slot_apart, part))
          for part, kind in enumerate("kv")),
        of_runs("final", "*/final", lambda ran: ran.maps()[-1]),
    ), "generations of CoDe's published code: what the drafter hands over, and what the refiner makes of it", ("full",)),
}
