"""MAR under LazyMAR (kind ``lazy``): generations along the file's tokens, and the cached head."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedStep
from cachemark.cache.timesteps import respaced
from cachemark.contract.block import Block
from cachemark.core.spec import Sampling
from cachemark.methods.lazymar import BRIDGED, HEAD_PERIOD, LazyMAR

from ..checks import Check, Kind, Vector, apart, compare, differing, filled, of_runs, worst
from . import mar

ABSOLUTE = 1e-3  # sharp random attention: a relative change of the weights by 1e-6 moves the head's inputs by 1e-4
RELATIVE = 1e-5
SPACINGS = {"std": "{}", "tame": "{},0"}  # sections of the head's process, of its number of steps
PARAMETERS = {
    "start": "start_step", "period": "refresh_period", "table": "retain_ratio", "layer": "similarity_layer_index", "extra": "min_extra",
}
HEAD = {"head_threshold": HEAD_PERIOD, "head_delta_blocks": list(BRIDGED)}  # no parameters of ours


@dataclass
class Watched(LazyMAR):
    """LazyMAR that records scores and chosen tokens, branch differences, and encoder inputs."""

    scored: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    differences: dict[int, Tensor] = field(default_factory=dict)
    inputs: list[list[int]] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if site == ("encoder", 0):
            self.inputs.append(list(tokens.x.shape[:2]))
        return super().block(site, step, tokens, block)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site != ("decoder", self.layer) or self.full[step.index]:
            return super().attend(site, step, q, k, v)
        score = self.scores(step, v)
        out = super().attend(site, step, q, k, v)
        everything = mar.everywhere(len(v), v.size(2))
        self.scored[step.index] = score, everything if self.chosen is None else self.chosen
        return out

    def end_step(self, step: Step) -> None:
        if self.full[step.index] and self.apart is not None:
            self.differences[step.index] = self.apart.clone()
        super().end_step(step)


@dataclass
class Ran:
    method: Watched
    model: mar.Replayed
    scales: list[float]


@dataclass
class Subject:
    """The subject of the checks."""

    weights: dict[str, Tensor]
    vector: Vector

    def model(self) -> mar.Replayed:
        return filled(mar.Replayed(mar.config_of(self.meta, self.spacing("std"))), self.weights)

    @property
    def meta(self) -> dict[str, Any]:
        return self.vector.facts["_meta"]

    def spacing(self, name: str) -> str:
        return SPACINGS[name].format(self.meta["config"]["num_sampling_steps"])

    @property
    def built_in(self) -> dict[str, Any]:
        """Parameters for numbers that the authors' code had built in."""
        built_in = self.meta.get("hard_coded", {})
        if other := {name: built_in[name] for name, value in HEAD.items() if built_in.get(name, value) != value}:
            raise ValueError(f"the head's cache of this package has no parameters for {other}: expected {HEAD}")
        return {"schedule": "published"} | {parameter: built_in[name] for parameter, name in PARAMETERS.items() if name in built_in}

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {run["id"]: self._run(run) for run in self.meta["trajectories"]}

    def _run(self, run: dict[str, Any]) -> Ran:
        model, method, at = self.model(), Watched(**self.built_in), f"in/traj{run['id']}/"  # along the file's tokens, without the head
        model.replay(self.vector[f"{at}orders"], lambda places, passes: torch.zeros(1, *places.shape, model.config.channels))
        model.diffloss.sample = lambda z, noise, *_: torch.zeros_like(noise[0])  # type: ignore[method-assign]
        sampling = Sampling(cfg_scale=run["cfg"], cfg_schedule=run.get("cfg_schedule", "linear"), steps=run["num_iter"])
        tokens = self.vector[f"{at}tokens"]
        model.generate(mar.labels_of(run), [0] * run["bsz"], method, sampling, Memory(), forced=tokens)
        scales = [mar.mar.guidance(sampling, step, model.config.tokens) or 1.0 for step in model.passes]
        return Ran(method, model, scales)

    def head(self, name: str, **switches: bool) -> tuple[Tensor, list[Tensor], dict[str, list[Any]]]:
        """Run the head, as the file's notes say, for one token per row: result, tokens after each pass, and MLP calls by block."""
        model, vector, sections = self.model(), self.vector, mar.sections_of(self.spacing(name))
        head, batch = model.diffloss, len(vector["in/head/init_noise"])
        scale, temperature = re.search(r"cfg ([\d.]+), temperature ([\d.]+)", " ".join(self.meta["notes"])).groups()
        schedule = head.schedule(respaced(sections), float(temperature))
        noise = torch.cat((vector["in/head/init_noise"][None], vector["in/head/noise"]))[:, :, None]
        sampling = Sampling(cfg_scale=float(scale), steps=1, diffusion_steps=sum(sections))
        method = LazyMAR(**self.built_in, **dict.fromkeys(("token_cache", "condition_cache", "encoder_cache"), False), **switches)
        method.begin(model.layout([0] * batch, sampling), model.sites, Memory())
        traces, net = mar.traced(head), head.net
        calls: dict[str, list[Any]] = {str(index): [] for index in range(len(schedule.process))}

        def called(which: Any, plain: Callable[..., Tensor], x: Tensor | Tokens, *parts: Tensor) -> Tensor:
            calls[str(len(schedule.process) - 1 - sum(map(len, traces)))].append([which, len(x.x if isinstance(x, Tokens) else x)])
            return plain(x, *parts)

        net.final_layer.forward = partial(called, "final", net.final_layer.forward)  # type: ignore[method-assign]
        for number, block in enumerate(net.res_blocks):
            block.branch = partial(called, number, block.branch)
        out = head.sample(vector["in/head/c"][:, None], noise, sampling.cfg_scale, schedule, MaskedStep(0, 1, count=1), method)
        return out[:, 0], [x[:, 0] for x in traces[0]], calls

    @cached_property
    def heads(self) -> dict[str, tuple[Tensor, list[Tensor], dict[str, list[Any]]]]:
        return {name: self.head(name) for _, name in self.vector.matching("out/head/*/cached_out")}


# -- whole generations ------------------------------------------------------------------------------------------------
def fact(name: str, holds: Callable[[Ran, dict[str, Any]], bool]) -> Check:
    """Check what the file's configuration notes about each generation."""
    return Check(name, 0.0, lambda subject, vector: float(not all(
        holds(ran, vector.facts[f"traj{which}/"]) for which, ran in subject.runs.items())), ("json/traj*/",))


def guidance(subject: Subject, vector: Vector) -> float:
    return worst(apart(torch.tensor(ran.scales), torch.tensor(vector.facts[f"traj{which}/"]["cfg_iter"]))
                 for which, ran in subject.runs.items())


def kept_tokens(subject: Subject, vector: Vector, which: str) -> Tensor:
    chosen = [tokens for _, tokens in subject.runs[which].method.scored.values()]
    expected = vector[f"out/traj{which}/kept"]
    return torch.stack([torch.zeros_like(mask).scatter(1, tokens, 1) for mask, tokens in zip(expected, chosen, strict=True)])


def masks(subject: Subject, vector: Vector, which: str) -> Tensor:
    return mar.masks_of(subject.runs[which].model.passes, *vector[f"out/traj{which}/masks"].shape[1:])


def head_inputs_in_full(subject: Subject, vector: Vector, which: str) -> Tensor:
    """Return head conditions of full passes, and those without any cache for the others."""
    ran = subject.runs[which]
    plain = vector[f"out/traj{which}/z_pred_mar"].split([2 * step.count * len(step.known) // 2 for step in ran.model.passes])
    return torch.cat([z.flatten(0, 1) if full else without
                      for z, without, full in zip(ran.model.head_inputs, plain, ran.method.full, strict=True)])


def first_rows(actual: Tensor, expected: Tensor) -> float:
    return apart(actual[: len(expected)], expected)


# -- the head ---------------------------------------------------------------------------------------------------------
def head_steps(subject: Subject, vector: Vector, which: str) -> float:
    """Compare tokens after every pass, relative to the largest value."""
    out, steps, _ = subject.heads[which]
    last = mar.far(out, vector[f"out/head/{which}/cached_out"][: len(out)])
    return max(last, *(mar.far(x, y[: len(x)]) for x, y in zip(steps, vector[f"out/head/{which}/cached_steps"], strict=True)))


KINDS = {
    "lazy": Kind(lambda vector: Subject(vector.weights(), vector), (
        fact("full_passes", lambda ran, facts: list(ran.method.scored) == facts["cached_steps"] and facts["full_steps"] == [
            index for index, full in enumerate(ran.method.full) if full]),
        fact("kept_counts", lambda ran, facts: facts["kept_counts"] == [tokens.size(1) for _, tokens in ran.method.scored.values()]),
        compare("kept", "out/traj*/kept", kept_tokens, 0.0, by=differing),
        compare("masks", "out/traj*/masks", masks, 0.0, by=differing),
        fact("encoder_shapes", lambda ran, facts: ran.method.inputs == facts["encoder_input_shape"]),
        Check("guidance", 1e-6, guidance, ("json/traj*/",)),
        of_runs("scores", "out/traj*/score", lambda ran: torch.stack([score for score, _ in ran.method.scored.values()]), ABSOLUTE),
        of_runs("head_inputs", "out/traj*/z_pred", lambda ran: torch.cat([z.flatten(0, 1) for z in ran.model.head_inputs]), ABSOLUTE),
        compare("head_inputs_in_full", "out/traj*/z_pred_mar", head_inputs_in_full, ABSOLUTE),
        of_runs("everywhere", "out/traj*/step*/z", lambda ran, step: ran.model.everything(step), ABSOLUTE, first_rows),
        of_runs("encoded", "out/traj*/step*/encoder_out", lambda ran, step: ran.model.encoded[step], ABSOLUTE, first_rows),
        of_runs("differences", "out/traj*/step*/diff", lambda ran, step: ran.method.differences[step], ABSOLUTE, first_rows),
        Check("head_*", RELATIVE, head_steps, ("out/head/*/cached_out", "out/head/*/cached_steps")),
        Check("head_calls_std", 0.0, lambda subject, vector: float(subject.heads["std"][2] != vector.facts["head_mlp_calls"]),
              ("out/head/std/cached_out", "json/head_mlp_calls")),
        compare("plain_head", "out/head/*/plain_out", lambda subject, vector, which: subject.head(which, head_cache=False)[0], RELATIVE,
                by=lambda actual, expected: mar.far(actual, expected[: len(actual)])),
    ), "generations under LazyMAR's published code: what it computes, keeps and reuses in every pass", ("lazymar",)),
}
