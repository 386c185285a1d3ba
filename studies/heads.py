"""What a shorter diffusion head costs on tiny-mar: annealed or constant, from the noisiest timestep or from 950.

    python -m studies.heads --images 16 --json studies/results/heads.json
    python -m studies.heads --sensitivity

The full head makes images and its inputs are recorded. For each input every head draws tokens anew, so heads are compared on equal inputs
and the transformer runs once. Measured is the energy distance between a head's draws and the full head's for one input, averaged over
tokens, with a bootstrap interval over images: 0 for a head with the full head's distribution, for any number of draws. ``calls`` are passes
of the head per image; ``FLOPs`` the head's steps per token relative to the full head's.

With ``--sensitivity`` it prints, for the methods that shorten the head of MAR-L in 64 passes, the largest factor by which an error of the
predicted noise enters the mean after the first step: √(1/ᾱ − 1) times what the step keeps of the predicted token. No model is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, masked_steps
from cachemark.cache.timesteps import STEPS, respaced, spaced
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.base.annealed import LATEST, SCHEDULES
from cachemark.methods.disa import DiSA
from cachemark.methods.full import Full
from cachemark.methods.gtr import GtR
from cachemark.methods.recap import ReCAP
from cachemark.models.diffusion import process
from cachemark.models.mar import MAR
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

from .origin import Origin

DRAWS = 4  # of each head for each input
OWN = "own"  # the model's spacing, which leaves out the noisiest timesteps


class Head(NamedTuple):
    """Steps from ``most`` in the first pass to ``least`` in the last, by a schedule; ``start``: the model's own, or a timestep."""

    annealing: str
    most: int
    least: int
    start: str | int

    def timesteps(self, sections: tuple[int, ...], step: MaskedStep) -> tuple[int, ...]:
        count = self.least + int(SCHEDULES[self.annealing](step.index, step.total - 1, self.most - self.least))
        if self.start == OWN:
            return respaced(spaced(sections, count))
        return tuple(sorted({min(time, int(self.start)) for time in respaced((count,))}))


def heads(full: int) -> dict[str, Head]:
    """Return the heads by name; the constant ones cost about what the annealed ones do."""
    table = {"full head again": Head("constant", full, full, OWN)}
    table |= {f"{name} 12 to 2, from {OWN}": Head(name, 12, 2, OWN) for name in ("cosine", "two-stage")}
    for start in (OWN, STEPS - 1, LATEST):
        table |= {f"linear 12 to 2, from {start}": Head("linear", 12, 2, start), f"constant 5, from {start}": Head("constant", 5, 5, start)}
    return table


class Input(NamedTuple):
    """What the head reads in one pass: conditions, places, guidance scale and the pass."""

    z: Tensor
    places: Tensor
    scale: Any
    step: MaskedStep


def recorded(model: MAR, images: int, sampling: Sampling) -> tuple[list[Input], Method]:
    """Generate images with the full head; return the inputs of the head by pass, and the method."""
    inputs: list[Input] = []
    drawn = model._drawn

    def noting(step: MaskedStep, *others: Any) -> Any:
        z, places, *scale = others[4:]
        inputs.append(Input(z.clone(), places.clone(), scale[0] if scale else None, step))
        return drawn(step, *others)

    model._drawn = noting  # type: ignore[method-assign, assignment]
    method, seeds = Full(), list(range(images))
    model.generate(torch.arange(images) % model.config.classes, seeds, method, sampling, Memory())
    del model._drawn
    return inputs, method


def draws(model: MAR, given: Input, timesteps: tuple[int, ...], method: Any, temperature: float, first: int) -> Tensor:
    """Return tokens (DRAWS, images, n, channels) for an input, with noise of the seeds from ``first`` on."""
    schedule = model.diffloss.schedule(timesteps, temperature)
    images = len(given.places)
    return torch.stack([
        model.diffloss.sample(given.z, model.noise(streams.seeds_tensor(range(first + 10_000 * i, first + 10_000 * i + images), "cpu"),
                                                   given.places, len(timesteps)), given.scale, schedule, given.step, method)
        for i in range(DRAWS)])


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the unbiased energy distance of draws (draws, images, n, channels), (images, n)."""
    def mean(x: Tensor, y: Tensor, *, same: bool) -> Tensor:
        apart = (x[:, None] - y[None]).norm(dim=-1)
        pairs = len(x) * len(y) - (len(x) if same else 0)
        return apart.sum((0, 1)) / pairs

    return 2 * mean(a, b, same=False) - mean(a, a, same=True) - mean(b, b, same=True)


def interval(values: np.ndarray) -> Sequence[float]:
    """Return mean and 95 % bootstrap interval over images."""
    picks = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    return [round(float(x), 5) for x in (values.mean(), *np.quantile(values[picks].mean(1), (0.025, 0.975)))]


@torch.inference_mode()
def measured(images: int, passes: int) -> dict[str, Any]:
    """Return, for each head, steps per token, calls per image, and the energy distance with its interval."""
    entry = MODELS.get("tiny-mar")
    model, sampling = entry.load(Request()).generator, replace(entry.presets["paper"], steps=passes)
    assert isinstance(model, MAR)
    inputs, method = recorded(model, images, sampling)
    sections = model.config.diffusion
    full = sum(sections)
    right = [draws(model, given, respaced(sections), method, sampling.temperature, 1_000_000) for given in inputs]
    rows = {}
    for name, head in heads(full).items():
        times = [head.timesteps(sections, given.step) for given in inputs]
        tokens = [given.step.count for given in inputs]
        apart = np.zeros(images)
        for given, expected, chosen in zip(inputs, right, times, strict=True):
            drawn = draws(model, given, chosen, method, sampling.temperature, 2_000_000)
            apart += energy_distance(drawn, expected).sum(1).double().numpy() / sum(tokens)
        steps = sum(count * len(chosen) for count, chosen in zip(tokens, times, strict=True)) / sum(tokens)
        rows[name] = {"steps per token": round(steps, 2), "calls": sum(map(len, times)), "energy distance": interval(apart)}
        print(f"{name:28} {rows[name]}", flush=True)
    return {"model": "tiny-mar", "images": images, "passes": passes, "draws": DRAWS, "heads": rows}


def sensitivity() -> Iterator[tuple[str, int, int, float]]:
    """Yield methods with steps, first timestep and factor of the pass in which an error counts most."""
    entry = MODELS.get("mar-l")
    shape = entry.shape(replace(entry.presets["paper"], steps=64), 1)
    assert isinstance(shape, MaskedLayout)
    for name, method in {"full": Full(), "recap": ReCAP(), "gtr": GtR(), "disa": DiSA(), "disa, start = full": DiSA(start="full")}.items():
        method.resolve(shape)
        steps = masked_steps(shape, method.passes(shape.steps))
        passes = [part.process(shape) for step in steps for part in method.denoising(step, shape.diffusion)]
        most = max(passes, key=lambda times: process(tuple(times)).backs[-1].drop)
        yield name, len(most), most[-1], process(tuple(most)).backs[-1].drop


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--json")
    parser.add_argument("--sensitivity", action="store_true")
    options = parser.parse_args(arguments)
    if options.sensitivity:
        for name, steps, first, factor in sensitivity():
            print(f"{name:20} {steps:4} steps from {first}: {factor:.4g}")
        return
    origin = Origin(torch.get_num_threads())
    print(origin)
    origin.write(options.json, **measured(options.images, options.passes))


if __name__ == "__main__":
    main()
