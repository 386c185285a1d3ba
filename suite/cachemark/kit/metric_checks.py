"""Checks of a metric of images: that a run can rely on its values. Each is given an example and yields what is not so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.machinery import all_suffixes
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import Unsupported
from ..metrics.base import ImageMetric, Shown, problem
from ..plugins import loading as plugins
from .findings import Flaw
from .settings import settings_restored

Found = Iterator[Flaw]
READS = {"open": "opens a file", "socket.connect": "connects to a network", "sqlite3.connect": "opens a database",
         "subprocess.Popen": "starts a process", "os.system": "starts a process", "os.posix_spawn": "starts a process",
         "os.fork": "starts a process"}  # fmt: skip
CODE = tuple(all_suffixes())  # of files that a digest covers or that belong to Python
OF_PYTHON = ("importlib._bootstrap", "torch._dynamo.", "torch._inductor.", "triton.")  # imports and compilers open files of their own
_listeners: list[dict[str, str]] = []
CLOSE = 1e-4  # of values, as a share of the largest
SHAPES = (  # sides of images with the shapes of their tokens, as models here have them: the smallest first
    (16, (16,)), (64, (64,)), (64, (256,)), (64, (256, 16)), (256, (256,)), (256, (256, 16)),
)  # fmt: skip
BEYOND = 1.25  # as far a decoder goes whose images are not clamped
DRAWINGS, PLAIN = ("drawing 1", "drawing 2", "drawing 3"), ("black", "white", "grey", "red")
IMAGES = (*PLAIN, *DRAWINGS, "noise", "a drawing beyond [−1, 1]")
STATED = {"unit": "none is an empty text", "better": "higher or lower", "kind": "quality or fidelity"}


@dataclass
class MetricExample:
    """A metric. ``size`` says what was shown last, ``asked_for`` what the metric has asked of Python with the event by which it was heard,
    and ``changes`` the settings of torch that it has changed, in words."""

    cls: type[ImageMetric]
    size: str = ""
    asked_for: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    @cached_property
    def made(self) -> ImageMetric:
        """The metric itself."""
        return self.cls()

    @cached_property
    def shape(self) -> tuple[int, tuple[int, ...]]:
        """The smallest of the shapes that it takes. Unsupported where it refuses all of them."""
        said = ""
        for shape in SHAPES:
            try:
                self.raw(shown(DRAWINGS[:1], shape))
            except ValueError as error:
                said = str(error)
            else:
                return shape
        raise Unsupported(f"It refuses images of all sizes that are tried: {said}")

    def raw(self, given: Shown) -> Any:
        """The answer to some images, whatever it is."""
        self.size = in_words(given)
        try:
            with settings_restored() as changes, _listening() as events, torch.inference_mode():
                return self.made.measure(given)
        finally:
            self.asked_for |= events
            self.changes += changes

    def values(self, given: Shown) -> Tensor:
        """Figures of some images, (B,) fp64. Unsupported where they are none, which a check of its own tells."""
        values = self.raw(given)
        fault, said = problem(values, len(given.images), self.cls.within)
        if fault:
            raise Unsupported(f"It has no values here: {fault}, {said}.")
        return torch.as_tensor(values.detach().double().tolist(), dtype=torch.float64)

    def shows(self, names: Sequence[str] = DRAWINGS, references: Sequence[str] = ()) -> Shown:
        """Some images, by name, of the smallest shape that it takes, each beside its own reference or one of another name."""
        return shown(names, self.shape, references)


@contextmanager
def _listening() -> Iterator[dict[str, str]]:
    """Inside, the events of :data:`READS` are noted: what they do, with the event and what it was given."""
    _hook()
    events: dict[str, str] = {}
    _listeners.append(events)
    try:
        yield events
    finally:
        _listeners.remove(events)


@cache
def _hook() -> None:
    """Listen to Python's audit events (PEP 578) from now on; a hook cannot be taken away again."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note an event, unless it opens Python code or comes of an import or of torch's compiler."""
    if event not in READS or not _listeners:
        return
    events = _listeners.pop()  # what is asked here is no event
    try:
        path = str(arguments[0]) if event == "open" else ""
        if not path.endswith(CODE) and not any(f"{module}.".startswith(OF_PYTHON) for module in _calling(sys._getframe(1))):
            events.setdefault(READS[event], f"{event} {path[:80]!r}" if path else event)
    finally:
        _listeners.append(events)


def _calling(frame: FrameType | None) -> Iterator[str]:
    """The modules of the calls under way, up to this one's."""
    while frame is not None and (module := str(frame.f_globals.get("__name__", ""))) != __name__:
        yield module
        frame = frame.f_back


def metric_example(name: str) -> MetricExample:
    """A metric that has been registered. Unsupported for one that is not of single images."""
    cls = registry.metrics.get(name)
    if not issubclass(cls, ImageMetric):
        raise Unsupported(f"{name} is a metric of {'whole sets of images' if cls.per == 'set' else 'costs'}.",
                          remedy="Only metrics of single images can be checked; measure it in a run of a plan.")
    return MetricExample(cls)


# -- what is shown ------------------------------------------------------------------------------------------------------
def shown(names: Sequence[str], shape: tuple[int, tuple[int, ...]], references: Sequence[str] = ()) -> Shown:
    """Images by name and of a shape, with tokens, labels and seeds that follow from the name."""
    side, tokens = shape
    references = references or names
    drawn = [torch.stack([_image(name, side) for name in row]) for row in (names, references)]
    fed = [torch.stack([_tokens(name, tokens) for name in row]) for row in (names, references)]
    numbers = [IMAGES.index(name) for name in names]
    return Shown(drawn[0], drawn[1], fed[0], fed[1], labels=[number % 10 for number in numbers], seeds=[3 + number for number in numbers])


def rows(given: Shown, places: Sequence[int]) -> Shown:
    """Some of the images, in that order."""
    tensors = {name: getattr(given, name)[list(places)] for name in ("images", "reference", "tokens", "reference_tokens")}
    return replace(given, **tensors, labels=[given.labels[at] for at in places], seeds=[given.seeds[at] for at in places])


def in_words(given: Shown) -> str:
    """Size and number of some images, and the shape of their tokens."""
    count, _, height, width = given.images.shape
    tokens = "×".join(map(str, given.tokens.shape[1:]))
    return f"{count} image{'s' * (count > 1)} of {height}×{width} pixels and {tokens} tokens"


def _image(name: str, side: int) -> Tensor:
    """An image by its name, (3, side, side): a coloured disc on a slope of another colour, unless it is plain or noise."""
    if name in PLAIN:
        colour = {"black": (-1, -1, -1), "white": (1, 1, 1), "grey": (0, 0, 0), "red": (1, -1, -1)}[name]
        return torch.tensor(colour, dtype=torch.float32).view(3, 1, 1).repeat(1, side, side)
    draws = torch.Generator().manual_seed(IMAGES.index(name))
    if name == "noise":
        return torch.rand(3, side, side, generator=draws) * 2 - 1
    across, down = torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="xy")
    ground, ink = (torch.rand(3, 1, 1, generator=draws) * 2 - 1 for _ in range(2))
    at = torch.rand(2, generator=draws) - 0.5
    disc = (across - at[0]).square() + (down - at[1]).square() < 0.2
    image = torch.where(disc, ink, (ground + across * 0.5 + down * 0.2).clamp(-1, 1))
    return image if name in DRAWINGS else image / image.abs().max() * BEYOND


def _tokens(name: str, shape: tuple[int, ...]) -> Tensor:
    draws = torch.Generator().manual_seed(IMAGES.index(name))
    return torch.randint(0, 16, shape, generator=draws) if len(shape) == 1 else torch.randn(shape, generator=draws)


def _flaw(given: Shown, expected: object, found: object, name: str = "") -> Flaw:
    return Flaw(str(expected), str(found), in_words(given) + (f" ({name})" if name else ""), given.seeds)


def _unlike(given: Shown, expected: Tensor, found: Tensor, whose: str, tolerance: float = CLOSE) -> Found:
    """The first image whose value is another one by more than a share of the largest."""
    scale = max(float(expected.abs().max()), float(found.abs().max()))
    for place, (one, other) in enumerate(zip(expected.tolist(), found.tolist(), strict=True)):
        if abs(one - other) > tolerance * scale:
            yield _flaw(given, f"{one:.9g} for image {place} of {len(given.images)}, {whose}", f"{other:.9g}")
            return


# -- the checks ---------------------------------------------------------------------------------------------------------
def nothing_else_is_read(example: MetricExample) -> Found:
    """It computes with what it is shown and with its own files alone: it opens no file and no connection, starts no process, and imports no
    module of its own that no import statement names. What is in no digest would change its values under the same name."""
    given = example.shows()
    example.raw(given)
    for what, event in example.asked_for.items():
        yield _flaw(given, "what it is shown, and its own files alone", f"it {what} ({event})")
    for module in plugins.strays():
        yield _flaw(given, "an import statement for each module of its own", f"{module} is imported in another way")


def class_says_what_it_is(example: MetricExample) -> Found:
    """Unit, direction and kind are said by its own class: what is left to the base class may have been forgotten."""
    example.raw(example.shows())
    own = {name for base in example.cls.__mro__ if base not in ImageMetric.__mro__ for name in vars(base)}
    for name, values in STATED.items():
        if name not in own:
            yield Flaw(f"the class attribute {name} ({values})", f"that of ImageMetric, {getattr(ImageMetric, name)!r}",
                       "the attributes of its class")


def values_are_finite(example: MetricExample) -> Found:
    """Each image has one finite value within the stated range, whatever it shows, beside any reference, and where pixels go beyond
    [−1, 1] as those of a decoder do; a shape that it is not made for is refused with ValueError."""
    smallest = example.shape
    for shape in SHAPES[SHAPES.index(smallest) :]:
        try:
            example.raw(shown(DRAWINGS[:1], shape))
        except ValueError:
            continue
        names = IMAGES if shape == smallest else (PLAIN[0], DRAWINGS[0])
        alone = [((name,), (other,)) for name in names for other in dict.fromkeys((name, DRAWINGS[0]))]
        for images, references in [*alone, (DRAWINGS[:2], ()), (names, ())]:
            given = shown(images, shape, references)
            fault, said = problem(example.raw(given), len(images), example.cls.within)
            if fault:
                beside = f" beside {references[0]}" if references and references != images else ""
                yield _flaw(given, "a finite value of each image within its range", f"{fault}, {said}",
                            (images[0] if len(images) == 1 else "") + beside)
                return


def second_measurement_repeats(example: MetricExample) -> Found:
    """Images have the same values again, whatever was measured between and whatever torch's random numbers are: the same bits where it
    says that it is deterministic, else to 1e-4 of the largest."""
    given = example.shows()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(123)
        first = example.values(given)
        example.raw(example.shows(("noise", "white")))
        torch.manual_seed(321)
        again = example.values(given)
    yield from _unlike(given, first, again, "as the first time", 0.0 if example.cls.deterministic else CLOSE)


def values_do_not_depend_on_the_batch(example: MetricExample) -> Found:
    """An image has the same value by itself, in another batch and in another order, to 1e-4 of the largest."""
    whole = example.shows((*DRAWINGS, "noise"))
    figures = example.values(whole)
    for places in ([0], [1], [2, 0], [3, 2, 1, 0]):
        part = rows(whole, places)
        found = list(_unlike(part, figures[places], example.values(part), f"as in a batch of {len(whole.images)}"))
        if found:
            yield found[0]
            return


def others_do_not_matter(example: MetricExample) -> Found:
    """The value of an image does not depend on the images that are shown with it, to 1e-4 of the largest."""
    given = example.shows()
    figures = example.values(given)
    for others in (("white", "white"), ("noise", "black")):
        changed = example.shows((DRAWINGS[0], *others))
        found = example.values(changed)
        scale = max(float(figures.abs().max()), float(found.abs().max()))
        if abs(float(figures[0] - found[0])) > CLOSE * scale:
            yield _flaw(changed, f"{figures[0]:.9g} for image 0, as beside {' and '.join(DRAWINGS[1:])}",
                        f"{found[0]:.9g} beside {' and '.join(others)}")
            return


def identical_images_score_alike(example: MetricExample) -> Found:
    """Copies of one image, of one seed and beside the same reference, have the same value, to 1e-4 of it."""
    given = example.shows((DRAWINGS[0],) * 3, (DRAWINGS[1],) * 3)
    figures = example.values(given)
    yield from _unlike(given, figures[:1].expand(3), figures, "as for its copy")


def kind_is_what_it_reads(example: MetricExample) -> Found:
    """Quality is of an image by itself: another reference does not change it. Of fidelity no image has more than the reference itself, and
    some image has less: that is also how its direction is told."""
    same = example.shows(DRAWINGS[:1])
    itself = float(example.values(same)[0])
    worse, better, near = 0, example.cls.better, 0.0 if example.cls.deterministic else CLOSE
    for name in (*DRAWINGS[1:], *PLAIN, "noise"):
        quality = example.cls.kind == "quality"
        given = example.shows(DRAWINGS[:1], (name,)) if quality else example.shows((name,), DRAWINGS[:1])
        found = float(example.values(given)[0])
        gain = found - itself if better == "higher" else itself - found
        if quality and abs(gain) > near * max(abs(found), abs(itself)):
            yield _flaw(given, f"{itself:.9g} beside any reference, or kind = \"fidelity\"", f"{found:.9g} beside {name}")
            return
        if not quality and gain > CLOSE * max(abs(found), abs(itself)):
            yield _flaw(given, f"no value better ({better}) than {itself:.9g}, that of the reference itself", f"{found:.9g}", name)
            return
        worse += gain < 0
    if example.cls.kind == "fidelity" and not worse:
        yield _flaw(same, "a worse value than the reference's for some other image", f"{itself:.9g} for all of them")


def inputs_are_left_alone(example: MetricExample) -> Found:
    """It writes into nothing that it is shown: other metrics look at the same images."""
    given = example.shows(("a drawing beyond [−1, 1]", *DRAWINGS), ("noise", *DRAWINGS))
    before = rows(given, range(len(given.images)))
    example.raw(given)
    for name in ("images", "reference", "tokens", "reference_tokens"):
        old, new = getattr(before, name), getattr(given, name)
        if old.shape != new.shape or not torch.equal(old, new):
            yield _flaw(given, f"{name} as they were", "others")
    if (before.labels, before.seeds) != (given.labels, given.seeds):
        yield _flaw(given, "labels and seeds as they were", "others")


def settings_are_left_alone(example: MetricExample) -> Found:
    """It changes no setting of torch, such as TF32 or the number of threads."""
    given = example.shows()
    example.raw(given)
    if example.changes:
        yield _flaw(given, "the settings of torch as they were", "; ".join(example.changes))


METRIC: tuple[Callable[[MetricExample], Found], ...] = (
    nothing_else_is_read, class_says_what_it_is, values_are_finite, second_measurement_repeats,
    values_do_not_depend_on_the_batch, others_do_not_matter, identical_images_score_alike, kind_is_what_it_reads, inputs_are_left_alone,
    settings_are_left_alone,
)
