"""Metrics of plug-ins that are no metrics, or that misbehave while they measure."""

from __future__ import annotations

from .attack import Attack
from .ground import written

FILE = "bad.py"
METRIC = '''
import os, sys, time
import torch
from cachemark.core import registry
from cachemark.metrics.base import ImageMetric

@registry.metrics.add("bad")
class Bad(ImageMetric):
    """Mean of an image's numbers."""

    name = "bad"
    unit = ""
    better = "higher"
    kind = "quality"
    {body}
    def measure(self, shown):
        return shown.images.mean((1, 2, 3))
'''
MEASURED = METRIC.replace("return shown", "{body}\n        return shown").replace("    {body}\n    def", "\n    def")


def refused(name: str, body: str, *says: str, line: str = "") -> Attack:
    """A try with a class that is refused, whatever asks for it."""
    return Attack(name, ("test", "metric", FILE), ("test metric NAME|FILE",), "bad-plugin", says,
                  prepare=written(FILE, METRIC.replace("{body}", body) + line))


def found(name: str, body: str, *says: str) -> Attack:
    """A try with a metric of which the kit says what is wrong."""
    return Attack(name, ("test", "metric", FILE), ("test metric NAME|FILE",), says=("FOUND", *says), code=1, slow=True, trials=True,
                  prepare=written(FILE, MEASURED.replace("{body}", body)))


ROWS = [
    Attack("an image instead of a file of Python", ("test", "metric", "./bad.png"), ("test metric NAME|FILE",), "bad-plugin",
           ("is not a Python file",), prepare=written("bad.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)))),
    Attack("a file of methods", ("test", "metric", "./dot.py"), ("test metric NAME|FILE",), "bad-plugin", ("registers no metric",)),
    # what it says of itself
    refused("a title with markup", 'title = "<img src=x onerror=alert(1)>"', "title or a unit"),
    refused("a unit of two lines", 'unit = "s\\n::error::pwned"', "title or a unit"),
    refused("a direction of its own", 'better = "<b>more</b>"', "is better"),
    refused("a kind of its own", 'kind = "speed"', "is of kind 'speed'"),
    refused("a docstring of ten million letters", '__doc__ = "x" * 10_000_000', "has no docstring"),
    refused("a docstring with an escape", '__doc__ = "\\x1b[31mred"', "has no docstring"),
    refused("a range that is NaN", 'within = (0, float("nan"))', "has a range"),
    refused("a range that is none", "within = 7", "cannot be made"),
    refused("cannot be made", "def __init__(self): raise ValueError('never')", "cannot be made: never"),
    refused("another name than it has", 'name = "worse"', "by another name than it has"),
    refused("a name of ours", "pass", "of cachemark itself", line='@registry.metrics.add("psnr")\nclass P(Bad):\n    name = "psnr"\n'),
    refused("a name with markup", "pass", "small letters", line='Bad.name = "<b>"; registry.metrics.add("<b>")(Bad)\n'),
    refused("a metric that is a number", "pass", "is of type int", line='registry.metrics.add("seven")(7)\n'),
    # what it answers
    found("raises", "raise RuntimeError('a\\n::error::pwned \\x1b[31m')", "RuntimeError"),
    found("NaN", "return shown.images.mean((1, 2, 3)) * float('nan')", "not finite, nan for image 0"),
    found("one figure too many", "return torch.zeros(len(shown.images) + 1)", "not (1,)"),
    found("a text", "return 'good'", "a str for 1 images"),
    found("a tensor of nothing", "return torch.zeros(len(shown.images), device='meta')", "figures are figures"),
    found("leaves when it measures", "os._exit(0)", "ended with exit code 0"),
]
