"""Devices as the driver shows them: their names and settings, values that it does not know, and devices that cannot be used."""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from cachemark.core.errors import Infrastructure, UnknownName
from cachemark.core.threads import default_threads
from cachemark.machine import gpu as device
from cachemark.machine.environment import environment
from cachemark.trial.executors.local import local
from cachemark.workflows import doctor as command
from support import stages
from support.fake_nvml import EVERY, Card, FakeNvml

pytestmark = pytest.mark.usefixtures("own_leases")
QUERIES = [name for name in EVERY if "Handle" not in name and name != "nvmlDeviceGetUUID" and name.startswith("nvmlDeviceGet")]
QUIET: dict[str, Any] = {"load": {"average of a minute": 0.0, "cpus": 4, "governor": "performance"}, "gpus": [], "cuda": {}, "kernels": {}}


def test_the_fake_is_as_the_driver_and_an_older_package_leaves_values_unknown() -> None:
    for name in EVERY:
        real, fake = inspect.signature(getattr(pynvml, name)), inspect.signature(getattr(FakeNvml, name))
        ours = [p for p in fake.parameters if p != "self"]
        assert ours == list(real.parameters)[: len(ours)]
        assert all(p.default is not p.empty for p in list(real.parameters.values())[len(ours):])
    bits = {device.SW_POWER_CAP: "SwPowerCap", device.HW_SLOWDOWN: "HwSlowdown", device.SW_THERMAL: "SwThermalSlowdown",
            device.HW_THERMAL: "HwThermalSlowdown", device.POWER_BRAKE: "HwPowerBrakeSlowdown"}
    assert all(bit == getattr(pynvml, f"nvmlClocksEventReason{name}") for bit, name in bits.items())
    (gpu,) = device.gpus(Older(Card("GPU-aaaa", watts=500, reasons=0x40)))
    assert (gpu.uuid, gpu.kind, gpu.reading().reasons, gpu.cuda(), gpu.processors()) == ("GPU-aaaa", "Fake H100, 500 W", 0x40, None, set())


def test_devices_have_a_uuid_and_an_index_on_the_bus(nvml: FakeNvml, cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    devices = device.gpus(nvml)
    assert [gpu.uuid for gpu in devices] == ["GPU-aaaa", "GPU-bbbb"]
    assert [gpu.uuid for gpu in device.chosen(["1", "GPU-b"], devices)] == ["GPU-bbbb"]
    assert device.chosen(["all"], devices) == devices
    for name, more in (("GPU-bbbc", ".*Did you mean 'GPU-bbbb'"), ("GPU", "")):  # both begin so
        with pytest.raises(UnknownName, match=f"Unknown GPU '{name}'{more}"):
            device.chosen([name], devices)
    for visible, left in (("1", ["GPU-bbbb"]), ("GPU-aa", ["GPU-aaaa"]), ("", []), ("7", []),
                          ("1,-1,0", ["GPU-bbbb"]), ("0,7,1", ["GPU-aaaa"]), ("0,0", []), ("1, 0", ["GPU-bbbb", "GPU-aaaa"]),
                          ("MIG-cccc", ["MIG-cccc"]), ("MIG-dddd,0", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.uuid for gpu in device.gpus(nvml)] == left
    cards[1].name = "Fake T400"  # CUDA sorts them by speed by default, and NVML by bus
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    for visible in ("1", "GPU-aa,1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(Infrastructure, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            device.gpus(nvml)
    for visible, order in (("GPU-bbbb", "FASTEST_FIRST"), ("1", "PCI_BUS_ID")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
        assert [gpu.uuid for gpu in device.gpus(nvml)] == ["GPU-bbbb"]


@pytest.mark.parametrize(("error", "remedy"), [
    (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "--device cpu"), (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Reboot, or reload"),
    (pynvml.NVML_ERROR_NO_PERMISSION, "/dev/nvidia"), (pynvml.NVML_ERROR_UNKNOWN, "--device cpu")])
def test_no_driver_is_the_machines_fault(error: int, remedy: str) -> None:
    with pytest.raises(Infrastructure, match=rf"driver does not answer.*{remedy}"):
        device.gpus(FakeNvml(broken=error))
    with pytest.raises(Infrastructure, match="shows no GPU"), local("cuda", 1, nvml=FakeNvml()):
        pass


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED,
                                   pynvml.NVML_ERROR_TIMEOUT])
def test_a_query_that_fails_leaves_its_value_unknown(error: int, nvml: FakeNvml, cards: list[Card]) -> None:
    def values() -> dict[str, Any]:
        gpu = device.gpus(nvml)[0]
        return {**vars(gpu.reading()), **gpu.settings, "name": gpu.name, "memory": gpu.memory(), "capability": gpu.compute_capability,
                "cpus": gpu.processors(), "class": environment("cuda", 1, gpu).machine_class} | {"at": 0, "joules": None}

    cards[0].cpus = (0,)
    usual = values()
    for name in QUERIES:
        cards[0].failing = {name: error}
        changed = {key for key, value in values().items() if usual.get(key) != value} - {"errors"}
        assert len(changed) <= 2, f"{name} leaves {changed} unknown"
    cards[0].failing = dict.fromkeys(QUERIES, error)
    seen = device.gpus(nvml)[0].reading()
    assert (seen.sm_mhz, seen.celsius, seen.watts, seen.joules, seen.busy, seen.reasons, seen.processes) == (None,) * 7
    assert bool(seen.errors) == (error in (pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT))


@pytest.mark.parametrize(("failing", "reason"), [({"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}, "GPU is lost"),
                                                 ({"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_INSUFFICIENT_POWER}, "Insufficient"),
                                                 ({"nvmlDeviceGetName": pynvml.NVML_ERROR_RESET_REQUIRED}, "requires restart"),
                                                 ({"nvmlDeviceGetUUID": pynvml.NVML_ERROR_NOT_SUPPORTED}, "no UUID of Fake H100")])
def test_an_unusable_device_is_named_and_hides_no_other(failing: dict[str, int], reason: str, nvml: FakeNvml, cards: list[Card]) -> None:
    cards[0].failing = failing
    devices = device.gpus(nvml)
    assert [gpu.uuid for gpu in devices] == ["GPU-bbbb"]
    with local("cuda", 1, nvml=nvml) as places:
        assert places.notes == devices.left_out
    assert "GPU 0" in devices.left_out[0]
    assert reason.lower() in devices.left_out[0].lower()
    nvml.cards = cards[:1]
    with pytest.raises(Infrastructure, match=f"(?i)No GPU can be used.*{reason}"):
        device.gpus(nvml)


def test_a_gpu_in_mig_mode_is_its_slices(nvml: FakeNvml, cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    cards[1].mig = 1
    devices = device.gpus(nvml)
    assert [gpu.uuid for gpu in devices] == ["GPU-aaaa", "MIG-bbbb-0", "MIG-bbbb-2"]
    assert [environment("cuda", 1, gpu).machine_class for gpu in devices] == ["fake-h100", *["fake-h100-mig-1g-10gb"] * 2]
    assert (devices[1].reading().watts, devices[1].reading().joules, "slice" in devices[1].no_energy) == (None, None, True)
    for name in ("1", "GPU-bb", "MIG-bbbb-0"):
        assert [gpu.uuid for gpu in device.chosen([name], devices)] == ["MIG-bbbb-0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb")
    assert [gpu.uuid for gpu in device.gpus(nvml)] == ["MIG-bbbb-0"]
    cards[1].failing = {"nvmlDeviceGetMigDeviceHandleByIndex": pynvml.NVML_ERROR_NO_PERMISSION}
    with pytest.raises(Infrastructure, match=r"shows no slice.*CUDA_VISIBLE_DEVICES=MIG-"):
        device.gpus(nvml)


class Older(FakeNvml):
    """The package pynvml before 12: texts are bytes, and newer functions are missing."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCpuAffinity", "nvmlSystemGetCudaDriverVersion_v2",
                    "nvmlDeviceGetEnforcedPowerLimit"):
            raise AttributeError(name)
        value = super().__getattribute__(name)
        return (lambda *words: value(*words).encode()) if name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID") else value


@pytest.mark.parametrize(("settings", "kind"), [
    ({}, "fake-h100"), ({"watts": 500}, "fake-h100-500-w"), ({"ecc": 0}, "fake-h100-ecc-off"), ({"enforced": 500}, "fake-h100-500-w"),
    ({"compute": 3, "watts": 450}, "fake-h100-450-w-exclusive-process")])
def test_settings_that_change_times_make_another_class(settings: dict[str, int], kind: str, nvml: FakeNvml, cards: list[Card]) -> None:
    vars(cards[0]).update(settings)
    here = environment("cuda", 2, device.gpus(nvml)[0])
    assert (here.machine_class, here.facts["power_limit"]) == (kind, cards[0].enforced or cards[0].watts)
    assert here.facts["ecc"] is bool(cards[0].ecc)
    if settings:
        with pytest.raises(Infrastructure, match="with equal settings"), local("cuda", 1, names=["all"], nvml=nvml):
            pass


def test_a_slice_has_its_profile_and_its_gpus_settings(nvml: FakeNvml, cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    vars(cards[0]).update(watts=500, mig=1, cpus=(0,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cccc")
    (part,) = device.gpus(nvml)
    here = environment("cuda", 2, part)
    assert (here.machine_class, here.facts["unseen"]) == ("fake-h100-mig-1g-10gb-500-w", ["clock reductions"])
    assert part.processors() == {0}


def test_doctor_measures_rates_unless_quick_prints_words_and_leaves_out_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    data, quick = (json.loads(stages.call("doctor", "--json", *more).stdout) for more in ((), ("--quick",)))
    assert {name: rate.split()[1] for name, rate in data["rates"]["cpu"].items()} == {"bandwidth": "GB/s", "peak_flops": "TFLOP/s"}
    assert set(data) - set(quick) == {"rates"}
    monkeypatch.setattr(device, "gpus", lambda: device.Devices())
    lines = stages.call("doctor", "--quick").stdout.splitlines()
    assert {"CPU:", f"  threads: {default_threads()}", "bundled weights:"} <= set(lines)
    assert not [line for line in lines if "_" in line.partition(":")[0] or line.endswith(" none") or "facts" in line]
    assert "GPUs:" not in lines


def test_what_would_spoil_a_measurement_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real, nvml = device.gpus, FakeNvml(Card("GPU-0123456789", pids={77}, celsius=91))
    monkeypatch.setattr(device, "gpus", lambda: real(nvml))
    ((gpu,), problems) = command._gpus()
    assert problems == []
    assert (gpu["cuda up to"], gpu["driver"], gpu["processes"]) == ("12.8", "999.1", [77])
    load = {"average of a minute": 1.5, "cpus": 4, "governor": "powersave"}
    advice = list(command._advice(QUIET | {"load": load, "gpus": [gpu]}, None))
    for words in ("Other work keeps 1.5 of 4 processors busy", "governor is 'powersave'", "process 77 computes on it", "91 °C",
                  "torch built for CUDA 12.8 or older"):
        assert sum(words in sentence for sentence in advice) == 1
    assert (len(advice), list(command._advice(QUIET, "13.0"))) == (5, [])
    monkeypatch.setattr(device, "gpus", lambda: real(FakeNvml(broken=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    assert command._gpus() == ([], [])


@pytest.mark.parametrize(("card", "broken", "words"), [
    (Card("GPU-a"), pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Install"),
    (Card("GPU-a", failing={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}), 0, "GPU 0 is left out")])
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
