"""The contract of a method in the masked family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Step
from cachemark.kit.common import poison
from cachemark.methods.base.partial import Incremental, Partial, Places, wide
from cachemark.methods.full import Full
from cachemark.methods.marche import MARche

from .masked import CONFIG, LAYOUT, MODES, NEUTRAL, MaskedCell, Opening, cells, recorded, run

CELLS, NEUTRAL_CELLS = cells(MODES), cells(NEUTRAL, lossy=False)
PARTIAL = [cell for cell in CELLS if issubclass(cell.cls, Partial)]
NATIVE = [cell for cell in CELLS if cell.codec == "native"]
FULL = MaskedCell(Full, (), "native")
TOLERANCE = 1e-5
LABEL = MaskedCell.label.fget


# -- neutral parameters ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", NEUTRAL_CELLS, ids=LABEL)
def test_neutral_parameters_are_the_full_model_bit_for_bit(cell: MaskedCell) -> None:
    assert torch.equal(run(cell).tokens, recorded(FULL).tokens)


def test_every_method_has_neutral_parameters() -> None:
    assert {cell.cls.name for cell in CELLS} == set(NEUTRAL)


@pytest.mark.parametrize("cell", [c for c in NATIVE if c.cls is not Full and not dict(c.mode).get("partitioned")], ids=LABEL)
def test_other_parameters_are_not_neutral(cell: MaskedCell) -> None:
    assert not torch.allclose(recorded(cell).tokens, recorded(FULL).tokens, atol=1e-4)


# -- skipping equals keeping ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", CELLS, ids=LABEL)
def test_every_token_sees_all_last_keys_and_values(cell: MaskedCell) -> None:
    assert recorded(cell).shadow.worst <= TOLERANCE


@pytest.mark.parametrize("cell", CELLS, ids=LABEL)
def test_tokens_are_skipped_where_a_method_says_so(cell: MaskedCell) -> None:
    parameters = dict(cell.mode)
    skips = cell.cls.skips and (parameters.get("token_cache", True) or parameters.get("encoder_cache", False))
    assert (recorded(cell).shadow.skipped > 0) is skips


def test_the_partitioned_attention_gives_the_same() -> None:
    plain, partitioned = (recorded(MaskedCell(MARche, tuple({"active": 14, **mode}.items()), "native")).tokens
                          for mode in ({}, {"partitioned": True}))  # fmt: skip
    assert not torch.equal(partitioned, plain), "it is computed otherwise"
    assert torch.allclose(partitioned, plain, atol=TOLERANCE * float(plain.abs().max()))


def values_stay(self: Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
    return UPDATE(self, block, k, self.read(block, self.v[0].size(3))[1].gather(2, wide(places, v)), places, live)


def one_place_off(self: Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
    return UPDATE(self, block, k, v, (places + 1).clamp_max(self.k[0].size(3) - 1), live)


def one_too_few(self: Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
    return UPDATE(self, block, k, v, places, live - 1)


def nothing_is_written(self: Places, block: int, k: Tensor, v: Tensor, places: Tensor, live: int) -> tuple[Tensor, Tensor]:
    return self.read(block, live)


UPDATE = Places.update


@pytest.mark.parametrize("broken", [values_stay, one_place_off, one_too_few, nothing_is_written])
@pytest.mark.parametrize("cell", [c for c in PARTIAL if c.codec == "native" and dict(c.mode) in (
    {"active": 14}, dict(MODES["random_tokens"][0]), {**MODES["lazymar"][3]})], ids=LABEL)
def test_a_wrong_place_is_caught(monkeypatch: pytest.MonkeyPatch, cell: MaskedCell, broken: Any) -> None:
    monkeypatch.setattr(Places, "update", broken)
    assert run(cell).shadow.worst > TOLERANCE


# -- nothing is read before it is written -----------------------------------------------------------------------------
class Poison(Opening):
    """Before the first pass, spoils all that a method keeps numbers in."""

    def opened(self, method: Any, step: Step) -> None:
        if step.index == 0:
            for kind, tensor in self.memory.tensors.values():
                if kind == "slots" or tensor.is_floating_point():
                    poison(tensor)

    def __init__(self, memory: Memory) -> None:
        self.memory = memory


@pytest.mark.parametrize("cell", PARTIAL, ids=LABEL)
def test_nothing_is_read_before_it_is_written(cell: MaskedCell) -> None:
    memory = cell.memory()
    assert torch.equal(run(cell, Poison(memory), memory=memory).tokens, recorded(cell).tokens)


def test_a_read_before_the_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder's canvas is not kept in full passes."""
    cell = next(cell for cell in PARTIAL if dict(cell.mode).get("encoder_cache") and cell.codec == "native")
    monkeypatch.setattr(Incremental, "keep", lambda self, canvas: None)
    memory = cell.memory()
    assert run(cell, Poison(memory), memory=memory).tokens.isnan().any()


# -- what is computed is what is declared -----------------------------------------------------------------------------


def forces(cell: MaskedCell) -> bool:
    """Whether tokens predicted now and in the pass before always go on."""
    parameters = dict(cell.mode)
    if cell.cls.name == "lazymar":
        return parameters.get("forced") == "always" or parameters.get("select", "similarity") != "similarity"
    return parameters.get("refresh") != "blind" and parameters.get("generating", True) and parameters.get("caching", True)


@pytest.mark.parametrize("cell", [c for c in PARTIAL if forces(c)], ids=LABEL)
def test_forced_tokens_go_on(cell: MaskedCell) -> None:
    record = recorded(cell).record
    assert record.chosen
    for index, chosen in record.chosen.items():
        assert all(set(forced) <= set(places) for forced, places in zip(record.forced[index].tolist(), chosen.tolist(), strict=True))
        assert (chosen[:, 1:] > chosen[:, :-1]).all(), "ascending, each once"


# -- bytes and storage ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", CELLS, ids=LABEL)
def test_allocated_is_what_a_later_pass_reads(cell: MaskedCell) -> None:
    ran, layout, parameters = recorded(cell), LAYOUT, dict(cell.mode)
    entry = 2 * CODECS[cell.codec].entry_bytes(layout.head_dim, layout.dtype) * layout.heads * layout.places
    rows = layout.batch if cell.cls.name == "lazymar" and parameters.get("condition_cache", True) else layout.rows
    encoder = CONFIG.depth[0] if parameters.get("encoder_cache", cell.cls.name == "lazymar") else 0
    behind = {"lazymar": parameters.get("layer", 0) + 1, "random_tokens": parameters.get("layer", 0) + 1,
              "marche": parameters.get("select_layer", 2)}
    decoder = CONFIG.depth[1] - behind.get(cell.cls.name, CONFIG.depth[1]) - len(parameters.get("refresh_layers", ()))
    decoder = decoder if parameters.get("token_cache", True) else 0
    assert ran.memory.nbytes("slots") == ran.method.logical_bytes == entry * rows * (encoder + decoder)
    assert ran.memory.nbytes("workspace") == 0


