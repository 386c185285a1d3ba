"""A driver controlled by a test, through the functions of the module ``pynvml``, with which a test compares its functions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

CLOCKS = [1980, 1965, 1410, 345]


@dataclass
class Card:
    """One device and what it shall say.

    ``failing``: the error that a function of this name raises. ``watts``, ``ecc``, ``compute`` and ``mig`` are its settings, with their
    defaults; ``cpus`` are those of its node, ``enforced`` is the power limit that a node or its BMC enforces, by default ``watts``.
    ``steady``: its energy counter follows its power and the clock; else the counter advances by 0.5 J a reading."""

    uuid: str
    name: str = "Fake H100"
    sm_mhz: int = 1980
    celsius: int = 40
    milliwatts: float = 300_000
    millijoules: int = 1000
    steady: bool = False
    busy: int = 100
    reasons: int = 0
    pids: set[int] = field(default_factory=set)
    locked: int = 0
    watts: int = 700
    ecc: int = 1
    compute: int = 0
    mig: int = 0
    enforced: int = 0
    cpus: tuple[int, ...] = ()
    slice_of: Card | None = None
    failing: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


class FakeNvml:
    """The module. ``cards`` may be changed at any time."""

    def __init__(self, *cards: Card, broken: int = 0) -> None:
        self.cards, self.broken = list(cards), broken

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "NVMLError")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        if self.broken:
            raise pynvml.NVMLError(self.broken)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._of(self.cards[index], "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        """The only slice is MIG-cccc."""
        if uuid != "MIG-cccc":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._slice(uuid, self.cards[0])

    @staticmethod
    def _slice(uuid: str, whole: Card) -> Card:
        return Card(uuid, f"{whole.name} MIG 1g.10gb", failing=dict.fromkeys(WHOLE, pynvml.NVML_ERROR_INVALID_ARGUMENT), slice_of=whole)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Card, index: int) -> Card:
        """A GPU in MIG mode has two slices."""
        if not self._of(device, "nvmlDeviceGetMigDeviceHandleByIndex").mig or index not in (0, 2):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._slice(f"MIG-{device.uuid[-4:]}-{index}", device)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: Card) -> Card:
        assert migDevice.slice_of is not None
        return migDevice.slice_of

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Card) -> int:
        card = self._of(handle, "nvmlDeviceGetTotalEnergyConsumption")
        if card.steady:
            return int(card.milliwatts * time.monotonic())
        card.millijoules += 500
        return card.millijoules

    def nvmlDeviceGetCpuAffinity(self, handle: Card, cpuSetSize: int) -> list[int]:
        cpus = self._of(handle, "nvmlDeviceGetCpuAffinity").cpus
        return [sum(1 << cpu % 64 for cpu in cpus if cpu // 64 == word) for word in range(cpuSetSize)]

    def nvmlDeviceSetGpuLockedClocks(self, handle: Card, minGpuClockMHz: int, maxGpuClockMHz: int) -> None:
        self._of(handle, "nvmlDeviceSetGpuLockedClocks").locked = minGpuClockMHz
        handle.sm_mhz = maxGpuClockMHz

    def nvmlDeviceResetGpuLockedClocks(self, handle: Card) -> None:
        self._of(handle, "nvmlDeviceResetGpuLockedClocks").locked = 0

    @staticmethod
    def _of(card: Card, name: str) -> Card:
        card.asked.append(name)
        if name in card.failing:
            raise pynvml.NVMLError(card.failing[name])
        return card


READINGS: dict[str, Callable[[Card], Any]] = {  # what functions of the module answer about a device
    "nvmlDeviceGetClockInfo": lambda card: card.sm_mhz, "nvmlDeviceGetTemperature": lambda card: card.celsius,
    "nvmlDeviceGetUUID": lambda card: card.uuid, "nvmlDeviceGetName": lambda card: card.name,
    "nvmlDeviceGetCudaComputeCapability": lambda card: (9, 0), "nvmlDeviceGetPowerUsage": lambda card: card.milliwatts,
    "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=card.busy),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda card: card.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: card.reasons,
    "nvmlDeviceGetPowerManagementLimit": lambda card: 1000 * card.watts,
    "nvmlDeviceGetEnforcedPowerLimit": lambda card: 1000 * (card.enforced or card.watts),
    "nvmlDeviceGetEccMode": lambda card: [card.ecc] * 2, "nvmlDeviceGetComputeMode": lambda card: card.compute,
    "nvmlDeviceGetMigMode": lambda card: [card.mig] * 2,
    "nvmlDeviceGetComputeRunningProcesses": lambda card: [SimpleNamespace(pid=pid) for pid in card.pids],
    "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=80 << 30),
}
ALWAYS = {"nvmlDeviceGetMaxMigDeviceCount": 7, "nvmlDeviceGetPowerManagementDefaultLimit": 700_000, "nvmlDeviceGetDefaultEccMode": [1],
          "nvmlDeviceGetSupportedMemoryClocks": [2619, 1593], "nvmlDeviceGetSupportedGraphicsClocks": CLOCKS,
          "nvmlSystemGetDriverVersion": "999.1", "nvmlSystemGetCudaDriverVersion_v2": 12080}
EXPECTED = {"sensor": pynvml.NVML_TEMPERATURE_GPU, "type": pynvml.NVML_CLOCK_SM, "memoryClockMHz": 2619}  # further arguments


def reading(name: str, read: Callable[[Card], Any]) -> Any:
    """Return a method with the parameters of the module's function."""
    signature = inspect.signature(getattr(pynvml, name))

    def function(self: FakeNvml, *given: Any) -> Any:
        handle, *more = signature.bind(*given).arguments.items() or [("", None)]
        assert all(value == EXPECTED[key] for key, value in more)
        return read(handle[1] if name in ALWAYS else self._of(handle[1], name))

    function.__signature__ = signature
    return function


for function_name, of_card in (READINGS | {name: lambda _, value=value: value for name, value in ALWAYS.items()}).items():
    setattr(FakeNvml, function_name, reading(function_name, of_card))

WHOLE = ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEccMode", "nvmlDeviceGetComputeMode",
         "nvmlDeviceGetMigMode", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons",
         "nvmlDeviceGetCurrentClocksThrottleReasons")  # functions that do not answer for a slice
EVERY = [name for name in vars(FakeNvml) if name.startswith("nvml")]


def lose(card: Card) -> None:
    """The device falls off the bus."""
    card.failing = dict.fromkeys(EVERY, pynvml.NVML_ERROR_GPU_IS_LOST)
