"""Names of methods as their papers print them."""

from __future__ import annotations

from cachemark.analysis.display_names import NAMES, display_name
from cachemark.decoders.registry import DECODERS
from cachemark.methods.registry import METHODS


def test_every_name_belongs_to_a_method_or_decoder() -> None:
    assert set(NAMES) <= {*METHODS, *DECODERS}
    assert {*METHODS, *DECODERS} - set(NAMES) <= {"full", "window", "random", "sequential"}


def test_only_whole_names_are_replaced() -> None:
    assert display_name("tiny-var linear 1/4 + sjd: wide 8") == "tiny-var LineAR 1/4 + SJD: wide 8"
    assert display_name("my-linear linear_2 1/4") == "my-linear linear_2 1/4"
