"""The process that hosts metrics of plug-ins, and its copies: one metric each, images in, a figure for each out, until no more come."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from typing import Any, BinaryIO, NoReturn

import torch
from safetensors.torch import load

from ...core import plugins, registry
from ...core.outside_metrics import KEY, full_name, know
from ...core.units import metric
from ...machine import keeper
from ...metrics.image_metric import ImageMetric, Shown, problem
from ..bounds import bounded_text
from .metric_host import CODE, END, LENGTH, LONGEST_REQUEST, READY


def main() -> None:
    """Entry of the host, whose line is what was standard input: the number of threads. It runs nothing of a plug-in itself."""
    line = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a metric reads
    torch.set_num_threads(int(sys.argv[1]))
    line.send(READY)
    while (asked := socket.recv_fds(line, LONGEST_REQUEST, 2))[0]:
        file, name = json.loads(asked[0])
        images, answers = asked[1]
        if not (copy := os.fork()):
            line.close()
            _measure(file, name, images, answers)
        os.close(images)
        os.close(answers)
        line.recv(len(END))
        os.kill(copy, signal.SIGTERM)  # its keeper ends all that it has started; where it has ended, nothing
        line.send(CODE.pack(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])))


def _measure(file: str, name: str, images: int, answers: int) -> NoReturn:
    """The work of a copy, and its end."""
    code: object = 1
    try:
        for own in (images, answers):
            os.set_inheritable(own, False)
        with os.fdopen(images, "rb") as shown, os.fdopen(answers, "wb", buffering=0) as told:
            keeper.keep(lambda: _serve(file, name, shown, told))
        code = 0
    except SystemExit as error:
        code = error.code or 0
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _serve(file: str, name: str, images: BinaryIO, answers: Any) -> None:
    within, measure = (0.0, 0.0), None
    while len(head := images.read(LENGTH.size)) == LENGTH.size:
        packed = images.read(LENGTH.unpack(head)[0])
        try:
            if measure is None:
                plugins.load(file)
                cls: type[ImageMetric] = registry.metrics.get(name)
                know({KEY: {full_name(name, definition := cls.definition("")): definition}})
                within, measure = metric(full_name(name, definition)).within, cls().measure
            shown = _shown(packed)
            with torch.inference_mode():
                values = measure(shown)
            fault, said = problem(values, len(shown.images), within)
            if modules := plugins.strays():
                fault, said = "not in its definition", f"it has imported {', '.join(modules)}, which no import statement names"
            told = {"fault": fault, "said": said} if fault else {"values": values.double().tolist()}
        except Exception as error:
            told = {"fault": "raised", "said": bounded_text(traceback.format_exception_only(error)[-1].strip())}
        text = json.dumps(told).encode()
        answers.write(LENGTH.pack(len(text)) + text)


def _shown(packed: bytes) -> Shown:
    tensors = load(packed)
    count = int.from_bytes(packed[:8], "little")
    about = json.loads(packed[8 : 8 + count])["__metadata__"]
    return Shown(**tensors, labels=json.loads(about["labels"]), seeds=json.loads(about["seeds"]))


if __name__ == "__main__":
    main()
