"""Checks of a model's interface to methods. Each yields deviations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.layout import Layout, Site, Step
from ..contract.method import Method
from ..core.errors import BadBudget, BadCheckpoint, Unsupported
from ..core.spec import Sampling
from ..methods.registry import METHODS
from ..models.protocol import Loaded, ModelEntry, Request
from . import checks
from .common import Findings, KitCell, KitRun
from .driver import Onlooker
from .oracle import Shadow

SEEDS = (5, 11, 2)
CLOSE, ANSWERS = 1e-4, 1e-5  # logits and outputs of attention, relative to the largest
PARADIGMS = ("next-token", "next-scale", "masked")


@dataclass
class ModelExample(KitCell):
    """A model by its entry, loaded with the weights of ``request`` or without any."""

    entry: ModelEntry
    request: Request = field(default_factory=Request)

    @cached_property
    def loaded(self) -> Loaded:
        """The loaded model."""
        return self.entry.load(self.request)

    @property
    def sampling(self) -> Sampling:
        """The authors' settings."""
        return self.entry.presets["paper"]

    @cached_property
    def reference(self) -> KitRun:
        """The full cache's generation of the samples."""
        return self.run(self.tight())

    @property
    def parameters(self) -> Sequence[Tensor]:
        return self.loaded.parameters

    @property
    def size(self) -> str:
        layout = self.layout(SEEDS)
        return f"{self.entry.name}, {layout.layers} layers of {layout.heads} heads, {'×'.join(map(str, self.entry.grid))} tokens"

    @property
    def seeds(self) -> Sequence[int]:
        return SEEDS

    @property
    def other_seeds(self) -> Sequence[int]:
        return tuple(seed + self.entry.classes for seed in SEEDS) if self.loaded.prompted else (7, 3, 1)  # prompts of equal lengths

    def tight(self) -> Method:
        """Return the full cache."""
        return Method()

    def layout(self, seeds: Sequence[int]) -> Layout:
        """Return the shape of a generation."""
        return self.loaded.generator.layout(list(seeds), self.sampling, *([self.labels(seeds)] if self.loaded.prompted else ()))

    def labels(self, seeds: Sequence[int]) -> list[int]:
        """Return the classes of samples, their seeds modulo the number of classes."""
        return [seed % self.entry.classes for seed in seeds]

    def generate(self, method: Method, memory: Memory, seeds: Sequence[int], forced: Tensor | None, with_logits: bool) -> KitRun:
        """Generate these samples; logits are the predictions of every step."""
        predictions: list[Tensor] = []
        tokens = self.loaded.generator.generate(torch.tensor(self.labels(seeds)), list(seeds), method, self.sampling, memory, forced=forced,
                                                see=lambda _, step: predictions.append(step.clone()))
        return KitRun(method, memory, {}, tokens, predictions)


def far_step(expected: Sequence[Tensor], actual: Sequence[Tensor], least: float = 0.0) -> tuple[int, float] | None:
    """Return the first step that differs by over 1e-4 of the largest value (or ``least``), and the error."""
    for step, (first, second) in enumerate(zip(expected, actual, strict=True)):
        distance = float((first.double() - second.double()).abs().max()) if first.shape == second.shape else float("inf")
        if not distance <= CLOSE * max(least, float(first.abs().max())):
            return step, distance
    return None


# -- the entry and the weights ------------------------------------------------------------------------------------------
def entry_matches_the_model(model: ModelExample) -> Findings:
    """The entry's shape and identity, which plans read, equal the loaded model's."""
    entry, loaded = model.entry, model.loaded
    if entry.paradigm not in PARADIGMS:
        yield model.finding(f"one of {', '.join(PARADIGMS)}", entry.paradigm)
    if (identity := entry.identity(model.request)) != loaded.weights:
        yield model.finding(f"the identity {loaded.weights} of the loaded weights", identity)
    declared, shape = entry.shape(model.sampling, len(SEEDS)), model.layout(SEEDS)
    for name in [each.name for each in fields(Layout) if each.name not in ("seeds", "dtype", "device", "condition", "branches")]:
        if getattr(shape, name) != getattr(declared, name):
            yield model.finding(f"{name} = {getattr(shape, name)}, as loaded", getattr(declared, name))
    if declared.rows != shape.rows:
        yield model.finding(f"{shape.rows} rows, as loaded", declared.rows)


def images_are_valid(model: ModelExample) -> Findings:
    """Tokens decode to one finite image of three channels per sample, about within [−1, 1]."""
    tokens = model.reference.tokens
    images = model.loaded.decode(tokens)
    if images.dim() != 4 or images.shape[:2] != (len(SEEDS), 3):
        yield model.finding(f"images of shape ({len(SEEDS)}, 3, H, W)", tuple(images.shape))
    elif not bool(images.isfinite().all()) or float(images.abs().max()) > 10:
        yield model.finding("finite images in [−1, 1]", f"up to {float(images.abs().max()):.3g}")
    if tokens.shape[:2] != (len(SEEDS), model.layout(SEEDS).visual):
        yield model.finding(f"tokens of shape ({len(SEEDS)}, {model.layout(SEEDS).visual})", tuple(tokens.shape))


def weights_match_the_model(model: ModelExample) -> Findings:
    """Given weights contain every tensor of the model with its shape, and no other."""
    files = [(file, path) for file in model.entry.files if (path := getattr(model.request, file.key))]
    if not files:
        raise Unsupported("No weights were given (--weights).")
    for file, path in files:
        try:
            file.check(path)
        except BadCheckpoint as error:
            yield model.finding(f"the {file.key} of {file.name}", error)


# -- a generation -------------------------------------------------------------------------------------------------------
def samples_are_the_same_in_any_batch(model: ModelExample) -> Findings:
    """A sample has the same logits in another batch and order, and alone, to 1e-4 of the largest."""
    full = model.reference
    for rows in ([2, 0], [1]):
        seeds = [SEEDS[row] for row in rows]
        part = model.run(Method(), seeds=seeds, forced=full.tokens[rows])
        pairs = [(a, b) for a, b in zip(full.logits, part.logits, strict=True) if a.is_floating_point()]
        if far := far_step([first[rows] for first, _ in pairs], [second for _, second in pairs], 1.0):
            yield model.finding("the logits of a batch of three", f"a difference of {far[1]:.3g}", far[0], seeds=seeds)
            return


def forced_tokens_are_followed(model: ModelExample) -> Findings:
    """Forced along its own tokens, the model repeats its predictions."""
    free = model.reference
    forced = model.run(Method(), forced=free.tokens)
    if not torch.equal(forced.tokens, free.tokens):
        yield model.finding("the forced tokens", "different ones")
    if far := far_step(free.logits, forced.logits):
        yield model.finding("the logits of free generation", f"a difference of {far[1]:.3g}", step=far[0])
    other = model.run(Method(), forced=free.tokens.flip(0))
    if all(torch.equal(*pair) for pair in zip(free.logits, other.logits, strict=True)):
        yield model.finding("different logits along other tokens", "the same")


# -- calls of methods ---------------------------------------------------------------------------------------------------
@dataclass
class Calls(Onlooker):
    """Records the calls of a method in every step, and tensors whose shape differs from the layout's."""

    passes: dict[int, list[Site]] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    misshaped: list[tuple[int, Site, str, str]] = field(default_factory=list)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.passes.setdefault(step.index, []).append(site)
        layout = method.layout
        heads = (layout.heads, layout.kv_heads, layout.kv_heads, layout.heads)
        for name, part, count in zip(("q", "k", "v", "an output"), (q, k, v, out), heads, strict=True):
            if part.dim() != 4 or part.size(1) != count or part.size(3) != layout.head_dim or len(part) > layout.rows:
                expected = f"{name} of shape ({layout.rows}, {count}, tokens, {layout.head_dim})"
                self.misshaped.append((step.index, site, expected, str(tuple(part.shape))))

    def after_end(self, method: Method, step: Step) -> None:
        self.closed.append(step.index)


def every_site_is_called_once_per_step(model: ModelExample) -> Findings:
    """Each step calls ``attend`` once at every site, and then ``end_step``."""
    if model.entry.paradigm == "masked":
        raise Unsupported("Steps of a masked model skip sites.")
    calls = Calls()
    ran = model.run(Method(), calls)
    for step, site, expected, actual in calls.misshaped[:1]:
        yield model.finding(expected, actual, step=step, layer=site.layer)
    for step, sites in sorted(calls.passes.items()):
        if sorted(sites) != sorted(ran.method.slots):
            yield model.finding(f"{len(ran.method.slots)} sites, each once", f"{len(sites)} calls at {len(set(sites))} sites", step=step)
            return
    if calls.closed != sorted(calls.passes):
        yield model.finding(f"end_step after each of {len(calls.passes)} steps", f"after {len(calls.closed)}")


def attention_equals_a_reference(model: ModelExample) -> Findings:
    """Attention equals a reference over all keys so far, so each token is passed once, in order."""
    if model.entry.paradigm == "masked":
        raise Unsupported("A masked model has no KV cache.")
    shadow = Shadow()
    model.run(Method(), shadow)
    if shadow.worst > ANSWERS * max(1.0, shadow.largest):
        wrong = shadow.first
        assert wrong is not None
        yield model.finding(f"{wrong.expected:.6g}, as the reference gives", f"{wrong.actual:.6g}", wrong.step, wrong.layer, wrong.head)


def evicting_methods_run(model: ModelExample) -> Findings:
    """An evicting method at half of the cache runs in fewer bytes, with the same first logits."""
    count = 0
    for name in ("streaming", "window"):
        cls = METHODS.get(name)
        if model.entry.paradigm not in cls.paradigms:
            continue
        try:
            ran = model.run(cls.build(cls.parameters_for(Fraction(1, 2), model.layout(SEEDS))))
        except BadBudget:
            continue
        count += 1
        if ran.memory.nbytes("slots") >= model.reference.memory.nbytes("slots"):
            yield model.finding(f"fewer bytes in slots with {name}", ran.memory.nbytes("slots"))
        if not torch.equal(ran.logits[0], model.reference.logits[0]):
            yield model.finding(f"the full cache's first logits with {name}", "different ones", step=0)
    if not count:
        raise Unsupported("No built-in evicting method runs on it at half of its cache.")


def neutral_methods_equal_full(model: ModelExample) -> Findings:
    """A neutral method gives the full cache's logits and tokens, bit for bit."""
    count = 0
    for name in ("streaming", "window", "linear"):
        cls = METHODS.get(name)
        if model.entry.paradigm not in cls.paradigms or cls.neutral is None:
            continue
        count += 1
        parameters = {**cls.parameters_for(Fraction(1), model.layout(SEEDS)), **cls.neutral}
        yield from checks.differences(model, model.reference, model.run(cls.build(parameters)), f"the full cache's with {name}")
    if not count:
        raise Unsupported("No built-in method with neutral parameters runs on it.")


def weights_and_settings_are_unchanged(model: ModelExample) -> Findings:
    """A generation changes neither the model's tensors nor a setting of torch."""
    before = [tensor.clone() for tensor in model.loaded.parameters]
    yield from checks.settings_are_unchanged(model)
    changed = [number for number, pair in enumerate(zip(before, model.loaded.parameters, strict=True)) if not torch.equal(*pair)]
    if changed:
        yield model.finding("unchanged weights", f"tensor {changed[0]} of its parameters changed")
    if not model.loaded.parameters:
        yield model.finding("the tensors of the model in parameters", "none")


MODEL: tuple[Callable[[ModelExample], Findings], ...] = (
    entry_matches_the_model, weights_match_the_model, images_are_valid, checks.second_generation_repeats, samples_are_the_same_in_any_batch,
    forced_tokens_are_followed, every_site_is_called_once_per_step, attention_equals_a_reference, evicting_methods_run,
    neutral_methods_equal_full, checks.graph_is_eager, weights_and_settings_are_unchanged,
)
