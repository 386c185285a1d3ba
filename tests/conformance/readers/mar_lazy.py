"""MAR under LazyMAR (kind ``lazy``): whole generations with tokens from the file, and the cached head alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedStep
from cachemark.cache.slot import Memory
from cachemark.contract.method import Block, Method
from cachemark.core.spec import Sampling
from cachemark.methods.lazymar import LazyMAR
from cachemark.models.diffusion import DiffusionHead
from cachemark.models.mar import MAR

from ..checks import Check, Kind, Vector, apart, differing
from . import mar

ABSOLUTE = 1e-3  # sharp random attention: a relative change of the weights by 1e-6 moves what the head is told by 1e-4
RELATIVE = 1e-5
SPACINGS = {"std": (100,), "tame": (100, 0)}  # sections of the head's process
HEAD = Sampling(cfg_scale=3.0, temperature=0.95, steps=64)


@dataclass
class Watched(LazyMAR):
    """Notes the raw score of every token and which go on, in every partial pass; the difference of the branches; and how many rows
    and tokens the encoder computes."""

    seen: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    differences: dict[int, Tensor] = field(default_factory=dict)
    inputs: list[list[int]] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if site == ("encoder", 0):
            self.inputs.append(list(tokens.x.shape[:2]))
        return super().block(site, step, tokens, block)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site != ("decoder", self.layer) or self.full[step.index]:
            return super().attend(site, step, q, k, v)
        assert isinstance(step, MaskedStep)
        score = self.scores(step, v)
        out = super().attend(site, step, q, k, v)
        everything = mar.everywhere(len(v), v.size(2))
        self.seen[step.index] = score, everything if self.chosen is None else self.chosen
        return out

    def end_step(self, step: Step) -> None:
        if self.full[step.index] and self.apart is not None:
            self.differences[step.index] = self.apart.clone()
        super().end_step(step)


class Fed(mar.Replayed):
    """Order and tokens come from the file and the head is left out; what stands between the stacks is noted."""

    def feed(self, orders: Tensor) -> None:
        self.orders = orders
        self.told, self.passes, self.encoded, self.everything = [], [], [], []
        self.diffloss.sample = lambda z, noise, *_: torch.zeros_like(noise[0])  # type: ignore[method-assign]

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        return torch.zeros(1, *places.shape, self.config.channels)

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.encoded.append(super().encode(prefix, latents, step, method))
        return self.encoded[-1]

    def decode(self, encoded: Tensor, step: MaskedStep, method: Method) -> Tensor:
        hidden = super().decode(encoded, step, method)
        self.everything.append(MAR.conditions(self, hidden, mar.everywhere(len(hidden), self.config.tokens)))
        return hidden


@dataclass
class Ran:
    """One generation: the method that watched, the passes, guidance of each, and what the model made on the way."""

    method: Watched
    model: Fed
    scales: list[float]


@dataclass
class Subject:
    """What the checks look at. ``knobs`` of the method in the generations, of which ``only`` one may be asked for."""

    weights: dict[str, Tensor]
    vector: Vector
    knobs: dict[str, Any] = field(default_factory=dict)
    only: str = ""

    def model(self) -> Fed:
        made = Fed(mar.config_of(self.vector.facts["_meta"], "100"))
        made.load_state_dict(self.weights)
        return made.eval().requires_grad_(False)

    @cached_property
    def runs(self) -> dict[str, Ran]:
        given = self.vector.facts["_meta"]["trajectories"]
        return {one["id"]: self._run(one) for one in given if self.only in ("", one["id"])}

    def _run(self, given: dict[str, Any]) -> Ran:
        model, method, at = self.model(), Watched(**self.knobs), f"in/traj{given['id']}/"
        model.feed(self.vector[f"{at}orders"])
        sampling = Sampling(cfg_scale=given["cfg"], cfg_schedule="linear", steps=given["num_iter"])
        labels, tokens = torch.tensor(given["labels"]), self.vector[f"{at}tokens"]
        model.generate(labels, [0] * given["bsz"], method, sampling, Memory(), forced=tokens)
        scales = [mar.mar.guidance(sampling, step, model.config.tokens) or 1.0 for step in model.passes]
        return Ran(method, model, scales)

    def head(self, method: Method, sections: tuple[int, ...]) -> tuple[Tensor, list[Tensor], dict[str, list[Any]]]:
        """The head alone: the tokens, those after each pass, and which blocks ran their MLP for how many rows."""
        model, vector = self.model(), self.vector
        head, batch = model.diffloss, len(vector["in/head/init_noise"])
        course = head.course(sections, HEAD.temperature)
        noise = torch.cat((vector["in/head/init_noise"][None], vector["in/head/noise"]))[:, :, None]
        sampling = replace(HEAD, diffusion_steps=sum(sections))
        method.begin(model.layout([0] * batch, sampling), model.sites, Memory())
        steps: list[Tensor] = []
        calls: dict[str, list[Any]] = {str(index): [] for index in range(len(course.process))}
        with listening(head, steps, calls):
            out = head.sample(vector["in/head/c"][:, None], noise, HEAD.cfg_scale, course, MaskedStep(0, 64, count=1), method)
        return out[:, 0], steps, calls

    @cached_property
    def heads(self) -> dict[str, tuple[Tensor, list[Tensor], dict[str, list[Any]]]]:
        only = dict.fromkeys(("token_cache", "condition_cache", "encoder_cache"), False)
        return {name: self.head(LazyMAR(**only), sections) for name, sections in SPACINGS.items()}


@contextmanager
def listening(head: DiffusionHead, steps: list[Tensor], calls: dict[str, list[Any]]) -> Iterator[None]:
    """While it is open, the tokens after each pass of a head are noted, and the rows of each MLP and final layer that runs."""
    net, back, passes = head.net, head.back, len(calls)

    def noted(*args: Any) -> Tensor:
        x = back(*args)
        steps.append(x[:, 0])
        return x

    def called(which: Any, plain: Callable[..., Tensor], x: Tensor | Tokens, *rest: Tensor) -> Tensor:
        calls[str(passes - 1 - len(steps))].append([which, len(x.x if isinstance(x, Tokens) else x)])
        return plain(x, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "back", noted)
        patch.setattr(net.final_layer, "forward", partial(called, "final", net.final_layer.forward))
        for number, block in enumerate(net.res_blocks):
            patch.setattr(block, "branch", partial(called, number, block.branch))
        yield


def subject(vector: Vector, only: str = "", **knobs: Any) -> Subject:
    return Subject(vector.weights(), vector, knobs, only)


# -- whole generations ------------------------------------------------------------------------------------------------
def trajectory(name: str, measure: Callable[[Ran, Vector, str], float], tolerance: float = 0.0) -> Check:
    """The worst of all generations."""

    def measured(given: Subject, vector: Vector) -> float:
        return max(measure(ran, vector, f"traj{which}") for which, ran in given.runs.items())

    return Check(name, tolerance, measured, ("weights/mask_token", "in/head/c"))


def fullness(ran: Ran, vector: Vector, at: str) -> float:
    found = [index for index, full in enumerate(ran.method.full) if full]
    return float(found != vector.facts[f"{at}/"]["full_steps"] or list(ran.method.seen) != vector.facts[f"{at}/"]["cached_steps"])


def kept_counts(ran: Ran, vector: Vector, at: str) -> float:
    return float([kept.size(1) for _, kept in ran.method.seen.values()] != vector.facts[f"{at}/"]["kept_counts"])


def kept(ran: Ran, vector: Vector, at: str) -> float:
    expected = vector[f"out/{at}/kept"]
    found = [torch.zeros_like(mask).scatter(1, places, 1) for mask, (_, places) in zip(expected, ran.method.seen.values(), strict=True)]
    return differing(torch.stack(found), expected)


def scores(ran: Ran, vector: Vector, at: str) -> float:
    return apart(torch.stack([score for score, _ in ran.method.seen.values()]), vector[f"out/{at}/score"])


def masks(ran: Ran, vector: Vector, at: str) -> float:
    return mar.masks(mar.Ran(torch.empty(0), ran.model.passes, [], torch.empty(0), torch.empty(0)), vector, f"out/{at}/")


def told(ran: Ran, vector: Vector, at: str) -> float:
    return apart(torch.cat([z.flatten(0, 1) for z in ran.model.told]), vector[f"out/{at}/z_pred"])


def told_in_full(ran: Ran, vector: Vector, at: str) -> float:
    """What the head is told in full passes is what it is told without any cache."""
    told = torch.cat([z.flatten(0, 1) for z, full in zip(ran.model.told, ran.method.full, strict=True) if full])
    plain = vector[f"out/{at}/z_pred_mar"].split([2 * step.count * len(step.known) // 2 for step in ran.model.passes])
    return apart(told, torch.cat([z for z, full in zip(plain, ran.method.full, strict=True) if full]))


def guidance(ran: Ran, vector: Vector, at: str) -> float:
    return apart(torch.tensor(ran.scales), torch.tensor(vector.facts[f"{at}/"]["cfg_iter"]))


def encoder_shapes(ran: Ran, vector: Vector, at: str) -> float:
    return float(ran.method.inputs != vector.facts[f"{at}/"]["encoder_input_shape"])


def noted(kind: str) -> Callable[[Ran, Vector, str], float]:
    """What the file holds of single passes: ``z`` and ``encoder_out`` of all places, ``diff``."""

    def measure(ran: Ran, vector: Vector, at: str) -> float:
        found = [0.0]
        for index in range(len(ran.model.passes)):
            name = f"out/{at}/step{index}/{kind}"
            if name in vector.tensors:
                made = {"z": ran.model.everything, "encoder_out": ran.model.encoded, "diff": ran.method.differences}[kind][index]
                found.append(apart(made[: len(vector[name])], vector[name]))
        return max(found)

    return measure


# -- the head ---------------------------------------------------------------------------------------------------------
def head_check(name: str, spacing: str, measure: Callable[[Any, Vector, str], float], tolerance: float = RELATIVE) -> Check:
    def measured(given: Subject, vector: Vector) -> float:
        return measure(given.heads[spacing], vector, f"out/head/{spacing}")

    return Check(f"{name}_{spacing}", tolerance, measured, (f"out/head/{spacing}/cached_out",))


def head_steps(ran: Any, vector: Vector, at: str) -> float:
    """After every pass, as a share of the greatest value then; the file repeats them for the unconditional rows."""
    expected = vector[f"{at}/cached_steps"]
    last = mar.far(ran[0], vector[f"{at}/cached_out"][: len(ran[0])])
    return max(last, *(mar.far(x, y[: len(x)]) for x, y in zip(ran[1], expected, strict=True)))


def head_calls(ran: Any, vector: Vector, at: str) -> float:
    return float(ran[2] != vector.facts["head_mlp_calls"])


def plain_head(given: Subject, vector: Vector) -> float:
    """With the switch off the head is the plain one."""
    off = dict.fromkeys(("token_cache", "condition_cache", "encoder_cache", "head_cache"), False)
    made = {name: given.head(LazyMAR(**off), sections)[0] for name, sections in SPACINGS.items()}
    return max(mar.far(out, vector[f"out/head/{name}/plain_out"][: len(out)]) for name, out in made.items())


KINDS = {
    "lazy": Kind(subject, (
        trajectory("full_passes", fullness),
        trajectory("kept_counts", kept_counts),
        trajectory("kept", kept),
        trajectory("masks", masks),
        trajectory("encoder_shapes", encoder_shapes),
        trajectory("guidance", guidance, 1e-6),
        trajectory("scores", scores, ABSOLUTE),
        trajectory("told", told, ABSOLUTE),
        trajectory("told_in_full", told_in_full, ABSOLUTE),
        trajectory("everywhere", noted("z"), ABSOLUTE),
        trajectory("encoded", noted("encoder_out"), ABSOLUTE),
        trajectory("differences", noted("diff"), ABSOLUTE),
        head_check("head", "std", head_steps),
        head_check("head", "tame", head_steps),
        head_check("head_calls", "std", head_calls, 0.0),
        Check("plain_head", RELATIVE, plain_head, ("out/head/std/plain_out",)),
    ), "generations under LazyMAR's published code: what it computes, keeps and reuses in every pass", ("lazymar",)),
}
