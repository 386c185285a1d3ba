"""Checks of a model: that it is to every method what the interface says. Each is given an example and yields what is not so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from ..models import checkpoints
from ..models.protocol import Loaded, ModelEntry, Request
from .cpu_graphs import record_on_cpu
from .driver import Onlooker, watched
from .findings import Flaw
from .oracle import Shadow
from .settings import settings_restored

Found = Iterator[Flaw]
SEEDS = (5, 11, 2)
CLOSE, ANSWERS = 1e-4, 1e-5  # logits and answers of attention, as shares of the largest
PARADIGMS = ("next-token", "next-scale", "masked")


@dataclass
class ModelRun:
    """A generation: its tokens, and everything that was seen of its passes."""

    tokens: Tensor
    shown: list[Tensor]
    method: Method
    memory: Memory


@dataclass
class ModelExample:
    """A model by its entry, loaded with the weights that a request names, or with those that it has without any."""

    entry: ModelEntry
    request: Request = field(default_factory=Request)

    @cached_property
    def loaded(self) -> Loaded:
        """The model."""
        return self.entry.load(self.request)

    @property
    def sampling(self) -> Sampling:
        """The settings of its authors."""
        return self.entry.presets["paper"]

    @cached_property
    def reference(self) -> ModelRun:
        """The full cache's generation of the samples."""
        return self.generate(Method())

    @property
    def size(self) -> str:
        """The model in words."""
        layout = self.layout(SEEDS)
        return f"{self.entry.name}, {layout.layers} layers of {layout.heads} heads, {'×'.join(map(str, self.entry.grid))} tokens"

    def layout(self, seeds: Sequence[int]) -> Layout:
        """Shape of a generation."""
        return self.loaded.generator.layout(list(seeds), self.sampling, *([self.labels(seeds)] if self.loaded.prompted else ()))

    def labels(self, seeds: Sequence[int]) -> list[int]:
        """The class of a sample, which follows from its seed."""
        return [seed % self.entry.classes for seed in seeds]

    def generate(self, method: Method, *watches: Onlooker, seeds: Sequence[int] = SEEDS, forced: Tensor | None = None,
                 memory: Memory | None = None) -> ModelRun:  # fmt: skip
        """One generation of these samples, seen by watches."""
        seen: list[Tensor] = []
        method, memory = watched(method, *watches) if watches else method, memory or Memory()
        tokens = self.loaded.generator.generate(torch.tensor(self.labels(seeds)), list(seeds), method, self.sampling, memory, forced=forced,
                                                see=lambda _, shown: seen.append(shown.clone()))
        return ModelRun(tokens, seen, method, memory)


def finding(model: ModelExample, expected: object, found: object, seeds: Sequence[int] = SEEDS, step: int | None = None,
            layer: int | None = None, head: int | None = None) -> Flaw:  # fmt: skip
    """A finding on a model."""
    return Flaw(str(expected), str(found), model.size, seeds, step, layer, head)


def unlike(model: ModelExample, expected: ModelRun, found: ModelRun, whose: str, tolerance: float = 0.0) -> Found:
    """The first pass in which what tokens are drawn from differs by more than a share of the largest, or else the tokens."""
    for step, (one, other) in enumerate(zip(expected.shown, found.shown, strict=False)):
        apart = float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("inf")
        if not apart <= tolerance * float(one.abs().max()):
            yield finding(model, whose, f"{apart:.3g} apart", step=step)
            return
    if len(expected.shown) != len(found.shown) or (not tolerance and not torch.equal(expected.tokens, found.tokens)):
        yield finding(model, whose, "other tokens")


# -- what the entry says ------------------------------------------------------------------------------------------------
def entry_says_what_is_loaded(model: ModelExample) -> Found:
    """The entry's shape and identity, which plans read without loading anything, are those of the loaded model."""
    entry, loaded = model.entry, model.loaded
    if entry.paradigm not in PARADIGMS:
        yield finding(model, f"one of {', '.join(PARADIGMS)}", entry.paradigm)
    if (told := entry.identity(model.request)) != loaded.weights:
        yield finding(model, f"the identity {loaded.weights} of what is loaded", told)
    told_shape, shape = entry.shape(model.sampling, len(SEEDS)), model.layout(SEEDS)
    for each in fields(Layout):
        ours, theirs = getattr(shape, each.name), getattr(told_shape, each.name)
        if each.name not in ("seeds", "dtype", "device", "condition", "branches") and ours != theirs:
            yield finding(model, f"{each.name} = {ours}, as it is loaded", theirs)
    if told_shape.rows != shape.rows:
        yield finding(model, f"{shape.rows} rows, as it is loaded", told_shape.rows)


def images_are_images(model: ModelExample) -> Found:
    """Tokens become as many images of three channels, finite and about from −1 to 1."""
    tokens = model.reference.tokens
    images = model.loaded.decode(tokens)
    if images.dim() != 4 or images.shape[:2] != (len(SEEDS), 3):
        yield finding(model, f"images of shape ({len(SEEDS)}, 3, H, W)", tuple(images.shape))
    elif not bool(images.isfinite().all()) or float(images.abs().max()) > 10:
        yield finding(model, "finite images in [−1, 1]", f"up to {float(images.abs().max()):.3g}")
    if tokens.shape[:2] != (len(SEEDS), model.layout(SEEDS).visual):
        yield finding(model, f"tokens of shape ({len(SEEDS)}, {model.layout(SEEDS).visual})", tuple(tokens.shape))


def weights_are_all_read(model: ModelExample) -> Found:
    """Weights that were named hold every tensor of the model with its shape, and none that nobody reads."""
    named = [(file, path) for file in model.entry.files if (path := getattr(model.request, file.key))]
    if not named:
        raise Unsupported("No weights were named (--weights).")
    for file, path in named:
        try:
            checkpoints.check(file.build, path, ignore=file.ignored, wrappers=file.wrappers, rename=file.rename)
        except BadCheckpoint as error:
            yield finding(model, f"the {file.key} of {file.name}", error)


# -- what a generation is -------------------------------------------------------------------------------------------------
def second_generation_repeats(model: ModelExample) -> Found:
    """A second generation gives the same bits from the same storage, whatever torch's own random numbers are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        memory = Memory()
        again = model.generate(Method(), memory=memory)
        before = memory.pointers()
        torch.manual_seed(321)
        torch.randn(7)
        twice = model.generate(Method(), memory=memory)
    yield from unlike(model, model.reference, again, "the first generation's")
    yield from unlike(model, again, twice, "the same under other random numbers of torch: a sample's belong to its seed")
    if memory.pointers() != before:
        yield finding(model, "the storage of the first generation", "another one")


def samples_are_the_same_in_any_batch(model: ModelExample) -> Found:
    """A sample is drawn from the same in another batch and order, and by itself, to 1e-4 of the largest logit."""
    whole = model.reference
    for rows in ([2, 0], [1]):
        seeds = [SEEDS[row] for row in rows]
        part = model.generate(Method(), seeds=seeds, forced=whole.tokens[rows])
        for step, (one, other) in enumerate(zip(whole.shown, part.shown, strict=True)):
            scale = max(1.0, float(one.abs().max()))
            if one.is_floating_point() and not float((one[rows].double() - other.double()).abs().max()) <= CLOSE * scale:
                yield finding(model, "what the samples are drawn from among three",
                              f"{float((one[rows] - other).abs().max()):.3g} apart", seeds, step)
                return


def forced_tokens_are_followed(model: ModelExample) -> Found:
    """Along its own tokens, forced, the model is drawn from what it was when it drew them."""
    whole = model.reference
    forced = model.generate(Method(), forced=whole.tokens)
    if not torch.equal(forced.tokens, whole.tokens):
        yield finding(model, "the forced tokens", "others")
    yield from unlike(model, whole, forced, "what it drew its own tokens from", CLOSE)
    other = model.generate(Method(), forced=whole.tokens.flip(0))
    if all(torch.equal(one, shown) for one, shown in zip(whole.shown, other.shown, strict=True)):
        yield finding(model, "something else along other tokens", "the same")


# -- what methods see -----------------------------------------------------------------------------------------------------
@dataclass
class Sites(Onlooker):
    """Counts what every pass asks of a method, and finds tensors of another shape than the layout says."""

    passes: dict[int, list[Site]] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)
    odd: list[tuple[int, Site, str, str]] = field(default_factory=list)

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.passes.setdefault(step.index, []).append(site)
        layout = method.layout
        heads = (layout.heads, layout.kv_heads, layout.kv_heads, layout.heads)
        for name, part, count in zip(("q", "k", "v", "its answer"), (q, k, v, out), heads, strict=True):
            if part.dim() != 4 or part.size(1) != count or part.size(3) != layout.head_dim or len(part) > layout.rows:
                expected = f"{name} of shape ({layout.rows}, {count}, tokens, {layout.head_dim})"
                self.odd.append((step.index, site, expected, str(tuple(part.shape))))

    def settled(self, method: Method, step: Step) -> None:
        self.closed.append(step.index)


def every_site_is_asked_once_a_pass(model: ModelExample) -> Found:
    """Each pass asks the method for attention once at every site that it was begun with, and is closed by end_step."""
    if model.entry.paradigm == "masked":
        raise Unsupported("A masked model's passes leave sites out.")
    sites = Sites()
    ran = model.generate(Method(), sites)
    for step, site, expected, found in sites.odd[:1]:
        yield finding(model, expected, found, step=step, layer=site.layer)
    for step, asked in sorted(sites.passes.items()):
        if sorted(asked) != sorted(ran.method.slots):
            yield finding(model, f"{len(ran.method.slots)} sites, each once", f"{len(asked)} calls at {len(set(asked))} sites", step=step)
            return
    if sites.closed != sorted(sites.passes):
        yield finding(model, f"end_step behind each of {len(sites.passes)} passes", f"behind {len(sites.closed)}")


def attention_is_the_caches(model: ModelExample) -> Found:
    """Attention answers what the textbook's does over all keys so far: the model feeds each token once, in its place."""
    if model.entry.paradigm == "masked":
        raise Unsupported("A masked model stores nothing over its passes.")
    shadow = Shadow()
    model.generate(Method(), shadow)
    if shadow.worst > ANSWERS * max(1.0, shadow.largest):
        wrong = shadow.first
        assert wrong is not None
        yield finding(model, f"{wrong.expected:.6g}, as the textbook's attention answers", f"{wrong.found:.6g}", step=wrong.step,
                      layer=wrong.layer, head=wrong.head)


def evicting_methods_run(model: ModelExample) -> Found:
    """A method at half of the cache runs, holds fewer bytes, and draws the same until it evicts something."""
    tried = 0
    for name in ("streaming", "window"):
        cls = METHODS.get(name)
        if model.entry.paradigm not in cls.paradigms:
            continue
        try:
            method = cls.build(cls.knobs_for(Fraction(1, 2), model.layout(SEEDS)))
            ran = model.generate(method)
        except BadBudget:
            continue
        tried += 1
        if ran.memory.nbytes("slots") >= model.reference.memory.nbytes("slots"):
            yield finding(model, f"fewer bytes in slots with {name}", ran.memory.nbytes("slots"))
        if not torch.equal(ran.shown[0], model.reference.shown[0]):
            yield finding(model, f"the full cache's first logits with {name}", "others", step=0)
    if not tried:
        raise Unsupported("No evicting method of ours runs on it at half of its cache.")


def neutral_methods_are_full(model: ModelExample) -> Found:
    """A method that forgets nothing, at the whole budget and with the knobs that make it neutral, draws the full cache's tokens from the
    full cache's logits, bit for bit."""
    tried = 0
    for name in ("streaming", "window", "linear"):
        cls = METHODS.get(name)
        if model.entry.paradigm not in cls.paradigms or cls.neutral is None:
            continue
        tried += 1
        knobs = {**cls.knobs_for(Fraction(1), model.layout(SEEDS)), **cls.neutral}
        yield from unlike(model, model.reference, model.generate(cls.build(knobs)), f"the full cache's with {name}")
    if not tried:
        raise Unsupported("No method that evicts, and can be told to forget nothing, runs on it.")


def graph_is_eager(model: ModelExample) -> Found:
    """Passes that are recorded and repeated give the eager tokens, bit for bit, for these samples and for others."""
    memory = Memory()
    others = tuple(seed + model.entry.classes for seed in SEEDS) if model.loaded.prompted else (7, 3, 1)  # one storage serves equal lengths
    for seeds in (SEEDS, others):
        expected = model.generate(Method(), seeds=seeds)
        try:
            found = model.generate(Method(), seeds=seeds, memory=record_on_cpu(memory, model.loaded.parameters))
        except Unsupported as error:
            yield finding(model, "passes that can be recorded", error.message, seeds)
            return
        yield from unlike(model, expected, found, "the eager passes'")


def weights_and_settings_are_left_alone(model: ModelExample) -> Found:
    """A generation changes neither the model's tensors nor a setting of torch."""
    before = [tensor.clone() for tensor in model.loaded.parameters]
    with settings_restored() as changes:
        model.generate(Method())
    if changes:
        yield finding(model, "the settings of torch as they were", "; ".join(changes))
    changed = [number for number, pair in enumerate(zip(before, model.loaded.parameters, strict=True)) if not torch.equal(*pair)]
    if changed:
        yield finding(model, "its weights as they were", f"tensor {changed[0]} of its parameters changed")
    if not model.loaded.parameters:
        yield finding(model, "the tensors of the model in parameters", "none")


MODEL: tuple[Callable[[ModelExample], Found], ...] = (
    entry_says_what_is_loaded, weights_are_all_read, images_are_images, second_generation_repeats, samples_are_the_same_in_any_batch,
    forced_tokens_are_followed, every_site_is_asked_once_a_pass, attention_is_the_caches, evicting_methods_run, neutral_methods_are_full,
    graph_is_eager, weights_and_settings_are_left_alone,
)
