"""``cachemark show layers MODEL``: similarity and attention of the layers of a next-scale model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import echo_json

if TYPE_CHECKING:
    from ..workflows.layer_profiles import LayerProfile


def print_layers(profile: LayerProfile, as_json: bool) -> None:
    """Print a profile; JSON is in the form of the package's ``data/calibration/ams_kv.json``."""
    found = profile.found
    if as_json:
        echo_json({found["weights"].partition("/")[0]: found})
        return
    samples = f"{found['samples']} samples of {found['seeds']}"
    click.echo(f"{profile.model}, weights {found['weights'][:12]}, {samples}, full cache, {found['seconds']} s")
    if found["weights"].startswith("random:"):
        click.echo("These weights are random: the figures say nothing about a trained model.")
    _similarity(found, set(profile.demanding))
    _attention(found)
    click.echo(f"theta = {profile.theta}, c_min = {profile.c_min}, c_max = {profile.c_max}: demanding = {list(profile.demanding)}")


def _similarity(found: dict[str, Any], demanding: set[int]) -> None:
    """S by layer and scale; a star marks a demanding layer."""
    click.echo("\nInter-scale similarity S of the keys (0: equal; smaller: less alike), by layer and scale")
    click.echo("layer " + "".join(f"{side:>9}" for side in found["scales"][1:]))
    for layer, row in enumerate(found["similarity"]):
        click.echo(f"{layer:4}{'*' if layer in demanding else ' '} " + "".join(f"{s:9.4f}" for s in row))


def _attention(found: dict[str, Any]) -> None:
    """Attention of the last scale's queries by layer and scale, as density: the share per key, relative to an even spread."""
    sizes = [side**2 for side in found["scales"]]
    click.echo("\nAttention density of the last scale's queries: their share of attention per key of each scale, 1 = evenly spread")
    click.echo("layer " + "".join(f"{side:>9}" for side in found["scales"]))
    for layer, scales in enumerate(found["mass"]):
        click.echo(f"{layer:4}  " + "".join(f"{share / size * sum(sizes):9.2f}" for share, size in zip(scales[-1], sizes, strict=True)))
    click.echo("")
