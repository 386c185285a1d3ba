"""Metrics of plug-ins, each in a process of its own: whatever it does there touches neither the case nor another metric.

Images go there in batches, and a figure for each comes back. Where one batch has none, the metric has none for this case, and the fact
:data:`~cachemark.core.outside_metrics.FAULTS` says why: it ended its process, did not answer in time, raised, or answered no figure.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import save

from ...core import plugins
from ...core.outside_metrics import DIGITS, FAULTS
from ...core.units import metric
from ...metrics.image_metric import Shown
from ...plans import attempt
from ..bounds import bounded_text

LENGTH = struct.Struct("<Q")
LONGEST_ANSWER = 1 << 24  # bytes


class Fault(Exception):
    """A metric has no figure: which kind of fault, and more words."""

    def __init__(self, fault: str, said: str) -> None:
        super().__init__(fault, said)
        self.fault, self.said = fault, said


def metric_figures(
    names: Sequence[str], stated: Mapping[str, Mapping[str, Any]], shown: Shown, files: Sequence[str], batch: int,
    alive: Callable[[int], None],
) -> tuple[dict[str, list[float]], dict[str, object]]:
    """Figures of these metrics by seed, and the fact that says what was wrong with those that have none. ``files`` are plug-ins of the
    trial, ``batch`` how many images are shown at once."""
    samples, faults = dict[str, list[float]](), dict[str, dict[str, str]]()
    known = {plugins.digest(file): file for file in files} if names else {}
    for name in names:
        try:
            samples[name] = _figures(name, known.get(str(stated[name]["code"]), ""), shown, batch, alive)
        except Fault as found:
            faults[name] = {"fault": found.fault, "said": bounded_text(found.said)}
    return samples, {FAULTS: faults} if faults else {}


def answer(file: str, name: str, shown: Shown) -> tuple[list[float], str, str]:
    """Figures of some images by a metric of a plug-in, in a process of its own; or none, which fault there was, and more words about it."""
    try:
        with _process(file, name) as asked:
            return asked(shown), "", ""
    except Fault as found:
        return [], found.fault, found.said


def in_sentences(faults: Any) -> list[str]:
    """Footnotes on what was wrong with metrics, the fact of :func:`metric_figures`."""
    return [f"{metric(name).title} ({name}) was not measured: {found['fault']}, {found['said']}." for name, found in faults.items()]


def _figures(name: str, file: str, shown: Shown, batch: int, alive: Callable[[int], None]) -> list[float]:
    if not file:
        raise Fault("changed", "its plug-in is not what it was when the run began")
    values: list[float] = []
    with _process(file, name[: -DIGITS - 1]) as asked:
        for start in range(0, len(shown.images), batch):
            values += asked(_part(shown, slice(start, start + batch)))
            alive(0)
    return values


def _part(shown: Shown, part: slice) -> Shown:
    return replace(shown, images=shown.images[part], reference=shown.reference[part], tokens=shown.tokens[part],
                   reference_tokens=shown.reference_tokens[part], labels=shown.labels[part], seeds=shown.seeds[part])


@contextmanager
def _process(file: str, name: str) -> Iterator[Callable[[Shown], list[float]]]:
    """A process that has one metric of a plug-in imported, as what it answers for some images. It is gone when the block ends."""
    command = [sys.executable, "-P", "-m", "cachemark.trial.child.metric_process", file, name, str(torch.get_num_threads())]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert started.stdin is not None
    assert started.stdout is not None
    to, back = started.stdin.fileno(), started.stdout.fileno()
    os.set_blocking(to, False)

    def asked(shown: Shown) -> list[float]:
        end = time.monotonic() + attempt.limit()
        told: dict[str, Any] = {}
        try:
            _send(to, _packed(shown), end)
            told = json.loads(_receive(back, end))
        except (BrokenPipeError, EOFError):
            raise Fault("ended its process", attempt.ended(started.wait(timeout=attempt.limit()))) from None
        except ValueError:
            raise Fault("no figures", "what came back is not an answer") from None
        if "fault" in told:
            raise Fault(str(told["fault"]), str(told.get("said", "")))
        return [float(value) for value in told["values"]]

    try:
        yield asked
    finally:
        started.terminate()  # its keeper ends all that it has started
        started.wait()
        started.stdin.close()
        started.stdout.close()


def _packed(shown: Shown) -> bytes:
    tensors = {name: getattr(shown, name).clone() for name in ("images", "reference", "tokens", "reference_tokens")}
    packed = save(tensors, {"labels": json.dumps(list(shown.labels)), "seeds": json.dumps(list(shown.seeds))})
    return LENGTH.pack(len(packed)) + packed


def _send(to: int, data: bytes, end: float) -> None:
    left = memoryview(data)
    while left:
        if not select.select([], [to], [], max(0.0, end - time.monotonic()))[1]:
            raise Fault("late", f"it took no images for {attempt.limit():g} s; {attempt.VARIABLE} sets other seconds")
        left = left[os.write(to, left[: 1 << 16]) :]


def _receive(back: int, end: float) -> bytes:
    def read(count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not select.select([back], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Fault("late", f"it did not answer within {attempt.limit():g} s; {attempt.VARIABLE} sets other seconds")
            if not (part := os.read(back, min(count - len(found), 1 << 16))):
                raise EOFError
            found += part
        return found

    (count,) = LENGTH.unpack(read(LENGTH.size))
    if count > LONGEST_ANSWER:
        raise ValueError(f"an answer of {count} bytes")
    return read(count)
