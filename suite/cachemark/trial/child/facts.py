"""Facts about a case in addition to its values: kernel, actual budget, source, roofline time.

They are recorded with the measurement, because the report has neither models nor torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch

from ...cache.codecs import codec
from ...cache.engines import GRAPH
from ...cache.kernels.plain import SDPA, WRITTEN_OUT, backend
from ...cache.kernels.record import Kernel
from ...cache.kernels.table import choose, usual
from ...cache.layout import Layout, Site, Step, raster_steps
from ...cache.masked_layout import MaskedLayout
from ...contract.method import Method
from ...core.errors import CachemarkError
from ...core.facts import DeclaredFacts, DecoderFacts, PluginSource, StepSlope, WeightsSource
from ...core.git import git
from ...core.limits import Limit, Rates
from ...core.spec import FLOPS, Case
from ...core.wording import plain
from ...metrics.compute.speed import ends
from ...models import checkpoints, hub
from ...models.costs import case_bill
from ...models.protocol import ModelEntry
from ...plans.planned import Prepared
from ...plugins.loading import origin
from ...roofline.bill import idle_reason
from ...roofline.flops_budget import share, work
from ...roofline.memory import entries
from .bench import Bench, decoder_factory, method_factory

LONGEST_TITLE = 40
LONGEST_NOTE, MOST_NOTES = 1_000, 20  # characters of a footnote, and footnotes of a method or decoder
WINDOWS = ", triangle on windows"  # added to the name of the kernel
FRONTS = ", masked for several lines"
WINDOWED = "It attends with several ordered queries per pass, with a different kernel call, whose cost is part of its time."


def case_facts(planned: Prepared, bench: Bench) -> DeclaredFacts:
    """Return the facts of a case that are known before it is measured."""
    case = planned.case
    method = method_factory(case)()
    layout = bench.entry.shape(case.sampling, case.batch)
    kernel, refused = _kernel(case, method, replace(layout, dtype=getattr(torch, case.dtype), device=bench.device))
    decoder = decoder_factory(case)
    queries = "" if decoder is None else FRONTS if decoder().scheduled else WINDOWS
    notes, decoder_facts = _notes(method.footnotes), None
    if decoder:
        decoder_facts = DecoderFacts(source=decoder().source, rows="together", keeps=decoder().keeps)
        notes += _notes(decoder().footnotes)
    idle = idle_reason(method, layout) if case.role == "candidate" else ""
    notes += [idle] if idle else []
    paths = {key: path for key in ("weights", "decoder_weights") if (path := getattr(planned.request, key))}
    sources = {key: source for key, path in paths.items() if (source := _source(path))}
    facts = DeclaredFacts(kernel=f"{kernel.name}{queries}", kernel_reason=refused or None, source=str(method.source),
                          plugin=_plugin(type(method)), paradigm=layout.paradigm, decoder=decoder_facts, idle=idle or None,
                          weights_sources=sources or None, engine_reason=planned.engine_reason or None,
                          different_kernel=WINDOWED if decoder else None)
    facts |= _apart(case, method, kernel)
    if isinstance(layout, MaskedLayout):
        facts = replace(facts, flops=work(method, layout))
    elif layout.scales and method.budget_kind == FLOPS:
        facts = replace(facts, flops=work(method, layout), generated=_generated(method, layout))
        notes += _of_scales(method, layout)
    return replace(facts, true_ratio=true_budget(case, method, layout), footnotes=notes)


def true_budget(case: Case, method: Method, layout: Layout) -> float | None:
    """Return the fraction of the full cache's entries or FLOPs that a method uses; None if it states none.

    It is not the case's budget where that cannot be met, as by a method that keeps some scales whole."""
    if isinstance(layout, MaskedLayout) or (layout.scales and method.budget_kind == FLOPS):
        return float(share(method, layout))
    if layout.scales and method.evicts:
        return entries(method, layout) / (layout.layers * layout.cacheable)
    return case.parameters["B"] / layout.visual if "B" in case.parameters else None


def _plugin(method: type[Method]) -> PluginSource | None:
    """Return the plug-in that defines a method, with its repository's commit; None if built in."""
    if (known := origin(method)) is None:
        return None
    file, title = Path(known[0]), plain(str(vars(method).get("title", "")), LONGEST_TITLE)
    plugin = PluginSource(file.name, known[1], title or None)
    try:
        commit, edited = git(file.parent, "rev-parse", "HEAD"), bool(git(file.parent, "status", "--porcelain", "--", file.name))
    except CachemarkError:  # it is in no repository, or git is not installed
        return plugin
    return replace(plugin, commit=commit, edited=edited)


def _kernel(case: Case, method: Method, layout: Layout) -> tuple[Kernel, str]:
    """Return the attention kernel of a case, and on a device why earlier kernels of the table refuse it."""
    if method.kernel not in (SDPA.name, WRITTEN_OUT.name):
        return replace(SDPA, name=method.kernel, fused=False), ""
    if case.engine == "reference":
        return replace(SDPA, name=backend(layout)), ""
    query = usual(layout, codec(case.codec), mass=method.needs_mass, captured=case.engine == GRAPH)
    choice = choose(query, case.kernel, checked=True)
    refused = "; ".join(f"{name}: {reason}" for name, reason in choice.refused)
    kernel = replace(SDPA, name=backend(layout)) if choice.kernel is SDPA else choice.kernel
    return kernel, refused if layout.device != "cpu" else ""


@cache
def _source(path: str) -> WeightsSource | None:
    """Return the origin of weights from Hugging Face, None for other files."""
    name = hub.source(path)
    if name is None:
        return None
    return WeightsSource(repository=name.repository, revision=name.revision, file=name.file, sha256=checkpoints.sha256(path))


def _of_scales(method: Method, layout: Layout) -> list[str]:
    """Return footnotes about the scales that a method generates, and the entries that it stores."""
    scales, stored, made = method.scales(layout), entries(method, layout) / (layout.layers * layout.stored), _generated(method, layout)
    notes = [f"It generates {scales} of {len(layout.scales)} scales, with {made:.1%} of the tokens; values of tokens are over these."] \
        if made else []
    return [*notes, f"It stores {stored:.1%} of the full cache's entries."]


def _generated(method: Method, layout: Layout) -> float | None:
    """Return the fraction of the tokens that a method generates, None if it skips no scale."""
    generated = layout.ending(method.scales(layout)).visual
    return generated / layout.visual if generated < layout.visual else None


def _notes(footnotes: str | Sequence[str]) -> list[str]:
    """Return footnotes as a list; a plug-in may declare a single text."""
    return [plain(note, LONGEST_NOTE) for note in ([footnotes] if isinstance(footnotes, str) else footnotes)][:MOST_NOTES]


def _apart(case: Case, method: Method, kernel: Kernel) -> DeclaredFacts:
    """Return the facts of a candidate whose attention kernel differs from the full cache's.

    Its speed is not compared, unless its kernel is as fused as the full cache's and reads no more than the method needs."""
    if not (codec(case.codec).exact or kernel.in_place):
        return DeclaredFacts(quality_only=f"What the codec {case.codec} stores is decoded into a buffer before each attention, which a "
                             "kernel that reads codes would not do; a speedup would measure the buffer.")
    if case.engine == "reference" or method.kernel == SDPA.name:
        return DeclaredFacts()
    if kernel.fused:
        return DeclaredFacts(different_kernel=f"It attends with {kernel.name}, which also returns the attention mass of every key.")
    why = "It needs the attention mass of every key, which the fused kernel does not return" if method.needs_mass else (
        f"It attends with {method.kernel}, the full cache with {SDPA.name}")
    return DeclaredFacts(quality_only=f"{why}; a speedup between two kernels would measure the kernels.")


def roofline(case: Case, entry: ModelEntry, method: Method, rates: Rates | None, steps: Sequence[Step] = ()) -> Limit | None:
    """Return the roofline time of a candidate or a full cache, None if the rates are unknown.

    The reference engine has the full cache's limit, so that its padding and copies show. With a decoder the limit follows from
    the ``steps`` that ran, if known."""
    if rates is None or case.role not in ("candidate", "baseline") or (case.decoder and not steps):
        return None
    bill = case_bill(case, entry, method, steps)
    return None if bill is None else bill.limit(rates)


def slope(marks: Sequence[Mapping[int, float]], layout: Layout, method: Method) -> StepSlope | None:
    """Return the growth of a decode step's time per attended entry, fitted to each line's median.

    ``marks`` are the times at line ends of every timed generation. None for other than next-token cases, and for a single line."""
    if layout.scales or isinstance(layout, MaskedLayout) or not marks:
        return None
    method.resolve(layout)
    site = Site("decoder", layout.layers - 1)
    attended = [method.attended(layout, site, step) for step in raster_steps(layout)]
    means, seconds = list[float](), list[float]()  # entries and seconds of a step, without the first line, which has the condition's
    for before, end in pairwise(ends(layout)):
        steps = end - before
        means.append(sum(attended[before + 1 : end + 1]) / steps)
        seconds.append(sorted((times[end] - times[before]) / steps for times in marks)[len(marks) // 2])
    if len(means) < 3 or len({*means}) == 1:
        return None
    slope, intercept = statistics.linear_regression(means, seconds)
    r2 = statistics.correlation(means, seconds) ** 2 if len({*seconds}) > 1 else 1.0
    entry = 2 * layout.rows * layout.kv_heads * layout.head_dim * layout.dtype.itemsize * layout.layers
    return StepSlope(slope=slope, intercept=intercept, r2=r2, bytes_per_s=entry / slope if slope > 0 else None, lines=len(means))
