"""Facts about a machine and advice on it."""

from __future__ import annotations

import json
from typing import Any

import pynvml
import pytest

from cachemark.machine import gpu as device
from cachemark.workflows import doctor as command
from support import stages
from support.fake_nvml import Card, FakeNvml

QUIET: dict[str, Any] = {"load": {"average of a minute": 0.0, "cpus": 4, "governor": "performance"}, "gpus": [], "cuda": {}}


def test_rates_are_measured_unless_quick() -> None:
    result = stages.call("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["rates"]["cpu"]["bandwidth"].endswith("GB/s")
    assert found["rates"]["cpu"]["peak_flops"].endswith("TFLOP/s")
    quick = json.loads(stages.call("doctor", "--quick", "--json").stdout)
    assert set(found) - set(quick) == {"rates"}


@pytest.mark.parametrize(("change", "words"), [
    ({"load": {"average of a minute": 1.5, "cpus": 4, "governor": "performance"}}, "Other work keeps 1.5 of 4 processors busy"),
    ({"load": {"average of a minute": 0.0, "cpus": 4, "governor": "powersave"}}, "governor is 'powersave'"),
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
