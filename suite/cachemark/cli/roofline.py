"""``cachemark roofline``: bounds by arithmetic, before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..core.errors import BadStore
from ..core.wording import count, printed
from .options import Finite, echo_json, json_option, refuse_together, store_option

if TYPE_CHECKING:
    from ..contract.decoder import Decoder
    from ..core.limits import Rates
    from ..workflows.least_times import LeastTime
    from ..workflows.pass_costs import PassCost
    from ..workflows.published_claims import SpeedClaim

DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_GPU = "h200"
_UNUSED = {"--kv": ("--method", "--budget", "--gpu", "--here", "--steps", "--decoder", "--tokens-per-pass", "--apart", "--store")}


@click.command()
@click.argument("model")
@click.option("--method", "methods", multiple=True, help="A method; repeatable.  [default: those of the model's family]")
@click.option("--budget", "budgets", multiple=True, help="A share of the full cache, or `own`; repeatable.  [default: the family's]")
@click.option("--batch", "batches", type=click.IntRange(1, 1_000_000), multiple=True, default=[1], show_default=True,
              help="Images per batch (guidance doubles the rows); repeatable.")
@click.option("--gpu", help=f"Rates of this GPU in 16 bit: a800, a100, h100, h200, h20, 3090.  [default: {DEFAULT_GPU}]")
@click.option("--here", is_flag=True, help="Measure the rates of this machine instead.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Data type of weights, K and V.  [default: bfloat16; float16 with --kv]")
@click.option("--steps", type=click.IntRange(1, 10_000), help="Passes of a masked model.  [default: its paper's]")
@click.option("--demanding", type=click.IntRange(0, 10_000), help="Layers of ams_kv with the larger budget.  [default: a sixth of them]")
@click.option("--decoder", help="Price passes of a decoder too, such as jacobi=16 for 16 tokens a pass; "
              "jacobi=16,look_ahead goes on past the end of a line.")
@click.option("--tokens-per-pass", type=Finite(1, 1024), help="Tokens that the decoder keeps of a pass; no arithmetic tells.")
@click.option("--apart", is_flag=True, help="Charge activations as separate operations: stricter, but fused kernels may beat it.")
@click.option("--kv", is_flag=True, help="Print bytes of keys and values of every method instead, for a next-scale model.")
@store_option
@json_option
@click.pass_context
def roofline(
    context: click.Context, model: str, methods: tuple[str, ...], budgets: tuple[str, ...], batches: tuple[int, ...], gpu: str | None,
    here: bool, dtype: str | None, steps: int | None, demanding: int | None, decoder: str | None, tokens_per_pass: float | None,
    apart: bool, kv: bool, store_url: str, as_json: bool,
) -> None:
    """Print lower bounds on the time and memory of a model.

    For each method on a device: the least time by part, and the speedup that it allows. No operation is faster than its bytes at the copy
    rate or its FLOPs at the matmul rate; measured times lie above that least time. Published speed-ups of the model follow, of the methods,
    budgets and batches that are named: beside what their GPU allows and this one, and beside what the store has measured of them. With
    --kv: bytes of keys and values of every method, at equal dtype and as published code would hold them, which of the sizes that papers
    print of the model follow, from which accounting, and what ours allocates there.
    """
    refuse_together(_UNUSED)
    if kv:
        if len(batches) > 1:
            raise click.UsageError(f"--kv prints the sizes of one batch, and {len(batches)} were given. Give --batch once.")
        _print_sizes(model, batches[0], dtype or "float16", demanding, as_json)
        return
    from ..workflows.least_times import device_rates, least_times
    from ..workflows.pass_costs import pass_costs

    drawing = _decoder(decoder, tokens_per_pass)
    if gpu and here:
        raise click.UsageError("--gpu and --here cannot be combined.")
    width = dtype or "bfloat16"
    rates = device_rates(None if here else DEFAULT_GPU if gpu is None else gpu, width)
    found = least_times(model, rates, methods=methods, budgets=budgets, batches=batches, dtype=width, steps=steps or 0, demanding=demanding,
                   apart=apart)
    priced = pass_costs(model, rates, drawing, methods=methods, budgets=budgets, batches=batches, dtype=width,
                        tokens=tokens_per_pass) if drawing else []
    named = batches if context.get_parameter_source("batches") is ParameterSource.COMMANDLINE else ()
    given = context.get_parameter_source("store_url") is not ParameterSource.DEFAULT
    claims = _claims(store_url, given, model, rates, methods=methods, budgets=budgets, batches=named, dtype=width)
    if as_json:
        echo_json({"model": model, "dtype": width, "device": rates.device, "copy": rates.copy, "matmul": rates.matmul,
                   "least_times": [_json(line) for line in found], **({"passes": [_json(line) for line in priced]} if priced else {}),
                   "published": [vars(claim) for claim in claims]})
        return
    click.echo(f"{model}, {width}, {rates.device}: copy {rates.copy / 1e9:,.0f} GB/s, matmul {rates.matmul / 1e12:,.3g} TFLOP/s")
    for line in _table(found):
        click.echo(line)
    click.echo("Parts: milliseconds per pass. Ideal: the speed-up over the full cache at equal batch that bytes and FLOPs allow.")
    for line in (*_passes(priced), *_published(claims, rates.device)):
        click.echo(line)


def _decoder(given: str | None, tokens: float | None) -> Decoder | None:
    """The decoder that was named, and which can keep so many ``tokens`` of a pass."""
    from ..workflows.pass_costs import decoder_of

    if given is None:
        if tokens is not None:
            raise click.UsageError("--tokens-per-pass needs --decoder.")
        return None
    found = decoder_of(given)
    if tokens is not None and tokens > found.reach:
        raise click.UsageError(f"--tokens-per-pass {tokens:g}: a pass of --decoder {printed(given)} draws {count(found.reach, 'token')}, "
                               f"so it keeps no more. Give 1 … {found.reach}, or a larger window.")
    return found


def _claims(store: str, given: bool, model: str, rates: Rates, **asked: Any) -> list[SpeedClaim]:
    """The published claims. A store that nobody has asked for and that cannot be read is no reason to withhold arithmetic."""
    from ..workflows.published_claims import speed_claims

    try:
        return speed_claims(model, rates, store=store, **asked)
    except BadStore as error:
        if given:
            raise
        click.echo(f"Nothing measured is shown: {' '.join(str(error).split())}", err=True)
        return speed_claims(model, rates, **asked)


def _json(line: LeastTime | PassCost) -> dict[str, Any]:
    """A line under the names that readers of the JSON know."""
    return {"unmet" if name == "unsupported_reason" else name: value for name, value in vars(line).items()}


def _table(found: list[LeastTime]) -> list[str]:
    """Lines of text; columns of the parts that occur."""
    parts = list(dict.fromkeys(part for one in found for part in one.parts or {}))
    widths = [max(len(part), 8) + 2 for part in parts]
    heads = "".join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
    lines = [f"{'':22}{'batch':>6}{'image':>10}{'images/s':>10}{'ideal':>8}{'attended':>10}{'GB/pass':>9}{'TFLOP':>8}{heads}"]
    for one in found:
        name = one.method if one.method == "full" else f"{one.method} {one.budget}"
        if one.unsupported_reason:
            lines.append(f"{name:22}{one.batch:6d}  {one.unsupported_reason}")
            continue
        assert one.parts is not None
        assert one.nbytes is not None
        image, seen = one.seconds / one.batch, f"{one.attended:.1f}" if one.attended else ""
        shown = "".join(f"{1e3 * one.parts.get(part, 0) / one.passes:{width}.3f}" for part, width in zip(parts, widths, strict=True))
        lines.append(f"{name:22}{one.batch:6d}{_seconds(image):>10}{1 / image:10.2f}{one.speed_up:7.2f}×{seen:>10}"
                     f"{sum(one.nbytes.values()) / one.passes / 1e9:9.3f}{one.flops / one.batch / 1e12:8.3g}{shown}")
    return lines


def _passes(priced: list[PassCost]) -> list[str]:
    """Lines of text about the passes of a decoder; none without one."""
    lines = [f"{'':36}{'batch':>6}{'a pass costs':>14}{'gain':>10}"] if priced else []
    for line in priced:
        name = f"{line.method if line.method == 'full' else f'{line.method} {line.budget}'} + {line.decoder}"
        gain = "–" if line.speed_up is None else f"{line.speed_up:.2f}×"
        lines.append(f"{name:36}{line.batch:6d}  " + (line.unsupported_reason or f"{line.cost:12.2f}{gain:>10}"))
    if priced:
        lines.append("A pass costs: in least times of a pass of one token, so a decoder that keeps fewer tokens of it loses. Gain: over "
                     "the full cache, one token a pass, at --tokens-per-pass.")
    return lines


def _published(claims: list[SpeedClaim], device: str) -> list[str]:
    """Lines of text about published speed-ups; none without one."""
    if not claims:
        return []
    columns = ("published", "least there", "least on this", "measured")
    lines = ["", f"{'':58}{'batch':>6}" + "".join(f"{column:>20}" for column in columns)]
    for claim in claims:
        shown = ((claim.seconds, claim.speed_up), (claim.least_there, claim.ideal_there), (claim.least_here, claim.ideal_here),
                 (claim.measured, claim.measured_speed_up))
        batch = f"{claim.batch}{'' if claim.batch_stated else '*'}"
        lines.append(f"{f'{claim.table}: {claim.row}':58}{batch:>6}" + "".join(f"{_pair(*pair):>20}" for pair in shown))
        lines += [f"  {claim.mark}: {claim.remark}"] if claim.remark else []
    for one in {claim.table: claim for claim in claims}.values():
        where = one.hardware if one.hardware != "not stated" else f"hardware that is not stated, as on {one.gpu}"
        lines.append(f"{one.table}: on {where}; their full cache: {one.baseline}.")
        lines += [f"  {note}" for note in one.notes]
    machines = ", ".join(dict.fromkeys(claim.machine for claim in claims if claim.machine))
    measured = f"in the newest run that has it, with its full cache if any has, on {machines}" if machines else "not in the store"
    return [*lines, f"Time of an image, speed-up over the paper's full cache. This: {device}. Measured: {measured}. *: no batch is stated."]


def _pair(seconds: float | None, speed_up: float | None) -> str:
    return f"{_seconds(seconds) if seconds else '–'} {f'{speed_up:.2f}×' if speed_up else '–':>7}"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 1 else f"{1e3 * value:.2f} ms"


def _print_sizes(model: str, batch: int, dtype: str, demanding: int | None, as_json: bool) -> None:
    from ..workflows.kv_sizes import sizes

    data: dict[str, Any] = sizes(model, batch, dtype, demanding)
    if as_json:
        echo_json(data)
        return
    click.echo(f"{model}, batch {batch}: {data['rows']} rows × {data['layers']} layers, scales {' '.join(map(str, data['scales']))}")
    click.echo(f"{'':32}{'entries/layer':>14}{'bytes':>17}{'GiB':>9}{'1000 MiB':>10}{'share':>8}{'of full':>9}{'as published':>14}")
    for row in data["methods"]:
        click.echo(f"{row['method']:32}{row['entries_per_layer']:14.1f}{row['bytes']:17,}{row['gib']:9.3f}{row['paper_unit']:10.3f}"
                   f"{row['share']:8.1%}{row['share_of_full']:9.1%}{row['published_unit']:14.3f}")
    click.echo(f"Bytes with K and V in {dtype}. Share: of the cache that keeps the last scale, as the published code does; of full: of "
               "what later passes read. As published: in 1000 MiB, which AMS-KV prints as GB, with K in fp32 and V in 16 bit.")
    for claim in data["published"]:
        printed_for = f"batch {claim['batch']}" if claim["batch"] else "no batch printed"
        row, ours = " ".join(filter(None, (claim["method"], claim["budget"], claim["printed"], claim["unit"]))), claim["allocated"]
        click.echo(f"{claim['paper']}, {claim['table']}, {printed_for}, {row}: {claim['finding']}")
        click.echo(f"  here {ours['method']} allocates {ours['entries_per_layer']:.1f} entries a layer, {ours['bytes']:,} bytes for "
                   f"{ours['images']} image{'s' if ours['images'] > 1 else ''} in {dtype}: {ours['in_unit']:.3f} in {claim['means']}, "
                   f"{ours['published_in_unit']:.3f} with K in fp32, V in 16 bit")
