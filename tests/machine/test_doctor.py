"""Facts about a machine and advice on it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from cachemark.machine import gpu as device
from cachemark.workflows import doctor as command
from support import stages
from support.fake_nvml import Card, FakeNvml

QUIET: dict[str, Any] = {"load": {"average of a minute": 0.0, "cpus": 4, "governor": "performance"}, "gpus": [], "cuda": {}}


def test_rates_are_measured_unless_quick() -> None:
    result = stages.call("doctor", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["rates"]["cpu"]["bandwidth"].endswith("GB/s")
    assert data["rates"]["cpu"]["peak_flops"].endswith("TFLOP/s")
    quick = json.loads(stages.call("doctor", "--quick", "--json").stdout)
    assert set(data) - set(quick) == {"rates"}


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
    ((gpu,), problems) = command._gpus()
    assert problems == []
    assert (gpu["cuda up to"], gpu["driver"], gpu["processes"]) == ("12.8", "999.1", [77])
    contended, hot = command._advice(QUIET | {"gpus": [gpu]}, "12.8")
    assert "process 77 computes on it" in contended
    assert "91 °C" in hot
    *_, built = command._advice(QUIET | {"gpus": [gpu]}, None)
    assert "torch built for CUDA 12.8 or older" in built
    monkeypatch.setattr(device, "gpus", lambda: real(FakeNvml(broken=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    assert command._gpus() == ([], [])


@pytest.mark.parametrize(("card", "broken", "words"), [
    (Card("GPU-a"), pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch.*Reboot"),
    (Card("GPU-a"), pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Install"), (Card(""), 0, "no UUID"),
    (Card("GPU-a", failing={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}), 0, "GPU 0 is left out"),
])  # fmt: skip
def test_devices_that_cannot_be_used_are_explained(card: Card, broken: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = device.gpus
    monkeypatch.setattr(device, "gpus", lambda: real(FakeNvml(card, broken=broken)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (advice, *_) = command.doctor(quick=True)["advice"]
    assert re.search(words, advice)


def test_a_package_that_hides_the_drivers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text(f"exec(open({pynvml.__file__!r}).read())")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml")
    _, problems = command._gpus()
    assert "pip uninstall -y pynvml" in problems[0]
