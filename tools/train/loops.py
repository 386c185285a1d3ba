"""The training loop of the bundled models: seeded, resumable, and written down.

A :class:`TrainingTask` knows its model, its data and its loss; :func:`train` knows steps, checkpoints, log and weights. Whatever is
random in a step comes from a generator seeded by (seed, step), so a killed run that is continued computes what the
uninterrupted one would have computed, bit for bit on one machine and thread count.

Files in the output folder, for a task called NAME: ``NAME.checkpoint.pt`` (everything needed to continue),
``NAME.safetensors`` (fp16 weights), ``NAME.json`` (what they are) and ``NAME.log.jsonl`` (one line per logged step).
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

DECAY = 0.45  # share of the steps in which the learning rate falls


class TrainingTask(ABC):
    """A model, its data and its loss. ``steps``, ``warmup`` and ``decay`` are those of the weights that come with cachemark, ``data`` is
    the version of what it learns from. ``parts`` is everything that changes while training: the model and the optimisers, whose groups
    state their full learning rate as ``peak``."""

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
        """Entries of the weights file; ``config`` is JSON."""

    @abstractmethod
    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """The loss of one batch of fresh scenes, a scalar; all that is random comes from ``generator`` or the number of the step."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Figures on held-out scenes."""


@dataclass(frozen=True)
class TrainingRun:
    """Length and place of a training. ``threads`` 0 leaves torch's own choice; ``every`` is the distance of checkpoints in steps."""

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
        """Share of the full learning rate at ``step``: linear warm-up, plateau, linear decay to zero."""
        rise = (step + 1) / max(1, min(self.warmup, self.steps // 10))
        fall = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rise, fall)


def train(task: TrainingTask, run: TrainingRun) -> Path:
    """Train ``task`` (or continue it) and return the path of its weights. The same task and run give the same weights.

    A run may be continued with another number of steps as long as the learning rates so far would have been the same, that is
    until they begin to fall. Raises :class:`~cachemark.core.errors.BadCheckpoint` if the output folder holds the checkpoint of
    another run.
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
    """The CPU generator of one training step; nothing random outlives its step."""
    return torch.Generator().manual_seed(stream(seed, "step", step))


def _update(task: TrainingTask, run: TrainingRun, step: int) -> float:
    """One optimiser step; returns the loss."""
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
    """bf16 autocast where the hardware multiplies in bf16, else fp32: emulated bf16 is 2 to 3 times slower than fp32."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=has_bf16(kind))


class AttentionInFP32(TorchFunctionMode):
    """Attention on a CPU stays out of autocast: PyTorch's backward pass of it takes two to four times as long in bf16 as in fp32,
    which was more than half of a step."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is not F.scaled_dot_product_attention or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        query, key, value, *rest = args
        with torch.autocast("cpu", enabled=False):
            return func(query.float(), key.float(), value.float(), *rest, **(kwargs or {})).to(query.dtype)


def has_bf16(kind: str) -> bool:
    """True where a device kind (``cpu`` or ``cuda``) has bf16 arithmetic of its own."""
    if kind == "cuda":
        return torch.cuda.is_bf16_supported()
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and bool({"amx_bf16", "avx512_bf16"} & set(flags.read_text().split()))


def keep_memory(device: str) -> None:
    """Tell glibc to keep freed memory instead of returning it to the kernel after each layer.

    Training on a CPU frees and takes hundreds of megabytes a step; by default each of them is mapped and page-faulted anew. The
    same can be had from ``MALLOC_`` variables in the environment, but only by whoever starts the process. It changes the
    whole process, therefore the command line calls it and :func:`train` does not.
    """
    if device != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # names from malloc.h
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 2**28)


def flush_denormals(device: str) -> None:
    """Let this process count numbers below 1e-38 as zero, on a CPU: trained attention is so sure of itself that most of its shares are
    among them, and processors take them one by one; the backward pass of attention took six times as long.

    Threads have the setting of the one that starts them, so it must come before the first parallel operation, and like
    :func:`keep_memory` it is for the command line to call.
    """
    if device == "cpu":
        torch.set_flush_denormal(True)


def _identity(task: TrainingTask, run: TrainingRun) -> dict[str, Any]:
    """The settings that a checkpoint must share with a run that continues it."""
    return {"task": task.name, "seed": run.seed, "data": task.data, **task.metadata()}


def _save(task: TrainingTask, run: TrainingRun, step: int, log: list[dict[str, Any]]) -> None:
    """Write checkpoint, log and the weights so far; each file is replaced whole, so a kill leaves the old or the new one."""
    parts = {name: part.state_dict() for name, part in task.parts.items()}
    target = run.out / f"{task.name}.checkpoint.pt"
    with replacing(target) as part_file:
        torch.save({"identity": _identity(task, run), "steps": run.steps, "step": step, "log": log, "parts": parts}, part_file)
    _write_weights(task, run, log)


def _restore(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> int:
    """Load the checkpoint, if there is one, into ``task`` and ``log``; returns the first step still to do."""
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
        other.append(f"steps {before.steps}, not {run.steps}, and its learning rate has begun to fall")
    if other:
        raise BadCheckpoint(f"{str(path)!r} is of another run: {'; '.join(other)}.",
                            remedy="Give the same options, another --out, or --fresh to start again.")
    for name, part in task.parts.items():
        part.load_state_dict(saved["parts"][name])
    log.extend(saved["log"])
    return int(step)


def _export(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> Path:
    """Round the model to what is stored, validate that, and write the final files."""
    with torch.no_grad():
        for tensor in task.model.state_dict().values():
            tensor.copy_(tensor.half())
    log[-1] = {**log[-1], **task.validate()}
    return _write_weights(task, run, log)


def _write_weights(task: TrainingTask, run: TrainingRun, log: list[dict[str, Any]]) -> Path:
    """Write fp16 weights, their description and the log; returns the path of the weights."""
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
    """A progress bar with the time left on a terminal, silence elsewhere; yields what to call with each step's loss."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=120) as bar:
        line = bar.add_task(title, total=total, completed=done, loss=float("nan"))
        yield lambda loss: bar.update(line, advance=1, loss=loss)
