"""DiSA beyond its vectors: costs, rivals, composition and bad values."""

from __future__ import annotations

from typing import Any

import pytest

from cachemark.cache.masked_layout import MaskedLayout, masked_steps
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter
from cachemark.core.spec import Sampling
from cachemark.methods.base import annealed
from cachemark.methods.disa import DiSA
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.halton import Halton
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.marche import MARche
from cachemark.methods.recap import ReCAP
from cachemark.models.catalogue.masked_models import TINY_MAR
from cachemark.models.mar import SIZES
from cachemark.roofline.flops_budget import image_flops, share


def layout(size: str = "B", steps: int = 64) -> MaskedLayout:
    return SIZES[size].layout(range(8), Sampling(cfg_scale=3.0, steps=steps))


def timesteps(method: Method, shape: MaskedLayout) -> list[tuple[int, ...]]:
    method.resolve(shape)
    return [part.process(shape) for step in masked_steps(shape, shape.steps) for part in method.denoising(step, shape.diffusion)]


@pytest.mark.parametrize(("method", "shares"), [
    (DiSA(), (0.811, 0.829, 0.816)), (DiSA(annealing="cosine"), (0.807, 0.826, 0.813)),
    (DiSA(annealing="two-stage"), (0.804, 0.822, 0.809)),
    (DiSA(most=0.25), (0.790, 0.810, 0.796)), (DiSA(most=1.0), (0.852, 0.866, 0.856)),
    (DiSA(annealing="constant", least=0.2), (0.809, 0.828, 0.815)), (DiSA(annealing="constant"), (0.774, 0.795, 0.780)),
    (LazyMAR(head_annealing="linear"), (0.309, 0.308, 0.299)), (MARche(head_annealing="linear"), (0.585, 0.585, 0.571)),
    (LazyMAR(head_cache=False, head_annealing="linear"), (0.342, 0.337, 0.328)),
    (ReCAP(head_annealing="linear"), (0.644, 0.658, 0.648)),
])  # fmt: skip
def test_shares_of_the_flops(method: Method, shares: tuple[float, ...]) -> None:
    """Of 64 passes of MAR-B, L and H with 100 steps of the head; computed by hand from the published code."""
    assert [float(share(method, layout(size))) for size in SIZES] == pytest.approx(shares, rel=0.01)


def test_a_constant_head_is_the_same_rival_under_both_names() -> None:
    shape = layout()
    rival = FewerSteps(steps=64, head_annealing="constant", head_least=0.2)
    assert timesteps(rival, shape) == timesteps(DiSA(annealing="constant", least=0.2), shape)
    assert {len(times) for times in timesteps(rival, shape)} == {20}


def test_the_start_of_the_code_is_for_heads_that_start_at_the_noisiest_step() -> None:
    """A process that starts elsewhere, as the bundled model's, keeps its own spacing."""
    code, full = (timesteps(DiSA(most=1.0, start=start), layout()) for start in ("code", "full"))
    assert {times[-1] for times in code} == {annealed.LATEST}
    assert {times[-1] for times in full} == {999}
    tiny = TINY_MAR.layout([0], Sampling())
    code, full = (timesteps(DiSA(most=1.0, least=0.5, start=start), tiny) for start in ("code", "full"))
    assert code == full


@pytest.mark.parametrize("cls", [LazyMAR, MARche, ReCAP, Halton, FewerSteps])
def test_a_head_that_is_not_annealed_changes_no_parameter_of_a_case(cls: type[Any]) -> None:
    assert not cls().parameters().keys() & annealed.HEAD_PARAMETERS.keys()
    assert cls(head_annealing="linear").parameters().keys() >= annealed.HEAD_PARAMETERS.keys()


def test_a_new_schedule_costs_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(annealed.SCHEDULES, "square", lambda index, last, span: (1 - index / last) ** 2 * span)
    assert image_flops(DiSA(annealing="square"), layout()) < image_flops(DiSA(), layout())


@pytest.mark.parametrize(("parameters", "words"), [
    ({"most": 0.05, "least": 0.5}, "least = 0.5 is out of range.*0.05.*fall"), ({"most": 1.5}, r"most = 1\.5"),
    ({"least": 0.0}, r"least = 0\.0"),
    ({"annealing": "off"}, "annealing = 'off' is unknown"), ({"start": "950"}, "start = '950'"), ({"steps": 65}, "steps = 65"),
])  # fmt: skip
def test_bad_schedules(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        DiSA(**parameters).resolve(layout())
    prefixed = {name if name == "steps" else f"head_{name}": value for name, value in parameters.items()}
    if parameters.get("annealing") != "off":
        with pytest.raises(BadParameter, match="fewer_steps: "):
            FewerSteps(**{"steps": 64, "head_annealing": "linear", **prefixed}).resolve(layout())
