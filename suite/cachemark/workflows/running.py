"""Measuring a plan into a store: everything in it, the largest batches, or a share of its quality images; and why a case would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import Unsupported
from ..core.result import Outcome
from ..core.spec import Case
from ..gate import anchors
from ..plans.expand import expand
from ..plans.schema import Plan, prepare
from ..store.db import Store
from .machines import Machine
from .measuring import UNWATCHED, Decision, RunWatcher, decide, make_share, measure, measure_largest
from .pricing import deadline
from .stored_run import Measured, Run
from .stores import DEFAULT_STORE, opened


@dataclass(frozen=True)
class Explanation:
    """The reason why a case would run, or why not (``stored``)."""

    case: Case
    stored: bool
    reason: str


def run(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False, carry_quality: bool | None = None, seconds: float | None = None,
    watcher: RunWatcher = UNWATCHED,
) -> Run:
    """Measure a plan and return the run, every outcome stored. What the store holds already is not run again, unless ``fresh``.

    ``plan`` is a plan, the name of a shipped one, or a TOML file; ``methods`` and those of ``plugins`` join every block. ``carry_quality``
    keeps the figures of an earlier quality pass where a case still gives the same tokens (default: unless ``fresh``). With ``seconds`` the
    run ends in that time: by priority, and the rest is ``not_reached``. An interruption keeps everything that is complete.
    """
    machine, (loaded, files) = _checked(plan, machine, plugins, methods)
    with Store.open(store) as sink:
        with machine.places(sink) as places:
            summary = measure(
                loaded, sink, device=machine.device, threads=machine.threads, plugins=files, fresh=fresh, watcher=watcher,
                feature_caches=sink.artifacts.parts, executor=places, memory_cap=machine.memory_cap,
                deadline=deadline(seconds, sink, machine, places), carry=not fresh if carry_quality is None else carry_quality)
        return Run(store, summary.run_id, Measured(summary, loaded, files, machine), tuple(_anchored(loaded, sink, summary.run_id)))


def max_batch(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False, watcher: RunWatcher = UNWATCHED,
) -> Run:
    """The largest batch that fits for the full cache and every arm of a plan, and throughput there. On a CPU the machine needs a
    ``memory_cap``."""
    machine, (loaded, files) = _checked(plan, machine, plugins, methods, searches=True)
    with Store.open(store) as sink:
        with machine.places(sink) as places:
            summary = measure_largest(loaded, sink, memory_cap=machine.memory_cap, device=machine.device, threads=machine.threads,
                                      plugins=files, fresh=fresh, watcher=watcher, executor=places)
        return Run(store, summary.run_id, Measured(summary, loaded, files, machine))


def share(
    plan: Plan | str | Path, part: tuple[int, int], store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu",
    plugins: Sequence[str | Path] = (), methods: Sequence[str] = (), watcher: RunWatcher = UNWATCHED,
) -> list[Outcome]:
    """Make one ``part`` (index from 0, of how many) of the quality images of a plan, for a later run to use; the outcomes of cases that
    failed."""
    machine, (loaded, files) = _checked(plan, machine, plugins, methods)
    with Store.open(store) as sink, machine.places(sink) as places:
        return make_share(loaded, sink, part, sink.artifacts.parts, device=machine.device, threads=machine.threads, plugins=files,
                          watcher=watcher, executor=places)


def explain(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (),
    methods: Sequence[str] = (), fresh: bool = False,
) -> list[Explanation]:
    """For each case of a plan the reason why it would run, or why not; nothing is run."""
    machine, (loaded, _) = _checked(plan, machine, plugins, methods)
    with opened(store) as known:
        _, decisions = decide(loaded, known, machine.device, machine.threads, fresh=fresh, memory_cap=machine.memory_cap)
        return [Explanation(d.planned.case, d.stored, _reason(d, known)) for d in decisions]


def _checked(
    plan: Plan | str | Path, machine: Machine | str, plugins: Sequence[str | Path], methods: Sequence[str], searches: bool = False,
) -> tuple[Machine, tuple[Plan, tuple[str, ...]]]:
    """The machine and the plan, every mistake of them found before a database is touched."""
    machine, (loaded, files) = Machine.of(machine), prepare(plan, plugins, methods)
    machine.require()
    if (searches or loaded.searches) and machine.device == "cpu" and not machine.memory_cap:
        raise Unsupported("The largest batch on a CPU needs a limit.", remedy="Set one: add --memory-cap, such as 2GiB.")
    expand(loaded, machine.device)
    return machine, (loaded, files)


def _anchored(plan: Plan, store: Store, run_id: int) -> list[str]:
    """Lines on whether the anchor of a plan was reached; an anchor that was is written down."""
    if plan.anchor is None:
        return []
    lines, table = [], plan.anchor.model_dump()
    for full in (outcome for outcome in store.outcomes(run_id) if outcome.case.role == "baseline"):
        anchor = anchors.Anchor.of(full.case.model, table, asdict(registry.models.get(full.case.model).presets["paper"]))
        found = anchors.judge(anchor, full)
        lines.append(f"Anchor of {anchor.model}: {found.state}. {found.reason}")
        if found.passed:
            record = store.run(run_id)
            facts = {"run": record.id, "started": record.started, "machine": record.environment.machine_class, "code": dict(record.code)}
            lines.append(f"Written down: {anchors.save(anchors.ROOT, anchor, full, facts)}")
    return lines


def _reason(decision: Decision, store: Store | None) -> str:
    if decision.stored:
        return "done: same case, code, metric definitions and numerics"
    if store is None:
        return "nothing is stored yet"
    latest = store.latest_for_case(decision.planned.case.key)
    if latest is None:
        near = store.nearest(decision.planned.case, 1)
        return f"no such case; the nearest stored one differs in {_fields(near[0][1])}" if near else "no such case"
    if not latest.ok:
        return f"last time it ended as {latest.status}"
    parts: dict[str, Any] = dict(latest.facts.get("skip_parts", {}))
    changed = [name for name, value in decision.parts.items() if parts.get(name) != value]
    return f"changed since: {', '.join(changed)}" if changed else "asked to run afresh"


def _fields(differences: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} ({then!r} → {now!r})" for name, (then, now) in list(differences.items())[:3])
