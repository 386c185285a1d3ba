"""The default method, its parameters, and the budget of an evicting one."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.bank import SlotBank
from cachemark.cache.codec import INT8
from cachemark.cache.layout import Layout, Site, Step, Tokens
from cachemark.contract.method import Method, Uncached
from cachemark.core.errors import BadParameter, UnknownName
from cachemark.kit.driver import RasterFeed as Feed
from cachemark.kit.driver import drive, layout_of
from cachemark.methods.base.evicting import Evicting, ring, table, visual_budget


@dataclass
class Parameterbed(Method):
    """One parameter of each type."""

    name = "parameterbed"
    count: int = 3
    share: float = 0.5
    exact: bool = True
    mode: str = "plain"
    free: object = None


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        Parameterbed.build({"counts": 4})
    assert str(caught.value) == "Unknown parameter of parameterbed 'counts'. Did you mean 'count'? Known: count, exact, free, mode, share."


@pytest.mark.parametrize(("parameter", "value", "kind"), [
    ("count", 2.0, "an int"), ("count", True, "an int"), ("count", "2", "an int"), ("count", None, "an int"), ("share", "0.5", "a float"),
    ("share", False, "a float"), ("exact", 1, "a bool"), ("mode", 3, "a str"),
])  # fmt: skip
def test_a_parameter_of_another_type_is_refused(parameter: str, value: object, kind: str) -> None:
    with pytest.raises(BadParameter) as caught:
        Parameterbed.build({parameter: value})
    assert str(caught.value) == f"parameterbed: {parameter} = {value!r} is not {kind}. Use type {kind.split()[1]}."


@pytest.mark.parametrize(("budget", "lines", "expected"), [
    (Fraction(1), 6, 36), (Fraction(1, 2), 6, 18), (Fraction(1, 3), 6, 12), (Fraction(1, 6), 6, 12), (Fraction(1, 100), 6, 12),
    (Fraction(1, 4), 24, 36), (Fraction(1, 8), 24, 18),
])  # fmt: skip
def test_a_budget_is_whole_lines_and_two_at_least(budget: Fraction, lines: int, expected: int) -> None:
    assert visual_budget(budget, layout_of(lines=lines, line=6)) == expected
    assert Evicting.parameters_for(budget, layout_of(lines=lines, line=6)) == {"B": expected}


def test_an_evicting_method_needs_a_budget() -> None:
    with pytest.raises(BadParameter, match=r"B = 0 is out of range\. Use 1 … 36 visual entries\."):
        Evicting().resolve(layout_of())


def test_the_full_cache_stores_all_but_the_last_token() -> None:
    layout = layout_of((3, 1), lines=2, line=3)
    method = Method()
    drive(method, layout, Feed(layout))
    assert [bank.capacity for bank in method.banks] == [3 + 5]
    for slot in method.slots.values():
        assert slot.live == [8, 6]
        assert slot.visual[0, 0].tolist() == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert method.logical_bytes == (8 + 6) * 2 * 4 * 2 * 16 * 4


def test_only_a_codec_that_is_not_exact_needs_a_workspace() -> None:
    layout, sites = layout_of(), [Site("decoder", 0)]
    for codec, staged in ((None, False), (INT8, True)):
        method, memory = Method(), Memory("cpu", *([codec] if codec else []))
        method.begin(layout, sites, memory)
        assert (method.workspace is not None) is staged
        assert (memory.nbytes("workspace") > 0) is staged


@dataclass
class Edged(Evicting):
    """Notes when it is asked to evict."""

    evict_after = "line"

    def evict(self, step: Step, slots: SlotBank) -> None:
        self.asked = [*getattr(self, "asked", []), step.index]


def test_evict_is_called_at_the_edge_alone() -> None:
    layout = layout_of(lines=3, line=4)
    method = Edged(B=100)
    drive(method, layout, Feed(layout))
    assert method.asked == [4, 8]


def test_scopes_run_from_the_outermost_in() -> None:
    """Stack hands all tokens on; a block is its attention, then its MLP."""

    class Block:
        def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
            return tokens.with_x(tokens.x * 2)

        def branch(self, tokens: Tokens) -> torch.Tensor:
            return tokens.x + 1

        def join(self, tokens: Tokens, branch: torch.Tensor) -> Tokens:
            return tokens.with_x(tokens.x + branch)

    tokens, site, step = Tokens(torch.tensor([3.0])), Site("decoder", 0), Step(0, 1)
    assert Method().stack("decoder", step, tokens, lambda t: t.x).tolist() == [3.0]
    assert Method().block(site, step, tokens, Block()).x.tolist() == [13.0]


def test_state_of_a_method_is_counted_and_moves() -> None:
    layout: Layout = layout_of(heads=4, kv_heads=2, head_dim=8)
    memory = Memory()
    bank = SlotBank(layout, (Site("decoder", 0), Site("decoder", 1)), 5, memory)
    before = memory.nbytes("state")
    queries, mass = ring(memory, bank, 7), table(memory, bank, "mass")
    assert queries.shape == (2, 2, 4, 7, 8)
    assert mass.shape == (2, 2, 2, 5)
    assert mass.dtype == torch.float32
    assert memory.nbytes("state") - before == queries.nbytes + mass.nbytes
    for slot in bank.slots:
        slot.live = [4]
    mass += torch.arange(5)
    bank.evict(torch.zeros(2, 2, 2, 1, dtype=torch.int64))
    assert mass[0, 0, 0].tolist() == [3, 1, 2, 0, 4]


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_uncached_is_the_cache_in_one_pass(kv_heads: int) -> None:
    layout = layout_of((4, 4), kv_heads=kv_heads)
    q, k, v = Feed(layout).at(Step(0, 36), Site("decoder", 0))
    method = Method()
    method.begin(layout, [Site("decoder", 0)], Memory())
    cached = method.attend(Site("decoder", 0), Step(0, 36), q, k, v)
    assert (Uncached().attend(Site("decoder", 0), Step(0, 36), q, k, v) - cached).abs().max() < 1e-6
