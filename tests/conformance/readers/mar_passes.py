"""MAR under methods that change its passes: generations of the published code of ReCAP (kind ``recap``) and DiSA (kind ``disa``), on the
weights of another file, and orders and numbers of tokens of the Halton scheduler's (kind ``halton``).
"""

from collections.abc import Callable, Sequence
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
from cachemark.models.diffusion import Process
from cachemark.models.mar import MARConfig

from ..checks import Check, Kind, Vector, apart, beside, compare, differing, filled, worst
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
        assert isinstance(step, MaskedStep)
        if not self.full[step.index]:
            assert self.encoder is not None
            drawn = torch.cat((self.encoder.first, self.shape.buffer + self.encoder.fresh(step)), 1)
            self.computed[site.stack][step.index] = drawn if site.stack == "encoder" else self.chosen
        return super().attend(site, step, q, k, v)

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        if step.index == self.noted:
            for stack, places in zip(STACKS, (self.encoder.places, self.places), strict=True):
                for block in places.at:
                    self.stored[stack, block] = tuple(part[0].clone() for part in places.read(block, self.shape.places))


class ByPlace(mar.Replayed):
    """MAR with the file's order and noise by position; records what each step draws."""

    def feed(self, orders: Tensor, noise: Tensor) -> None:
        self.orders, self.by_place = orders.long(), noise
        self.head_inputs, self.passes, self.drawn_tokens, self.drawn_places = [], [], [], []

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        return torch.stack([take(each, places) for each in self.by_place[: 1 + passes]])

    def see(self, places: Tensor, tokens: Tensor) -> None:
        self.drawn_places.append(places)
        self.drawn_tokens.append(tokens)


@dataclass
class Ran:
    method: Any
    model: Any
    tokens: Tensor
    scales: Sequence[float] = ()


@dataclass
class Subject:
    weights: dict[str, Tensor]
    vector: Vector

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {name: self.run(name, facts) for name, facts in self.vector.facts["runs"].items()}

    def run(self, name: str, facts: dict[str, Any]) -> Ran:
        full, fewer = (sum(mar.sections_of(text)) for text in facts["head"])
        model = filled(ByPlace(mar.config_of(self.vector.facts, facts["head"][0])), self.weights)
        model.feed(self.vector[f"{name}/in/orders"], self.vector[f"{name}/in/noise"])
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


def each(name: str, pattern: str, actual: Callable[..., Tensor], tolerance: float,
         by: Callable[[Tensor, Tensor], float]) -> Check:  # fmt: skip
    """Check every tensor of ``pattern``; ``actual`` gets the generation, which the first part names, and the other parts."""
    return compare(name, pattern, lambda subject, vector, run, *parts: actual(subject.runs[run], *parts), tolerance, by=by)


def opening(ran: Ran) -> MaskedStep:
    """Return the full step that opened the group of step ``noted``."""
    return next(step for step in reversed(ran.model.passes[: ran.method.noted + 1]) if ran.method.full[step.index])


def left_out(ran: Ran, stack: str) -> Tensor:
    """Return the positions that step ``noted`` reads but does not compute, ascending, for the first row."""
    buffer, places = ran.method.shape.buffer, ran.method.shape.places
    visible = torch.arange(places) if stack == "decoder" else torch.cat((torch.arange(buffer), buffer + opening(ran).known[0]))
    return visible[~torch.isin(visible, ran.method.computed[stack][ran.method.noted][0])]


def held(ran: Ran, stack: str, block: str, part: int = 0) -> Tensor:
    """Return our keys (part 0) or values (1) at those positions.

    The decoder's are stored by position, the encoder's in the order in which their tokens became known.
    """
    at, buffer = left_out(ran, stack), ran.method.shape.buffer
    if stack == "encoder":
        at = torch.where(at < buffer, at, buffer + torch.searchsorted(opening(ran).known[0], at - buffer))
    return ran.method.stored[stack, int(block)][part][:, at]


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


KINDS = {
    "recap": Kind(subject, (
        Check("loads", 0.0, loads, ("json/runs",)),
        Check("guidance", 1e-6, guidance, ("json/runs",)),
        each("places", "*/pass/*/places", lambda ran, index: ran.model.drawn_places[int(index)], 0.0, differing),
        *(each(f"{stack}_computed", f"*/pass/*/{stack}_active", lambda ran, index, stack=stack: ran.method.computed[stack][int(index)],
               0.0, lambda actual, expected: differing(actual[: len(expected)], expected)) for stack in STACKS),
        each("head_inputs", "*/pass/*/z", lambda ran, index: ran.model.head_inputs[int(index)], RELATIVE, mar.far),
        each("tokens", "*/pass/*/tokens", lambda ran, index: ran.model.drawn_tokens[int(index)], TOKENS, mar.far),
        each("stored_positions", "*/kv/*/positions", left_out, 0.0, differing),
        each("stored_keys", "*/kv/*/*/k", held, RELATIVE, mar.far),
        each("stored_values", "*/kv/*/*/v", partial(held, part=1), RELATIVE, mar.far),
        each("latents", "*/out/latent", lambda ran: mar.grid_by_patch(ran.tokens, 1), TOKENS, mar.far),
    ), "generations under ReCAP's published code: what it computes, stores and draws in every step", ("recap",)),
}


# -- DiSA -------------------------------------------------------------------------------------------------------------
class Traced(ByPlace):
    """MAR that also records x after every step of the head, by pass of the transformer."""

    def __init__(self, config: MARConfig) -> None:
        super().__init__(config)
        self.traces: list[list[Tensor]] = []
        back = self.diffloss.back

        def recorded(x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: Process) -> Tensor:
            if index == len(process) - 1:
                self.traces.append([])
            self.traces[-1].append(back(x, eps, v, noise, index, process))
            return self.traces[-1][-1]

        self.diffloss.back = recorded  # type: ignore[method-assign]


class Annealed(Subject):
    def run(self, name: str, facts: dict[str, Any]) -> Ran:
        model = filled(Traced(mar.config_of(self.vector.facts, str(facts["upper"]))), self.weights)
        model.feed(self.vector[f"{name}/in/orders"], self.vector[f"{name}/in/noise"].float())
        method = DiSA(annealing=facts["strategy"], most=1.0, least=facts["lower"] / facts["upper"])
        sampling = Sampling(cfg_scale=facts["cfg"], cfg_schedule=facts["schedule"], temperature=facts["temperature"], steps=facts["T"])
        tokens = model.generate(torch.tensor(facts["labels"]), [0] * facts["bsz"], method, sampling, Memory(), see=model.see)
        return Ran(method, model, tokens)


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
        each("places", "*/pass/*/places", lambda ran, index: ran.model.drawn_places[int(index)], 0.0, differing),
        each("head_inputs", "*/pass/*/z", lambda ran, index: ran.model.head_inputs[int(index)], RELATIVE, mar.far),
        each("x", "*/pass/*/x", lambda ran, index: torch.stack(ran.model.traces[int(index)]), TOKENS, mar.far),
        each("tokens", "*/pass/*/tokens", lambda ran, index: ran.model.drawn_tokens[int(index)], TOKENS, mar.far),
        each("latents", "*/out/latent", lambda ran: mar.grid_by_patch(ran.tokens, 1), TOKENS, mar.far),
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
