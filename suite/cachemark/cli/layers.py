"""``cachemark show layers MODEL``: what the layers of a next-scale model look at."""

from __future__ import annotations

from typing import Any

import click

from .options import echo_json


def print_layers(model: str, weights: str, decoder_weights: str, theta: float | None, as_json: bool) -> None:
    """Measure and print; ``theta`` None is ams_kv's own. JSON is in the form of the package's ``data/calibration/ams_kv.json``."""
    from ..core import registry
    from ..methods.ams_kv import AMSKV
    from ..models.protocol import Request
    from ..plan.expand import catalogue, methods
    from ..trial.child.profiles import layers

    assert catalogue is not methods  # importing them registers models and methods
    found = layers(model, Request(weights=weights, decoder_weights=decoder_weights))
    if as_json:
        echo_json({found["weights"].partition("/")[0]: found})
        return
    policy = AMSKV() if theta is None else AMSKV(theta=theta)
    entry: Any = registry.models.get(model)
    policy.calibrate(found)
    policy.resolve(entry.shape(entry.presets["paper"], 1))
    samples = f"{found['samples']} samples of {found['seeds']}"
    click.echo(f"{model}, weights {found['weights'][:12]}, {samples}, full cache, {found['seconds']} s")
    if found["weights"].startswith("random:"):
        click.echo("These weights are random: the figures say nothing about a trained model.")
    _similarity(found, set(policy.demanding or ()))
    _attention(found)
    click.echo(f"theta = {policy.theta}, c_min = {policy.c_min}, c_max = {policy.c_max}: demanding = {list(policy.demanding or ())}")


def _similarity(found: dict[str, Any], demanding: set[int]) -> None:
    """S by layer and scale; a star marks a demanding layer."""
    click.echo("\nInter-scale similarity S of the keys (0: equal; smaller: less alike), by layer and scale")
    click.echo("layer " + "".join(f"{side:>9}" for side in found["scales"][1:]))
    for layer, row in enumerate(found["similarity"]):
        click.echo(f"{layer:4}{'*' if layer in demanding else ' '} " + "".join(f"{s:9.4f}" for s in row))


def _attention(found: dict[str, Any]) -> None:
    """Where the queries of the last scale look, per layer: share of the attention, and density (share per key, of an even spread)."""
    sizes = [side**2 for side in found["scales"]]
    click.echo("\nAttention density of the last scale's queries: their share of attention per key of each scale, 1 = evenly spread")
    click.echo("layer " + "".join(f"{side:>9}" for side in found["scales"]))
    for layer, scales in enumerate(found["mass"]):
        click.echo(f"{layer:4}  " + "".join(f"{share / size * sum(sizes):9.2f}" for share, size in zip(scales[-1], sizes, strict=True)))
    click.echo("")
