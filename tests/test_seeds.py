"""Seed subsets: nested, balanced, disjoint where they must be, and the same for ever."""

import hashlib
import itertools
import json
from collections import Counter

import pytest

from cachemark.core import seeds
from cachemark.core.errors import BadPlan

MEASURE = ("s64", "s256", "s2k", "s10k", "s50k")
TUNE = ("tune64", "tune256")
CLASSES = (1, 2, 10, 37, 64, 1000)

# SHA-256 of the JSON of the first 64 (seed, label) pairs. A change here changes what every stored value was measured on:
# raise seeds.VERSION with it.
GOLDEN = {
    ("s64", 10): "abfec1b9d7a7a40844a55f75a05e13b4c49927579854afb0e1571c921e881b43",
    ("s64", 1000): "f0a02f45a742b115dfbd4a9f7858efa7f2a81ad491f2cb32feb998e5536d16be",
    ("tune64", 10): "6896bed4b3b3c2f6d340e36d04b8a69a70ffba8267f2a47c99c547b1140af730",
    ("tune64", 1000): "1bcc5fc4b236b511d57ab0c3da195825497ec167c7f38b7eb2c91d759592d89a",
    ("other_seeds", 10): "0a0b1483c7ed1a57b0b97f666316b12958099b6b37815421b6f70fd14273d9a5",
    ("other_seeds", 1000): "70331569e05bf8f0b4e4629d35a216ff4cf34933cf68c69b1dadb3ba168b103b",
}

# The same of all pairs of the longest subset of each series; the others begin like it (see below).
WHOLE = {
    ("s50k", 10): "a2ecd8fc8a8401c836446dae5b9eaff17fbf9f36182bb82c5432347cb6b5eaee",
    ("s50k", 1000): "0c4324e6954ebee2a4384902fe2c967e1b95abc236176313641f9648601b7c7d",
    ("tune256", 10): "9c8ea51c9a5e934833ced972fdd50aa6e2c1e81d40dd8b111e4474e342ccd1c1",
    ("tune256", 1000): "d7a6cc99089d5d1c5ebc057dacc300d01b1fa6223995d9226248ff616dd0129e",
}


def digest(of: seeds.Subset, count: int = 64) -> str:
    pairs = list(zip(of.seeds, of.labels, strict=True))[:count]
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def test_version_and_first_pairs_are_golden() -> None:
    assert seeds.VERSION == 1
    got = {(name, n): digest(seeds.subset(name, n)) for name in ("s64", "tune64") for n in (10, 1000)}
    got |= {("other_seeds", n): digest(seeds.other_seeds(seeds.subset("s64", n))) for n in (10, 1000)}
    assert got == GOLDEN


def test_the_longest_subsets_are_golden_to_their_end() -> None:
    got = {(name, n): digest(of := seeds.subset(name, n), len(of)) for name in ("s50k", "tune256") for n in (10, 1000)}
    assert got == WHOLE


@pytest.mark.parametrize("series", [MEASURE, TUNE])
@pytest.mark.parametrize("classes", [10, 1000])
def test_subsets_are_nested(series: tuple[str, ...], classes: int) -> None:
    for small, large in itertools.pairwise(seeds.subset(name, classes) for name in series):
        assert len(small) < len(large)
        assert (small.seeds, small.labels) == (large.seeds[: len(small)], large.labels[: len(small)])


@pytest.mark.parametrize("name", MEASURE + TUNE)
def test_size_is_what_the_name_says(name: str) -> None:
    stated = int(name.lstrip("stune").replace("k", "000"))
    subset = seeds.subset(name, 10)
    assert len(subset) == len(subset.labels) == len(set(subset.seeds)) == stated


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", ["s256", "tune256"])
def test_every_prefix_is_balanced(name: str, classes: int) -> None:
    counts = Counter(dict.fromkeys(range(classes), 0))
    for label in seeds.subset(name, classes).labels:
        counts[label] += 1  # a label outside the range would add a class and fail below
        assert len(counts) == classes
        assert max(counts.values()) - min(counts.values()) <= 1


def test_tuning_and_other_seeds_share_no_seed_with_anything_named() -> None:
    measured = set(seeds.subset("s50k", 10).seeds)
    tuned = set(seeds.subset("tune256", 10).seeds)
    shifted = {s for name in ("s50k", "tune256") for s in seeds.other_seeds(seeds.subset(name, 10)).seeds}
    assert not measured & tuned
    assert measured == set(range(50_000))
    assert not shifted & (measured | tuned)
    assert len(shifted) == len(measured) + len(tuned)
    assert max(shifted) < 2**31


def test_other_seeds_keep_the_labels() -> None:
    plain = seeds.subset("s256", 1000)
    assert seeds.other_seeds(plain).labels == plain.labels
    assert seeds.other_seeds(plain).name != plain.name


def test_first_takes_a_prefix_and_refuses_more_than_there_is() -> None:
    complete = seeds.subset("s64", 10)
    assert complete.first(8).seeds == complete.seeds[:8]
    assert complete.first(64) == complete
    for count in (0, -1, 65):
        with pytest.raises(BadPlan, match=f"{count} samples of 's64'.*1 to 64"):
            complete.first(count)


@pytest.mark.parametrize(("name", "size", "lengths"), [
    ("s2k", 1000, [1000, 1000]), ("s64", 27, [27, 27, 10]), ("s64", 64, [64]), ("s64", 99, [64]),
])  # fmt: skip
def test_slices_are_the_subset_in_order(name: str, size: int, lengths: list[int]) -> None:
    complete = seeds.subset(name, 10)
    slices = complete.slices(size)
    assert [len(part) for part in slices] == lengths
    assert [seed for part in slices for seed in part.seeds] == complete.seeds
    assert [label for part in slices for label in part.labels] == complete.labels
    assert len({part.name for part in slices}) == len(slices)
    assert slices[-1].name == f"{name}[{sum(lengths[:-1])}:{len(complete)}]"


def test_a_slice_of_a_thousand_holds_every_class_of_imagenet_once() -> None:
    subset = seeds.subset("s50k", 1000).slices(1000)
    assert len(subset) == 50
    assert all(sorted(part.labels) == list(range(1000)) for part in subset)
