"""MAR under DiSA (kind ``disa``): schedules, and generations of the published code on the weights of another file; orders and numbers of
tokens per step of the Halton scheduler's published code (kind ``halton``).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.core.spec import Sampling
from cachemark.methods.base.annealed import HeadSchedule
from cachemark.methods.disa import DiSA
from cachemark.methods.halton import Halton
from cachemark.models.diffusion import Process
from cachemark.models.mar import MARConfig

from ..checks import Check, Kind, Vector, compare, differing, filled
from . import mar, mar_recap
from .mar_recap import RELATIVE, TOKENS, ByPlace, Ran, each


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


class Annealed(mar_recap.Subject):
    def run(self, name: str, facts: dict[str, Any]) -> Ran:
        model = filled(Traced(mar.config_of(self.vector.facts, str(facts["upper"]))), self.weights)
        model.feed(self.vector[f"{name}/in/orders"], self.vector[f"{name}/in/noise"].float())
        method = DiSA(annealing=facts["strategy"], most=1.0, least=facts["lower"] / facts["upper"])
        sampling = Sampling(cfg_scale=facts["cfg"], cfg_schedule=facts["schedule"], temperature=facts["temperature"], steps=facts["T"])
        tokens = model.generate(torch.tensor(facts["labels"]), [0] * facts["bsz"], method, sampling, Memory(), see=model.see)
        return Ran(method, model, tokens)


def layout(steps: int, requested: int) -> MaskedLayout:
    return MARConfig(16, (1, 1), 2, 1, 16, diffusion=(requested,)).layout([0], Sampling(steps=steps))


def schedules(_: Annealed, vector: Vector) -> float:
    """Count the passes whose nominal steps differ from the file's, before equal timesteps are merged."""
    wrong = 0
    for noted in vector.facts["schedules"]:
        schedule = HeadSchedule(noted["strategy"], 1.0, noted["lower"] / noted["upper"], "full")
        shape = layout(noted["T"], noted["upper"])
        wrong += [len(schedule.timesteps(shape, index, noted["T"])) for index in range(noted["T"])] != noted["nominal"]
    return float(wrong)


def timesteps(_: Annealed, vector: Vector) -> float:
    return float(sum(list(HeadSchedule("constant", 1.0, 1.0, "code").timesteps(layout(1, int(steps)), 0, 1)) != times
                     for steps, times in vector.facts["timesteps"].items()))


def passes(subject: Annealed, vector: Vector) -> float:
    wrong = 0
    for name, facts in vector.facts["runs"].items():
        ran = subject.runs[name]
        for step, noted in zip(ran.model.passes, facts["passes"], strict=True):
            (part,) = ran.method.denoising(step, ran.method.shape.diffusion)
            wrong += (part.tokens, part.passes, list(part.timesteps)) != (noted["count"], noted["steps"], noted["timesteps"])
    return float(wrong)


KINDS = {
    "disa": Kind(partial(mar_recap.subject, cls=Annealed), (
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
def shape(grid: int, steps: int) -> MaskedLayout:
    return MARConfig(16, (1, 1), 2, 1, 16, grid=grid).layout([0], Sampling(steps=steps))


def order(method: Halton, _: Vector, grid: str) -> Tensor:
    """Return the positions of a grid in the order in which they are predicted."""
    method.layout = shape(int(grid), 1)
    (row,) = method.ordered(torch.arange(method.layout.visual)[None])
    return row.flip(0).short()


def counts(method: Halton, _: Vector, size: str) -> Tensor:
    grid, steps = map(int, size.split("-"))
    method.steps = steps
    return torch.tensor(method.paced(shape(grid, steps)).counts, dtype=torch.int16)


KINDS |= {
    "halton": Kind(lambda _: Halton(rate="arccos"), (
        compare("orders", "orders/*", order, 0.0, by=differing),
        compare("counts", "counts/*", counts, 0.0, by=differing),
    ), "the order and the tokens per step of the Halton scheduler's published code", ("halton",)),
}
