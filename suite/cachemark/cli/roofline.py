"""``cachemark roofline``: bounds by arithmetic, before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core.wording import count, printed
from .options import Finite, echo_json, json_option

if TYPE_CHECKING:
    from ..contract.decoder import Decoder
    from ..workflows.roofline import PassCost, RooflineTime

DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_GPU = "h200"


@click.command()
@click.argument("model")
@click.option("--method", "methods", multiple=True, help="Method; repeatable.  [default: those of the model's family]")
@click.option("--budget", "budgets", multiple=True, help="Fraction of the full cache, or `own`; repeatable.  [default: the family's]")
@click.option("--batch", "batches", type=click.IntRange(1, 1_000_000), multiple=True, default=[1], show_default=True,
              help="Images per batch (guidance doubles the rows); repeatable.")
@click.option("--gpu", help=f"Rates of this GPU in 16 bit: a800, a100, h100, h200, h20, 3090.  [default: {DEFAULT_GPU}]")
@click.option("--here", is_flag=True, help="Measure the rates of this machine instead.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Data type of weights, K and V.")
@click.option("--steps", type=click.IntRange(1, 10_000), help="Steps of a masked model.  [default: those of its paper]")
@click.option("--demanding", type=click.IntRange(0, 10_000), help="Layers of ams_kv with the larger budget.  [default: a sixth of them]")
@click.option("--decoder", help="Also price passes of a decoder, e.g. jacobi=16 (tokens per pass) or jacobi=16,look_ahead.")
@click.option("--tokens-per-pass", type=Finite(1, 1024), help="Accepted tokens per pass (measure this; it cannot be computed).")
@click.option("--apart", is_flag=True, help="Charge activations as separate operations; fused kernels may beat this bound.")
@json_option
def roofline(
    model: str, methods: tuple[str, ...], budgets: tuple[str, ...], batches: tuple[int, ...], gpu: str | None,
    here: bool, dtype: str, steps: int | None, demanding: int | None, decoder: str | None, tokens_per_pass: float | None,
    apart: bool, as_json: bool,
) -> None:
    """Print lower bounds on the time and memory of a model.

    For each method on a device: the roofline time by part, and the speedup that it allows. No operation is faster than its bytes at the
    bandwidth or its FLOPs at the peak FLOP/s; measured times lie above the roofline time.
    """
    from ..workflows.roofline import device_rates, pass_costs, roofline_times

    drawing = _decoder(decoder, tokens_per_pass)
    if gpu and here:
        raise click.UsageError("--gpu and --here cannot be combined.")
    rates = device_rates(None if here else DEFAULT_GPU if gpu is None else gpu, dtype)
    common: dict[str, Any] = {"methods": methods, "budgets": budgets, "batches": batches, "dtype": dtype}
    rows = roofline_times(model, rates, steps=steps or 0, demanding=demanding, apart=apart, **common)
    priced = pass_costs(model, rates, drawing, tokens=tokens_per_pass, **common) if drawing else []
    if as_json:
        echo_json({"model": model, "dtype": dtype, "device": rates.device, "bandwidth": rates.bandwidth, "peak_flops": rates.peak_flops,
                   "roofline_times": [_json(line) for line in rows], **({"passes": [_json(line) for line in priced]} if priced else {})})
        return
    click.echo(f"{model}, {dtype}, {rates.device}: {rates.bandwidth / 1e9:,.0f} GB/s, {rates.peak_flops / 1e12:,.3g} TFLOP/s")
    for line in _table(rows):
        click.echo(line)
    click.echo("Parts: milliseconds per pass. Ideal: the speedup over the full cache at equal batch that bytes and FLOPs allow.")
    for line in _passes(priced):
        click.echo(line)


def _decoder(name: str | None, tokens: float | None) -> Decoder | None:
    """Parse the decoder, whose window must hold the ``tokens`` that it keeps per pass."""
    from ..workflows.roofline import parse_decoder

    if name is None:
        if tokens is not None:
            raise click.UsageError("--tokens-per-pass needs --decoder.")
        return None
    decoder = parse_decoder(name)
    if tokens is not None and tokens > decoder.reach:
        raise click.UsageError(f"--tokens-per-pass {tokens:g}: a pass of --decoder {printed(name)} draws {count(decoder.reach, 'token')}, "
                               f"so it keeps no more. Use 1 … {decoder.reach}, or a larger window.")
    return decoder


def _json(line: RooflineTime | PassCost) -> dict[str, Any]:
    """Return a row under the names of the JSON output."""
    return {"unmet" if name == "unsupported_reason" else name: value for name, value in vars(line).items()}


def _table(rows: list[RooflineTime]) -> list[str]:
    """Lines of text; columns of the parts that occur."""
    parts = list(dict.fromkeys(part for row in rows for part in row.parts or {}))
    widths = [max(len(part), 8) + 2 for part in parts]
    heads = "".join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
    lines = [f"{'':22}{'batch':>6}{'image':>10}{'images/s':>10}{'ideal':>8}{'attended':>10}{'GB/pass':>9}{'TFLOP':>8}{heads}"]
    for row in rows:
        name = row.method if row.method == "full" else f"{row.method} {row.budget}"
        if row.unsupported_reason:
            lines.append(f"{name:22}{row.batch:6d}  {row.unsupported_reason}")
            continue
        assert row.parts is not None
        assert row.nbytes is not None
        image, attended = row.seconds / row.batch, f"{row.attended:.1f}" if row.attended else ""
        cells = "".join(f"{1e3 * row.parts.get(part, 0) / row.passes:{width}.3f}" for part, width in zip(parts, widths, strict=True))
        lines.append(f"{name:22}{row.batch:6d}{_seconds(image):>10}{1 / image:10.2f}{row.speedup:7.2f}×{attended:>10}"
                     f"{sum(row.nbytes.values()) / row.passes / 1e9:9.3f}{row.flops / row.batch / 1e12:8.3g}{cells}")
    return lines


def _passes(priced: list[PassCost]) -> list[str]:
    """Lines of text about the passes of a decoder; none without one."""
    lines = [f"{'':36}{'batch':>6}{'a pass costs':>14}{'gain':>10}"] if priced else []
    for line in priced:
        name = f"{line.method if line.method == 'full' else f'{line.method} {line.budget}'} + {line.decoder}"
        gain = "–" if line.speedup is None else f"{line.speedup:.2f}×"
        lines.append(f"{name:36}{line.batch:6d}  " + (line.unsupported_reason or f"{line.cost:12.2f}{gain:>10}"))
    if priced:
        lines.append("A pass costs: in roofline times of a pass of one token, so a decoder that keeps fewer tokens of it loses. Gain: over "
                     "the full cache, one token a pass, at --tokens-per-pass.")
    return lines


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{1e3 * value:.2f} ms"
