"""``cachemark roofline``: floors by method, budget and batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cachemark.core.limits import GPUS
from cachemark.machine import rates as measured
from support.stages import call


def table(*arguments: str) -> list[dict[str, Any]]:
    result = call("roofline", *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["floors"]
    return found


def test_a_raster_model_under_its_family_s_method() -> None:
    rows = table("llamagen-b", "--batch", "1", "--batch", "64")
    assert [(r["method"], r["budget"], r["batch"]) for r in rows] == [
        (m, b, n) for n in (1, 64) for m, b in (("full", "1"), ("linear", "1/4"), ("linear", "1/6"), ("linear", "1/8"))]
    gains = {(r["batch"], r["budget"]): r["speed_up"] for r in rows}
    assert gains[1, "1"] == gains[64, "1"] == 1
    assert 1 < gains[1, "1/8"] < gains[64, "1/8"]
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])


def test_another_gpu_has_another_floor() -> None:
    slow, fast = (table("llamagen-b", "--gpu", name, "--method", "window", "--budget", "1/2")[0]["seconds"] for name in ("3090", "h100"))
    assert 1 < slow / fast <= GPUS["h100"].matmul / GPUS["3090"].matmul


def test_what_a_method_cannot_is_said_in_its_line() -> None:
    result = call("roofline", "mar-b", "--method", "linear", "--method", "fewer_steps", "--budget", "3/4", "--steps", "16")
    assert result.exit_code == 0, result.output
    assert "linear does not run on masked models" in result.stdout
    assert any(line.startswith("fewer_steps 3/4") and "×" in line for line in result.stdout.splitlines())


def test_scales_have_their_demanding_layers_and_activations_apart_cost_more() -> None:
    few, many = (table("var-d16", "--demanding", count)[1]["nbytes"]["read"] for count in ("0", "16"))
    assert few < many
    plain, apart = (table("var-d16", *more)[0]["seconds"] for more in ([], ["--apart"]))
    assert plain < apart


def test_the_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def rates(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"float32": GPUS["3090"]}

    monkeypatch.setattr(measured, "rates", rates)
    result = call("roofline", "tiny-llamagen", "--here", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "copy 940 GB/s, matmul 71 TFLOP/s" in result.stdout.splitlines()[0]
    assert asked[0][2] == ["float32"]


def test_rates_that_cannot_be_measured_are_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "rates", lambda *arguments: {})
    result = call("roofline", "tiny-llamagen", "--here")
    assert result.exit_code == 5
    assert "cannot be measured" in result.stderr
    assert "cachemark doctor" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (["llamagen-b", "--dtype", "float32"], "16 bit"), (["llamagen-b", "--gpu", "h10"], "h100"), (["llamagn-b"], "llamagen-b"),
    (["llamagen-b", "--gpu", "h100", "--here"], "cannot be combined"), (["llamagen-b", "--method", "liner"], "linear"),
])  # fmt: skip
def test_mistakes_name_the_remedy(arguments: list[str], said: str) -> None:
    result = call("roofline", *arguments)
    assert result.exit_code == 2
    assert said in result.output
