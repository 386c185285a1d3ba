"""Seed subsets: nested, balanced, disjoint where they must be, and the same for ever."""

import hashlib
import itertools
import json
from collections import Counter

import pytest

from cachemark.core import seeds
from cachemark.core.errors import BadPlan

SERIES = (("s64", "s256", "s2k", "s10k", "s50k"), ("tune64", "tune256"))
CLASSES = (1, 2, 10, 37, 64, 1000)

# SHA-256 of the JSON of all (seed, label) pairs of the longest subset of each series, of which the others are prefixes, and of the other
# seeds of s64. A change here changes what every stored value was measured on: raise seeds.VERSION with it.
GOLDEN = {
    ("s50k", 10): "a2ecd8fc8a8401c836446dae5b9eaff17fbf9f36182bb82c5432347cb6b5eaee",
    ("s50k", 1000): "0c4324e6954ebee2a4384902fe2c967e1b95abc236176313641f9648601b7c7d",
    ("tune256", 10): "9c8ea51c9a5e934833ced972fdd50aa6e2c1e81d40dd8b111e4474e342ccd1c1",
    ("tune256", 1000): "d7a6cc99089d5d1c5ebc057dacc300d01b1fa6223995d9226248ff616dd0129e",
    ("other_seeds", 10): "0a0b1483c7ed1a57b0b97f666316b12958099b6b37815421b6f70fd14273d9a5",
    ("other_seeds", 1000): "70331569e05bf8f0b4e4629d35a216ff4cf34933cf68c69b1dadb3ba168b103b",
}


def test_version_and_pairs_are_golden() -> None:
    assert seeds.VERSION == 1
    for (name, classes), golden in GOLDEN.items():
        subset = seeds.other_seeds(seeds.subset("s64", classes)) if name == "other_seeds" else seeds.subset(name, classes)
        pairs = list(zip(subset.seeds, subset.labels, strict=True))
        assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == golden, name


def test_subsets_are_nested_and_every_prefix_is_balanced() -> None:
    for series, classes in itertools.product(SERIES, (10, 1000)):
        for small, large in itertools.pairwise(seeds.subset(name, classes) for name in series):
            assert len(small) == len(set(small.seeds)) == int(small.name.lstrip("stune").replace("k", "000")) < len(large)
            assert (small.seeds, small.labels) == (large.seeds[: len(small)], large.labels[: len(small)])
    for name, classes in itertools.product(("s256", "tune256"), CLASSES):
        counts = Counter(dict.fromkeys(range(classes), 0))
        for label in seeds.subset(name, classes).labels:
            counts[label] += 1  # a label outside the range would add a class and fail below
            assert len(counts) == classes
            assert max(counts.values()) - min(counts.values()) <= 1


def test_tuning_and_other_seeds_share_no_seed_with_anything_named() -> None:
    measured = set(seeds.subset("s50k", 10).seeds)
    tuned = set(seeds.subset("tune256", 10).seeds)
    shifted = {s for name in ("s50k", "tune256") for s in seeds.other_seeds(seeds.subset(name, 10)).seeds}
    assert (measured & tuned, shifted & (measured | tuned), measured) == (set(), set(), set(range(50_000)))
    assert len(shifted) == len(measured) + len(tuned)
    assert max(shifted) < 2**31
    plain = seeds.subset("s256", 1000)
    assert seeds.other_seeds(plain).labels == plain.labels


def test_first_takes_a_prefix_and_refuses_more_than_there_is_and_slices_are_the_subset_in_order() -> None:
    complete = seeds.subset("s64", 10)
    assert (complete.first(8).seeds, complete.first(64)) == (complete.seeds[:8], complete)
    for count in (0, -1, 65):
        with pytest.raises(BadPlan, match=f"{count} samples of 's64'.*1 to 64"):
            complete.first(count)
    for name, size, lengths in (("s2k", 1000, [1000, 1000]), ("s64", 27, [27, 27, 10]), ("s64", 64, [64]), ("s64", 99, [64])):
        complete = seeds.subset(name, 10)
        slices = complete.slices(size)
        assert [len(part) for part in slices] == lengths
        assert [seed for part in slices for seed in part.seeds] == complete.seeds
        assert [label for part in slices for label in part.labels] == complete.labels
        assert len({part.name for part in slices}) == len(slices)
        assert slices[-1].name == f"{name}[{sum(lengths[:-1])}:{len(complete)}]"
