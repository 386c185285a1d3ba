"""GPUs by UUID, through NVML: devices, their state, and their clocks."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterator, Sequence
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

GONE = frozenset((15, 16))  # NVML's errors "GPU is lost" and "reset required"
NO_PERMISSION, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 4, 12, 18
UNSUPPORTED = frozenset((2, 3, NO_PERMISSION, 6, 13))
"""NVML's errors of queries that a device does not support: invalid argument (most queries of a slice), not supported, no permission, not
found, function not found."""
SUPERCHIP = re.compile(r"\bG[HB]\d")  # GH200, GB200, GB10: a GPU on a module with its CPU

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
    errors: tuple[str, ...] = ()  # of queries that failed, other than those that the device does not support
    prompted: bool = False  # read when a generation ended, and not at a random time


class Lost(Exception):
    """The device has fallen off the bus or needs a reset."""


class Devices(list["Gpu"]):
    """Usable devices; ``left_out``: the others, each with the reason."""

    left_out: tuple[str, ...] = ()


class Gpu:
    """One device. Every method raises :class:`Lost` once the device is gone; any other error leaves a value unknown.

    ``settings``: enforced power limit in W, ECC, compute mode and MIG, if the driver reports them; a slice has its GPU's settings.
    ``unusual``: settings that differ from the device's defaults. They belong to the machine class, because they change times. ``part_of``:
    the UUID of the GPU that a slice belongs to. ``no_energy``: why its energy is not read. Raises Infrastructure for a device without a
    UUID.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle, self._errors = nvml, handle, list[str]()
        self.name = str(self._query("nvmlDeviceGetName") or "unnamed GPU")
        self.uuid = str(self._query("nvmlDeviceGetUUID") or "")
        if not self.uuid:
            raise Infrastructure(f"The driver reports no UUID of {self.name}, by which runs lease and select a GPU.",
                                 remedy="Use --device cpu. Drivers of some Jetson modules report none.")
        self.driver = str(self._answer("nvmlSystemGetDriverVersion") or "unknown")
        self.compute_capability = self._query("nvmlDeviceGetCudaComputeCapability")
        self.part_of, self.no_energy = "", ""
        if self.uuid.startswith("MIG-"):
            self.part_of = str(self._answer("nvmlDeviceGetUUID", self._whole) or "GPU")
            self.name = self.name if "MIG" in self.name else f"{self.name} MIG {self._profile()}"
            self.no_energy = "A MIG slice has no energy counter and no power sensor of its own. Measure on a whole GPU."
        elif SUPERCHIP.search(self.name):
            self.no_energy = f"The energy counter of {self.name} covers its module with CPU and memory, not the GPU alone."
        self.settings, self.unusual = self._settings()

    @property
    def kind(self) -> str:
        """The model with its unusual settings: devices of one kind are equally fast."""
        return ", ".join((self.name, *self.unusual))

    def reading(self) -> Reading:
        """Return the current state."""
        nvml, self._errors = self._nvml, []
        began = time.monotonic()
        joules = None if self.no_energy else self._query("nvmlDeviceGetTotalEnergyConsumption")
        watts = None if self.part_of else self._query("nvmlDeviceGetPowerUsage")
        at = (began + time.monotonic()) / 2
        used = self._query("nvmlDeviceGetUtilizationRates")
        return Reading(
            self._query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), self._query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            None if watts is None else watts / 1e3, None if joules is None else joules / 1e3, None if used is None else used.gpu,
            self._reasons(), self.processes(), at, tuple(self._errors),
        )

    def processes(self) -> frozenset[int] | None:
        """Return the PIDs that compute on it, in the host's numbering, which may differ from a container's.

        None if they are hidden.
        """
        processes = self._query("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else frozenset(process.pid for process in processes)

    def processors(self) -> frozenset[int]:
        """Return the processors of its NUMA node; empty if unknown."""
        words = -(-max([os.cpu_count() or 1, *(number + 1 for number in os.sched_getaffinity(0))]) // 64)
        masks = self._answer("nvmlDeviceGetCpuAffinity", self._whole, words) or ()
        return frozenset(64 * word + bit for word, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)

    def cuda(self) -> str | None:
        """Return the newest CUDA version that the driver supports, such as ``13.0``; None if unknown."""
        number = self._answer("nvmlSystemGetCudaDriverVersion_v2") or self._answer("nvmlSystemGetCudaDriverVersion")
        return None if number is None else f"{int(number) // 1000}.{int(number) % 1000 // 10}"

    def memory(self) -> int | None:
        """Return the total memory in bytes; None if unknown, as of a device that uses the system's memory."""
        info = self._query("nvmlDeviceGetMemoryInfo")
        return None if info is None else int(info.total) or None

    def lock_clocks(self, mhz: int) -> None:
        """Lock the SM clock at ``mhz``. Raises Infrastructure without permission or support."""
        memory = self._query("nvmlDeviceGetSupportedMemoryClocks") or []
        clocks = self._query("nvmlDeviceGetSupportedGraphicsClocks", max(memory)) if memory else []
        supported = sorted(clocks or [], reverse=True)
        if supported and mhz not in supported:
            nearest = min(supported, key=lambda c: abs(c - mhz))
            raise Infrastructure(f"{self.name} has no SM clock of {mhz} MHz.",
                                 remedy=f"The nearest is {nearest}; it has {supported[-1]} … {supported[0]}.")
        try:
            self._nvml.nvmlDeviceSetGpuLockedClocks(self._handle, mhz, mhz)
        except self._nvml.NVMLError as error:
            self._check(error)
            if error.value == NO_PERMISSION:
                raise Infrastructure(f"The clocks of {self.name} may be locked by an administrator only.",
                                     remedy="Run as root, or without --lock-clocks.") from None
            raise Infrastructure(f"The clocks of {self.name} cannot be locked: {error}.", remedy="Run without --lock-clocks.") from None

    def free_clocks(self) -> None:
        """Unlock the clocks, if the device supports that. Raises Infrastructure if it fails."""
        try:
            self._nvml.nvmlDeviceResetGpuLockedClocks(self._handle)
        except self._nvml.NVMLError as error:
            self._check(error)
            if error.value in UNSUPPORTED - {NO_PERMISSION}:
                return
            why = "only an administrator may release them" if error.value == NO_PERMISSION else f"releasing them failed: {error}"
            raise Infrastructure(f"A run that was killed left the clocks of {self.name} locked, and {why}.",
                                 remedy=f"As root: nvidia-smi -i {self.uuid} --reset-gpu-clocks && rm {self.mark}") from None

    @property
    def mark(self) -> Path:
        """The file that exists while a run has locked the clocks."""
        return folder() / f"{self.uuid}.locked"

    @property
    def _whole(self) -> Any:
        """The handle of the GPU that a slice is part of, or of the device itself."""
        slice_ = self.uuid.startswith("MIG-")
        return (self._query("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") if slice_ else None) or self._handle

    def _profile(self) -> str:
        """Return the profile of a slice, such as ``1g.10gb``, from its attributes."""
        attributes = self._query("nvmlDeviceGetAttributes") or self._query("nvmlDeviceGetAttributes_v2")
        return "slice" if attributes is None else f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"

    def _reasons(self) -> int | None:
        """Return the bits of clock reductions, from drivers before 535 by their older name.

        None if they are unknown.
        """
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        return self._query("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits

    def _settings(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the known settings, and descriptions of those that differ from the defaults."""
        device = self._whole
        limit = self._answer("nvmlDeviceGetEnforcedPowerLimit", device) or self._answer("nvmlDeviceGetPowerManagementLimit", device)
        usual_limit = self._answer("nvmlDeviceGetPowerManagementDefaultLimit", device)
        ecc, usual_ecc = self._answer("nvmlDeviceGetEccMode", device), self._answer("nvmlDeviceGetDefaultEccMode", device)
        compute, mig = self._answer("nvmlDeviceGetComputeMode", device), self._answer("nvmlDeviceGetMigMode", device)
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

    def _query(self, name: str, *arguments: Any) -> Any:
        """Return NVML's answer about this device, or None if it has none."""
        return self._answer(name, self._handle, *arguments)

    def _answer(self, name: str, *arguments: Any) -> Any:
        """Return NVML's answer, or None if it has none; unexpected errors are noted. Raises Lost."""
        function = getattr(self._nvml, name, None)
        if function is None:  # the package is older than the function
            return None
        try:
            answer = function(*arguments)
        except self._nvml.NVMLError as error:
            self._check(error)
            if error.value not in UNSUPPORTED:
                self._errors.append(f"{name}: {error}")
            return None
        except ValueError as error:  # a name that is not UTF-8
            self._errors.append(f"{name}: {error}")
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def _check(self, error: Any) -> None:
        """Raise Lost for an error of a device that is gone."""
        if error.value in GONE:
            raise Lost(f"{getattr(self, 'uuid', '') or 'GPU'}: {error}") from None


def gpus(nvml: Any = None) -> Devices:
    """Return every usable device allowed by CUDA_VISIBLE_DEVICES, in NVML's order.

    A GPU in MIG mode is replaced by its slices. Devices that are lost or cannot be used are left out. Raises Infrastructure without a
    driver, if all devices are left out, and for an ambiguous index."""
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
        count = int(nvml.nvmlDeviceGetCount())
    except ImportError as error:
        raise Infrastructure(f"The package nvidia-ml-py cannot be imported: {error}.", remedy="Run: pip install nvidia-ml-py") from None
    except nvml.NVMLError as error:
        raise _no_driver(error) from error
    devices, left_out = Devices(), []
    for index in range(count):
        try:
            devices += _parts(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            if error.value != NO_PERMISSION:  # a device of the node that belongs to another job
                left_out.append(f"GPU {index} is left out: {error}.")
        except (Lost, Infrastructure) as error:
            left_out.append(f"GPU {index} is left out. {error}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = devices if visible is None else Devices(_visible(nvml, visible, devices))
    if left_out and not devices and visible != "":
        raise Infrastructure("No GPU can be used.", remedy=" ".join(left_out))
    devices.left_out = tuple(left_out)
    return devices


def first(devices: Sequence[Gpu]) -> Gpu:
    """Return the first device. Raises Infrastructure if there is none."""
    if not devices:
        raise Infrastructure("The driver shows no GPU.", remedy="Look at CUDA_VISIBLE_DEVICES, or use --device cpu.")
    return devices[0]


def _no_driver(error: Any) -> Infrastructure:
    """Return the error for a driver that does not start."""
    message = f"NVIDIA's driver does not answer: {str(error).rstrip('.')}."
    if error.value == VERSION_MISMATCH:
        return Infrastructure(f"{message} The driver was updated, and the kernel still runs the module of the old version.",
                              remedy="Reboot, or reload the modules (rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia).")
    if error.value == NO_PERMISSION:
        return Infrastructure(message, remedy="Check the permissions of /dev/nvidia*, or use --device cpu.")
    return Infrastructure(message, remedy="Install or load it, or use --device cpu.")


def _parts(nvml: Any, handle: Any) -> list[Gpu]:
    """Return a device, or the slices of a GPU in MIG mode.

    Raises Infrastructure for such a GPU without visible slices.
    """
    gpu = Gpu(nvml, handle)
    if not gpu.settings.get("mig") or gpu.uuid.startswith("MIG-"):
        return [gpu]
    slices = []
    for index in range(gpu._query("nvmlDeviceGetMaxMigDeviceCount") or 0):
        if (part := gpu._query("nvmlDeviceGetMigDeviceHandleByIndex", index)) is not None:
            slices.append(Gpu(nvml, part))
    if not slices:
        raise Infrastructure(f"{gpu.name} ({gpu.uuid}) is in MIG mode, and the driver shows no slice.",
                             remedy="Create one (nvidia-smi mig -cgi), or set CUDA_VISIBLE_DEVICES=MIG-… to the UUID of yours.")
    return slices


def shadowing_package() -> str:
    """Return the path of a third-party package ``pynvml`` that hides nvidia-ml-py, or an empty text."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return ""
    return str(module.__file__) if hasattr(module, "__path__") else ""  # nvidia-ml-py is a single file


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
    except (nvml.NVMLError, Lost, Infrastructure):
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
    """Return the device of an index, UUID or its prefix.

    The name of a GPU in MIG mode is that of its first slice, as for CUDA.
    """
    first_parts = list({gpu.part_of or gpu.uuid: gpu for gpu in reversed(devices)}.values())[::-1]
    if name.isdecimal():
        return first_parts[int(name)] if int(name) < len(first_parts) else None
    alike = [gpu for gpu in devices if name and gpu.uuid.startswith(name)]
    alike = alike or [gpu for gpu in first_parts if name and gpu.part_of.startswith(name)]
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
