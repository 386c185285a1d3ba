"""Published sizes of a KV cache: whether arithmetic reproduces them, with which accounting, and our allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cachemark.cache.layout import Layout
from cachemark.contract.method import Method
from cachemark.core.spec import FULL
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.base.calibrations import Calibrated, even
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry
from cachemark.workflows.roofline import calibration_parameter

from .entry_counts import EntryCounts, entry_counts, kv_bytes
from .published_sizes import HALF, MIXED, PublishedSize, published

WIDTHS = {MIXED: "K in fp32, V in 16 bit", HALF: "K and V in 16 bit"}
LAST = {True: "all scales kept", False: "without the last scale"}


@dataclass(frozen=True)
class Allocation:
    """Keys and values that this package's ``method`` allocates for as many ``images``.

    ``entries_per_layer``: of one row and head, on average. ``bytes`` in total; ``in_unit``: in the unit of the printed size;
    ``published_in_unit``: the same with K in fp32 and V in 16 bit."""

    method: str
    images: int
    entries_per_layer: float
    bytes: int
    in_unit: float
    published_in_unit: float


@dataclass(frozen=True)
class SizeClaim:
    """A printed size and the ``finding`` whether it is reproduced.

    ``unit`` is the printed unit, ``means`` the actual one. ``batch`` 0: none is printed; then ``allocated`` is for the number of images
    that reproduces the paper's full cache, or for one."""

    paper: str
    table: str
    batch: int
    method: str
    budget: str
    printed: str
    unit: str
    means: str
    finding: str
    allocated: Allocation


@dataclass(frozen=True)
class Accounting:
    """A way to count the bytes of a cache.

    ``widths``: bytes of a number of K and of V. ``store_last``: whether its full cache keeps the last scale. ``images``: 0 if no source
    states the number."""

    widths: tuple[int, int]
    store_last: bool
    images: int

    def full(self, image: Layout) -> int:
        """Return the entries of the full cache in all layers and heads of a row."""
        return _pairs(image) * (image.visual if self.store_last else image.cacheable)

    def matching_images(self, figure: PublishedSize, image_bytes: int) -> int:
        """Return the number of images that gives the printed digits, or 0."""
        images = self.images or round(figure.nbytes / image_bytes)
        return images if figure.agrees(images * image_bytes) else 0


def size_claims(entry: ModelEntry, dtype: torch.dtype) -> list[SizeClaim]:
    """Return every printed size of a model, in papers' order; allocations have K and V in ``dtype``."""
    image, figures = entry.shape(entry.presets["paper"], 1), published(entry.name)
    return [_claim(figure, _accountings(figure, figures, image), image, dtype, entry) for figure in figures]


def _claim(figure: PublishedSize, accountings: Sequence[Accounting], image: Layout, dtype: torch.dtype, entry: ModelEntry) -> SizeClaim:
    """Build the claim of a value; ``accountings`` reproduce a full cache in its table."""
    name, method = _own_method(figure, image, entry)
    counts = entry_counts(method, image)
    images = figure.batch or (accountings[0].images if accountings else 1)
    size, mixed = (images * _bytes(image, counts.allocated, widths) for widths in ((dtype.itemsize, dtype.itemsize), MIXED))
    finding = _finding(figure, accountings or _all_accountings(figure.batch), image, name, counts)
    return SizeClaim(
        figure.paper, figure.table, figure.batch, figure.method, figure.budget, figure.printed, figure.unit, figure.means, finding,
        Allocation(name, images, counts.allocated / _pairs(image), size, figure.in_unit(size), figure.in_unit(mixed)),
    )


def _own_method(figure: PublishedSize, image: Layout, entry: ModelEntry) -> tuple[str, Method]:
    """Return a label and our method at the published budget, with even attention if the model has no calibration."""
    cls: type[Method] = METHODS.get(figure.method)
    if cls is AMSKV:
        sixth = image.layers // 6
        return f"ams_kv, {sixth} demanding layers", AMSKV(demanding=range(sixth))
    label = [cls.name, *(f"{parameter} = {value}" for parameter, value in figure.parameters.items() if parameter in cls.sizes)]
    calibration = calibration_parameter(cls, entry)
    if issubclass(cls, Calibrated) and not calibration:
        calibration, label = {"calibration": even(image, cls.name)}, [*label, "even attention"]
    return ", ".join(label), cls.build({**calibration, **figure.parameters})


# -- accountings --------------------------------------------------------------------------------------------------------
def _all_accountings(images: int) -> list[Accounting]:
    """Return every accounting of this number of images, starting with the published codes' own."""
    return [Accounting(widths, store_last, images) for store_last in LAST for widths in WIDTHS]


def _accountings(figure: PublishedSize, figures: Sequence[PublishedSize], image: Layout) -> list[Accounting]:
    """Return the accountings that reproduce a full cache in the same table, for the images of ``figure``."""
    full_rows = [row for row in figures if (row.method, row.paper, row.table) == (FULL, figure.paper, figure.table)]
    matching = [replace(way, images=figure.batch or images) for row in full_rows for way in _all_accountings(row.batch)
                if (images := way.matching_images(row, _bytes(image, way.full(image), way.widths)))]
    return list(dict.fromkeys(matching))


def _pairs(image: Layout) -> int:
    return image.layers * image.kv_heads


def _bytes(image: Layout, count: int, widths: tuple[int, int]) -> int:
    """Return the bytes of ``count`` entries in all layers and heads of a row."""
    return kv_bytes(image, count, widths) // image.kv_heads


# -- findings -----------------------------------------------------------------------------------------------------------
def _finding(figure: PublishedSize, ways: Sequence[Accounting], image: Layout, name: str, counts: EntryCounts) -> str:
    """State whether a size is reproduced.

    A full cache is compared with these accountings, AMS-KV at a batch with numbers of demanding layers, and another method with the entries
    between two scales of our method, labeled ``name``."""
    if figure.method == FULL:
        ways = ways if figure.batch else _all_accountings(0)
        return _follows(figure, [(way, f"{WIDTHS[way.widths]}, {LAST[way.store_last]}", way.full(image)) for way in ways], image)
    if figure.batch and not figure.parameters:
        return "; ".join(_demanding_layers(figure, image, widths) for widths in WIDTHS)
    alike = dict.fromkeys(replace(way, store_last=False) for way in ways)  # no entries of the last scale live between two scales
    parts = [_follows(figure, [(way, WIDTHS[way.widths], counts.live) for way in alike], image),
             f"counted is what lives between two scales under {name}: {counts.live / _pairs(image):.1f} entries a layer, "
             f"{counts.live / counts.full:.1%} of the full cache"]
    if figure.inferred:
        parts.append(f"that {' and '.join(figure.parameters)} is stated nowhere and taken from the printed sizes")
    return "; ".join(parts)


def _follows(figure: PublishedSize, ways: Sequence[tuple[Accounting, str, int]], image: Layout) -> str:
    """State whether one of ``ways`` reproduces the printed size: accounting, description, and entries of an image."""
    matches, misses, chance = [], [], 0.0
    for way, description, count in ways:
        image_bytes = _bytes(image, count, way.widths)
        if images := way.matching_images(figure, image_bytes):
            whose = "" if figure.batch else f" by {images} image{'s' if images > 1 else ''}"
            size = images * image_bytes
            matches.append(f"reproduced{whose}: {size:,} bytes, {figure.in_unit(size):.3f} in {figure.means}, with {description}")
        else:
            gives = f", and {way.images} give {figure.in_unit(way.images * image_bytes):.3f} in {figure.means}" if way.images else ""
            misses.append(f"{figure.nbytes / image_bytes:.2f} images with {description}{gives}")
        chance += 0 if way.images else figure.interval / image_bytes
    if matches:
        remark = f"no batch is printed, and up to {chance:.1%} of sizes with as few digits would follow from some batch"
        return "; ".join((*matches, *([remark] if chance else [])))
    remark = "" if figure.batch else "; the paper prints no batch and may count more than the cache"
    return f"not reproduced: it would be the keys and values of {'; '.join(misses)}{remark}"


def _demanding_layers(figure: PublishedSize, image: Layout, widths: tuple[int, int]) -> str:
    """State how many demanding layers a size of AMS-KV implies, with C_max and C_min of every layer taken literally."""
    policy, description = AMSKV(demanding=()), WIDTHS[widths]
    policy.resolve(image)
    most, least, layers = policy.c_max, policy.c_min, image.layers
    exact = (figure.nbytes / figure.batch / kv_bytes(image, 1, widths) - layers * least) / (most - least)
    nearest = min(max(round(exact), 0), layers)
    size = figure.batch * kv_bytes(image, layers * least + nearest * (most - least), widths)
    if figure.agrees(size):
        return f"reproduced with {description} and {nearest} demanding layers"
    possible = f"{exact:.2f} demanding layers" if 0 <= exact <= layers else f"no number of demanding layers ({exact:.2f})"
    return f"not reproduced with {description}: it would be {possible}; {nearest} give {figure.in_unit(size):.3f} in {figure.means}"
