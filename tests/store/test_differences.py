from __future__ import annotations

from cachemark.core.spec import Sampling
from cachemark.store.differences import differences


def test_fields_are_named_by_their_path() -> None:
    then = {"torch": "2.6", "case": {"sampling": {"top_k": 0, "top_p": 1.0}}, "gone": 1, "same": [1, 2]}
    now = {"torch": "2.7", "case": {"sampling": {"top_k": 0, "top_p": 0.9}}, "same": (1, 2), "new": None}
    assert differences(then, now) == {"torch": ("2.6", "2.7"), "case.sampling.top_p": (1.0, 0.9), "gone": (1, None)}


def test_a_thing_does_not_differ_from_itself() -> None:
    assert differences(vars(Sampling()), vars(Sampling())) == {}
