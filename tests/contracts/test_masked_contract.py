"""The contract of a method in the masked family."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from cachemark.cache.codecs import CODECS
from cachemark.contract.method import Method
from cachemark.kit.common import poison
from cachemark.kit.masked import CONFIG
from cachemark.methods.base.partial import Incremental, Partial
from cachemark.methods.full import Full
from cachemark.methods.marche import MARche
from cachemark.methods.registry import METHODS

from .cells import WHOLE, sampled
from .masked import OFF, SCHEDULE, MaskedCell, cells, recorded, run

CELLS = cells()
PARTIAL = [cell for cell in CELLS if issubclass(cell.cls, Partial)]
NATIVE = [cell for cell in CELLS if cell.codec == "native"]
TOLERANCE = 1e-5
DAILY = sampled(CELLS, [cell for cell in CELLS if cell.codec in WHOLE])


def test_neutral_parameters_are_the_full_model_bit_for_bit_and_others_are_not_neutral() -> None:
    """Beside those of the whole budget, which the kit checks."""
    full = recorded(MaskedCell(Full, (), "native"))[0].tokens
    for name, parameters in (
        ("lazymar", {**SCHEDULE, **OFF}), ("marche", {"period": 1}), ("marche", {"period": 1, "encoder_cache": True}),
        ("random_tokens", {**SCHEDULE, "period": 1}), ("recap", {"partial_steps": 0}), ("recap", {"full_steps": 8}),
    ):  # fmt: skip
        assert torch.equal(run(MaskedCell(METHODS.get(name), tuple(parameters.items()), "native"))[0].tokens, full), name
    for cell in [cell for cell in NATIVE if cell.cls is not Full and not dict(cell.mode).get("partitioned")]:
        assert not torch.allclose(recorded(cell)[0].tokens, full, atol=1e-4), cell.label


# -- skipping equals keeping ------------------------------------------------------------------------------------------
def stored_blocks(cell: MaskedCell, parameters: dict[str, Any]) -> int:
    """Return in how many blocks of encoder and decoder a later pass reads keys and values of this one."""
    encoder = CONFIG.depth[0] if parameters.get("encoder_cache", cell.cls.name in ("lazymar", "recap")) else 0
    behind = {"lazymar": parameters.get("layer", 0) + 1, "random_tokens": parameters.get("layer", 0) + 1,
              "marche": parameters.get("select_layer", 2), "recap": 0}
    decoder = CONFIG.depth[1] - behind.get(cell.cls.name, CONFIG.depth[1]) - len(parameters.get("refresh_layers", ()))
    return encoder + (decoder if parameters.get("token_cache", True) else 0)


@pytest.mark.parametrize("cell", DAILY)
def test_every_token_sees_all_last_keys_and_values_which_alone_are_stored(cell: MaskedCell) -> None:
    """And some are skipped where a method declares it, but none that is predicted now or was in the pass before."""
    (ran, shadow), layout, parameters = recorded(cell), cell.layout, dict(cell.mode)
    assert shadow.worst <= TOLERANCE
    skips = cell.cls.skips and (parameters.get("token_cache", True) or parameters.get("encoder_cache", False))
    assert (shadow.skipped > 0) is skips
    entry = 2 * CODECS[cell.codec].entry_bytes(layout.head_dim, layout.dtype) * layout.heads * layout.places
    rows = layout.batch if cell.cls.name == "lazymar" and parameters.get("condition_cache", True) else layout.rows
    assert ran.memory.nbytes("slots") == ran.method.logical_bytes == entry * rows * stored_blocks(cell, parameters)
    assert ran.memory.nbytes("workspace") == 0
    forces = parameters.get("refresh") != "blind" and parameters.get("generating", True) and parameters.get("caching", True)
    if cell.cls.name == "lazymar":
        forces = parameters.get("forced") == "always" or parameters.get("select", "similarity") != "similarity"
    if cell in PARTIAL and forces:
        assert shadow.chosen
        for index, chosen in shadow.chosen.items():
            assert all(set(forced) <= set(places) for forced, places in zip(shadow.forced[index].tolist(), chosen.tolist(), strict=True))
            assert (chosen[:, 1:] > chosen[:, :-1]).all(), "ascending, each once"


def test_the_partitioned_attention_gives_the_same() -> None:
    plain, partitioned = (recorded(MaskedCell(MARche, tuple({"active": 14, **mode}.items()), "native"))[0].tokens
                          for mode in ({}, {"partitioned": True}))  # fmt: skip
    assert not torch.equal(partitioned, plain), "it is computed otherwise"
    assert torch.allclose(partitioned, plain, atol=TOLERANCE * float(plain.abs().max()))


# -- nothing is read before it is written -----------------------------------------------------------------------------
def spoiled(cell: MaskedCell) -> MaskedCell:
    """Return the cell of a method whose memory is spoiled before the first pass."""

    def begin(self: Method, layout: Any, sites: Any, memory: Any) -> None:
        cell.cls.begin(self, layout, sites, memory)
        for kind, tensor in memory.tensors.values():
            if kind == "slots" or tensor.is_floating_point():
                poison(tensor)

    return replace(cell, cls=type(cell.cls.__name__, (cell.cls,), {"begin": begin}))


def test_nothing_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is caught, as where the encoder's canvas is not kept in full passes."""
    for cell in NATIVE:
        if cell in PARTIAL:
            assert torch.equal(run(spoiled(cell))[0].tokens, recorded(cell)[0].tokens), cell.label
    cell = next(cell for cell in NATIVE if cell in PARTIAL and dict(cell.mode).get("encoder_cache"))
    monkeypatch.setattr(Incremental, "keep", lambda self, canvas: None)
    assert run(spoiled(cell))[0].tokens.isnan().any()
