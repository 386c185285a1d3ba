"""``cachemark advise``: which cache to use."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.files import replacing
from .options import Finite, echo_json, json_option, plugin_option, refuse_together, size, store_option, without_password, writable

if TYPE_CHECKING:
    from ..workflows.advise import Advice, AdvisedMethod

MOST_BATCH = 4096


def share(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """``1%`` or ``0.01`` as 0.01."""
    if text is None:
        return None
    number, percent, tail = text.strip().partition("%")
    fraction: float = Finite(0, 100 if percent else 1).convert(number.strip(), option, context)
    fraction = fraction / 100 if percent else fraction
    if tail or not 0 < fraction < 1:
        raise click.BadParameter(f"{text!r} is not a share between 0 and 1; write 1% or 0.01.")
    return fraction


def duration(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """``2s`` or ``800ms`` as seconds."""
    if text is None:
        return None
    stripped = text.strip()
    number, per = (stripped[:-2], 1000.0) if stripped.endswith("ms") else (stripped.removesuffix("s"), 1.0)
    amount: float = Finite(0, 1e9, min_open=True).convert(number.strip(), option, context)
    return amount / per


@click.command()
@click.option("--model", required=True, help="A model; see `cachemark list models`.")
@click.option("--gpu", required=True, help="The device: a800, a100, h100, h200, h20, 3090, or cpu.")
@click.option("--batch", type=click.IntRange(1, MOST_BATCH), default=1, show_default=True, help="Images at once.")
@click.option("--memory", callback=size, metavar="SIZE", help="Memory that there is, such as 24GiB.  [default: all of the GPU's]")
@click.option("--latency", callback=duration, metavar="TIME", help="Longest time of a batch, such as 2s or 800ms.")
@click.option("--throughput", is_flag=True, help="Most images per second, each method at the batch that suits it, instead of --batch.")
@click.option("--max-loss", callback=share, metavar="SHARE",
              help="What images may lose, such as 1%.  [default: 5 points of color consistency or of prompt score, 10 % of FID]")
@plugin_option
@store_option
@click.option("--write-plan", type=click.Path(dir_okay=False, path_type=Path), callback=writable,
              help="Write a plan that measures what is only predicted.")
@json_option
def advise(
    model: str, gpu: str, batch: int, memory: int, latency: float | None, throughput: bool, max_loss: float | None,
    plugin_files: tuple[str, ...], store_url: str, write_plan: Path | None, as_json: bool,
) -> None:
    """Recommend a cache method and budget for a model on a device.

    A method is recommended if its images are shown to be non-inferior to the full cache's and it is faster, or if the full cache does not
    fit. Speedups are measured where the store has them, else predicted: the roofline times the efficiency that was measured on that device
    at another batch. Fidelity alone recommends nothing.
    """
    refuse_together({"--throughput": ("--batch",)})
    from ..workflows.advise import Wishes
    from ..workflows.advise import advise as answer

    advice = answer(Wishes(model, gpu, batch, memory, latency, throughput, max_loss), store_url, plugins=plugin_files)
    if write_plan is not None:
        with replacing(write_plan) as part:
            part.write_text(advice.plan, encoding="utf-8")
    question = "--throughput" if throughput else f"--batch {batch}"
    question += f" --memory {memory}B" if memory else ""
    question += "" if latency is None else f" --latency {latency:g}s"
    question += "" if max_loss is None else f" --max-loss {max_loss:g}"
    commands = _commands(advice, f"--model {shlex.quote(model)} --gpu {gpu} {question}", gpu, store_url, plugin_files, write_plan)
    if as_json:
        echo_json({**vars(advice), "commands": commands})
        return
    _print(advice, commands)


def _commands(advice: Advice, question: str, gpu: str, store: str, plugins: Sequence[str], written: Path | None) -> list[str]:
    """The commands that would measure what is not; of a store whose address holds a password, without it."""
    if not advice.measure:
        return []
    plan = str(written or "advised.toml")
    options = " ".join(["--store", shlex.quote(without_password(store)), *(f"--plugin {shlex.quote(file)}" for file in plugins)])
    write_command = [] if written else [f"cachemark advise {question} {options} --write-plan {plan}"]
    return [*write_command, f"cachemark run {shlex.quote(plan)} --device {'cpu' if gpu == 'cpu' else 'cuda'} {options}"]


def _print(advice: Advice, commands: list[str]) -> None:
    from ..core.wording import printed

    click.echo(printed(advice.text))
    for number, line in enumerate(advice.ranked, 1):
        click.echo(printed(f"{number:3}. {_line(line)}"))
        if line.no_speedup:
            click.echo(printed(f"     It was measured, but its speedup is not known: {line.no_speedup}"))
    if advice.others:
        click.echo("Not recommended:")
    for line in advice.others:
        click.echo(printed(f"  – {_line(line)}"))
        click.echo(printed(f"    {line.why_not}"))
        if line.no_speedup and line.no_speedup not in line.why_not:
            click.echo(printed(f"    It was measured, but its speedup is not known: {line.no_speedup}"))
    for sentence in (advice.begins, advice.seeds):
        if sentence:
            click.echo(printed(sentence))
    for note in advice.notes:
        click.echo(printed(note))
    if commands:
        click.echo("To measure what is only predicted:")
        for command in commands:
            click.echo(printed(f"  {command}"))
        for path in advice.missing:
            click.echo(printed(f"Missing for that: {path}"))


def _line(line: AdvisedMethod) -> str:
    from ..workflows.advise import quality_text

    ends = f" ({line.low:.2f}–{line.high:.2f})" if line.low is not None and line.high is not None else ""
    bound = f"at most {line.allowed:.2f}×{'' if line.no_speedup else ', nothing measured here'}"
    gain = bound if line.basis == "bound" else f"{line.gain:.2f}×{ends}, {line.basis}; allowed {line.allowed:.2f}×"
    saving = "" if line.saving is None else f", saves {line.saving:.0%}"
    return f"{line.name}, batch {line.batch}: {gain}{saving}; {quality_text(line)}"
