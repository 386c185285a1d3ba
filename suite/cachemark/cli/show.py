"""``cachemark show``: a run or a case as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core.result import JUDGING, Outcome
from ..core.units import metric, of_plug_ins
from .options import Finite, echo_json, given_options, json_option, stored_run_options

if TYPE_CHECKING:
    from ..workflows.layer_profiles import LayerProfile


@click.command()
@click.argument("case", required=False)
@click.argument("model", required=False)
@stored_run_options
@click.option("--weights", default="", help="With layers: a checkpoint of MODEL.  [default: the packaged one, else random]")
@click.option("--decoder-weights", default="", help="With layers: its image tokenizer.")
@click.option("--theta", type=Finite(-1_000, 1_000), help="With layers: AMS-KV's threshold.  [default: that of ams_kv]")
@json_option
def show(
    case: str | None, model: str | None, store_url: str, run_id: int | None, weights: str, decoder_weights: str, theta: float | None,
    as_json: bool,
) -> None:
    """Print a run, or one CASE of it (its key, the beginning of the key, or its label such as "linear 1/4") with raw samples. In a
    comparison a case was measured many times: each is printed.

    `show layers MODEL` profiles the layers of a next-scale model on the seeds of s64: how similar the keys of successive scales
    are, and which scales the attention goes to. It ends with the list of demanding layers for ams_kv.
    """
    if case == "layers":
        if model is None:
            raise click.UsageError("Missing the model of `show layers MODEL`; next-scale models have such layers.")
        from ..workflows.layer_profiles import layer_profile

        _print_layers(layer_profile(model, weights=weights, decoder_weights=decoder_weights, theta=theta), as_json)
        return
    from ..workflows.stored_run import Run, outcomes_of

    if model is not None:
        raise click.UsageError(f"Unexpected {model!r}: a second name goes with `show layers MODEL` only.")
    if idle := [name for name in given_options() if name in ("--weights", "--decoder-weights", "--theta")]:
        raise click.UsageError(f"{' and '.join(idle)}: for `show layers MODEL` only. Leave out {' and '.join(idle)}, or name the model so.")
    run = Run(store_url, run_id)
    outcomes = outcomes_of(case, run.outcomes) if case is not None else list(run.outcomes)
    if as_json:
        echo_json([outcome.to_json() for outcome in outcomes])
    elif case is not None:
        for number, outcome in enumerate(outcomes):
            click.echo("\n" * (number > 0), nl=False)
            _print_case(outcome)
    else:
        record = run.record
        click.echo(f"Run {record.id}: {record.plan}, {record.state}, {record.started}, {record.environment.machine_class}")
        for outcome in outcomes:
            click.echo(f"  {outcome.case.key}  {outcome.case.model}  {outcome.case.label:<24}  {outcome.status:<12}  "
                       f"{_figures(outcome)}")


def _figures(outcome: Outcome) -> str:
    """A few figures as the report shows them: the median of what is timed or counted, the mean over seeds of what is judged."""
    names = ("latency", "kv_allocated", "kl", "token_agreement")
    shown = {name: (outcome.mean(name), "mean") if metric(name).kind in JUDGING else (outcome.median(name), "median")
             for name in (*names, *(of for kind in JUDGING for of in of_plug_ins(outcome.samples, kind))) if name in outcome.samples}
    return "  ".join(f"{name} {value:.4g} {metric(name).unit}".rstrip() + f" ({what})" for name, (value, what) in shown.items())


def _print_case(outcome: Outcome) -> None:
    for name, value in outcome.case.to_json().items():
        click.echo(f"{name:>14}  {value}")
    click.echo(f"{'status':>14}  {outcome.status}")
    for name, values in outcome.samples.items():
        mean, middle = outcome.mean(name), outcome.median(name)
        click.echo(f"{name:>18}  mean {mean:.6g}  median {middle:.6g} {metric(name).unit}  n = {len(values)}")
        click.echo(" " * 20 + " ".join(f"{value:.6g}" for value in values))
    for name, fact in outcome.facts.items():
        if name == "layers":
            fact = "profiled; see `cachemark show layers` and the report"
        click.echo(f"{name:>18}  {fact}")
    if outcome.log:
        click.echo(outcome.log)


def _print_layers(profile: LayerProfile, as_json: bool) -> None:
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
    """S by layer and scale; a star marks a demanding layer. The mean square is said to be ours where it is printed."""
    click.echo("\nInter-scale similarity S of the keys (0: equal; smaller: less alike), by layer and scale: minus the mean square of the "
               "difference,\nwhich is our reading. Eq. 3 of AMS-KV prints a norm, and does not say how it is normalised.")
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
