"""LlamaGen under ZipAR: greedy generations on the weights and classes of ``golden_small`` next to the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step
from cachemark.core.spec import Sampling
from cachemark.decoders.zipar import ZipAR
from cachemark.methods.full import Full
from cachemark.models.llamagen import LlamaGen

from ..checks import LOGITS, Check, Kind, Vector, apart, compare, differing, worst
from .llamagen import transformer

RUNS = tuple(f"w{window}_{kind}" for window in (2, 3, 5) for kind in ("cfg", "cfg_hidden", "nocfg"))


class Released(Full):
    """The full cache that also attends to positions without an entry, with a key and value of zero, as the authors' code does."""

    fronts = True

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not step.places:
            return super().attend(site, step, q, k, v)
        slot = self.slots[site]
        (run,) = slot.runs
        slot.append(k, v)
        keys, values = slot.read(run, slot.live[0])
        stored = torch.cat((slot.visual[0, 0, run.condition : slot.live[0] - step.count], torch.tensor(step.places)))
        visible = stored <= torch.tensor(step.places)[:, None]
        absent = torch.tensor(step.places) + 1 - visible.sum(1)  # scores of zero, one for each
        scores = (q @ keys.mT * q.size(-1) ** -0.5).masked_fill(~F.pad(visible, (run.condition, 0), value=True), -torch.inf)
        scores = torch.cat((scores, absent.log().to(scores)[:, None].expand(*scores.shape[:-1], 1)), -1)
        return scores.softmax(-1)[..., :-1] @ values


@dataclass
class Generations:
    """The model and its generations by run: tokens, and guided logits by position."""

    vector: Vector
    model: LlamaGen
    labels: Tensor
    done: dict[str, tuple[Tensor, dict[int, Tensor]]] = field(default_factory=dict)

    def run(self, name: str) -> tuple[Tensor, dict[int, Tensor]]:
        if name not in self.done:
            facts, seen = self.vector.facts["runs"][name], dict[int, Tensor]()
            method = Full() if facts["masked"] else Released()
            tokens = self.model.generate(
                self.labels, range(len(self.labels)), method, Sampling(cfg_scale=facts["cfg_scale"], temperature=0.0), Memory(),
                decoder=ZipAR(window=facts["window"]), see=lambda place, logits: seen.update({place: logits[:, 0].clone()}))
            self.done[name] = tokens, seen
        return self.done[name]


def built(vector: Vector) -> Generations:
    small = Vector.load(vector.path.parent / "golden_small.safetensors")
    return Generations(vector, transformer(small), small["input/class_ids"])


def schedule(subject: Generations, vector: Vector) -> float:
    """Return the number of passes that feed other positions, or the same in another order."""
    layout = subject.model.layout(range(2), Sampling())
    wrong = 0
    for run in vector.facts["runs"].values():
        fed = [[place + 1 for place in front.step.places] or [0] for front in ZipAR(window=run["window"]).schedule(layout)]
        wrong += sum(own != theirs for own, theirs in zip_longest(fed, run["positions"]))
    return float(wrong)


def tokens(run: str) -> Check:
    return compare(f"tokens_{run}", f"{run}/tokens", lambda subject, vector: subject.run(run)[0].to(torch.int16), 0.0, by=differing)


def logits(run: str) -> Check:
    """Check the guided logits of every token that a stored pass draws."""
    def measure(subject: Generations, vector: Vector) -> float:
        seen = subject.run(run)[1]
        facts = vector.facts["runs"][run]
        fronts = ZipAR(window=facts["window"]).schedule(subject.model.layout(range(2), Sampling()))
        deviations = []
        for name, index in vector.matching(f"{run}/logits/*"):
            draws = fronts[int(index)].draws
            deviations.append(apart(torch.stack([seen[place] for place in draws], 1), vector[name][:, -len(draws) :]))
        return worst(deviations)

    return Check(f"logits_{run}", LOGITS, measure, (f"{run}/logits/*",))


KINDS = {
    "zipar": Kind(built, (
        Check("schedule", 0.0, schedule, ("json/runs",)), *map(tokens, RUNS), *(logits(run) for run in RUNS if "nocfg" not in run),
    ), "ZipAR on LlamaGen with windows of 2, 3 and 5 of 6 tokens: passes, tokens and guided logits, as released and masked"),
}
