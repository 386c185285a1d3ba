"""Scores of images and the prompts that they were made from, by the metrics of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from torch import empty

from ..core.errors import Unsupported, unknown
from ..metrics.base import ImageBatch, ImageMetric, MetricContext
from ..metrics.compute.feature_store import ImageSource
from ..metrics.compute.image_folders import ImageFolder
from ..metrics.compute.sample_batches import SampleBatch
from ..metrics.registry import image_metrics
from ..models.prompt_lists import PromptList, prompt_list
from .progress_bar import ProgressBar

PART = 32  # images in memory at a time


def names() -> list[str]:
    """Return the metrics that score an image with its prompt, as a plan names them."""
    return [name for name, cls in image_metrics().items() if cls.plan_name == name and cls.kind == "quality" and not cls.of_model]


def prompt_numbers(images: ImageSource, listed: PromptList) -> list[int]:
    """Return the number of each image's prompt.

    By the names of files in the list; by the numbers of folders, as GenEval's samplers write them (``00003/samples/0000.png``); by the
    labels of a sample batch; else by the order of the images, one per prompt, numbers in names counting as numbers. Raises Unsupported."""
    if isinstance(images, SampleBatch):
        numbers = list(images.labels or range(len(images)))
        if images.labels is None and len(images) != len(listed.texts):
            raise _unmatched(images, listed, f"{len(images)} images")
        return _within(images, listed, numbers)
    assert isinstance(images, ImageFolder)
    if listed.files:
        return _by_file(images, listed)
    tops = [PurePosixPath(name).parts[0] for name in images.names]
    if all("/" in name and top.isdecimal() for name, top in zip(images.names, tops, strict=True)):
        return _within(images, listed, [int(top) for top in tops])
    if len(images) != len(listed.texts):
        raise _unmatched(images, listed, f"{len(images)} images")
    stems = [PurePosixPath(name).stem for name in images.names]
    order = sorted(range(len(stems)), key=lambda i: (int(stems[i]) if stems[i].isdecimal() else 0, images.names[i]))
    numbers = [0] * len(stems)
    for number, place in enumerate(order):
        numbers[place] = number
    return numbers


def _by_file(images: ImageFolder, listed: PromptList) -> list[int]:
    by_name = {name: number for number, file in enumerate(listed.files) for name in (file, str(PurePosixPath(file).with_suffix("")))}
    numbers = []
    for name in images.names:
        path = PurePosixPath(name)
        number = next((by_name[key] for key in (name, str(path.with_suffix("")), path.name, path.stem) if key in by_name), None)
        if number is None:
            raise Unsupported(f"{listed.source} has no prompt for {name}.", remedy="Add a row with its name, or remove the image.")
        numbers.append(number)
    return numbers


def _within(images: ImageSource, listed: PromptList, numbers: list[int]) -> list[int]:
    if not all(0 <= number < len(listed.texts) for number in numbers):
        raise _unmatched(images, listed, f"an image of prompt {max(numbers)}")
    return numbers


def _unmatched(images: ImageSource, listed: PromptList, what: str) -> Unsupported:
    return Unsupported(f"{images.path} has {what} and {listed.source} {len(listed.texts)} prompts.",
                       remedy="Use one image per prompt, or a table with the columns prompt and file.")


def prompt_values(
    images: ImageSource, prompts: str | Path, metrics: Sequence[tuple[str, Mapping[str, str]]], device: str
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the values of images by metric, and the reasons for missing ones.

    ``metrics``: names with options, such as ``("clip_score", {"weights": "models/clip"})``. Raises UnknownName for another name or option,
    Unsupported for images that do not match the prompts, and the errors of :func:`.prompt_list`."""
    listed = prompt_list(str(prompts))
    numbers, shared = prompt_numbers(images, listed), dict[object, object]()
    chosen, absent = dict[str, ImageMetric](), dict[str, str]()
    for name, options in metrics:
        if name not in names():
            raise unknown("metric of images and prompts", name, names())
        for cls in (cls for cls in image_metrics().values() if cls.plan_name == name):
            for option in options:
                if option not in cls.options:
                    raise unknown(f"option of metric {name}", option, cls.options)
            if lacking := [option for option in cls.options if option not in options]:
                raise Unsupported(f"{name} needs {', '.join(lacking)}.", remedy=f"Write: --metric {name},{lacking[0]}=FOLDER")
            context = MetricContext(device, options, listed.texts, str(prompts), shared=shared)
            try:
                cls.identity(context)
            except Unsupported as error:
                absent[cls.name] = str(error)
            else:
                chosen[cls.name] = cls().prepared(context)
    return _measured(images, numbers, chosen) if chosen else {}, absent


def _measured(images: ImageSource, numbers: Sequence[int], metrics: Mapping[str, ImageMetric]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    parts = [slice(start, min(start + PART, len(images))) for start in range(0, len(images), PART)]
    with ProgressBar(f"scores of {images.path}", len(images)) as bar:
        at = 0
        for _, pixels in images.stream(parts):
            labels = numbers[at : at + len(pixels)]
            scaled, tokens = pixels.to(next(iter(metrics.values())).setting.device).float() / 127.5 - 1, empty(len(pixels), 0)
            batch = ImageBatch(scaled, scaled, tokens, tokens, labels, range(len(pixels)))
            for name, metric in metrics.items():
                if metric.applies(labels):
                    values.setdefault(name, []).extend(metric.measure(batch).double().tolist())
            at += len(pixels)
            bar.reach(at)
    return values

