"""MAR under ReCAP (kind ``recap``) and DiSA (``disa``), on the weights of another file, and in the order of Halton (``halton``)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Load, Site, Step
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, take
from cachemark.core.spec import Sampling
from cachemark.methods.base.annealed import HeadSchedule
from cachemark.methods.disa import DiSA
from cachemark.methods.halton import Halton
from cachemark.methods.recap import ReCAP
from cachemark.models.mar import MARConfig

from ..checks import Check, Kind, Vector, apart, beside, compare, differing, filled, of_runs, worst
from . import mar

RELATIVE = 1e-5
TOKENS = 1e-4  # of a short process of the head, which amplifies
STACKS = ("encoder", "decoder")


@dataclass
class Watched(ReCAP):
    """ReCAP that records the positions that partial steps compute, and the stored keys and values after step ``noted``."""

    computed: dict[str, dict[int, Tensor]] = field(default_factory=lambda: {stack: {} for stack in STACKS})
    stored: dict[tuple[str, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    noted: int | None = None

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.full[step.index]:
            drawn = torch.cat((self.encoder.first, self.shape.buffer + self.encoder.fresh(step)), 1)
            self.computed[site.stack][step.index] = drawn if site.stack == "encoder" else self.chosen
        return super().attend(site, step, q, k, v)

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        if step.index == self.noted:
            for stack, places in zip(STACKS, (self.encoder.places, self.places), strict=True):
                for block in places.at:
                    self.stored[stack, block] = tuple(part[0].clone() for part in places.read(block, self.shape.places))


@dataclass
class Ran:
    method: Any
    model: mar.Replayed
    tokens: Tensor
    scales: Sequence[float] = ()
    traces: Sequence[Sequence[Tensor]] = ()


@dataclass
class Subject:
    weights: dict[str, Tensor]
    vector: Vector

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {name: self.run(name, facts) for name, facts in self.vector.facts["runs"].items()}

    def model(self, name: str, head: str) -> mar.Replayed:
        """Return a model along the file's order and its noise by position."""
        model, noise = filled(mar.Replayed(mar.config_of(self.vector.facts, head)), self.weights), self.vector[f"{name}/in/noise"].float()
        model.replay(self.vector[f"{name}/in/orders"], lambda places, passes: torch.stack([take(x, places) for x in noise[: 1 + passes]]))
        return model

    def run(self, name: str, facts: dict[str, Any]) -> Ran:
        full, fewer = (sum(mar.sections_of(text)) for text in facts["head"])
        model = self.model(name, facts["head"][0])
        method = Watched(full_steps=facts["P"], partial_steps=facts["u"], head_fraction=fewer / full, cache_buffer=facts["buffer"],
                         noted=facts["kv_of_pass"])
        sampling = Sampling(cfg_scale=facts["cfg"], cfg_schedule=facts["schedule"], temperature=facts["temperature"], steps=facts["T"])
        labels = torch.tensor(facts["labels"])
        ours = mar.mar.guidance

        def theirs(sampling: Sampling, step: MaskedStep, tokens: int) -> float | None:
            """Return the scale of the authors' code, which at the last step is the whole one."""
            return ours(sampling, replace(step, left=0) if step.index + 1 == step.total else step, tokens)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mar.mar, "guidance", theirs)
            tokens = model.generate(labels, [0] * facts["bsz"], method, sampling, Memory(), see=model.see)
        scales = [theirs(sampling, step, model.config.tokens) or 1.0 for step in model.passes]
        return Ran(method, model, tokens, scales)


def subject(vector: Vector, cls: type[Subject] = Subject) -> Subject:
    return cls(beside(vector, Path(vector.facts["weights"]).name).weights(), vector)


def opening(ran: Ran) -> MaskedStep:
    """Return the full step that opened the group of step ``noted``."""
    return next(step for step in reversed(ran.model.passes[: ran.method.noted + 1]) if ran.method.full[step.index])


def left_out(ran: Ran, stack: str) -> Tensor:
    """Return the positions that step ``noted`` reads but does not compute, ascending, for the first row."""
    buffer, places = ran.method.shape.buffer, ran.method.shape.places
    visible = torch.arange(places) if stack == "decoder" else torch.cat((torch.arange(buffer), buffer + opening(ran).known[0]))
    return visible[~torch.isin(visible, ran.method.computed[stack][ran.method.noted][0])]


def held(ran: Ran, stack: str, block: int, part: int = 0) -> Tensor:
    """Return our keys (part 0) or values (1) there; the decoder's lie by position, the encoder's as their tokens became known."""
    at, buffer = left_out(ran, stack), ran.method.shape.buffer
    if stack == "encoder":
        at = torch.where(at < buffer, at, buffer + torch.searchsorted(opening(ran).known[0], at - buffer))
    return ran.method.stored[stack, block][part][:, at]


def loads(subject: Subject, vector: Vector) -> float:
    """Compare the work that the method declares with the file's numbers of computed tokens and keys, and the head's steps."""
    wrong = 0
    for name, facts in vector.facts["runs"].items():
        ran = subject.runs[name]
        shape = ran.method.shape
        for step, noted in zip(ran.model.passes, facts["passes"], strict=True):
            for stack, tokens in (("encoder", shape.buffer + step.first), ("decoder", shape.places)):
                load = ran.method.computes(Site(stack, 0), step, Load(shape.rows, tokens, tokens, tokens))
                wrong += load != Load(shape.rows, noted[f"{stack}_active"], noted[f"{stack}_keys"], noted[f"{stack}_active"])
            wrong += [part.passes for part in ran.method.denoising(step, shape.diffusion)] != [noted["head_steps"]]
            wrong += (step.count, not ran.method.full[step.index]) != (noted["count"], noted["partial"])
    return float(wrong)


def guidance(subject: Subject, vector: Vector) -> float:
    return worst(apart(torch.tensor(subject.runs[name].scales), torch.tensor([step["cfg"] for step in facts["passes"]]))
                 for name, facts in vector.facts["runs"].items())


PLACES, HEAD_INPUTS, DRAWN, LATENTS = (
    of_runs("places", "*/pass/*/places", lambda ran, index: ran.model.drawn[index][0], 0.0, differing),
    of_runs("head_inputs", "*/pass/*/z", lambda ran, index: ran.model.head_inputs[index], RELATIVE, mar.far),
    of_runs("tokens", "*/pass/*/tokens", lambda ran, index: ran.model.drawn[index][1], TOKENS, mar.far),
    of_runs("latents", "*/out/latent", lambda ran: mar.grid_by_patch(ran.tokens, 1), TOKENS, mar.far),
)
KINDS = {
    "recap": Kind(subject, (
        Check("loads", 0.0, loads, ("json/runs",)),
        Check("guidance", 1e-6, guidance, ("json/runs",)),
        PLACES,
        *(of_runs(f"{stack}_computed", f"*/pass/*/{stack}_active", lambda ran, index, stack=stack: ran.method.computed[stack][index],
               0.0, lambda actual, expected: differing(actual[: len(expected)], expected)) for stack in STACKS),
        HEAD_INPUTS,
        DRAWN,
        of_runs("stored_positions", "*/kv/*/positions", left_out, 0.0, differing),
        of_runs("stored_keys", "*/kv/*/*/k", held, RELATIVE, mar.far),
        of_runs("stored_values", "*/kv/*/*/v", partial(held, part=1), RELATIVE, mar.far),
        LATENTS,
    ), "generations under ReCAP's published code: what it computes, stores and draws in every step", ("recap",)),
}


# -- DiSA -------------------------------------------------------------------------------------------------------------
class Annealed(Subject):
    def run(self, name: str, facts: dict[str, Any]) -> Ran:
        model = self.model(name, str(facts["upper"]))
        traces = mar.traced(model.diffloss)
        method = DiSA(annealing=facts["strategy"], most=1.0, least=facts["lower"] / facts["upper"])
        sampling = Sampling(cfg_scale=facts["cfg"], cfg_schedule=facts["schedule"], temperature=facts["temperature"], steps=facts["T"])
        tokens = model.generate(torch.tensor(facts["labels"]), [0] * facts["bsz"], method, sampling, Memory(), see=model.see)
        return Ran(method, model, tokens, traces=traces)


def layout(steps: int, **sizes: Any) -> MaskedLayout:
    return MARConfig(16, (1, 1), 2, 1, 16, **sizes).layout([0], Sampling(steps=steps))


def schedules(_: Annealed, vector: Vector) -> float:
    """Count the passes whose nominal steps differ from the file's, before equal timesteps are merged."""
    wrong = 0
    for noted in vector.facts["schedules"]:
        schedule = HeadSchedule(noted["strategy"], 1.0, noted["lower"] / noted["upper"], "full")
        shape = layout(noted["T"], diffusion=(noted["upper"],))
        wrong += [len(schedule.timesteps(shape, index, noted["T"])) for index in range(noted["T"])] != noted["nominal"]
    return float(wrong)


def timesteps(_: Annealed, vector: Vector) -> float:
    return float(sum(list(HeadSchedule("constant", 1.0, 1.0, "code").timesteps(layout(1, diffusion=(int(steps),)), 0, 1)) != times
                     for steps, times in vector.facts["timesteps"].items()))


def passes(subject: Annealed, vector: Vector) -> float:
    wrong = 0
    for name, facts in vector.facts["runs"].items():
        ran = subject.runs[name]
        for step, noted in zip(ran.model.passes, facts["passes"], strict=True):
            (part,) = ran.method.denoising(step, ran.method.shape.diffusion)
            wrong += (part.tokens, part.passes, list(part.timesteps)) != (noted["count"], noted["steps"], noted["timesteps"])
    return float(wrong)


KINDS |= {
    "disa": Kind(partial(subject, cls=Annealed), (
        Check("schedules", 0.0, schedules, ("json/schedules",)),
        Check("timesteps", 0.0, timesteps, ("json/timesteps",)),
        Check("passes", 0.0, passes, ("json/runs",)),
        PLACES,
        HEAD_INPUTS,
        of_runs("x", "*/pass/*/x", lambda ran, index: torch.stack(ran.traces[index]), TOKENS, mar.far),
        DRAWN,
        LATENTS,
    ), "schedules and generations of DiSA's published code: the head's steps of every pass, and what they draw", ("disa",)),
}


# -- Halton -----------------------------------------------------------------------------------------------------------
def order(method: Halton, _: Vector, grid: str) -> Tensor:
    """Return the positions of a grid in the order in which they are predicted."""
    method.layout = layout(1, grid=int(grid))
    (row,) = method.ordered(torch.arange(method.layout.visual)[None])
    return row.flip(0).short()


def counts(method: Halton, _: Vector, size: str) -> Tensor:
    grid, steps = map(int, size.split("-"))
    method.steps = steps
    return torch.tensor(method.paced(layout(steps, grid=grid)).counts, dtype=torch.int16)


KINDS |= {
    "halton": Kind(lambda _: Halton(rate="arccos"), (
        compare("orders", "orders/*", order, 0.0, by=differing),
        compare("counts", "counts/*", counts, 0.0, by=differing),
    ), "the order and the tokens per step of the Halton scheduler's published code", ("halton",)),
}
