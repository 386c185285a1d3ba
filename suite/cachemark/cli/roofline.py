"""``cachemark roofline``: what the arithmetic says before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import echo_json, json_option

if TYPE_CHECKING:
    from ..cache.geometry import Layout

DTYPES = ("float32", "bfloat16", "float16")


@click.command()
@click.argument("model")
@click.option("--kv", is_flag=True, required=True, help="Bytes of keys and values of every method.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Images at once; guidance doubles the rows.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float16", show_default=True, help="Of K and of V.")
@click.option("--demanding", type=click.IntRange(min=0), help="Layers of ams_kv with the larger budget.  [default: a sixth of them]")
@json_option
def roofline(model: str, kv: bool, batch: int, dtype: str, demanding: int | None, as_json: bool) -> None:
    """Print the KV bytes of every method on MODEL: at equal dtype, as AMS-KV's published code would hold them, and which of the
    figures printed by AMS-KV follow."""
    import torch

    from ..errors import Unsupported
    from ..measure.plan import catalogue, methods, registry

    assert catalogue is not methods  # importing them registers models and methods
    entry: Any = registry.models.get(model)
    if entry.paradigm != "next-scale":
        raise Unsupported(f"{model} is a {entry.paradigm} model.", remedy="--kv is for next-scale models, such as var-d30.")
    layout: Layout = entry.shape(entry.presets["paper"], batch)
    count = min(layout.layers // 6 if demanding is None else demanding, layout.layers)
    rows = _methods(layout, count, getattr(torch, dtype))
    claims = _claims(model, entry)
    if as_json:
        echo_json({"model": model, "batch": batch, "dtype": dtype, "demanding": count, "methods": rows, "published": claims})
        return
    click.echo(f"{model}, batch {batch}: {layout.rows} rows × {layout.layers} layers, scales {' '.join(map(str, layout.scales))}")
    click.echo(f"{'':32}{'entries/layer':>14}{'bytes':>17}{'GiB':>9}{'1000 MiB':>10}{'share':>8}{'of full':>9}{'as published':>14}")
    for row in rows:
        click.echo(f"{row['method']:32}{row['entries_per_layer']:14.1f}{row['bytes']:17,}{row['gib']:9.3f}{row['paper_unit']:10.3f}"
                   f"{row['share']:8.1%}{row['share_of_full']:9.1%}{row['published_unit']:14.3f}")
    click.echo(f"Bytes with K and V in {dtype}. Share: of the cache that keeps the last scale, as the published code does; of full: of "
               "what later passes read. As published: in 1000 MiB, which AMS-KV prints as GB, with K in fp32 and V in 16 bit.")
    for claim in claims:
        click.echo(f"{claim['table']}, batch {claim['batch']}, {claim['method']} {claim['printed']}: {claim['finding']}")


def _methods(layout: Layout, count: int, dtype: Any) -> list[dict[str, Any]]:
    """Every method that runs on the layout, ams_kv with ``count`` demanding layers and its rivals at the same bytes."""
    from ..cache.method import Evicting
    from ..measure.plan import registry
    from ..methods.ams_kv import AMSKV
    from ..methods.full import Full
    from ..metrics.kv import MIXED, PAPER_UNIT, entries, equal_widths, nbytes

    ours = AMSKV(demanding=tuple(range(count)))
    share = entries(ours, layout) // layout.layers
    built = {"full, last scale kept": Full(store_last=True), "full": Full(), f"ams_kv, {count} demanding layers": ours}
    for name in registry.methods:
        cls = registry.methods.get(name)
        if layout.paradigm in cls.paradigms and cls not in (Full, AMSKV):
            evicts = issubclass(cls, Evicting)
            built[f"{name}, B = {share}" if evicts else name] = cls(B=share) if evicts else cls()
    everything, read, widths = layout.layers * layout.visual, layout.layers * layout.cacheable, equal_widths(dtype)

    def row(name: str, held: int) -> dict[str, Any]:
        size, mixed = nbytes(layout, held, widths), nbytes(layout, held, MIXED)
        return {"method": name, "entries_per_layer": held / layout.layers, "bytes": size, "gib": size / 2**30,
                "paper_unit": size / PAPER_UNIT, "share": held / everything, "share_of_full": held / read,
                "published_unit": mixed / PAPER_UNIT}

    return [row(name, entries(method, layout)) for name, method in built.items()]


def _claims(model: str, entry: Any) -> list[dict[str, Any]]:
    """Each printed figure with whether it follows."""
    from ..methods.full import Full
    from ..metrics.kv import MIXED, entries, nbytes, published

    claims = []
    for figure in published(model):
        layout = entry.shape(entry.presets["paper"], figure.batch)
        if figure.method == "full":
            size = nbytes(layout, entries(Full(store_last=True), layout), MIXED)
            verdict = "reproduced" if figure.agrees(size) else "not reproduced"
            finding = f"{verdict}: {size:,} bytes with K in fp32, V in 16 bit, all scales kept"
        else:
            finding = "; ".join(_counted(figure, layout, widths, said) for widths, said in ((MIXED, "K in fp32"), ((2, 2), "K in 16 bit")))
        claims.append({"table": figure.table, "batch": figure.batch, "method": figure.method, "printed": figure.printed,
                       "finding": finding})
    return claims


def _counted(figure: Any, layout: Layout, widths: tuple[int, int], said: str) -> str:
    """How many demanding layers a printed size of AMS-KV would be under its own policy (C_max and C_min of every layer taken
    literally), and what the nearest whole number of them gives."""
    from ..methods.ams_kv import AMSKV
    from ..metrics.kv import PAPER_UNIT, nbytes

    policy = AMSKV(demanding=())
    policy.resolve(layout)
    most, least, layers = policy.c_max, policy.c_min, layout.layers
    exact = (figure.entries(layout, widths) - layers * least) / (most - least)
    nearest = min(max(round(exact), 0), layers)
    size = nbytes(layout, layers * least + nearest * (most - least), widths)
    if figure.agrees(size):
        return f"reproduced with {said} and {nearest} demanding layers"
    possible = f"{exact:.2f} demanding layers" if 0 <= exact <= layers else f"no number of demanding layers ({exact:.2f})"
    return f"not reproduced with {said}: it would be {possible}; {nearest} give {size / PAPER_UNIT:.3f}"
