"""``cachemark run``: measure a plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .machine_options import Machine, machine_options
from .options import echo_json, json_option, plugin_option, store_option
from .price import moment, span

if TYPE_CHECKING:
    from ..plan.schema import Plan
    from ..store.db import Store
    from ..workflows.measuring import Decision, Summary


def _share(context: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    """``2/8`` as (1, 8)."""
    if given is None:
        return None
    index, _, of = given.partition("/")
    if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
        raise click.BadParameter(f"{given!r} is no share; write 2/8 for the second of eight.")
    return int(index) - 1, int(of)


@click.command()
@click.argument("plan")
@store_option
@plugin_option
@click.option("--report", "report_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the HTML report here afterwards.")
@machine_options
@click.option("--method", "extra_methods", multiple=True, help="Add a method (a plug-in's, say) to every block of the plan; repeatable.")
@click.option("--fresh", is_flag=True, help="Run every case, also those that are measured already.")
@click.option("--carry-quality", is_flag=True,
              help="With --fresh: keep the figures of an earlier quality pass where a case still gives the same tokens.")
@click.option("--explain", is_flag=True, help="Only say for each case whether it would run, and why.")
@click.option("--share", callback=_share, metavar="I/N", help="Only make share I of N of the quality images, for a later run to use.")
@click.option("--max-batch", is_flag=True, help="Find the largest batch that fits for the full cache and every method, and its throughput.")
@click.option("--dry-run", is_flag=True, help="Only say what the plan costs: device hours, disk, device memory, missing files.")
@click.option("--on", type=click.Choice(["a100", "h100", "h200"]), help="With --dry-run: price it for this card instead of this machine.")
@click.option("--budget", callback=span, metavar="TIME", help="End within 6h or 90min: what matters most first, the rest is not reached.")
@click.option("--deadline", "until", callback=moment, metavar="MOMENT", help="The same until 06:00, or an ISO 8601 moment.")
@json_option
def run(
    plan: str, store_url: str, plugin_files: tuple[str, ...], report_path: Path | None, machine: Machine,
    extra_methods: tuple[str, ...], fresh: bool, carry_quality: bool, explain: bool, share: tuple[int, int] | None, max_batch: bool,
    dry_run: bool, on: str | None, budget: float | None, until: float | None, as_json: bool,
) -> None:
    """Measure PLAN: the name of a shipped plan (see `cachemark list plans`) or a TOML file.

    What the store holds already, measured by the same code on the same machine and software, is not run again. Ctrl-C keeps
    all that is complete; the same command goes on from there. Methods of --plugin files join every block of the plan.
    """
    from ..core import plugins
    from ..plan import schema as plans
    from ..store.db import Store
    from ..workflows.measuring import decide
    from . import price

    found = [name for file in plugin_files for name in plugins.load(file)]
    loaded = plans.load(plan).joined([*found, *extra_methods])
    for file in loaded.files():
        plugins.load(file)
    known = Store.open(store_url, create=False, read_only=True) if (dry_run or explain) and _exists(store_url) else None
    if dry_run:
        price.dry_run(loaded, known, machine, on or "", as_json)
        return
    _check(machine, max_batch or loaded.searches)
    plans.expand(loaded, machine.device)  # every mistake of the plan is found before the database is touched
    if explain:
        _explain(decide(loaded, known, machine.device, machine.threads, fresh=fresh, memory_cap=machine.memory_cap)[1], known, as_json)
        return
    files = tuple(str(file.resolve()) for file in [*map(Path, plugin_files), *loaded.files()])
    with Store.open(store_url) as store:
        try:
            ends = [seconds for seconds in (budget, until) if seconds is not None]
            summary = _measured(loaded, store, machine, files, fresh, carry_quality or not fresh, share, max_batch, ends)
        except KeyboardInterrupt:
            click.echo("\nInterrupted. Everything completed is stored; the same command goes on from here.", err=True)
            sys.exit(130)
        if max_batch:
            _print_largest(summary, store, as_json)
            return
        _anchored(loaded, store, summary.run_id)
        path = _report(store, summary.run_id, report_path)
        _conclude(summary, path, as_json)


def _check(machine: Machine, max_batch: bool) -> None:
    """What is asked of this machine it can do."""
    import torch

    from ..core.errors import Infrastructure

    if machine.device == "cuda" and machine.executor == "local" and not torch.cuda.is_available():
        raise Infrastructure("--device cuda was given, but torch sees no CUDA device.", remedy="Use --device cpu; see `cachemark doctor`.")
    if max_batch and machine.device == "cpu" and not machine.memory_cap:
        raise click.UsageError("The largest batch on a CPU needs a limit: add --memory-cap, such as 2GiB.")


def _measured(
    loaded: Plan, store: Store, machine: Machine, files: tuple[str, ...], fresh: bool, carry: bool, share: tuple[int, int] | None,
    max_batch: bool, seconds: list[float],
) -> Summary:
    """Run what was asked; a share of quality images ends the program, with its exit code."""
    from ..core.errors import Infrastructure
    from ..workflows.measuring import make_share, measure, measure_largest
    from . import price
    from .progress import Follower

    with machine.places(store) as places, Follower() as follower:
        given: dict[str, Any] = {"device": machine.device, "threads": machine.threads, "plugins": files, "watcher": follower,
                                 "executor": places}
        if share is not None:
            failed = make_share(loaded, store, share, store.parts, **given)
            sys.exit(Infrastructure.exit_code if failed else 0)
        if max_batch:
            return measure_largest(loaded, store, fresh=fresh, memory_cap=machine.memory_cap, **given)
        return measure(loaded, store, fresh=fresh, carry=carry, shelves=store.parts, memory_cap=machine.memory_cap,
                       deadline=price.deadline(seconds, store, machine, places), **given)


def _print_largest(summary: Summary, store: Store, as_json: bool) -> None:
    """A line for each case: its largest batch, and throughput at equal batch and at equal memory."""
    found = store.outcomes(summary.run_id)
    rows = [{"model": o.case.model, "case": o.case.label, "status": str(o.status),
             **{name: o.median(name) for name in ("max_batch", "throughput", "throughput_max")}} for o in found]
    if as_json:
        echo_json({"run": summary.run_id, "ran": len(summary.ran), "skipped": summary.carried, "cases": rows})
        return
    click.echo(f"{'':44}{'largest batch':>14}{'image/s, equal batch':>22}{'image/s, equal memory':>23}")
    for outcome, row in zip(found, rows, strict=True):
        cells = [f"{row[name]:.4g}" if row[name] is not None else "—" for name in ("max_batch", "throughput", "throughput_max")]
        ended = "" if outcome.ok else f"  {outcome.status}"
        click.echo(f"{outcome.case.title:<44}{cells[0]:>14}{cells[1]:>22}{cells[2]:>23}{ended}")


def _exists(url: str) -> bool:
    path = url.removeprefix("sqlite:///")
    return "://" in path or Path(path).exists()


def _anchored(plan: Plan, store: Store, run_id: int) -> None:
    """Where the plan is an anchor, say whether it was reached; if so, write that down."""
    if plan.anchor is None:
        return
    from dataclasses import asdict

    from ..core import registry
    from ..gate import anchors

    table = plan.anchor.model_dump()
    for full in (outcome for outcome in store.outcomes(run_id) if outcome.case.role == "baseline"):
        anchor = anchors.Anchor.of(full.case.model, table, asdict(registry.models.get(full.case.model).presets["paper"]))
        found = anchors.judge(anchor, full)
        click.echo(f"Anchor of {anchor.model}: {found.state}. {found.reason}", err=True)
        if found.passed:
            run = store.run(run_id)
            facts = {"run": run.id, "started": run.started, "machine": run.environment.machine_class, "code": dict(run.code)}
            click.echo(f"Written down: {anchors.save(anchors.ROOT, anchor, full, facts)}", err=True)


def _report(store: Store, run_id: int, path: Path | None) -> Path | None:
    if path is None:
        return None
    from .report import write_report

    return write_report(store, run_id, path)


def _conclude(summary: Summary, report: Path | None, as_json: bool) -> None:
    """Say what happened; nothing measured and nothing carried over is a failure."""
    from ..core.errors import NothingMeasured

    failed, late = [o for o in summary.ran if not o.ok], [o for o in summary.ran if o.status == "not_reached"]
    if as_json:
        echo_json({"run": summary.run_id, "ran": len(summary.ran), "skipped": summary.carried, "report": report,
                   "not_ok": [{"case": o.case.label, "status": str(o.status)} for o in failed]})
    else:
        click.echo(f"Run {summary.run_id}: {len(summary.ran) - len(failed)} measured, {len(failed)} not ok, {summary.carried} skipped.")
        if report is not None:
            click.echo(f"Report: {report}")
    if not summary.carried and len(failed) == len(summary.ran):
        raise NothingMeasured("No case of the plan was measured.", remedy="See the reasons above, or `cachemark show`.")
    if late:
        raise NothingMeasured(f"{len(late)} cases were not reached, so nothing is known of them: {', '.join(o.case.title for o in late)}.",
                              remedy="The same command goes on with them.")


def _explain(decisions: list[Decision], store: Store | None, as_json: bool) -> None:
    rows = [(d.planned.case, "skip" if d.stored else "run", _reason(d, store)) for d in decisions]
    if as_json:
        echo_json([{"case": case.to_json(), "label": case.label, "action": action, "reason": reason} for case, action, reason in rows])
        return
    width = max(len(case.title) for case, _, _ in rows)
    for case, action, reason in rows:
        click.echo(f"{case.title:<{width}}  {action:<4}  {reason}")


def _reason(decision: Decision, store: Store | None) -> str:
    if decision.stored:
        return "done: same case, code, metric definitions and numerics"
    if store is None:
        return "nothing is stored yet"
    held = store.latest_for_case(decision.planned.case.key)
    if held is None:
        near = store.nearest(decision.planned.case, 1)
        return f"no such case; the nearest stored one differs in {_fields(near[0][1])}" if near else "no such case"
    if not held.ok:
        return f"last time it ended as {held.status}"
    parts: dict[str, Any] = dict(held.facts.get("skip_parts", {}))
    changed = [name for name, value in decision.parts.items() if parts.get(name) != value]
    return f"changed since: {', '.join(changed)}" if changed else "asked to run afresh"


def _fields(differences: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} ({then!r} → {now!r})" for name, (then, now) in list(differences.items())[:3])
