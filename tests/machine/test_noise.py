"""How noisy a machine is, and what the doctor says of it."""

from __future__ import annotations

import json
from typing import Any

import pynvml
import pytest

from cachemark.machine import gpu as device
from cachemark.machine.noise import noise_of
from cachemark.workflows import doctor as command
from support import stages
from support.fake_nvml import Card, FakeNvml

QUIET: dict[str, Any] = {"load": {"average of a minute": 0.0, "cpus": 4, "governor": "performance"}, "gpus": [], "noise": {}, "cuda": {}}


def test_the_score_is_the_scatter_and_ignores_a_lone_outlier() -> None:
    steady = noise_of([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0])
    spiked = noise_of([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 9.0])
    assert noise_of([1.0] * 9).score == 0
    assert 0.01 < steady.score < 0.02
    assert spiked.score == pytest.approx(steady.score, rel=0.5)
    assert spiked.worst == pytest.approx(8.0, rel=0.01)
    assert noise_of([1.0, 1.02, 0.98, 1.0, 1.02, 0.98, 1.0]).sees == pytest.approx(2 * steady.sees)
    assert noise_of([2.0, 2.02, 1.98, 2.0, 2.02, 1.98, 2.0]).score == pytest.approx(steady.score), "a share, not seconds"


def test_a_doctor_that_measures_says_rates_and_noise() -> None:
    result = stages.call("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["rates"]["cpu"]["bandwidth"].endswith("GB/s")
    assert found["rates"]["cpu"]["peak_flops"].endswith("TFLOP/s")
    assert set(found["noise"]["cpu"]) == {"score", "worst", "sees"}
    quick = json.loads(stages.call("doctor", "--quick", "--json").stdout)
    assert set(found) - set(quick) == {"rates", "noise"}


@pytest.mark.parametrize(("change", "words"), [
    ({"load": {"average of a minute": 1.5, "cpus": 4, "governor": "performance"}}, "Other work keeps 1.5 of 4 processors busy"),
    ({"load": {"average of a minute": 0.0, "cpus": 4, "governor": "powersave"}}, "governor is 'powersave'"),
    ({"noise": {"cpu": {"score": 0.1, "worst": 1.0, "sees": 0.14}}}, "Repeats scatter by 10.0% on cpu: a change below 14%"),
])  # fmt: skip
def test_what_would_spoil_a_measurement_is_said(change: dict[str, Any], words: str) -> None:
    assert list(command._advice(QUIET, "13.0")) == []
    (said,) = command._advice(QUIET | change, "13.0")
    assert words in said


def test_gpus_are_described_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    real, nvml = device.gpus, FakeNvml(Card("GPU-0123456789", pids={77}, celsius=91))
    monkeypatch.setattr(device, "gpus", lambda: real(nvml))
    (gpu,) = command._gpus()
    assert (gpu["cuda up to"], gpu["driver"], gpu["processes"]) == ("12.8", "999.1", [77])
    contended, hot = command._advice(QUIET | {"gpus": [gpu]}, "12.8")
    assert "process 77 computes on it" in contended
    assert "91 °C" in hot
    *_, torch = command._advice(QUIET | {"gpus": [gpu]}, None)
    assert "torch built for CUDA 12.8 or older" in torch
    monkeypatch.setattr(device, "gpus", lambda: real(FakeNvml(broken=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)))
    assert command._gpus() == []
