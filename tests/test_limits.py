"""Roofline times, roofline speedups and flags: arithmetic on bills of operations."""

from __future__ import annotations

from cachemark.analysis import device_limits
from cachemark.core import limits
from cachemark.core.limits import Limit, Rates
from cachemark.roofline.operations import Bill, Op

RATES = Rates(bandwidth=100.0, peak_flops=1000.0)
MOVES = Op("attention", flops=10, read=200)  # 2 s of bytes, 0.01 s of arithmetic
COMPUTES = Op("matmul", flops=3000, weights=50, activations=50)  # 3 s of arithmetic, 1 s of bytes


def bill(*ops: Op) -> Bill:
    return Bill.merged(ops, batch=1, passes=1)


def test_an_operation_takes_what_takes_longer_and_operations_follow_each_other() -> None:
    assert (MOVES.seconds(RATES), COMPUTES.seconds(RATES)) == (2.0, 3.0)
    assert bill(MOVES, COMPUTES, COMPUTES).roofline_time(RATES) == 8.0


def test_alike_operations_become_one_and_nothing_is_lost() -> None:
    total = bill(MOVES, COMPUTES._replace(times=3), MOVES)
    assert {op.part: op.times for op in total.ops} == {"attention": 2, "matmul": 3}
    assert (total.flops, total.moved(), total.moved("read", "weights")) == (9020, 700, 550)
    assert total.only("matmul").flops + total.without("matmul").flops == total.flops


def test_what_was_measured_stands_beside_the_limit() -> None:
    limit = bill(MOVES, COMPUTES, Op("decode", flops=1000)).limit(RATES)
    assert (limit.roofline_time, limit.tokens, limit.by) == (6.0, 5.0, {"attention": 2.0, "matmul": 3.0, "decode": 1.0})
    assert (limit.over(12.0), limit.mbu(12.0), limit.mfu(12.0)) == (2.0, 3.0 / 12, 4.01 / 12)
    assert Limit.from_json(limit.to_json()) == limit


def test_the_ideal_speedup_is_that_of_the_roofline_times() -> None:
    full, candidate = (bill(*ops).limit(RATES) for ops in ((MOVES, MOVES, COMPUTES), (MOVES, COMPUTES)))
    assert limits.roofline_speedup(full, candidate) == 7 / 5


def test_speedups_beyond_the_roofline_speedup_are_implausible() -> None:
    assert "2.17×" in device_limits.implausible(7.57, 2.17)
    assert not device_limits.implausible(2.17 * device_limits.TOLERANCE - 0.01, 2.17)
    assert not device_limits.implausible(7.57, 2.17, tokens=4.0)
    assert not device_limits.implausible(1.0, 0.5)
