"""``cachemark advise`` and ``roofline``: which cache to use, and bounds by arithmetic."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from .cards import CARDS, card_options
from .endings import runnable
from .options import Finite, Integer, echo_json, json_option, plugin_option, price_option, say, size, store_option, thousand

if TYPE_CHECKING:
    from ..workflows.advise import Advice, AdvisedMethod
    from ..workflows.roofline import PassCost, RooflineTime

DEFAULT_GPU = "h200"


# -- advise -----------------------------------------------------------------------------------------------------------
@click.command()
@click.option("--model", required=True, help="A model; see `cachemark list models`.")
@card_options(f"The device: {CARDS}, custom, or cpu.", required=True)
@click.option("--batch", type=Integer(1, 4096), default=1, show_default=True, help="Images per batch.")
@click.option("--memory", callback=size, metavar="SIZE", help="Memory limit, e.g. 24GiB.  [default: all GPU memory]")
@click.option("--max-loss", type=Finite(0, 1, min_open=True, max_open=True),
              help="Maximum quality loss, e.g. 0.01.  [default: 5 points of color consistency or prompt score, 10 % of FID]")
@plugin_option
@store_option
@json_option
def advise(
    model: str, card: str, batch: int, memory: int, max_loss: float | None, plugins: tuple[str, ...], store: str, as_json: bool,
) -> None:
    """Recommend a cache method and budget for a model on a device.

    A method is recommended if its images are non-inferior to the full cache's and it is faster, or if the full cache does not
    fit. Speedups are measured where the store has them, else predicted: the roofline times the efficiency measured on that device at
    another batch. Fidelity alone recommends nothing.
    """
    from ..workflows.advise import Wishes, advise as answer

    advice = answer(Wishes(model, card, batch, memory, max_loss), store, plugins=plugins)
    device = "--here" if card == "cpu" else _card(card)
    where = "" if card == "cpu" else " --device cuda"
    commands = [
        f"cachemark roofline {shlex.quote(model)} {device} --batch {batch}",
        runnable(f"cachemark run {shlex.quote(advice.plan or 'PLAN')}{where}"),
    ] if advice.measure else []
    if as_json:
        echo_json({**vars(advice), "commands": commands})
    else:
        _print_advice(advice, commands)


def _card(name: str) -> str:
    """Return a card as options of the command line."""
    label, *rates = name.split(":")
    return f"--card {label}" + (f" --bandwidth {float(rates[0]) / 1e9:g}GB/s --flops {float(rates[1]) / 1e12:g}TFLOP/s" if rates else "")


def _print_advice(advice: Advice, commands: list[str]) -> None:
    say(advice.text)
    for number, line in enumerate(advice.ranked, 1):
        say(f"{number:3}. {_described(line)}")
    if advice.not_recommended:
        say("Not recommended:")
    for line in advice.not_recommended:
        say(f"  – {_described(line)}")
        say(f"    {line.why_not}")
    if advice.seeds:
        say(advice.seeds)
    if commands:
        say("To see the bounds, and to measure:" if advice.plan else "To see the bounds, and to measure (PLAN: a plan of the model):")
    for command in commands:
        say(f"  {command}")


def _described(line: AdvisedMethod) -> str:
    ends = f" ({line.low:.2f}–{line.high:.2f})" if line.low is not None and line.high is not None else ""
    why = f"no measured speedup: {line.no_speedup}" if line.no_speedup else "nothing measured here"
    gain = f"at most {line.allowed:.2f}×, {why}" if line.basis == "bound" else (
        f"{line.gain:.2f}×{ends}, {line.basis}; allowed {line.allowed:.2f}×")
    saving = "" if line.saving is None else f", saves {line.saving:.0%}"
    return f"{line.name}: {gain}{saving}; {line.quality_text}"


# -- roofline ---------------------------------------------------------------------------------------------------------
@click.command()
@click.argument("model")
@click.option("--method", "methods", multiple=True, help="Method; repeatable.  [default: the usual methods of the model's family]")
@click.option("--budget", "budgets", multiple=True, help="Fraction of the full cache, or `own`; repeatable.  [default: the family's]")
@click.option("--batch", "batches", type=Integer(1, 1_000_000), multiple=True, default=[1], show_default=True,
              help="Images per batch (guidance doubles the rows); repeatable.")
@card_options(f"Rates of this card in 16 bit: {CARDS}, or custom.  [default: {DEFAULT_GPU}]")
@click.option("--here", is_flag=True, help="Measure the rates of this machine instead.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16", show_default=True,
              help="Data type of weights, K and V.")
@click.option("--steps", type=Integer(0, 10_000), default=0, help="Steps of a masked model.  [default: as in its paper]")
@click.option("--decoder", help="Also bound a parallel decoder, e.g. jacobi=16 (tokens per pass) or jacobi=16,look_ahead.")
@click.option("--tokens-per-pass", type=Finite(1, 1024), help="Accepted tokens per pass (measure this; it cannot be computed).")
@price_option
@json_option
def roofline(
    model: str, card: str | None, here: bool, steps: int, decoder: str | None, tokens_per_pass: float | None, price: float, as_json: bool,
    **grid: Any,
) -> None:
    """Print lower bounds on the time and memory of a model.

    For each method on a device: the roofline time by part, and the speedup that it allows. No operation is faster than its bytes at the
    bandwidth or its FLOPs at the peak FLOP/s; measured times are above the roofline time.
    """
    from ..workflows.roofline import device_rates, drafter_share, likely_times, parse_decoder, pass_costs, roofline_times

    if card and here:
        raise click.UsageError("--card and --here cannot be combined. Leave one out.")
    if decoder is None and tokens_per_pass is not None:
        raise click.UsageError("--tokens-per-pass needs --decoder.")
    parallel = None if decoder is None else parse_decoder(decoder)
    if parallel and parallel.scheduled and tokens_per_pass is not None:
        raise click.UsageError(f"--tokens-per-pass does not apply to --decoder {decoder}, whose passes are known. Leave it out.")
    if parallel and tokens_per_pass and tokens_per_pass > parallel.reach:
        raise click.UsageError(f"--tokens-per-pass {tokens_per_pass:g} exceeds the window of --decoder {decoder}. "
                               f"Use 1 … {parallel.reach}, or a larger window.")
    dtype = grid["dtype"]
    rates = device_rates(None if here else DEFAULT_GPU if card is None else card, dtype)
    rows = roofline_times(model, rates, steps=steps, **grid)
    costs = pass_costs(model, rates, parallel, tokens=tokens_per_pass, **grid) if parallel else []
    share = drafter_share(model)
    if as_json:
        echo_json({"model": model, "dtype": dtype, "device": rates.device, "bandwidth": rates.bandwidth, "peak_flops": rates.peak_flops,
                   "roofline_times": rows, "likely": [] if here else likely_times(model, rows),
                   **({} if share is None else {"flops_of_drafter": share}), **({"passes": costs} if costs else {})})
        return
    say(f"{model}, {dtype}, {rates.device}: {rates.bandwidth / 1e9:,.0f} GB/s, {rates.peak_flops / 1e12:,.3g} TFLOP/s")
    if share is not None:
        say(f"FLOPs of an image without its decoding: {share:.3f} of the drafter's alone. Methods run on one of the two models.")
    _print_times(rows)
    for likely in [] if here else likely_times(model, rows):
        say(f"Likely at batch {likely.batch}: {likely.least:.3g} to {likely.most:.3g} s per image, {likely.times[0]:.2g} to "
            f"{likely.times[1]:.2g} times the roofline time{thousand(likely.least, likely.most, price)}. Measured: {likely.basis}.")
    _print_passes(costs)


def _print_times(rows: list[RooflineTime]) -> None:
    """Print a table with columns of the parts that occur."""
    parts = list(dict.fromkeys(part for row in rows for part in row.parts or {}))
    widths = [max(len(part), 8) + 2 for part in parts]
    heads = "".join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
    say(f"{'':22}{'batch':>6}{'ms/image':>10}{'images/s':>10}{'ideal':>8}{'tokens':>8}{'attended':>10}{'GB/pass':>9}{'TFLOP':>8}"
        f"{'of full':>9}{heads}")
    for row in rows:
        name = row.method if row.method == "full" else f"{row.method} {row.budget}"
        if row.unsupported_reason:
            say(f"{name:22}{row.batch:6d}  {row.unsupported_reason}")
            continue
        assert row.parts is not None
        assert row.nbytes is not None
        image, attended = row.seconds / row.batch, f"{row.attended:.1f}" if row.attended else ""
        cells = "".join(f"{1e3 * row.parts.get(part, 0) / row.passes:{width}.3f}" for part, width in zip(parts, widths, strict=True))
        say(f"{name:22}{row.batch:6d}{1e3 * image:10.2f}{1 / image:10.2f}{row.speedup:7.2f}×{row.token_speedup:7.2f}×{attended:>10}"
            f"{sum(row.nbytes.values()) / row.passes / 1e9:9.3f}{row.flops / row.batch / 1e12:8.3g}{row.flops_share:9.3f}{cells}")
    say("Parts: milliseconds per pass. Ideal: the speedup over the full cache at equal batch that bytes and FLOPs allow; tokens: the same "
        "without image decoding; of full: the fraction of its FLOPs, without image decoding.")


def _print_passes(costs: list[PassCost]) -> None:
    """Print the cost of passes of a decoder; nothing without one."""
    if not costs:
        return
    say(f"{'':36}{'batch':>6}{'pass cost':>14}{'gain':>10}")
    for row in costs:
        name = f"{row.method if row.method == 'full' else f'{row.method} {row.budget}'} + {row.decoder}"
        gain = "–" if row.speedup is None else f"{row.speedup:.2f}×"
        say(f"{name:36}{row.batch:6d}  " + (row.unsupported_reason or f"{row.cost:12.2f}{gain:>10}"))
    say("Pass cost: relative to the roofline time of one-token decoding; a decoder that accepts fewer tokens per pass is slower. Gain: "
        "over the full cache with one token per pass, at --tokens-per-pass.")
