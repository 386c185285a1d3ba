"""The training loop of the bundled models: seeded, resumable and logged.

A :class:`TrainingTask` has a model, data and a loss; :func:`train` has steps, checkpoints, log and weights. Randomness of a step comes
from a generator seeded by (seed, step), so a resumed run is bit-identical on one machine and thread count.

Files in the output folder: ``NAME.checkpoint.pt``, ``NAME.safetensors`` (fp16 weights), ``NAME.json`` (their description) and
``NAME.log.jsonl`` (one line per logged step).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cachemark.core.errors import BadCheckpoint
from cachemark.core.files import replacing
from cachemark.machine.affinity import torch_threads

from .scene import VERSION, stream

DECAY = 0.45  # share of the steps with a falling learning rate


class TrainingTask(ABC):
    """A model, its data and its loss.

    ``steps``, ``warmup``, ``decay``: of the bundled weights; ``data``: version of the data. ``parts``: everything that training changes,
    the model and optimizers whose groups state their learning rate as ``peak``.
    """

    name: str
    steps: int
    warmup: int
    decay = DECAY
    data = VERSION
    model: Any
    parts: dict[str, nn.Module | torch.optim.Optimizer]

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [part for part in self.parts.values() if isinstance(part, torch.optim.Optimizer)]

    @abstractmethod
    def metadata(self) -> dict[str, str]:
        """Return entries of the weights file; ``config`` is JSON."""

    @abstractmethod
    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Return the loss of a batch of fresh scenes; randomness comes from ``generator`` or the step."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Return metrics on held-out scenes."""


@dataclass(frozen=True)
class TrainingRun:
    """Length and device of a training. ``threads``: 0 for torch's choice; ``every``: steps per checkpoint."""

    out: Path
    steps: int
    seed: int = 0
    device: str = "cpu"
    threads: int = 0
    resume: bool = True
    warmup: int = 40
    decay: float = DECAY
    every: int = 100

    def factor(self, step: int) -> float:
        """Return the fraction of the peak learning rate: linear warm-up, plateau, linear decay to zero."""
        rise = (step + 1) / max(1, min(self.warmup, self.steps // 10))
        fall = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rise, fall)


def train(task: TrainingTask, run: TrainingRun) -> Path:
    """Train ``task``, or resume it, and return the path of its weights.

    A run may be resumed with another number of steps until the learning rate starts to fall. Raises BadCheckpoint if the output folder
    holds the checkpoint of another run.
    """
    run.out.mkdir(parents=True, exist_ok=True)
    log: list[dict[str, Any]] = []
    first = _restore(task, run, log) if run.resume else 0
    started = time.monotonic() - (log[-1]["seconds"] if log else 0.0)
    with torch_threads(run.threads), _progress(task.name, run.steps, first) as advance:
        for step in range(first, run.steps):
            loss = _update(task, run, step)
            advance(loss)
            if (step + 1) % run.every == 0 or step + 1 == run.steps:
                entry = {"step": step + 1, "loss": round(loss, 5), **task.validate(), "seconds": round(time.monotonic() - started, 1)}
                log.append(entry)
                _save(task, run, step + 1, log)
        return _export(task, run, log)


def generator_of(seed: int, step: int) -> torch.Generator:
    """Return the CPU generator of one training step."""
    return torch.Generator().manual_seed(stream(seed, "step", step))


def _update(task: TrainingTask, run: TrainingRun, step: int) -> float:
    """Take one optimizer step and return the loss."""
    with autocast(run.device), AttentionInFP32():
        loss = task.loss(step, generator_of(run.seed, step))
    loss.backward()
    for optimiser in task.optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * run.factor(step)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return float(loss.detach())


def autocast(device: str) -> torch.autocast:
    """Return bf16 autocast if the hardware has bf16 arithmetic, else fp32, which beats emulation."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=has_bf16(kind))


class AttentionInFP32(TorchFunctionMode):
    """Keeps CPU attention out of autocast: its bf16 backward pass is two to four times slower."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is not F.scaled_dot_product_attention or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        query, key, value, *rest = args
        with torch.autocast("cpu", enabled=False):
            return func(query.float(), key.float(), value.float(), *rest, **(kwargs or {})).to(query.dtype)


def has_bf16(kind: str) -> bool:
    """Return True if a device kind (``cpu`` or ``cuda``) has native bf16 arithmetic."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported()
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and bool({"amx_bf16", "avx512_bf16"} & set(flags.read_text().split()))


def keep_memory(device: str) -> None:
    """Configure glibc to keep freed memory instead of returning it to the kernel after each layer.

    A CPU training step frees and allocates hundreds of megabytes, which would be mapped and page-faulted each time. It changes the whole
    process, so only the command line calls it.
    """
    if device != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # names from malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 2**28)


def flush_denormals(device: str) -> None:
    """Flush numbers below 1e-38 to zero on a CPU: most shares of trained attention are denormal.

    The backward pass of attention took six times as long with them. Threads inherit the setting, so it must precede the first parallel
    operation; only the command line calls it.
    """
    if device == "cpu":
        torch.set_flush_denormal(True)


def _identity(task: TrainingTask, run: TrainingRun) -> dict[str, Any]:
    """Return the settings that a checkpoint must share with a run that resumes it."""
    return {"task": task.name, "seed": run.seed, "data": task.data, **task.metadata()}


def _save(task: TrainingTask, run: TrainingRun, step: int, log: list[dict[str, Any]]) -> None:
    """Write checkpoint, log and weights so far, each atomically."""
    parts = {name: part.state_dict() for name, part in task.parts.items()}
    target = run.out / f"{task.name}.checkpoint.pt"
    with replacing(target) as part_file:
        torch.save({"identity": _identity(task, run), "steps": run.steps, "step": step, "log": log, "parts": parts}, part_file)
    _write_weights(task, run, log)


def _restore(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> int:
    """Load the checkpoint, if any, into ``task`` and ``log``; return the next step."""
    path = run.out / f"{task.name}.checkpoint.pt"
    if not path.is_file():
        return 0
    try:
        saved = torch.load(path, map_location=run.device, weights_only=True)
        identity, expected, step = saved["identity"], _identity(task, run), saved["step"]
        before = replace(run, steps=saved["steps"])
    except Exception as error:
        # PyTorch's own text advises to switch its protection off, so it is not passed on.
        raise BadCheckpoint(f"{str(path)!r} is not a checkpoint, or a damaged one ({type(error).__name__}).",
                            remedy="Start again with --fresh.") from error
    other = [f"{k} {identity.get(k)!r}, not {expected[k]!r}" for k in expected if identity.get(k) != expected[k]]
    if any(before.factor(s) != run.factor(s) for s in range(step)):
        other.append(f"steps {before.steps}, not {run.steps}, and its learning rate is already falling")
    if other:
        raise BadCheckpoint(f"{str(path)!r} is of another run: {'; '.join(other)}.",
                            remedy="Pass the same options, another --out, or --fresh to start again.")
    for name, part in task.parts.items():
        part.load_state_dict(saved["parts"][name])
    log.extend(saved["log"])
    return int(step)


def _export(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> Path:
    """Round the model to its stored precision, validate it, and write the final files."""
    with torch.no_grad():
        for tensor in task.model.state_dict().values():
            tensor.copy_(tensor.half())
    log[-1] = {**log[-1], **task.validate()}
    return _write_weights(task, run, log)


def _write_weights(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> Path:
    """Write fp16 weights, their description and the log; return the path of the weights."""
    weights, last, metadata = run.out / f"{task.name}.safetensors", log[-1], task.metadata()
    state = {name: tensor.detach().half().cpu().contiguous() for name, tensor in task.model.state_dict().items()}
    with replacing(weights) as path:
        # One entry, because safetensors writes several in an order that changes from run to run, and so would the hash.
        path.write_bytes(save(state, metadata={"cachemark": json.dumps(metadata, sort_keys=True)}))
    about = {
        **metadata, "config": json.loads(metadata["config"]), "seed": run.seed, "steps": run.steps,
        "step": last["step"], "finished": last["step"] == run.steps, "data": task.data,
        "held_out": {k: v for k, v in last.items() if k not in ("step", "loss", "seconds")},
        "seconds": last["seconds"], "device": run.device, "threads": torch.get_num_threads(), "torch": torch.__version__,
        "bf16": autocast(run.device)._enabled,
        "parameters": sum(t.numel() for t in state.values()), "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }
    with replacing(run.out / f"{task.name}.json") as path:
        path.write_text(json.dumps(about, indent=2) + "\n")
    with replacing(run.out / f"{task.name}.log.jsonl") as path:
        path.write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return weights


@contextlib.contextmanager
def _progress(title: str, total: int, done: int) -> Iterator[Callable[[float], None]]:
    """Yield a callback for each step's loss: a progress bar on a terminal, silent elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=120) as bar:
        line = bar.add_task(title, total=total, completed=done, loss=float("nan"))
        yield lambda loss: bar.update(line, advance=1, loss=loss)
