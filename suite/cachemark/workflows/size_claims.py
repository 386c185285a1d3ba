"""Published sizes of a KV cache: whether they follow by arithmetic, from which accounting, and what ours allocates instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..cache.layout import Layout
from ..contract.method import Method
from ..core.spec import FULL
from ..methods.ams_kv import AMSKV
from ..methods.base.calibrated import Calibrated
from ..methods.registry import METHODS
from ..methods.scale_heads.even_attention import even
from ..models.protocol import ModelEntry
from ..roofline.kv_bytes import HALF, MIXED, PublishedSize, equal_widths, nbytes, published
from .holdings import Holdings
from .stand_ins import calibration_knob, sixth

WIDTHS = {MIXED: "K in fp32, V in 16 bit", HALF: "K and V in 16 bit"}
LAST = {True: "all scales kept", False: "without the last scale"}


@dataclass(frozen=True)
class Allocation:
    """Keys and values that a method of ours allocates for as many ``images``: ``entries_per_layer`` of one row and head on average,
    ``bytes``, and these in the unit of a printed size, ``in_unit``; ``published_in_unit`` with K in fp32 and V in 16 bit."""

    method: str
    images: int
    entries_per_layer: float
    bytes: int
    in_unit: float
    published_in_unit: float


@dataclass(frozen=True)
class SizeClaim:
    """A printed size, in ``unit``, which ``means`` another, with the ``finding`` whether it follows. ``batch`` 0: none is printed; then
    ``allocated`` is for as many images as the paper's full cache turns out to be of, or for one."""

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
    """A way in which a paper may count: bytes of a number of K and of V, whether its full cache keeps the last scale, and how many images
    there are; 0 where nothing says how many."""

    widths: tuple[int, int]
    store_last: bool
    images: int

    def full(self, image: Layout) -> int:
        """Entries of the full cache, all layers and heads of a row together."""
        return _pairs(image) * (image.visual if self.store_last else image.cacheable)

    def reached(self, figure: PublishedSize, one: int) -> int:
        """The number of images of ``one`` byte size each that gives the printed digits; 0 where none does."""
        images = self.images or round(figure.nbytes / one)
        return images if figure.agrees(images * one) else 0


def size_claims(entry: ModelEntry, dtype: torch.dtype) -> list[SizeClaim]:
    """Every printed size of a model, in the order of the papers; what is allocated has K and V in ``dtype``."""
    image, figures = entry.shape(entry.presets["paper"], 1), published(entry.name)
    return [_claim(figure, _accountings(figure, figures, image), image, dtype, entry) for figure in figures]


def _claim(figure: PublishedSize, known: Sequence[Accounting], image: Layout, dtype: torch.dtype, entry: ModelEntry) -> SizeClaim:
    """The claim that a figure is; ``known`` are the accountings from which a full cache in its table follows."""
    name, method = _ours(figure, image, entry)
    holdings = Holdings.of(method, image)
    images = figure.batch or (known[0].images if known else 1)
    size, mixed = (images * _bytes(image, holdings.allocated, widths) for widths in (equal_widths(dtype), MIXED))
    finding = _finding(figure, known or _every(figure.batch), image, name, holdings)
    return SizeClaim(
        figure.paper, figure.table, figure.batch, figure.method, figure.budget, figure.printed, figure.unit, figure.means, finding,
        Allocation(name, images, holdings.allocated / _pairs(image), size, figure.in_unit(size), figure.in_unit(mixed)),
    )


def _ours(figure: PublishedSize, image: Layout, entry: ModelEntry) -> tuple[str, Method]:
    """Our method of that name at the published budget, and what to call it; with even attention where nobody has calibrated it."""
    cls: type[Method] = METHODS.get(figure.method)
    if cls is AMSKV:
        return f"ams_kv, {sixth(image)} demanding layers", AMSKV(demanding=range(sixth(image)))
    said = [cls.name, *(f"{knob} = {value}" for knob, value in figure.knobs.items() if knob in cls.sizes)]
    calibration = calibration_knob(cls, entry)
    if issubclass(cls, Calibrated) and not calibration:
        calibration, said = {"calibration": even(image, cls.name)}, [*said, "even attention"]
    return ", ".join(said), cls.build({**calibration, **figure.knobs})


# -- accountings --------------------------------------------------------------------------------------------------------
def _every(images: int) -> list[Accounting]:
    """Every accounting of so many images, that of the published codes first."""
    return [Accounting(widths, store_last, images) for store_last in LAST for widths in WIDTHS]


def _accountings(figure: PublishedSize, figures: Sequence[PublishedSize], image: Layout) -> list[Accounting]:
    """Those from which a full cache in the same table follows, for as many images as ``figure`` is of; empty where none does."""
    full = [one for one in figures if (one.method, one.paper, one.table) == (FULL, figure.paper, figure.table)]
    found = [replace(way, images=figure.batch or reached) for one in full for way in _every(one.batch)
             if (reached := way.reached(one, _bytes(image, way.full(image), way.widths)))]
    return list(dict.fromkeys(found))


def _pairs(image: Layout) -> int:
    return image.layers * image.kv_heads


def _bytes(image: Layout, count: int, widths: tuple[int, int]) -> int:
    """Bytes of ``count`` entries, all layers and heads of a row together."""
    return nbytes(image, count, widths) // image.kv_heads


# -- findings -----------------------------------------------------------------------------------------------------------
def _finding(figure: PublishedSize, ways: Sequence[Accounting], image: Layout, name: str, holdings: Holdings) -> str:
    """A sentence on whether a size follows: of a full cache by these accountings; of AMS-KV at a batch, by numbers of demanding layers; of
    another method by what lives between two scales under ours, which is called ``name``."""
    if figure.method == FULL:
        ways = ways if figure.batch else _every(0)
        return _follows(figure, [(way, f"{WIDTHS[way.widths]}, {LAST[way.store_last]}", way.full(image)) for way in ways], image)
    if figure.batch and not figure.knobs:
        return "; ".join(_counted(figure, image, widths) for widths in WIDTHS)
    alike = dict.fromkeys(replace(way, store_last=False) for way in ways)  # nothing of the last scale lives between two scales
    parts = [_follows(figure, [(way, WIDTHS[way.widths], holdings.live) for way in alike], image),
             f"counted is what lives between two scales under {name}: {holdings.live / _pairs(image):.1f} entries a layer, "
             f"{holdings.live / holdings.everything:.1%} of the full cache"]
    taken = [f"that {' and '.join(figure.knobs)} is stated nowhere and taken from the printed sizes"] if figure.inferred else []
    return "; ".join((*parts, *taken))


def _follows(figure: PublishedSize, ways: Sequence[tuple[Accounting, str, int]], image: Layout) -> str:
    """A sentence on whether the printed size follows from one of these: an accounting, its words, and the entries of an image."""
    found, would_be, chance = [], [], 0.0
    for way, said, count in ways:
        one = _bytes(image, count, way.widths)
        if images := way.reached(figure, one):
            whose = "" if figure.batch else f" by {images} image{'s' if images > 1 else ''}"
            found.append(f"reproduced{whose}: {images * one:,} bytes, {figure.in_unit(images * one):.3f} in {figure.means}, with {said}")
        else:
            gives = f", and {way.images} give {figure.in_unit(way.images * one):.3f} in {figure.means}" if way.images else ""
            would_be.append(f"{figure.nbytes / one:.2f} images with {said}{gives}")
        chance += 0 if way.images else figure.interval / one
    if found:
        remark = f"no batch is printed, and up to {chance:.1%} of sizes with as few digits would follow from some batch"
        return "; ".join((*found, *([remark] if chance else [])))
    remark = "" if figure.batch else "; the paper prints no batch and may count more than the cache"
    return f"not reproduced: it would be the keys and values of {'; '.join(would_be)}{remark}"


def _counted(figure: PublishedSize, image: Layout, widths: tuple[int, int]) -> str:
    """The number of demanding layers that a printed size of AMS-KV would mean under its own policy (C_max and C_min of every layer taken
    literally), and what the nearest whole number of them gives."""
    policy, said = AMSKV(demanding=()), WIDTHS[widths]
    policy.resolve(image)
    most, least, layers = policy.c_max, policy.c_min, image.layers
    exact = (figure.nbytes / figure.batch / nbytes(image, 1, widths) - layers * least) / (most - least)
    nearest = min(max(round(exact), 0), layers)
    size = figure.batch * nbytes(image, layers * least + nearest * (most - least), widths)
    if figure.agrees(size):
        return f"reproduced with {said} and {nearest} demanding layers"
    possible = f"{exact:.2f} demanding layers" if 0 <= exact <= layers else f"no number of demanding layers ({exact:.2f})"
    return f"not reproduced with {said}: it would be {possible}; {nearest} give {figure.in_unit(size):.3f} in {figure.means}"
