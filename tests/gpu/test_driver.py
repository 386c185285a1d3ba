"""The real driver behaves as the tests of the fake one assume. Writes its observations to gpu-seen.json."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.core.errors import Infrastructure
from cachemark.core.result import Status
from cachemark.machine import gpu as device
from cachemark.machine.lease import lease
from cachemark.machine.monitor import Watch, strangers
from cachemark.trial.executors.local import local

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

WORK = """
import sys, torch
a = torch.randn(4096, 4096, device='cuda')
print(torch.cuda.device_count(), flush=True)
while True:
    a = torch.nn.functional.normalize(a @ a)
"""


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    """What the tests put here is kept for people, in the folder that CACHEMARK_GPU_SEEN names or in the working directory."""
    result: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    yield result
    Path(os.environ.get("CACHEMARK_GPU_SEEN", "."), "gpu-seen.json").write_text(json.dumps(result, indent=1, default=str) + "\n")


@pytest.fixture
def gpu() -> device.Gpu:
    return device.gpus()[0]


@pytest.fixture
def busy(gpu: device.Gpu) -> Iterator[subprocess.Popen[str]]:
    """A process that computes on the device."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout.readline() == "1\n", "a UUID in CUDA_VISIBLE_DEVICES shows one device"
        yield child
        child.kill()


def test_every_device_has_a_uuid_and_answers(seen: dict[str, Any]) -> None:
    result = device.gpus()
    seen["devices"] = [{"uuid": gpu.uuid, "name": gpu.name, "driver": gpu.driver, "memory": gpu.memory()} for gpu in result]
    assert all(gpu.uuid.startswith("GPU-") for gpu in result)
    seen["idle"] = vars(result[0].reading())
    assert result[0].reading().celsius


def test_our_own_process_is_not_foreign(gpu: device.Gpu, busy: subprocess.Popen[str], seen: dict[str, Any]) -> None:
    with Watch(gpu, child=busy.pid) as watching:
        watching.begin()
        while len(watching._readings) < 10:
            pass
        facts, spoilt = watching.end()
    seen["own work"] = {"facts": facts.to_json(), "spoilt": spoilt, "child": busy.pid, "processes": sorted(gpu.processes())}
    assert spoilt is None or spoilt.status is Status.THROTTLED, spoilt
    assert facts.sm_mhz


def test_a_foreign_process_is_seen(gpu: device.Gpu, busy: subprocess.Popen[str], seen: dict[str, Any]) -> None:
    """With a child of ours that does not touch the device, whatever computes there is somebody else's, or hidden by a container."""
    processes = gpu.processes()
    seen["foreign"] = {"processes": sorted(processes), "child": busy.pid, "as others'": sorted(strangers(processes, frozenset()))}
    if not processes:
        pytest.skip("the driver of this container shows no processes at all")
    assert strangers(processes, frozenset())


def test_a_lease_is_one_harness_s(gpu: device.Gpu) -> None:
    with local("cuda", 1, names=[gpu.uuid]), lease(gpu.uuid) as other:
        assert other


def test_clocks_are_locked_or_refused_with_a_reason(gpu: device.Gpu, seen: dict[str, Any]) -> None:
    """Asked for only where CACHEMARK_TEST_LOCK says that a machine's owner allows it."""
    nvml, most = gpu._nvml, max(gpu._query(gpu._nvml.nvmlDeviceGetSupportedMemoryClocks))
    clocks = seen["clocks"] = sorted(gpu._query(lambda handle: nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, most)), reverse=True)
    if not os.environ.get("CACHEMARK_TEST_LOCK"):
        pytest.skip("CACHEMARK_TEST_LOCK is not set: the settings of the device are left alone")
    try:
        with local("cuda", 1, names=[gpu.uuid], clock=clocks[0]):
            seen["locked"] = clocks[0]
    except Infrastructure as error:
        seen["locked"] = str(error)
    assert seen["locked"] == clocks[0] or "--lock-clocks" in seen["locked"]
