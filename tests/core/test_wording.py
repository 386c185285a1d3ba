"""Figures inside sentences: no powers of ten, and one alarm is not many."""

from __future__ import annotations

import pytest

from cachemark.core.wording import count, percent


@pytest.mark.parametrize(("share", "sign", "said"), [
    (0.0512, "+", "+5.1 %"), (-0.001, "+", "-0.1 %"), (0.0512, "", "5.1 %"), (0.1, "+", "+10 %"), (0.0, "", "0 %"), (0.0017, "", "0.17 %"),
    (1.0, "", "100 %"), (1.5, "+", "+150 %"), (0.996, "", "100 %"), (0.994, "", "99 %"), (123.456, "+", "+12346 %"), (-1.0, "+", "-100 %"),
    (1e-9, "+", "+0 %"), (-1e-9, "+", "+0 %"), (1e-6, "", "0.0001 %"),
])  # fmt: skip
def test_a_share_in_per_cent_has_two_digits_and_never_an_exponent(share: float, sign: str, said: str) -> None:
    assert percent(share, sign) == said


def test_one_is_not_many() -> None:
    assert [count(n, "night") for n in (0, 1, 2)] == ["0 nights", "1 night", "2 nights"]
