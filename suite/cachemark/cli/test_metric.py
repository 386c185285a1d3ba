"""``cachemark test-metric``: whether a run can rely on a metric of images."""

from __future__ import annotations

import click

from .options import json_option
from .proofs import show


@click.command("test-metric")
@click.argument("metric", metavar="NAME|FILE")
@json_option
def test_metric(metric: str, as_json: bool) -> None:
    """Hold a metric of a plug-in to what a run relies on: NAME, or all metrics of a Python FILE.

    Its figures are one for each image, finite and within their range; the same a second time, in a process of its own, in any batch and
    beside any other images; no image is nearer to a reference than itself; nothing but images and its own files is read, nothing is
    written, and its class says unit, direction and kind. Of what is wrong the smallest example is printed: images, expected and found.
    Leaves with 0 (passed), 1 (something found) or 4 (nothing could be checked).
    """
    from ..workflows.proving_things import prove_metric

    show(prove_metric(metric), as_json)
