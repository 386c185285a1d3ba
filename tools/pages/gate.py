"""Tables and charts of the gate study, written between two marks of a page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .writing import around, put

Row = Mapping[str, Any]
BEGIN, END = "<!-- written by studies/gate_study.py -->", "<!-- end of studies/gate_study.py -->"
SECONDS = 1.0  # per image, in the cost of a night
GENERATED = 10  # images of a side in a pair, warm-ups included
RULES = ("profile", "rule", "images", "false alarms of 200", "power 5%", "power 10%", "matched 5%, equal cost", "matched 10%, equal cost")
SERIES = ("profile", "shape", "effect", "ours", "asv publish", "otava", "otava on our ratios", "z-score", "fence")
WAITS = ("profile", "correlation", "nights simulated", "false alarms", "at least")
CLEARLY = 0.02  # smallest difference of two powers that is listed
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#AA4499")


# -- tables -------------------------------------------------------------------------------------------------------------
def written(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(rows: Sequence[Row], names: Iterable[str] = ()) -> str:
    """Return tables of rows, starting a new one when the columns change.

    ``names``: the columns to include (default: all except lists); a mapping also sets their headings.
    """
    selected, lines, before = tuple(names), list[str](), tuple[str, ...]()
    for row in rows:
        columns = tuple(c for c in (selected or row) if c in row and not isinstance(row[c], list))
        if columns != before:
            headings = [names[c] for c in columns] if isinstance(names, Mapping) else columns
            lines += ["", f"| {' | '.join(headings)} |", "|" + "---|" * len(columns)]
        lines.append(f"| {' | '.join(written(row[c]) for c in columns)} |")
        before = columns
    return "\n".join(lines)


def nights(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the cost of unchanged nights of 200 configurations by profile.

    ``at most``: 95 % bound of the alarm rate, for profiles without an alarm.
    """
    for row in rows:
        if row["effect"] == 0 and row["family"] == 200:
            alarms = row["nights with a false alarm"]
            yield {"profile": row["profile"], "δ": row["delta"], "nights": row["nights"], "with a false alarm": alarms,
                   "at most": 1 - 0.05 ** (1 / row["nights"]) if not alarms else math.nan, "not resolved": row["inconclusive"],
                   "pairs per configuration": row["pairs per configuration"],
                   "minutes per night": row["pairs per configuration"] * 2 * GENERATED * SECONDS * 200 / 60}


def powers(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the power by effect, for one changed configuration, a tenth of them, and all."""
    for profile in dict.fromkeys(row["profile"] for row in rows):
        for affected in (1, 20, 200):
            mine = [r for r in rows if (r["profile"], r["affected"], r["family"]) == (profile, affected, 200) and r["effect"] > 0]
            if mine:
                yield {"profile": profile, "changed configurations": affected, **{f"{r['effect']:.0%}": r["power"] for r in mine}}


def defeats(results: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return where another rule finds clearly more than the gate.

    Rules for two runs are compared at the same false-alarm rate and cost, rules for series with their defaults.
    """
    ours = {(r["profile"], f"{r['effect']:.0%}"): r["power"] for r in results["gate"] if r["affected"] == 1 and r["family"] == 200}
    lines = [f"{row['profile']}, {effect}: {row['rule']}, threshold matched, equal cost: {written(row[name])}, the gate {written(mine)}"
             for (profile, effect), mine in ours.items() for row in results["rules"] if row["profile"] == profile
             for name in (f"matched {effect}, equal cost",) if name in row and row[name] > mine + CLEARLY]
    for row in results["history"]:
        for rival in ("asv publish", "otava", "otava on our ratios", "z-score", "fence"):
            if row["shape"] in ("step", "ramp") and not math.isnan(row[rival]) and row[rival] > row["ours"] + CLEARLY:
                lines.append(f"{row['profile']}, a {row['shape']} of {row['effect']:.0%} in 60 nights: {rival} {written(row[rival])}, "
                             f"the gate {written(row['ours'])}")
    return lines


# -- drawings -----------------------------------------------------------------------------------------------------------
def points(results: Mapping[str, Sequence[Row]], profile: str) -> list[dict[str, Any]]:
    """Return the points of every curve of a profile."""
    ours = sorted((r["false alarms of 200"], r["power"]) for r in results["roc"] if r["profile"] == profile)
    curves = {"this gate": ours}
    for row in results["rules"]:
        if row["profile"] == profile and row["curve"] not in curves.values():  # rules with one score differ by their parameter only
            curves[row["rule"].rsplit(" ", 2)[0] if "%" in row["rule"] else row["rule"].split(" ")[0]] = row["curve"]
    return [{"rule": name, "false": x, "power": y} for name, curve in curves.items() for x, y in curve]


def draw(results: Mapping[str, Sequence[Row]], profile: str, file: Path) -> None:
    """Plot power over false alarms of a family of 200, with one curve per score."""
    import altair as alt

    data = points(results, profile)
    effect = next(r["effect"] for r in results["roc"] if r["profile"] == profile)
    names = list(dict.fromkeys(p["rule"] for p in data))
    colour = alt.Color("rule:N", title=None, scale=alt.Scale(domain=names, range=list(COLOURS[: len(names)])))
    percent = alt.Axis(format="%")
    x = alt.X("false:Q", title="Nights with a false alarm, 200 unchanged configurations", scale=alt.Scale(domain=[0, 1]), axis=percent)
    y = alt.Y("power:Q", title=f"Power at +{effect:.0%} in one configuration", scale=alt.Scale(domain=[0, 1]), axis=percent)
    chart = alt.Chart(alt.Data(values=data)).encode(x=x, y=y, color=colour)
    allowed = alt.Chart(alt.Data(values=[{"x": 0.05}])).mark_rule(strokeDash=[4, 3], color="#888").encode(x="x:Q")
    dots = chart.transform_filter("datum.rule == 'this gate'").mark_point(filled=True, size=50)
    drawn = alt.layer(allowed, chart.mark_line(opacity=0.8), dots).properties(width=420, height=280, title=profile)
    drawn.configure(background="white").save(str(file))


# -- the page -----------------------------------------------------------------------------------------------------------
def text(results: Mapping[str, Any], drawings: Mapping[str, str]) -> str:
    """Return the text between the marks."""
    seconds, size = sum(results["seconds"].values()), results["size"]
    better_rules = defeats(results) or ["nowhere in this study"]
    parts = [
        f"Seed {results['seed']}, {size['unchanged']} unchanged configurations per rule, {seconds / 60:.0f} minutes of one core.",
        "### Nights without a change, 200 configurations", markdown(list(nights(results["gate"]))),
        "### Power of the gate", markdown(list(powers(results["gate"]))),
        "### Other rules", markdown(results["rules"], RULES),
        "### Power against false alarms", *(f"![{name}: power against false alarms]({file})\n" for name, file in drawings.items()),
        "### Nightly series", markdown([r for r in results["history"] if r["shape"] != "improvement" and r["effect"] <= 0.10], SERIES),
        "### Nights until a false alarm in any of 200 unchanged series", markdown(results["waits"], WAITS),
        "### Where another rule finds more", "\n".join(f"- {line}." for line in better_rules),
    ]
    return "\n\n".join(part.strip("\n") for part in parts)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Write the tables into the page, and the charts next to it."""
    around(page, BEGIN, END)  # fail before writing charts if the page has no marks
    drawings = {}
    for profile in dict.fromkeys(row["profile"] for row in results["roc"]):
        drawings[profile] = f"gate-{re.sub('[^a-z]+', '-', profile.lower())}.svg"
        draw(results, profile, page.parent / drawings[profile])
    put(page, BEGIN, END, text(results, drawings))
