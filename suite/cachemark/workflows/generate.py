"""Load a model and generate images with it in this process, without a plan or a store."""

from __future__ import annotations

import base64
import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from ..contract.method import Method
from ..core.errors import BadPlan, UnknownName, Unsupported, unknown
from ..core.seeds import Subset, smallest_subset, subset
from ..core.spec import FULL, Case
from ..core.wording import on_one_line
from ..machine.timer import clock
from ..methods.registry import METHODS
from ..metrics.compute.image_bytes import nearest_bytes
from ..plans.expand import Planned, expand
from ..plans.schema import Plan
from ..trial.child.bench import Bench, case_job
from .session import Machine
from .weights import fetch, of_model

HUB = "hf:"  # before the name of a repository on Hugging Face
SHOWN = 64  # images of a grid, at most


@dataclass(frozen=True)
class Generated:
    """Images of one generation. A notebook shows them as a grid.

    ``images`` (n, 3, H, W) fp32 in [−1, 1]; ``tokens`` (n, N), of a masked model (n, N, C); ``kv_bytes`` of live keys and values of all
    images at the fullest step, None for a model that keeps none; ``seconds`` of the generation, image decoding included and without a
    warm-up: :func:`cachemark.measure` measures speed. ``case`` names the method with every parameter resolved.
    """

    images: Tensor
    tokens: Tensor
    kv_bytes: int | None
    seconds: float
    case: Case
    labels: tuple[int, ...]
    seeds: tuple[int, ...]

    def __repr__(self) -> str:
        kv = "" if self.kv_bytes is None else f", {self.kv_bytes / 2**20:.2f} MiB of keys and values"
        return f"<{len(self.images)} images of {self.case.title}: {self.seconds:.2f} s{kv}>"

    def _repr_png_(self) -> bytes:
        """A grid of the images, nearly square."""
        pixels = nearest_bytes(self.images[:SHOWN]).cpu()
        columns = math.ceil(math.sqrt(len(pixels)))
        tiles = pad(pixels, (0, 0, 0, 0, 0, 0, 0, -len(pixels) % columns), value=255)
        _, channels, height, width = tiles.shape
        grid = tiles.view(-1, columns, channels, height, width).permute(0, 3, 1, 4, 2).reshape(-1, columns * width, channels)
        file = io.BytesIO()
        Image.fromarray(grid.contiguous().numpy()).save(file, "PNG")
        return file.getvalue()

    def _repr_html_(self) -> str:
        """The grid with its method, time and bytes."""
        png = base64.b64encode(self._repr_png_()).decode()
        return (f'<figure><img alt="generated images" src="data:image/png;base64,{png}"/>'
                f"<figcaption>{escape(on_one_line(repr(self)[1:-1], 200))}</figcaption></figure>")


class ImageModel:
    """A loaded model. :func:`load` makes one."""

    def __init__(self, settings: dict[str, Any], device: str) -> None:
        self.settings, self.device = settings, device
        self._benches: dict[str, Bench] = {}  # by the prompts
        planned = self._plan(1, FULL, {}, "")
        self.name, self.classes, self.paradigm = planned.case.model, planned.entry.classes, planned.entry.paradigm
        self._bench(planned)

    def __repr__(self) -> str:
        return f"<model {self.name} on {self.device}, {self.classes} classes or prompts>"

    def generate(
        self, labels: Sequence[int] | None = None, prompts: Sequence[str] | str | None = None, *, seeds: Sequence[int] | int | None = None,
        method: str = FULL, budget: str | float | None = None, codec: str = "native", decoder: str = "sequential", sampling: str = "paper",
        **parameters: Any,
    ) -> Generated:
        """Generate one image for each label or prompt, in one batch.

        ``seeds``: one per image, or the number of images (default: 0, 1, …). Without ``labels`` and ``prompts``, classes are balanced over
        the images. ``budget``: fraction of the full cache that is kept (default: the method's own sizes, else 1/2); ``parameters``: those
        of the method. Raises UnknownName, BadBudget and BadParameter, Unsupported for a method that does not run on this model, and BadPlan
        for labels, prompts and seeds that do not match.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts or ())
        if texts and labels is not None:
            raise BadPlan("labels and prompts cannot be combined.", remedy="Pass one of them.")
        labels = range(len(texts)) if texts else labels
        drawn = _seeds(seeds, None if labels is None else len(labels))
        if budget is None:  # the method's own sizes, which a plan names by the method, else 1/2
            cls: type[Method] = METHODS.get(method)
            sized = self.paradigm in cls.paradigms and cls.own_budget is not Method.own_budget
            budget = 1 if method == FULL else method if sized else "1/2"
        axes = {"budgets": [budget], "codecs": [codec], "decoders": [decoder], "sampling": sampling}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "prompts.txt")
            file.write_text("\n".join(" ".join(text.split()) for text in texts) + "\n", encoding="utf-8")
            planned = self._plan(len(drawn), {"name": method, **parameters}, axes, str(file) if texts else "")
            bench = self._bench(planned)
        classes = bench.entry.classes
        if labels is None:
            labels = subset(smallest_subset(len(drawn)), classes).labels[:len(drawn)]
        if wrong := [label for label in labels if not 0 <= label < classes]:
            raise UnknownName(f"{self.name} has no class {wrong[0]}.", remedy=f"Use labels 0 … {classes - 1}.")
        return _generate(planned, bench, list(labels), drawn)

    def _plan(self, samples: int, method: Any, axes: dict[str, Any], prompts: str) -> Planned:
        """The case of a method with every parameter resolved."""
        plan = Plan.model_validate({
            "name": "generate", "fidelity": {"seeds": smallest_subset(samples), "samples": samples, "prompts": prompts},
            "cells": [{**self.settings, "methods": [method], "batch": samples, **axes}],
        })
        planned = [each for each in expand(plan, self.device) if each.case.role in ("baseline", "candidate")][-1]
        if planned.unsupported_reason:
            raise Unsupported(planned.unsupported_reason)
        return planned

    def _bench(self, planned: Planned) -> Bench:
        """The model for the prompts of a case, loaded once."""
        if planned.case.conditions not in self._benches:
            self._benches[planned.case.conditions] = Bench.load(planned)
        return self._benches[planned.case.conditions]


def load(
    name: str, weights: str | Path = "", *, decoder_weights: str | Path = "", device: str = "cpu", dtype: str = "float32",
    engine: str = "eager",
) -> ImageModel:
    """Load a model of the catalogue.

    ``weights``: a file or folder, or ``hf:org/name`` to download the published repository; empty for the bundled weights, else random ones.
    Raises UnknownName, BadCheckpoint for weights of another shape, and the errors of :func:`~cachemark.workflows.weights.fetch`.
    """
    Machine(device).require()
    if str(weights).startswith(HUB):
        weights, decoder_weights = _published(name, str(weights).removeprefix(HUB), decoder_weights)
    return ImageModel({"model": name, "weights": str(weights), "decoder_weights": str(decoder_weights), "dtype": dtype, "engine": engine},
                      device)


def _published(name: str, repository: str, decoder_weights: str | Path) -> tuple[str | Path, str | Path]:
    """Download the files that a model was published with; the paths of its weights."""
    repositories = [each.origin.name for each in of_model(name) if each.origin.on_hub]
    if repository not in repositories:
        raise unknown(f"repository of {name}", repository, repositories)
    paths = fetch(name)
    return paths["weights"], decoder_weights or paths.get("decoder_weights", "")


def _seeds(seeds: Sequence[int] | int | None, images: int | None) -> list[int]:
    """One seed for each image."""
    if seeds is None:
        return list(range(images or 1))
    drawn = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if images is not None and len(drawn) != images:
        raise BadPlan(f"{len(drawn)} seeds were given for {images} images.", remedy="Pass one seed per label or prompt.")
    if any(not 0 <= seed < 2**31 for seed in drawn):
        raise BadPlan(f"A seed of {drawn} is out of range.", remedy="Use seeds 0 … 2147483647.")
    return drawn


def _generate(planned: Planned, bench: Bench, labels: list[int], drawn: list[int]) -> Generated:
    """Generate in one batch, and count time and bytes."""
    job = replace(case_job(planned.case, bench), subset=Subset("given", drawn, labels))
    method = job.method()
    watch = clock(bench.device, ())
    watch.start()
    with torch.inference_mode():
        tokens = replace(job, method=lambda: method).generate(slice(len(drawn)))
    images = job.decode(tokens)
    return Generated(images, tokens, method.logical_bytes or None, watch.stop(), planned.case, tuple(labels), tuple(drawn))
