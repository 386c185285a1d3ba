"""The contract of a method in the next-scale family."""

import pytest
import torch

from cachemark.cache.codecs import CODECS
from cachemark.core.spec import Sampling
from cachemark.kit.capture import NotCapturable, capturing
from cachemark.kit.next_scale import LAYERS, SIDES, ScaleCell
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.full import Full
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer

from .cells import ALONE
from .scales import cells

CELLS = cells()
DETERMINISTIC = [cell for cell in CELLS if dict(cell.mode).get("decide") != "online" and not cell.per_head]
MHA = [cell for cell in DETERMINISTIC if cell.attention == "mha"]


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "c_min" in dict(cell.mode)], ids=ScaleCell.label.fget)
def test_ams_kv_with_budgets_for_everything_is_the_full_cache(cell: ScaleCell) -> None:
    """The kit skips these modes, whose own budgets no other budget replaces."""
    everything = cell.layout.cacheable
    ran = cell.run(AMSKV.build({**dict(cell.mode), "c_min": everything, "c_max": everything}))
    assert all(torch.equal(ran.answers[where], out) for where, out in cell.full(ran.method).answers.items())


# -- budget and bytes -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("codec", ALONE)
@pytest.mark.parametrize("keep", [False, True])
def test_the_full_cache_needs_no_more_than_it_reads(codec: str, keep: bool) -> None:
    cell = ScaleCell(Full, (("store_last", keep),), codec, "mha")
    ran, layout = cell.run(cell.tight()), cell.layout
    entries = sum(side**2 for side in (SIDES if keep else SIDES[:-1]))
    entry = CODECS[codec].entry_bytes(layout.head_dim, layout.dtype)
    assert ran.memory.nbytes("slots") == 2 * layout.rows * layout.kv_heads * LAYERS * entries * entry
    staged = 0 if keep and CODECS[codec].exact else layout.visual
    assert ran.memory.nbytes("workspace") == 2 * layout.rows * layout.kv_heads * staged * layout.head_dim * 4


# -- capture and storage ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cell", [cell for cell in CELLS if dict(cell.mode).get("decide") == "online"], ids=ScaleCell.label.fget)
def test_deciding_online_cannot_be_captured_and_says_so(cell: ScaleCell) -> None:
    method = cell.record.method
    assert not method.capturable
    assert "batch" in method.footnotes[0]
    with pytest.raises(NotCapturable), capturing(cell.passes) as capture:
        cell.run(cell.tight(), capture, bare=True)


# -- the model of tests of engines -------------------------------------------------------------------------------------
def tiny() -> VAR:
    """Return random weights, scaled so that what attention reads shows in the logits."""
    quantizer = MultiScaleQuantizer(SIDES, 64, 8).requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in quantizer.parameters():
            parameter.normal_()
    model = VAR(VARConfig(LAYERS, 4, 64, SIDES, vocab=64, classes=10, width=8), quantizer).initialise(0).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    return model


MODEL, SAMPLING = tiny(), Sampling(cfg_scale=1.5, cfg_schedule="linear")
