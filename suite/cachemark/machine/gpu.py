"""GPUs by UUID, through NVML: devices, their state, and their clocks."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import Infrastructure, unknown
from .lease import folder

SW_POWER_CAP = 0x4
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
REASONS = {SW_POWER_CAP: "power cap", HW_SLOWDOWN: "hardware slowdown", SW_THERMAL: "software thermal slowdown",
           HW_THERMAL: "hardware thermal slowdown", POWER_BRAKE: "power brake"}  # fmt: skip
"""NVML's bits of ClocksEventReasons that slow a device down."""

MODES = {0: "shared", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""NVML's compute modes."""


@dataclass(frozen=True)
class Reading:
    """State of a device at one moment; None if unknown."""

    sm_mhz: int | None
    celsius: int | None
    watts: float | None
    joules: float | None  # since the driver was loaded
    busy: int | None  # percent of the last sampling period
    reasons: int | None  # NVML's bits of clock reductions
    processes: frozenset[int] | None
    at: float = 0.0  # times of readings of energy and power, in seconds of ``time.monotonic``


class Lost(Exception):
    """The device has fallen off the bus or needs a reset."""


class Gpu:
    """One device. Every method raises :class:`Lost` once the device is gone.

    ``settings``: power limit in W, ECC, compute mode and MIG, if the driver reports them; a slice has its GPU's settings. ``unusual``:
    settings that differ from the device's defaults. They belong to the machine class, because they change times.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self.name = str(nvml.nvmlDeviceGetName(handle))
        self.driver = str(nvml.nvmlSystemGetDriverVersion())
        self.compute_capability = self._query(nvml.nvmlDeviceGetCudaComputeCapability)
        self.settings, self.unusual = self._settings()

    @property
    def kind(self) -> str:
        """The model with its unusual settings: devices of one kind are equally fast."""
        return ", ".join((self.name, *self.unusual))

    def reading(self) -> Reading:
        """Return the current state."""
        nvml, h = self._nvml, self._handle
        began = time.monotonic()
        joules, watts = self._query(nvml.nvmlDeviceGetTotalEnergyConsumption), self._query(nvml.nvmlDeviceGetPowerUsage)
        at = (began + time.monotonic()) / 2
        used = self._query(nvml.nvmlDeviceGetUtilizationRates)
        return Reading(
            self._query(lambda _: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
            self._query(lambda _: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
            None if watts is None else watts / 1e3, None if joules is None else joules / 1e3, None if used is None else used.gpu,
            self._reasons(), self.processes(), at,
        )

    def processes(self) -> frozenset[int] | None:
        """Return the PIDs that compute on it, in the host's numbering, which may differ from a container's.

        None if they are hidden.
        """
        processes = self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return None if processes is None else frozenset(process.pid for process in processes)

    def processors(self) -> frozenset[int]:
        """Return the processors of its NUMA node; empty if unknown."""
        words = -(-max([os.cpu_count() or 1, *(number + 1 for number in os.sched_getaffinity(0))]) // 64)
        masks = self._query(lambda _: self._nvml.nvmlDeviceGetCpuAffinity(self._whole, words)) or ()
        return frozenset(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)

    def cuda(self) -> str:
        """Return the newest CUDA version that the driver supports, such as ``13.0``."""
        number = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        return f"{number // 1000}.{number % 1000 // 10}"

    def memory(self) -> int:
        """Return the total memory in bytes."""
        info = self._query(self._nvml.nvmlDeviceGetMemoryInfo)
        return 0 if info is None else int(info.total)

    def lock_clocks(self, mhz: int) -> None:
        """Lock the SM clock at ``mhz``. Raises Infrastructure without permission or support."""
        nvml = self._nvml
        memory = self._query(nvml.nvmlDeviceGetSupportedMemoryClocks) or []
        clocks = self._query(lambda handle: nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, max(memory))) if memory else []
        supported = sorted(clocks or [], reverse=True)
        if supported and mhz not in supported:
            nearest = min(supported, key=lambda c: abs(c - mhz))
            raise Infrastructure(f"{self.name} has no SM clock of {mhz} MHz.",
                                 remedy=f"The nearest is {nearest}; it has {supported[-1]} … {supported[0]}.")
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(self._handle, mhz, mhz)
        except nvml.NVMLError_NoPermission:
            raise Infrastructure(f"The clocks of {self.name} may be locked by an administrator only.",
                                 remedy="Run as root, or without --lock-clocks.") from None
        except nvml.NVMLError_NotSupported:
            raise Infrastructure(f"The clocks of {self.name} cannot be locked.", remedy="Run without --lock-clocks.") from None

    def free_clocks(self) -> None:
        """Unlock the clocks. Raises Infrastructure without permission."""
        def reset(handle: Any) -> None:
            try:
                self._nvml.nvmlDeviceResetGpuLockedClocks(handle)
            except self._nvml.NVMLError_NoPermission:
                raise Infrastructure(
                    f"A run that was killed left the clocks of {self.name} locked, and only an administrator may release them.",
                    remedy=f"As root: nvidia-smi -i {self.uuid} --reset-gpu-clocks && rm {self.mark}") from None

        self._query(reset)

    @property
    def mark(self) -> Path:
        """The file that exists while a run has locked the clocks."""
        return folder() / f"{self.uuid}.locked"

    @property
    def _whole(self) -> Any:
        """The handle of the GPU that a slice is part of, or of the device itself."""
        slice_ = self.uuid.startswith("MIG-")
        return (self._query(self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle) if slice_ else None) or self._handle

    def _reasons(self) -> int | None:
        """Return the bits of clock reductions, from drivers before 535 by their older name.

        None if they are unknown.
        """
        bits = self._query(self._nvml.nvmlDeviceGetCurrentClocksEventReasons)
        return self._query(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons) if bits is None else bits

    def _settings(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the known settings, and descriptions of those that differ from the defaults."""
        nvml, device = self._nvml, self._whole

        def query(function: str) -> Any:
            return self._query(lambda _: getattr(nvml, function)(device))

        limit, usual_limit = query("nvmlDeviceGetPowerManagementLimit"), query("nvmlDeviceGetPowerManagementDefaultLimit")
        ecc, usual_ecc = query("nvmlDeviceGetEccMode"), query("nvmlDeviceGetDefaultEccMode")
        compute, mig = query("nvmlDeviceGetComputeMode"), query("nvmlDeviceGetMigMode")
        settings: dict[str, Any] = {}
        unusual = []
        if limit is not None:
            settings["power_limit"] = limit / 1e3
            unusual += [f"{limit / 1e3:g} W"] if usual_limit not in (None, limit) else []
        if ecc is not None:
            settings["ecc"] = bool(ecc[0])
            unusual += [f"ECC {'on' if ecc[0] else 'off'}"] if usual_ecc is not None and usual_ecc[0] != ecc[0] else []
        if compute is not None:
            settings["compute_mode"] = MODES.get(compute, str(compute))
            unusual += [settings["compute_mode"]] if compute else []
        if mig is not None:
            settings["mig"] = bool(mig[0])
            unusual += ["MIG"] if mig[0] and "MIG" not in self.name else []
        return settings, tuple(unusual)

    def _query(self, ask: Callable[[Any], Any]) -> Any:
        """Return NVML's answer, or None if the device does not support the query."""
        try:
            return ask(self._handle)
        except (self._nvml.NVMLError_GpuIsLost, self._nvml.NVMLError_ResetRequired) as error:
            raise Lost(f"{self.uuid}: {error}") from None
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission, self._nvml.NVMLError_FunctionNotFound,
                self._nvml.NVMLError_InvalidArgument):  # the last for most queries of a slice
            return None


def gpus(nvml: Any = None) -> list[Gpu]:
    """Return every device allowed by CUDA_VISIBLE_DEVICES, in NVML's order.

    Raises Infrastructure without a driver, and for an ambiguous index."""
    if nvml is None:
        nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        devices = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError_NoPermission):  # a device of the node that belongs to another job
                devices.append(Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
    except nvml.NVMLError as error:
        raise Infrastructure(f"NVIDIA's driver does not answer: {error}.", remedy="Install or load it, or use --device cpu.") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return devices if visible is None else _visible(nvml, visible, devices)


def _visible(nvml: Any, names: str, devices: Sequence[Gpu]) -> list[Gpu]:
    """Return the devices that CUDA sees by these names.

    Those before the first unknown name, and none if one is named twice. Raises Infrastructure for an index that CUDA and NVML may read
    differently: CUDA sorts unlike devices by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID, the order of NVML."""
    by_index = any(name.strip().isdecimal() for name in names.split(","))
    if by_index and len({gpu.name for gpu in devices}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise Infrastructure(f"CUDA_VISIBLE_DEVICES = {names} names GPUs of different models by index, which CUDA sorts by speed.",
                             remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID.")
    picked = list[Gpu]()
    for name in map(str.strip, names.split(",")):
        gpu = _mig(nvml, name) if name.startswith("MIG-") else _named(name, devices)
        if gpu is None:
            break
        picked.append(gpu)
    return picked if len({gpu.uuid for gpu in picked}) == len(picked) else []


def _mig(nvml: Any, uuid: str) -> Gpu | None:
    """Return a slice of a GPU, or None if there is no such slice."""
    try:
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None


def chosen(names: Sequence[str], devices: Sequence[Gpu]) -> list[Gpu]:
    """Return the devices named by index, UUID or UUID prefix; ``all`` is every one.

    Raises UnknownName for any other name."""
    if "all" in names:
        return list(devices)
    picked = dict[Gpu, None]()
    for name in names:
        if (gpu := _named(name, devices)) is None:
            raise unknown("GPU", name, [gpu.uuid for gpu in devices])
        picked[gpu] = None
    return list(picked)


def _named(name: str, devices: Sequence[Gpu]) -> Gpu | None:
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    alike = [gpu for gpu in devices if name and gpu.uuid.startswith(name)]
    return alike[0] if len(alike) == 1 else None


# -- clocks held for a run ------------------------------------------------------------------------------------------------
@contextmanager
def locked(devices: Sequence[Gpu], mhz: int) -> Iterator[None]:
    """Lock the SM clocks at ``mhz`` (0: leave them) until the block ends, also by an error.

    If the process is killed, a mark remains in the folder of leases, and the next run on the device unlocks it. Raises Infrastructure if
    a device refuses, or this user may not unlock such a device."""
    with ExitStack() as stack:
        for gpu in devices:
            if gpu.mark.exists():
                gpu.free_clocks()
                gpu.mark.unlink(missing_ok=True)
            if mhz:
                stack.callback(_release, gpu)
                gpu.mark.touch()
                gpu.lock_clocks(mhz)
        yield


def _release(gpu: Gpu) -> None:
    with suppress(Lost, Infrastructure):
        gpu.free_clocks()
    gpu.mark.unlink(missing_ok=True)
