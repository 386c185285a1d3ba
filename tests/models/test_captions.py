"""Captions of the bundled text-to-image model: parsing, vocabulary, and the list in the package."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from cachemark.core.errors import UnknownName
from cachemark.models import janus
from cachemark.models.catalogue.text_to_image import CAPTIONED, TINY_T2I
from cachemark.models.catalogue.text_to_image import TINY_NAME as NAME
from cachemark.models.catalogue.text_to_image import TINY_TEXTS as TEXTS
from cachemark.models.tiny.captions import AXES, CAPTION, SPECIAL, VOCABULARY, Asked, WordTokenizer, parsed


def test_every_caption_is_read_as_it_was_meant() -> None:
    choices = [range(len(AXES["object"])), range(len(AXES["count"])), (None, 0, 5)]
    grounds = [(None, None, None), *itertools.product(range(4), range(4), (None, 0, 5))]
    for (shape, count, colour), (place, texture, ground) in itertools.product(itertools.product(*choices), grounds):
        meant = Asked(shape, count, colour, place, texture, ground)
        assert parsed(meant.caption) == meant


@pytest.mark.parametrize("text", [
    "red stars", "two star", "a stars", "two red stars above", "two stars red", "two red stars blue stripes", "above blue stripes",
    "two red stars stripes above", "",
])  # fmt: skip
def test_other_words_and_orders_are_no_caption(text: str) -> None:
    with pytest.raises(ValueError, match="is not a caption"):
        parsed(text)


def test_a_word_that_is_not_known_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Unknown word of a caption 'sters'\. Did you mean 'stars'\?"):
        WordTokenizer().ids("two red sters")
    with pytest.raises(UnknownName, match="Unknown word of a caption 'sters'"):
        parsed("two red sters")


def test_a_word_is_one_id_whatever_its_capitals_and_spaces() -> None:
    tokenizer = WordTokenizer()
    assert tokenizer.ids(" Two  red STARS") == tokenizer.ids("two red stars")
    assert [VOCABULARY[i] for i in tokenizer.ids("two red stars")] == ["two", "red", "stars"]
    assert sorted(tokenizer.special(token) for token in SPECIAL) == [0, 1, 2]
    assert len(set(VOCABULARY)) == len(VOCABULARY) == TINY_T2I.decoder.vocab


def test_the_list_asks_for_everything_equally_often() -> None:
    requests = [parsed(text) for text in TEXTS]
    assert len(set(TEXTS)) == len(TEXTS) == 256
    for axis in ("object", "colour", "count", "position", "texture"):
        often = Counter(getattr(request, axis) for request in requests)
        assert None not in often
        assert max(often.values()) - min(often.values()) <= 1
    assert 0 < sum(request.ground_colour is None for request in requests) < len(requests) / 2


def test_prompts_differ_in_length_and_keep_it_without_the_caption() -> None:
    assert CAPTIONED.reader is not None
    prompts = CAPTIONED.reader(TINY_T2I).shapes(TEXTS)
    assert {len(ids) for ids in prompts.conditional} == {7, 8, 9}
    assert [len(ids) for ids in prompts.unconditional] == [len(ids) for ids in prompts.conditional]
    assert prompts == janus.prompts_of(TEXTS, WordTokenizer(), form=CAPTION)
    assert NAME == "tiny-t2i"
