"""Time of a forward pass: launch overhead, and kernels by family in the middle of a generation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cachemark.machine.timer import clock
from cachemark.methods.registry import METHODS
from cachemark.metrics.compute.speed import ends
from cachemark.models.costs import case_bill
from cachemark.models.registry import MODELS
from cachemark.plans.planned import Prepared
from cachemark.trial.child.bench import Bench, case_job

LAUNCHED = 2000  # small kernels one after the other
ROWS = 25  # of a table


def launches(device: str) -> dict[str, float]:
    """Return microseconds per small kernel, launched by the host and, on CUDA, replayed in a graph."""
    x = torch.zeros(1024, device=device)

    def once() -> None:
        for _ in range(LAUNCHED):
            x.add_(1)

    microseconds = {"launched_us": _each(device, once)}
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        microseconds["recorded_us"] = _each(device, graph.replay)
    return microseconds


def _each(device: str, work: Callable[[], object]) -> float:
    """Median microseconds of one of the launches."""
    watch, seconds = clock(device, ()), []
    work()
    for _ in range(5):
        watch.start()
        work()
        seconds.append(watch.stop())
    return statistics.median(seconds) / LAUNCHED * 1e6


def title(planned: Prepared) -> str:
    """Return the name of a case in the profiles."""
    return f"{planned.case.model}, {planned.case.label}, batch {planned.case.batch}, {planned.case.engine}"


def window(planned: Prepared, bench: Bench, device: str) -> dict[str, Any]:
    """Return the kernels of some passes in the middle of a generation, by time: name, count, microseconds.

    ``wall_us``: time of these passes without tracing; ``busy_us``: sum of the kernels; ``least_us``: roofline time of the batch by part;
    ``batch_us``: its measured time.
    """
    job = case_job(planned.case, bench)
    labels = torch.tensor(job.subset.labels[: job.batch], device=device)
    seeds, marks = job.subset.seeds[: job.batch], ends(job.layout)
    first, last = marks[len(marks) // 2 - 1], marks[len(marks) // 2]
    watch, tracer = clock(device, (first, last)), _tracer(device)

    def generate(mark: Callable[[int], None]) -> None:
        with torch.inference_mode():
            job.drawn(labels, seeds, job.memory, mark=mark)

    def traced(index: int) -> None:
        if index == first:
            _wait(device)
            tracer.start()
        elif index == last:
            _wait(device)
            tracer.stop()

    generate(lambda index: None)  # whatever is recorded or chosen at the first time
    watch.start()
    generate(watch.mark)
    total, at = watch.stop(), watch.marks()
    began = time.perf_counter()
    generate(traced)
    rows = _rows(tracer, device)
    return {"case": title(planned), "tokens": [first + 1, last + 1],
            "wall_us": (at[last] - at[first]) * 1e6, "busy_us": sum(row["us"] for row in rows),
            "kernels": sum(row["count"] for row in rows), "batch_us": total * 1e6, "least_us": _least(planned),
            "traced_seconds": time.perf_counter() - began, "rows": rows[:ROWS]}


def _tracer(device: str) -> profile:
    return profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _rows(tracer: profile, device: str) -> list[dict[str, Any]]:
    """Return kernels of a trace by name, longest first; on a CPU, operations without nested ones."""
    kernel_rows = []
    for event in tracer.key_averages():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if on_device is (device == "cuda"):
            spent = event.self_device_time_total if on_device else event.self_cpu_time_total
            kernel_rows.append({"kernel": event.key[:120], "count": event.count, "us": float(spent)})
    return sorted(kernel_rows, key=lambda row: -row["us"])


def _least(planned: Prepared) -> dict[str, float]:
    """Return the roofline time of each part of a batch in µs; empty without rates or a FLOP model."""
    case = planned.case
    total = case_bill(case, MODELS.get(case.model), METHODS.get(case.method).build(case.parameters))
    if total is None or planned.rates is None:
        return {}
    return {part: seconds * 1e6 for part, seconds in total.limit(planned.rates).by.items()}
