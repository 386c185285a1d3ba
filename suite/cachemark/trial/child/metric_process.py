"""The process of one metric of a plug-in: images in, a figure for each out, until nothing more comes."""

from __future__ import annotations

import json
import os
import struct
import sys
import traceback
from typing import Any, BinaryIO

import torch
from safetensors.torch import load

from ...core import plugins, registry
from ...core.outside_metrics import KEY, full_name, know
from ...core.units import metric
from ...machine import keeper
from ...metrics.image_metric import ImageMetric, Shown, problem
from ..bounds import bounded_text

LENGTH = struct.Struct("<Q")


def main() -> None:
    """Entry: a plug-in's file, the name of its metric, and the number of threads."""
    file, name, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    images = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for own in range(2):  # what the metric prints is no answer, and what it reads no images
        os.dup2(nothing, own)
    keeper.keep(lambda: _serve(file, name, images, answers))


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
