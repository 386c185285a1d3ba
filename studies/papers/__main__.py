"""``python -m studies.papers``: published sizes and speedups of a model, compared with computed ones."""

from __future__ import annotations

import json
from typing import Any

import click

from cachemark.core.files import PACKAGE
from tools.command import run_command

DTYPES = ("float32", "bfloat16", "float16")


@click.group()
def papers() -> None:
    """Compare published sizes and speedups with arithmetic, and with measurements of a store."""


@papers.command()
@click.argument("model")
@click.option("--batch", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Images per batch.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float16", show_default=True, help="Data type of K and V.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sizes(model: str, batch: int, dtype: str, as_json: bool) -> None:
    """Print KV bytes of every method on a next-scale MODEL, and which published sizes are reproduced."""
    from .method_sizes import sizes as computed

    data: dict[str, Any] = computed(model, batch, dtype)
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    click.echo(f"{model}, batch {batch}: {data['rows']} rows × {data['layers']} layers, scales {' '.join(map(str, data['scales']))}")
    click.echo(f"{'':32}{'entries/layer':>14}{'bytes':>17}{'GiB':>9}{'1000 MiB':>10}{'share':>8}{'of full':>9}{'as published':>14}")
    for row in data["methods"]:
        click.echo(f"{row['method']:32}{row['entries_per_layer']:14.1f}{row['bytes']:17,}{row['gib']:9.3f}{row['paper_unit']:10.3f}"
                   f"{row['share']:8.1%}{row['share_of_full']:9.1%}{row['published_unit']:14.3f}")
    click.echo(f"Bytes with K and V in {dtype}. Share: of the cache that keeps the last scale, as the published code does; of full: of "
               "what later passes read. As published: in 1000 MiB, which AMS-KV prints as GB, with K in fp32 and V in 16 bit.")
    for claim in data["published"]:
        _print_size_claim(claim, dtype)


def _print_size_claim(claim: dict[str, Any], dtype: str) -> None:
    batch = f"batch {claim['batch']}" if claim["batch"] else "no batch printed"
    row, ours = " ".join(filter(None, (claim["method"], claim["budget"], claim["printed"], claim["unit"]))), claim["allocated"]
    click.echo(f"{claim['paper']}, {claim['table']}, {batch}, {row}: {claim['finding']}")
    click.echo(f"  here {ours['method']} allocates {ours['entries_per_layer']:.1f} entries a layer, {ours['bytes']:,} bytes for "
               f"{ours['images']} image{'s' if ours['images'] > 1 else ''} in {dtype}: {ours['in_unit']:.3f} in {claim['means']}, "
               f"{ours['published_in_unit']:.3f} with K in fp32, V in 16 bit")


@papers.command()
@click.argument("model")
@click.option("--method", "methods", multiple=True, help="A method; repeatable.  [default: all]")
@click.option("--budget", "budgets", multiple=True, help="A fraction of the full cache, or `own`; repeatable.  [default: all]")
@click.option("--batch", "batches", type=click.IntRange(1, 1_000_000), multiple=True, help="Images per batch; repeatable.  [default: all]")
@click.option("--gpu", default="h200", show_default=True, help="Also compute roofline times of this GPU in 16 bit.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Data type of weights, K and V.")
@click.option("--store", help="File or URL of a store with measurements to print.  [default: none]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def speeds(
    model: str, methods: tuple[str, ...], budgets: tuple[str, ...], batches: tuple[int, ...], gpu: str, dtype: str, store: str | None,
    as_json: bool,
) -> None:
    """Print published speedups of MODEL with the bounds on their GPU and on another one, and with measurements."""
    from cachemark.workflows.roofline import device_rates

    from .speed_claims import speed_claims

    rates = device_rates(gpu, dtype)
    claims = speed_claims(model, rates, methods=methods, budgets=budgets, batches=batches, dtype=dtype, store=store)
    if as_json:
        click.echo(json.dumps({"model": model, "dtype": dtype, "device": rates.device, "published": [vars(claim) for claim in claims]},
                              indent=1))
        return
    columns = ("published", "least there", "least on this", "measured")
    click.echo(f"{'':58}{'batch':>6}" + "".join(f"{column:>20}" for column in columns))
    for claim in claims:
        pairs = ((claim.seconds, claim.speedup), (claim.roofline_there, claim.speedup_bound_there),
                 (claim.roofline_here, claim.speedup_bound_here), (claim.measured, claim.measured_speedup))
        batch = f"{claim.batch}{'' if claim.batch_stated else '*'}"
        click.echo(f"{f'{claim.table}: {claim.row}':58}{batch:>6}" + "".join(f"{_pair(*pair):>20}" for pair in pairs))
        if claim.remark:
            click.echo(f"  {claim.mark}: {claim.remark}")
    for claim in {claim.table: claim for claim in claims}.values():
        where = claim.hardware if claim.hardware != "not stated" else f"hardware that is not stated, as on {claim.gpu}"
        click.echo(f"{claim.table}: on {where}; their full cache: {claim.baseline}.")
        for note in claim.notes:
            click.echo(f"  {note}")
    machines = ", ".join(dict.fromkeys(claim.machine for claim in claims if claim.machine))
    measured = f"in the newest run that has it, with its full cache if any has, on {machines}" if machines else "not in the store"
    click.echo(f"Time per image, speedup over the paper's full cache. This: {rates.device}. Measured: {measured}. *: no batch is stated.")


@papers.command()
@click.argument("method")
def fids(method: str) -> None:
    """Print the FIDs that papers report for METHOD, of 50,000 ImageNet images unless the settings say otherwise."""
    for claim in published_fids():
        if claim["method"] == method:
            settings = f" ({claim['config']})" if claim["config"] else ""
            click.echo(f"{claim['model']:20}{claim['fid']:>8}  {claim['paper']}, {claim['table']}{settings}")


def published_fids() -> list[dict[str, str]]:
    """Return published FIDs as printed: paper, table, model, method, config, fid."""
    return list(json.loads((PACKAGE / "data" / "published" / "quality.json").read_text(encoding="utf-8"))["records"])


def _pair(seconds: float | None, speedup: float | None) -> str:
    time = "–" if seconds is None else f"{seconds:.3f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
    return f"{time} {f'{speedup:.2f}×' if speedup else '–':>7}"


if __name__ == "__main__":
    run_command(papers)
