"""Captions of the bundled text-to-image model, and the tokenizer of their words.

A caption names a count and a shape and, optionally, a color and a position relative to a patterned ground: "two red stars above blue
stripes".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from ...core.errors import unknown
from ..janus import BEGIN, IMAGE, PAD
from ..prompts import TextTokenizer

COUNTS = ("a", "two", "three")
SHAPES = ("disc", "square", "triangle", "star", "ring", "cross")
COLOURS = ("red", "yellow", "green", "cyan", "blue", "magenta")  # sixths of the circle of hues
PLACES = ("above", "below", "left of", "right of")  # of the ground, as the objects see it
TEXTURES = ("stripes", "bars", "checks", "dots")
AXES = {"object": SHAPES, "colour": COLOURS, "count": COUNTS, "position": PLACES, "texture": TEXTURES, "ground_colour": COLOURS}
PLURALS = {shape: f"{shape}es" if shape.endswith("s") else f"{shape}s" for shape in SHAPES}
CAPTION = "{}"  # a caption is the whole prompt, unlike in the chats of published models
SPECIAL = (BEGIN, PAD, IMAGE)
VOCABULARY = (*SPECIAL, *COUNTS, *SHAPES, *PLURALS.values(), *COLOURS, "above", "below", "left", "right", "of", *TEXTURES)


@dataclass(frozen=True)
class Asked:
    """A parsed caption: per axis an index into :data:`AXES`, or None if it is left open.

    ``texture`` and ``position`` come together, ``ground_colour`` only with them.
    """

    object: int
    count: int
    colour: int | None = None
    position: int | None = None
    texture: int | None = None
    ground_colour: int | None = None

    @property
    def caption(self) -> str:
        """The caption's text."""
        shape = SHAPES[self.object]
        words = [COUNTS[self.count], *self._word("colour"), PLURALS[shape] if self.count else shape,
                 *self._word("position"), *self._word("ground_colour"), *self._word("texture")]
        return " ".join(words)

    def _word(self, axis: str) -> list[str]:
        chosen = getattr(self, axis)
        return [] if chosen is None else [AXES[axis][chosen]]


def parsed(caption: str) -> Asked:
    """Parse a caption. Raises UnknownName for an unknown word, ValueError for words in another order."""
    WordTokenizer().ids(caption)
    if (caption_facts := _every().get(" ".join(caption.lower().split()))) is None:
        raise ValueError(f"{caption!r} is not a caption, which reads like {Asked(3, 1, 0, 0, 0, 4).caption!r}")
    return caption_facts


@cache
def _every() -> dict[str, Asked]:
    """Return all captions, about 14 000."""
    def some(axis: str) -> tuple[int | None, ...]:
        return (None, *range(len(AXES[axis])))

    things = product(range(len(SHAPES)), range(len(COUNTS)), some("colour"))
    grounds = [(None, None, None), *product(range(len(PLACES)), range(len(TEXTURES)), some("ground_colour"))]
    captions = (Asked(*thing, *ground) for thing, ground in product(things, grounds))
    return {caption.caption: caption for caption in captions}


class WordTokenizer(TextTokenizer):
    """One id per word of :data:`VOCABULARY`; capitals and spaces do not matter."""

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(VOCABULARY)}

    def ids(self, text: str) -> list[int]:
        """Return the ids of a caption. Raises UnknownName with the nearest word."""
        return [self._id(word) for word in text.lower().split()]

    def special(self, token: str) -> int:
        return self._id(token)

    def _id(self, word: str) -> int:
        if word not in self._numbers:
            raise unknown("word of a caption", word, VOCABULARY[len(SPECIAL) :])
        return self._numbers[word]
