"""``cachemark advise``: which cache to use."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.files import replacing
from .options import Finite, echo_json, json_option, plugin_option, size, store_option, writable
from .remedies import runnable

if TYPE_CHECKING:
    from ..workflows.advise import Advice, AdvisedMethod

MOST_BATCH = 4096


def share(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Parse ``1%`` or ``0.01`` as 0.01."""
    if text is None:
        return None
    number, percent, tail = text.strip().partition("%")
    fraction: float = Finite(0, 100 if percent else 1).convert(number.strip(), option, context)
    fraction = fraction / 100 if percent else fraction
    if tail or not 0 < fraction < 1:
        raise click.BadParameter(f"{text!r} is not a fraction between 0 and 1; write 1% or 0.01.")
    return fraction


@click.command()
@click.option("--model", required=True, help="A model; see `cachemark list models`.")
@click.option("--gpu", required=True, help="The device: a800, a100, h100, h200, h20, 3090, or cpu.")
@click.option("--batch", type=click.IntRange(1, MOST_BATCH), default=1, show_default=True, help="Images per batch.")
@click.option("--memory", callback=size, metavar="SIZE", help="Memory limit, e.g. 24GiB.  [default: all GPU memory]")
@click.option("--max-loss", callback=share, metavar="FRACTION",
              help="Maximum quality loss, e.g. 1%.  [default: 5 points of color consistency or prompt score, 10 % of FID]")
@plugin_option
@store_option
@click.option("--write-plan", type=click.Path(dir_okay=False, path_type=Path), callback=writable,
              help="Write a plan that measures at this batch.")
@json_option
def advise(
    model: str, gpu: str, batch: int, memory: int, max_loss: float | None, plugin_files: tuple[str, ...], store_url: str,
    write_plan: Path | None, as_json: bool,
) -> None:
    """Recommend a cache method and budget for a model on a device.

    A method is recommended if its images are non-inferior to the full cache's and it is faster, or if the full cache does not
    fit. Speedups are measured where the store has them, else predicted: the roofline times the efficiency measured on that device at
    another batch. Fidelity alone recommends nothing.
    """
    from ..workflows.advise import Wishes
    from ..workflows.advise import advise as answer

    advice = answer(Wishes(model, gpu, batch, memory, max_loss), store_url, plugins=plugin_files)
    if write_plan is not None:
        with replacing(write_plan) as part:
            part.write_text(advice.plan, encoding="utf-8")
    commands = _commands(advice, model, gpu, batch, str(write_plan or "PLAN"))
    if as_json:
        echo_json({**vars(advice), "commands": commands})
    else:
        _print(advice, commands)


def _commands(advice: Advice, model: str, gpu: str, batch: int, plan: str) -> list[str]:
    """Return the commands that bound and measure what was not measured."""
    if not advice.measure:
        return []
    bounds = f"cachemark roofline {shlex.quote(model)} {'--here' if gpu == 'cpu' else f'--gpu {gpu}'} --batch {batch}"
    run = f"cachemark run {shlex.quote(plan)} --device {'cpu' if gpu == 'cpu' else 'cuda'}"
    return [bounds, runnable(run) + ("  # PLAN: see --write-plan" if plan == "PLAN" else "")]


def _print(advice: Advice, commands: list[str]) -> None:
    from ..core.wording import printed

    lines = [advice.text, *(f"{number:3}. {_described(line)}" for number, line in enumerate(advice.ranked, 1))]
    if advice.not_recommended:
        lines += ["Not recommended:", *(text for line in advice.not_recommended
                                        for text in (f"  – {_described(line)}", f"    {line.why_not}"))]
    lines += [advice.seeds] if advice.seeds else []
    lines += ["To measure these predictions:", *(f"  {command}" for command in commands)] if commands else []
    for line in lines:
        click.echo(printed(line))


def _described(line: AdvisedMethod) -> str:
    from ..workflows.advise import quality_text

    ends = f" ({line.low:.2f}–{line.high:.2f})" if line.low is not None and line.high is not None else ""
    why = f"no measured speedup: {line.no_speedup}" if line.no_speedup else "nothing measured here"
    gain = f"at most {line.allowed:.2f}×, {why}" if line.basis == "bound" else (
        f"{line.gain:.2f}×{ends}, {line.basis}; allowed {line.allowed:.2f}×")
    saving = "" if line.saving is None else f", saves {line.saving:.0%}"
    return f"{line.name}: {gain}{saving}; {quality_text(line)}"
