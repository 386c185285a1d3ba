"""Load a model and generate images with it in this process, without a plan or a store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from ..contract.method import Method
from ..core.calls import Hinted, listed, refusal, strict
from ..core.errors import BadBudget, BadPlan, UnknownName, Unsupported, unknown
from ..core.files import output, writing
from ..core.seeds import Subset, smallest_subset, subset
from ..core.spec import FULL, SEQUENTIAL, Budget, Case
from ..machine.timer import clock
from ..methods.registry import METHODS
from ..metrics.compute.sample_batches import SampleWriter, in_turns
from ..metrics.compute.speed import first_half
from ..models.registry import MODELS
from ..plans.expand import expand
from ..plans.manifest import manifest
from ..plans.plan_errors import problem_of
from ..plans.planned import Planned
from ..plans.schema import Plan
from ..plugins import loading
from ..plugins.streams import place_kept, prints_apart
from ..trial.child.bench import Bench, Job, case_job
from ..trial.child.facts import true_budget
from ..trial.child.timing import paced
from . import arguments
from .generated import Generated
from .progress_bar import ProgressBar
from .session import Machine
from .weights import fetch_named

BATCH, STREAMED = ".npz", 64  # the ending of a sample batch, and its images at a time
REQUEST = ("labels", "prompts", "seeds", "method", "budget", "codec", "decoder", "guidance", "sampling", "batch", "grid", "progress")
HINTS = {
    **{name: f'sampling={{"{name}": …}}' for name in ("temperature", "top_k", "top_p", "steps", "diffusion_steps")},
    "num_inference_steps": 'sampling={"steps": …}',
    **{name: f"it in cm.load(…, {name}=…)" for name in ("device", "dtype", "engine", "weights")},
    "torch_dtype": "it in cm.load(…, dtype=…)",
    "compression_ratio": "budget=, the fraction that is kept",
}


class ImageModel(Hinted):
    """A model to generate images with. :func:`load` makes one; calling it is :meth:`generate`."""

    _instead = {
        "to": 'cm.load(…, device="cuda")', "cuda": 'cm.load(…, device="cuda")', "half": 'cm.load(…, dtype="float16")',
        "bfloat16": 'cm.load(…, dtype="bfloat16")', "methods": "cm.methods()", "sample": ".generate(…)",
    }

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        self.settings, self.device = settings, device
        planned = self._plan(1, FULL, {}, "")
        self.name, self.classes, self.paradigm = planned.case.model, planned.entry.classes, planned.entry.paradigm
        self._bench, self._loaded_for = Bench.load(planned), (planned.case.conditions, planned.case.grid)

    def __repr__(self) -> str:
        return f"<model {self.name} on {self.device}, {self.classes} classes or prompts>"

    def generate(
        self, labels: Sequence[int] | int | None = None, prompts: Sequence[str] | str | None = None, *,
        seeds: Sequence[int] | int | None = None, method: str | Method | type[Method] = FULL, budget: str | float | None = None,
        codec: str = "native", decoder: str | Mapping[str, Any] = SEQUENTIAL, guidance: float | None = None,
        sampling: str | Mapping[str, Any] = "paper", batch: int | None = None, grid: Sequence[int] | None = None, progress: bool = True,
        **parameters: Any,
    ) -> Generated:
        """Generate one image for each label or prompt, with progress on a terminal by default.

        ``seeds``: one per image, or the number of images (default: 0, 1, …); a single label or prompt is used for all of them. Without
        ``labels`` and ``prompts``, classes are balanced over the images. ``budget``: fraction of the full cache that is kept (default: the
        method's own sizes, else 1/2); ``parameters``: of the method. ``decoder``: its name, or a mapping with its ``name`` and
        parameters. ``guidance``: scale of classifier-free guidance; ``sampling``: a preset, or changes to the preset ``paper`` such as
        ``{"temperature": 0.9}``. ``batch``: images at a time (default: all). ``grid``: rows and columns of tokens, for a model with several
        aspect ratios (default: its own). Raises UnknownName, BadBudget and BadParameter, Unsupported for a method that does not run on this
        model or a prompt that is too long, and BadPlan for arguments that do not match. Numbers and sequences may be Python's or those of
        NumPy, torch and pandas.
        """
        prepared = self.prepared(labels, prompts, seeds=seeds, method=method, budget=budget, codec=codec, decoder=decoder,
                                 guidance=guidance, sampling=sampling, batch=batch, grid=grid, **parameters)
        return _generate(*prepared, progress=progress)

    __call__ = generate

    def prepared(
        self, labels: Sequence[int] | int | None = None, prompts: Sequence[str] | str | None = None, *,
        seeds: Sequence[int] | int | None = None, method: str | Method | type[Method] = FULL, budget: str | float | None = None,
        codec: str = "native", decoder: str | Mapping[str, Any] = SEQUENTIAL, guidance: float | None = None,
        sampling: str | Mapping[str, Any] = "paper", batch: int | None = None, grid: Sequence[int] | None = None, **parameters: Any,
    ) -> tuple[Planned, Bench, list[int], list[int]]:
        """Return the case, the model, labels and seeds of a generation. Raises the errors of :meth:`generate`."""
        texts, label_list = arguments.texts(prompts), arguments.numbers("labels", labels)
        self._check_condition(bool(texts), label_list is not None)
        table = arguments.method_table(method) | _parameters(method, parameters)
        name: str = table["name"]
        guidance, sampling, batch, grid, table = map(arguments.plain, (guidance, sampling, batch, grid, table))
        numbers: Sequence[int] | None = range(len(texts)) if texts else [label_list] if isinstance(label_list, int) else label_list
        drawn = _seeds(seeds, None if numbers is None else len(numbers))
        if numbers is not None and len(numbers) == 1:
            numbers = [numbers[0]] * len(drawn)
        if budget is not None and budget not in METHODS:
            Budget.parse(budget)
        if name == FULL and budget is not None and Budget.parse(budget).ratio != 1:
            raise BadBudget(f"The full cache does not evict, so budget {budget} has no effect.", remedy="Name a method, or leave it out.")
        axes = {"budgets": [self._budget(table) if budget is None else budget], "codecs": [codec], "decoders": [decoder],
                "sampling": self._sampling(guidance, sampling), "batch": len(drawn) if batch is None else min(batch, len(drawn)),
                "grid": None if grid is None else list(grid)}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "prompts.txt")
            file.write_text("\n".join(" ".join(text.split()) for text in texts) + "\n", encoding="utf-8")
            planned = self._plan(len(drawn), table, axes, str(file) if texts else "")
            bench = self._loaded(planned)
        classes = bench.entry.classes
        if numbers is None:
            numbers = subset(smallest_subset(len(drawn)), classes).labels[:len(drawn)]
        if wrong := [label for label in numbers if not 0 <= label < classes]:
            raise UnknownName(f"{self.name} has no class {wrong[0]}.", remedy=f"Use labels 0 … {classes - 1}.")
        return planned, bench, list(numbers), drawn

    def _check_condition(self, prompted: bool, labeled: bool) -> None:
        """Raise BadPlan for labels of a model that draws prompts, and for prompts of one that draws classes."""
        if prompted and labeled:
            raise BadPlan("labels and prompts cannot be combined.", remedy="Pass one of them.")
        draws_prompts = MODELS.get(self.name).asking is not None
        if labeled and draws_prompts:
            raise BadPlan(f"{self.name} draws prompts, not classes.", remedy="Write --prompt TEXT, or prompts=\"…\" in Python.")
        if prompted and not draws_prompts:
            raise BadPlan(f"{self.name} draws classes 0 … {self.classes - 1}, not prompts.",
                          remedy="Write --label 3, or labels=[3] in Python.")

    def _budget(self, table: Mapping[str, Any]) -> dict[str, Any] | str | int:
        """Return the default budget: the method's own sizes, which a plan names by its table, else 1/2."""
        cls: type[Method] = METHODS.get(table["name"])
        sized = self.paradigm in cls.paradigms and cls.own_budget is not Method.own_budget
        return 1 if table["name"] == FULL else dict(table) if sized else "1/2"

    def _sampling(self, guidance: float | None, sampling: str | Mapping[str, Any]) -> str | dict[str, Any]:
        """Return sampling as a plan names it: a preset, or changes to ``paper``."""
        if isinstance(sampling, str) and guidance is None:
            return sampling
        presets = MODELS.get(self.name).presets
        if isinstance(sampling, str):
            if sampling not in presets:
                raise unknown(f"sampling preset of {self.name}", sampling, presets)
            paper = asdict(presets["paper"])
            sampling = {key: value for key, value in asdict(presets[sampling]).items() if value != paper[key]}
        return {**sampling, **({} if guidance is None else {"cfg_scale": guidance})}

    def _plan(self, samples: int, method: Any, axes: dict[str, Any], prompts: str) -> Planned:
        """Return the case of a method with every parameter resolved."""
        data = {
            "name": "generate", "fidelity": {"seeds": smallest_subset(samples), "samples": samples, "prompts": prompts},
            "cells": [{**self.settings, "methods": [method], "batch": samples, **axes}],
        }
        try:
            plan = Plan.model_validate(data)
        except ValidationError as error:
            raise BadPlan(f"generate: {problem_of(data, error, skipped=('cells', 0))}",
                          remedy="See docs/how-to/use-from-python.md.") from None
        planned = [each for each in expand(plan, self.device) if each.case.role in ("baseline", "candidate")][-1]
        if planned.unsupported_reason:
            raise Unsupported(planned.unsupported_reason)
        return planned

    def _loaded(self, planned: Planned) -> Bench:
        """Return the model for the prompts and the grid of a case; others are dropped before it is loaded."""
        conditions = planned.case.conditions, planned.case.grid
        if conditions != self._loaded_for:
            self._loaded_for = ("", (0, 0))
            del self._bench
            self._bench, self._loaded_for = Bench.load(planned), conditions
        return self._bench


@strict("load", {"n": "seeds= in generate", "threads": "torch.set_num_threads(…)", "revision": 'weights="hf:org/repo@revision"'})
def load(
    name: str, weights: str | Path = "", *, decoder_weights: str | Path = "", device: str = "cpu", dtype: str = "float32",
    engine: str = "eager", fetch: bool = False,
) -> ImageModel:
    """Load a model of the catalogue.

    ``weights``: a file, a folder, or ``hf:org/repo[@revision][:file]`` in the cache of huggingface_hub, where ``fetch`` downloads it; empty
    for the bundled weights, else random ones. ``dtype``: float32, bfloat16 or float16; ``engine``: eager, graph, auto or reference. Raises
    UnknownName, BadCheckpoint for weights of another shape, and the errors of :func:`~cachemark.workflows.weights.fetch_named`.
    """
    Machine(device).require()
    if fetch:
        fetch_named(name, str(weights), str(decoder_weights))
    return ImageModel({"model": name, "weights": str(weights), "decoder_weights": str(decoder_weights), "dtype": dtype, "engine": engine},
                      device)


@prints_apart()
def generate(
    model: str, path: str | Path, *, weights: str = "", decoder_weights: str = "", device: str = "cpu", dtype: str = "float32",
    engine: str = "eager", fetch: bool = False, plugins: Sequence[str | Path] = (), compare: bool = False, method: str = FULL,
    codec: str = "native", decoder: str = SEQUENTIAL, budget: str | None = None, **request: Any,
) -> list[Generated]:
    """Generate images and save them as a PNG grid, or as a sample batch if ``path`` ends in ``.npz``.

    With ``compare``, the full cache's images are to the left of them. A batch is written while images are generated, 64 at a time unless
    ``request`` has another batch, with the classes in turns.

    ``request``: labels, prompts, seeds, guidance, sampling, batch and grid of :meth:`ImageModel.generate`. Returns the full cache's
    generation, with ``compare``, and the method's, after a warm-up of one image. Raises the errors of :func:`load` and of
    :meth:`ImageModel.generate`.
    """
    for file in listed(plugins):
        loading.load(file)
    if Path(path).suffix.lower() == BATCH:
        if compare:
            raise Unsupported("A sample batch holds the images of one method.", remedy="Write a PNG, or generate without compare.")
        request["batch"] = request.get("batch") or STREAMED
    generator = load(model, weights, decoder_weights=decoder_weights, device=device, dtype=dtype, engine=engine, fetch=fetch)
    prepared = generator.prepared(method=method, budget=budget, codec=codec, decoder=decoder, **request)
    if Path(path).suffix.lower() == BATCH:
        return [_written(path, *prepared)]
    if not compare:
        images = _generate(*prepared)
        images.save(path)
        return [images]
    planned, bench, labels, drawn = generator.prepared(**request)
    _generate(planned, bench, labels[:1], drawn[:1])
    full, images = _generate(planned, bench, labels, drawn), _generate(*prepared)
    images.save(path, left=full)
    return [full, images]


def _parameters(method: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters of a method.

    Raises UnknownName for one that it does not have, with the argument that is meant.
    """
    cls = METHODS.get(arguments.method_table(method)["name"])
    own = [] if cls.name == FULL else [*cls.parameter_names()]
    for name in parameters:
        if name not in own:
            raise refusal("generate" if cls.name == FULL else f"generate with {cls.name}", name, [*REQUEST, *own], HINTS)
    return parameters


def _seeds(seeds: Sequence[int] | int | None, images: int | None) -> list[int]:
    """Return one seed for each image."""
    if seeds is None:
        return list(range(images or 1))
    given = arguments.numbers("seeds", seeds)
    drawn = list(range(given)) if isinstance(given, int) else list(given or ())
    if images is not None and len(drawn) != images != 1:
        raise BadPlan(f"{len(drawn)} seeds were given for {images} images.", remedy="Pass one seed per label or prompt.")
    if any(not 0 <= seed < 2**31 for seed in drawn):
        raise BadPlan(f"A seed of {drawn} is out of range.", remedy="Use seeds 0 … 2147483647.")
    return drawn


# -- the generation -----------------------------------------------------------------------------------------------------
def _written(path: str | Path, planned: Planned, bench: Bench, labels: list[int], drawn: list[int]) -> Generated:
    """Generate a sample batch, and return its costs without its images and tokens."""
    labels, drawn = in_turns(labels, drawn)
    about = manifest(planned.case, labels, drawn, bench.entry.prompts)
    with writing(path), output(path, "sample batch") as part, SampleWriter(part, len(drawn), labels, about) as writer:
        return _generate(planned, bench, labels, drawn, writer.add)


@place_kept()
def _generate(
    planned: Planned, bench: Bench, labels: list[int], drawn: list[int], take: Callable[[Tensor], None] | None = None, *,
    progress: bool = True,
) -> Generated:
    """Generate in batches, and count time and bytes; ``take`` gets the images of each batch instead of the result.

    Raises Unsupported for logits or images that are not finite, as a model in too small a number format gives."""
    job = case_job(planned.case, bench)
    job = replace(job, subset=Subset("given", drawn, labels), batch=min(job.batch, len(drawn)))
    layout = paced(job.first(job.batch).layout, job.method())
    half = _first_half(layout)
    bar = ProgressBar(planned.case.title, len(job.chunks()) * layout.visual, shown=progress)
    images, tokens, totals, kv_bytes = list[Tensor](), list[Tensor](), [0.0, 0.0, 0.0], 0
    watch = clock(bench.device, {half - 1, layout.visual - 1} if half else ())
    try:
        for number, part in enumerate(job.chunks()):
            def mark(index: int, before: int = number * layout.visual) -> None:
                watch.mark(index)
                bar.reach(before + index + 1)

            method, finite = job.method(), FiniteCheck()
            watch.start()
            drawn_tokens = _tokens(job, part, method, mark, finite.see)
            decoded = job.decode(drawn_tokens)
            finite.require(decoded, planned.case)
            if take is not None:
                take(decoded)
            else:
                tokens.append(drawn_tokens)
                images.append(decoded)
            seconds, marks = watch.stop(), watch.marks()
            ends = (marks[half - 1], marks[layout.visual - 1]) if half else (0.0, 0.0)
            totals = [total + span for total, span in zip(totals, (seconds, ends[0], ends[1] - ends[0]), strict=True)]
            kv_bytes = max(kv_bytes, method.logical_bytes)
    finally:
        bar.__exit__()
    rates = (half * len(drawn) / totals[1], (layout.visual - half) * len(drawn) / totals[2]) if half else None
    nothing = torch.empty(0)
    return Generated(torch.cat(images or [nothing]), torch.cat(tokens or [nothing]), kv_bytes or None, job.memory.nbytes("state"),
                     totals[0], rates, planned.case, tuple(labels), tuple(drawn), true_budget(planned.case, job.method(), layout))


def _tokens(job: Job, part: slice, method: Method, mark: Callable[[int], None], see: Callable[[Any, Tensor], None]) -> Tensor:
    """Return the tokens of one batch under a method whose bytes are read after it."""
    with torch.inference_mode(), loading.blaming(type(method)):
        return replace(job, method=lambda: method).generate(part, mark=mark, see=see)


class FiniteCheck:
    """A test of all logits and images of a generation, which does not wait for the device at each step."""

    def __init__(self) -> None:
        self._bad: Tensor | None = None

    def see(self, position: Any, logits: Tensor) -> None:
        """Note whether logits (or the tokens of a masked model) hold NaN or infinity."""
        bad = ~(logits < torch.inf).all()
        self._bad = bad if self._bad is None else self._bad | bad

    def require(self, images: Tensor, case: Case) -> None:
        """Raise Unsupported if logits or images are not finite."""
        what = "logits" if self._bad is not None and bool(self._bad) else "" if bool(images.isfinite().all()) else "images"
        if what:
            raise Unsupported(f"The {what} of {case.title} in {case.dtype} hold NaN or infinity.",
                              remedy="Use another dtype, such as bfloat16 or float32, or check the weights.")


def _first_half(layout: Any) -> int:
    """Return the tokens of the first half, 0 for a single step or scale."""
    try:
        return first_half(layout)
    except Unsupported:
        return 0
