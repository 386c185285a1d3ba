"""The quality pass: many images of a case against real ones. They are made in parts, and only their features stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import seeds
from ..cache.slot import Memory
from ..errors import BadCheckpoint
from ..metrics.intervals import difference
from ..metrics.pictures import Pictures, resized
from ..metrics.preset import Preset
from ..metrics.seen import Seen
from ..seeds import Subset
from ..spec import Case
from ..units import quality_name
from .judge import Job

KEY = "quality"  # of Case.evaluation
PART = 500  # images whose features are kept together: what is lost at most where a pass is interrupted


@dataclass(frozen=True)
class Shelf:
    """The folder that keeps the finished parts of one case; None keeps nothing. A part that cannot be read is made again."""

    folder: Path | None

    def get(self, number: int, extractor: str) -> Seen | None:
        """The part of this number as this extractor saw it, or None."""
        if self.folder is None or not self._path(number).is_file():
            return None
        try:
            return Seen.from_bytes(self._path(number).read_bytes(), extractor)
        except BadCheckpoint:
            return None

    def put(self, number: int, seen: Seen) -> None:
        """Keep a part. Another process sees all of it or nothing."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._path(number).with_suffix(".part")
        unfinished.write_bytes(seen.to_bytes())
        unfinished.replace(self._path(number))

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number:05d}.safetensors"


def makes(case: Case) -> bool:
    """Whether a case has a quality pass that can be made here."""
    return "missing" not in case.evaluation.get(KEY, {"missing": ""})


def subset(case: Case, classes: int) -> Subset:
    """The seeds and labels of the quality pass."""
    stated = case.evaluation[KEY]
    return seeds.subset(stated["seeds"], classes).first(stated["samples"])


class _NotFinite(Exception):
    """An image holds NaN or infinity."""


def features(
    job: Job, preset: Preset, shelf: Shelf, alive: Callable[[], None] = lambda: None, share: tuple[int, int] = (0, 1)
) -> Seen | None:
    """What the extractor sees in the images of a job, or None where one of them holds NaN or infinity, or none is made.

    ``alive`` is called after each batch. ``share`` = (index, of) leaves out every part whose number is not ``index`` modulo ``of``, so
    that several processes can fill one shelf.
    """
    index, of = share
    found = []
    for number, part in enumerate(job.subset.slices(PART)):
        if number % of == index:
            held = shelf.get(number, preset.extractor)
            if held is None:
                try:
                    held = preset.see(_images(replace(job, subset=part), alive), device=job.device)
                except _NotFinite:
                    return None
                shelf.put(number, held)
            found.append(held)
    return Seen.joined(found) if found else None


def kept(job: Job, preset: Preset, shelf: Shelf) -> Seen | None:
    """What lies on the shelf of another case for the images of this job, if all of it does."""
    found = [shelf.get(number, preset.extractor) for number in range(len(job.subset.slices(PART)))]
    parts = [seen for seen in found if seen is not None]
    return Seen.joined(parts) if len(parts) == len(found) else None


def _images(job: Job, alive: Callable[[], None]) -> Iterator[Tensor]:
    """Batch by batch: an image goes as soon as it has been looked at."""
    for chunk in job.chunks():
        with torch.inference_mode():
            images = job.loaded.decode(job.generate(chunk)).float()
        if not bool(torch.isfinite(images).all()):
            raise _NotFinite
        alive()
        yield images


def pictures(job: Job, case: Case) -> Iterator[Tensor]:
    """The images of a job as bytes (B, H, W, 3), at the size that the case's preset sees. Raises Unsupported for one that is not finite."""
    side = case.evaluation[KEY].get("resize")
    for chunk in job.chunks():
        with torch.inference_mode():
            images = job.loaded.decode(job.generate(chunk)).float()
        yield Pictures(resized(images, side) if side else images).bytes.permute(0, 2, 3, 1)


def figures(seen: Seen, preset: Preset, labels: Sequence[int], full: Seen | None) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Samples by metric, and facts: the 95 % interval of each, that of the difference to the full cache's FID at the same seeds, and the
    FID of so many real images where it is known."""
    found = preset.intervals(seen)
    samples = {name: [ends.value] for name, ends in found.items()}
    facts: dict[str, Any] = {"intervals": {name: [ends.low, ends.high] for name, ends in found.items()}}
    if floor := preset.reference.floors.get(len(seen)):
        facts["real"] = {quality_name("fid", preset.name, len(seen)): list(floor)}
    if full is not None:
        facts["to_full"] = {quality_name("fid", preset.name, len(seen)): list(difference(seen, full, preset.reference))}
    if preset.names_classes:
        samples["class_accuracy"] = (seen.logits.argmax(1) == torch.tensor(labels)).double().tolist()
    return samples, facts


def job_of(job: Job, case: Case, classes: int) -> Job:
    """The job of the quality pass, in a storage of its own."""
    return replace(job, subset=subset(case, classes), batch=case.evaluation[KEY]["batch"], memory=Memory(job.device, job.memory.codec))
