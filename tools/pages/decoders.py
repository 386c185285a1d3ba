"""Speed and image quality of parallel decoders, as tables of the site's page of results.

    python -m tools.pages.decoders [quality.sqlite]

With a store this takes the quality of its newest run, which must be of the plan `decoders` or its last block; `studies/decoders.py` stores
the speeds. The tables are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachemark.analysis.quality_claims import standing
from cachemark.analysis.report_row import ReportRow
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.stats.intervals import Interval
from cachemark.workflows.results import open_run

from .writing import ends, rounded, verdict

FILE = Path(__file__).parents[2] / "studies" / "decoders.json"
FIGURES = {"FID": "fid_scene_2k", "precision": "precision_scene_2k", "recall": "recall_scene_2k", "class accuracy": "class_accuracy"}
PLAN = "decoders"
Row = Mapping[str, Any]


# -- tables -------------------------------------------------------------------------------------------------------------
def speed(values: Row) -> Iterator[str]:
    """Yield the measured speedup of every configuration next to what its steps allow."""
    yield "| batch | method | gain | tokens per pass | cost of a pass | allowed | reached | tokens equal |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in values["results"]:
        low, gain, high = statistics.quantiles(row["gain"], n=4)
        equal = min(row["agreement"])
        tokens, cost, allowed, reached = (statistics.median(row[name]) for name in ("tokens per pass", "cost", "allowed", "reached"))
        yield (f"| {row['batch']} | {row['method']} | {gain:.2f}× ({low:.2f} … {high:.2f}) | {tokens:.2f} | {cost:.2f} | {allowed:.2f}× | "
               f"{reached:.0%} | {'all' if equal == 1 else f'{equal:.3f} at least'} |")


def quality(values: Row) -> Iterator[str]:
    """Yield image-set metrics, and which differ from the full cache."""
    yield "| |" + "".join(f" {title} |" for title in FIGURES) + " difference from full |"
    yield "|---|" + "---|" * (len(FIGURES) + 1)
    for row in values["results"]:
        cells = [ends(row["figures"][title][:1] if title in row["figures"] else None, 1 if title == "FID" else 3) for title in FIGURES]
        yield f"| {row['decoder']} | {' | '.join(cells)} | {verdict(row['less']) if row['less'] else ''} |"


def text(results: Mapping[str, Row]) -> str:
    """Return the tables as Markdown."""
    parts = []
    for name, table in (("speed", speed), ("quality", quality)):
        if name in results:
            result = results[name]
            parts += ["\n".join(table(result)),
                      f"`{result['command']}`, commit {result['commit']}, one thread of an {result['machine']}, "
                      f"torch {result['torch']}, fp32."]
    return "\n\n".join(parts)


def stored_text() -> str:
    """Return the tables of the stored values."""
    return text(json.loads(FILE.read_text(encoding="utf-8")))


def keep(part: str, values: Row, file: Path = FILE) -> None:
    """Store a part of the values."""
    results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    results[part] = values
    file.write_text(json.dumps(results, sort_keys=True) + "\n", encoding="utf-8")


# -- a stored run -------------------------------------------------------------------------------------------------------
def of_run(store: Path) -> Row:
    """Return the quality of the full cache and of every decoder in the newest run of a store."""
    run = open_run(store)
    groups, _ = standing(run.outcomes)
    rows = [row for group in groups for row in (group.full, *group.candidates) if row is not None and row.ok
            and FIGURES["FID"] in row.quality]
    known_names = {planned.case.key for planned in expand(load(PLAN))}
    if strange := [row.case.label for row in rows if row.case.key not in known_names]:
        raise SystemExit(f"The plan {PLAN} has no such cases: {', '.join(strange)}.")
    here = run.record.environment
    return {"command": f"cachemark run {PLAN}", "commit": run.record.code["commit"][:10], "machine": here.device,
            "torch": here.facts["torch"], "results": [_row(row, rows[0]) for row in rows]}


def _row(row: ReportRow, full: ReportRow) -> Row:
    figures = {title: rounded(row.quality[name]) for title, name in FIGURES.items()}
    if row is full:
        return {"decoder": row.case.label, "figures": figures, "less": {}}
    less = {title: rounded(row.to_full[name] if name in row.to_full else apart(row.quality[name], full.quality[name]))
            for title, name in FIGURES.items()}
    return {"decoder": row.case.label, "figures": figures, "less": less}


def apart(mine: Interval, its: Interval) -> Interval:
    """Return the difference of two independent values (Newcombe, Statistics in Medicine 1998, method 10)."""
    value = mine.value - its.value
    below, above = math.hypot(mine.value - mine.low, its.high - its.value), math.hypot(mine.high - mine.value, its.value - its.low)
    return replace(mine, value=value, low=value - below, high=value + above)


def main() -> None:
    """Print the tables of decoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?", help="take the quality from this store")
    if store := parser.parse_args().store:
        keep("quality", of_run(store))
    print(stored_text())


if __name__ == "__main__":
    main()
