"""Tables of docs/results.md: memory, fidelity and image quality of a plan's methods.

    python -m tools.pages.results rivals                                      print all values and notes of a plan
    python -m tools.pages.results rivals results.sqlite                       take the values from a run
    python -m tools.pages.results zipar                                       print a recorded section

With a store this reads the newest run of the plan (a key of `SECTIONS`) and stores its values in `studies/results/PLAN.json`. The site has
a short table of them in place of `<!-- table: PLAN -->`. `studies/results/recorded.json` holds tables that were written by hand, with
their commands and commits.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cachemark.core.errors import CachemarkError
from cachemark.core.formatting import DASH
from cachemark.core.spec import FULL, canonical
from cachemark.core.wording import count
from cachemark.export.escape import for_markdown
from cachemark.methods.base.calibrations import COST

from .rows import of_run
from .writing import apart, ends, table

FOLDER = Path(__file__).parents[2] / "studies" / "results"
RECORDED, PAGES = "recorded.json", "pages.json"  # sections of docs/results.md, and the tables of other pages of results
Row = Mapping[str, Any]
NAMES = {  # of values, in the head of a table
    "kv_allocated": "allocated", "kv_own": "without workspace", "kv_logical": "live", "kv_peak": "peak", "flops": "FLOPs",
    "latency": "time, s", "speedup": "speedup", "token_agreement": "same tokens", "kl": "KL, nat/token", "token_distance": "distance",
    "forced_distance": "forced distance", "psnr": "PSNR, dB", "ssim": "SSIM",
    "color_consistency": "color consistency",
    "fid": "FID", "precision": "precision", "recall": "recall", "class_accuracy": "class accuracy",
    "prompt_score": "all", "prompt_object": "object", "prompt_colour": "color", "prompt_count": "count", "prompt_position": "position",
    "prompt_ground": "ground",
}  # fmt: skip
INDICES, VECTORS, SETS = ("token_agreement", "kl"), ("token_distance", "forced_distance"), ("fid", "precision", "class_accuracy")
PARTS = ("prompt_object", "prompt_colour", "prompt_count", "prompt_position", "prompt_ground")
REFERENCES = {"other_seeds": "*full, different seeds*", "other_batch": "*full, different batch size*"}
FEW = "A FID that few of its images decide has no interval."
WIDTH = 140  # characters of a line of the page


class Figures(NamedTuple):
    """A table of a section.

    ``columns``: its values; ``marked``: values with a mark if the interval of the paired difference from the baseline excludes 0; ``less``:
    values with a column for this difference; ``claims``: whether the table states non-inferiority.
    """

    columns: Sequence[str]
    marked: Sequence[str] = ()
    less: Sequence[str] = ()
    claims: bool = False


JUDGED = Figures(SETS, ("fid", "class_accuracy"), ("fid",), claims=True)


class Section(NamedTuple):
    """Tables of a plan under a ``heading``.

    ``short``: values of the table in docs/results.md, without the methods in ``left_out``. ``kind`` is an extra first column (title and
    text of a row); ``parameters`` adds a column of non-default parameters; rows are sorted by the value ``by``, else in plan order.
    """

    heading: str
    about: str
    tables: Sequence[Figures]
    short: Sequence[str]
    left_out: Sequence[str] = ()
    kind: tuple[str, Callable[[Row], str]] | None = None
    parameters: bool = False
    by: str = ""


def _equal(row: Row) -> str:
    return ("FLOPs of gtr", "FLOPs of lazymar", "FLOPs of marche", "time")[row.get("block", 0)]


def _how(row: Row) -> str:
    evicts, quantizes = row["method"].split()[0] != FULL, "codec" in row
    return "both" if evicts and quantizes else "eviction" if evicts else "quantization" if quantizes else ""


SECTIONS = {
    "rivals": Section(
        "Next-scale: caches at equal allocated bytes",
        "Each method at two budgets: the bytes of AMS-KV with one layer in six demanding, and 3/10 of the full cache. Budgets count "
        "allocated bytes without the workspace. All bytes are fractions of the full cache's; *peak* is between two layers of a pass.",
        (Figures(("kv_allocated", "kv_own", "kv_logical", "kv_peak", *INDICES)), JUDGED),
        ("kv_allocated", "kl", "fid", "class_accuracy")),
    "gtr": Section(
        "Masked: methods at equal FLOPs and at equal time",
        "GtR, LazyMAR, MARché and fewer steps at the FLOPs of each of the first three, and steps that took as long as GtR (7) and LazyMAR "
        "(11, and GtR with 16) on an Intel Xeon. Intervals of speedups cover less than 95 %. GtR changes the order, so it has no forced "
        "distance.",
        (Figures(("flops", "latency", "speedup", *VECTORS)), JUDGED),
        ("flops", "token_distance", "fid", "precision"), kind=("equal", _equal), parameters=True),
    "heads": Section(
        "Diffusion heads: DiSA's schedules and constant steps",
        "Alone, and within LazyMAR, MARché and ReCAP. All methods of a group have about the same FLOPs.",
        (Figures(("flops", "latency", "speedup", *VECTORS)), JUDGED),
        ("flops", "token_distance", "fid", "class_accuracy"), parameters=True),
    "codecs": Section(
        "Eviction vs. quantization",
        "Eviction at the bytes of 8-bit and 4-bit full caches, scales included, and both together. Bytes are fractions of the full "
        "cache's; rows are sorted by live bytes. Allocated bytes include the decoding buffer.",
        (Figures(("kv_logical", "kv_allocated", *INDICES)), JUDGED),
        ("kv_logical", "fid", "class_accuracy"), kind=("how", _how), by="kv_logical"),
    "prompts": Section(
        "Prompt scores: every caption",
        "One image per caption, which states object, color, count, position and ground. *All*: fraction of images with everything right.",
        (Figures((*INDICES, "prompt_score"), ("prompt_score",), ("prompt_score",), claims=True), Figures(PARTS, PARTS)),
        ("kl", "prompt_score")),
    "text-caches": Section(
        "Caches of language models on images",
        "Six cache methods of language models next to R-KV and LineAR. Color consistency and *all* (fraction of images with everything "
        "that the caption requests) are quality: they do not use the baseline's images.",
        (Figures((*INDICES, "psnr", "color_consistency", "prompt_score"), ("color_consistency", "prompt_score")),),
        ("color_consistency", "prompt_score")),
    "compute": Section(
        "Next-scale: saved computation at equal FLOPs",
        "FastVAR at the FLOPs of a generation with one or two scales skipped, and of one without guidance in the last one or two; "
        "SkipVAR at the thresholds 0.84 and 0.7. The budget of SkipVAR is what its tuning images lead to expect, *FLOPs* the mean of the "
        "timed images. Token values are over the scales that a method generates.",
        (Figures(("flops", *INDICES, "psnr", "ssim", "color_consistency"), ("color_consistency",)), JUDGED),
        ("ssim", "fid", "class_accuracy"), left_out=("fastvar: random", "fastvar: zero", "fastvar int8", "full int8")),
}


def stored(plan: str) -> Row:
    """Return the stored values of a plan's tables."""
    return dict(json.loads((FOLDER / f"{plan}.json").read_text(encoding="utf-8")))


def take(store: Path, plan: str) -> Row:
    """Return the values of a plan's tables from its newest run in a store."""
    return of_run(store, plan, {name for figures in SECTIONS[plan].tables for name in figures.columns})


def short(values: Row) -> str:
    """Return the tables of the page: candidates without intervals, and the command that prints the rest."""
    section, parts = SECTIONS[values["plan"]], list[str]()
    marked = {name for figures in section.tables for name in figures.marked}
    for model in values["asked"]:
        rows = [{**row, "figures": {name: value[:1] for name, value in row.get("figures", {}).items()}}
                for row in values["rows"]
                if row["model"] == model and row["role"] not in REFERENCES and row["method"] not in section.left_out]
        rows.sort(key=lambda row: -_by(row, section.by))
        claims = {row["claim"] for row in rows if row.get("claim")} if any(figures.claims for figures in section.tables) else set()
        figures = _measured(Figures(section.short, [name for name in section.short if name in marked], claims=len(claims) > 1), rows)
        plain = section._replace(parameters=False, kind=None if section.by else section.kind)  # rows by their bytes need no kind
        verdict = f" Each verdict is *{claims.pop()}*." if len(claims) == 1 else ""
        parts += [f"`{model}`.{verdict}", table(_head(figures, plain), (_cells(row, figures, plain) for row in rows))]
    plan = values["plan"]
    parts.append(f"`cachemark run {plan}`, commit {values['commit']}, {for_markdown(values['machine'])}. All values, intervals and notes: "
                 f"`python -m tools.pages.results {plan}` (`studies/results/{plan}.json`).")
    return "\n\n".join(parts)


def _sections() -> dict[str, Row]:
    """Return the sections that were written by hand, by name."""
    recorded_here, pages = (json.loads((FOLDER / file).read_text(encoding="utf-8")) for file in (RECORDED, PAGES))
    return {**recorded_here, **pages}


def tables(name: str, number: int = 0) -> str:
    """Return the tables of a section that was written by hand as Markdown, or one of them (from 1)."""
    blocks = [table(block["columns"], block["rows"]) for block in _sections()[name]["blocks"] if not isinstance(block, str)]
    return blocks[number - 1] if number else "\n\n".join(blocks)


def recorded(name: str) -> str:
    """Return a section that was written by hand as Markdown."""
    section = _sections()[name]
    blocks = [block if isinstance(block, str) else table(block["columns"], block["rows"]) for block in section["blocks"]]
    return "\n\n".join([f"## {section['heading']}", *blocks])


def text(values: Row) -> str:
    """Return all values and notes of a plan as Markdown."""
    section, parts = SECTIONS[values["plan"]], list[str]()
    for model, requested in values["asked"].items():
        mine = [row for row in values["rows"] if row["model"] == model]
        candidates = sorted((row for row in mine if row["role"] not in REFERENCES), key=lambda row: -_by(row, section.by))
        references = [row for row in mine if row["role"] in REFERENCES]
        parts.append(_wrapped(_about(model, values, candidates, section)))
        for figures in (_measured(figures, mine) for figures in section.tables):
            rows = [*candidates, *(row for row in references if set(figures.columns) & set(row.get("figures", ())))]
            parts.append(table(_head(figures, section), (_cells(row, figures, section) for row in rows)))
        parts += list(_notes([*candidates, *references]))
        parts.append(_wrapped(_origin(values, requested, section)))
    rules = " ".join(dict.fromkeys(for_markdown(rule) for rule in values["rule"].values()))
    about = f"{section.about} {rules}".rstrip()
    return "\n\n".join([f"## {section.heading}", _wrapped(about), *parts, *_calibrated(values["calibrations"])])


def _measured(figures: Figures, rows: Sequence[Row]) -> Figures:
    """Remove columns without any value, such as the prompt score of a model without prompts."""
    names = {name for row in rows for name in row.get("figures", {})}
    return figures._replace(columns=[name for name in figures.columns if name in names])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _about(model: str, values: Row, rows: Sequence[Row], section: Section) -> str:
    requested = values["asked"][model]
    seeds = f"`{model}`, {requested['samples']} seeds of `{requested['seeds']}`"
    seeds += f" for fidelity, {requested['images']} images of `{requested['of']}` for quality" if requested["images"] else ""
    names = {name for figures in section.tables for name in figures.marked}
    details = [contents for row in rows for name, contents in row.get("less", {}).items() if name in names and len(contents) == 3]
    differ = sum(map(apart, details))
    chance = f" {differ} of {len(details)} differences exclude 0, {0.05 * len(details):.1f} expected by chance." if details else ""
    few = f" {FEW}" if any(len(row.get("figures", {}).get("fid", (0, 0, 0))) == 1 for row in rows) else ""
    return f"{seeds}.{chance}{few}"


# -- a table ------------------------------------------------------------------------------------------------------------
def _by(row: Row, name: str) -> float:
    return 2.0 if row["role"] == "baseline" else round(row.get("figures", {}).get(name, [0.0])[0], 2)


def _head(figures: Figures, section: Section) -> list[str]:
    before = [*([section.kind[0]] if section.kind else []), "method", *(["parameters"] if section.parameters else []), "budget"]
    columns = [title for name in figures.columns for title in (NAMES[name], *([f"{NAMES[name]} − full"] if name in figures.less else []))]
    return [*before, *columns, *(["verdict"] if figures.claims else [])]


def _cells(row: Row, figures: Figures, section: Section) -> list[str]:
    parameters = ", ".join(f"{name} {value}" for name, value in sorted(row.get("parameters", {}).items()))  # as a file keeps them
    before = [*([section.kind[1](row) if row["role"] == "candidate" else ""] if section.kind else []),
              REFERENCES.get(row["role"]) or for_markdown(row["method"]), *([for_markdown(parameters)] if section.parameters else []),
              for_markdown(row["budget"])]
    values, less, absent = row.get("figures", {}), row.get("less", {}), DASH if row["role"] == "candidate" else ""
    cells = [cell for name in figures.columns for cell in (
        _figure(values, name, absent, marked=name in figures.marked and apart(less.get(name, ()))),
        *([_figure(less, name, absent)] if name in figures.less else []))]
    return [*before, *cells, *([row.get("claim") or absent] if figures.claims else [])]


def _figure(values: Mapping[str, Sequence[float]], name: str, absent: str, marked: bool = False) -> str:
    if name not in values:
        return absent
    if name == "speedup":
        value, *limits = (f"{number:.2f}" for number in values[name])
        return f"{value}× ({'–'.join(limits)})" if limits else f"{value}×"
    text = ends(values[name], 1 if name in ("fid", "psnr") else 2 if name == "latency" else 3)
    value, space, interval = text.partition(" ")
    return f"{value}\\*{space}{interval}" if marked else text


# -- below the tables ---------------------------------------------------------------------------------------------------
def _notes(rows: Sequence[Row]) -> Iterator[str]:
    texts: dict[str, list[str]] = {}
    for row in rows:
        for reason in [row["missing"]] if "missing" in row else row.get("notes", ()):
            name = REFERENCES.get(row["role"]) or f"{for_markdown(row['method'])} {for_markdown(row['budget'])}"
            texts.setdefault(reason, []).append(name)
    if texts:
        yield "\n".join(f"- {', '.join(names)}: {for_markdown(reason, 300)}" for reason, names in texts.items())


def _origin(values: Row, requested: Row, section: Section) -> str:
    timed = any("latency" in figures.columns for figures in section.tables)
    dtype = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[requested["dtype"]]
    parts = [
        f"`cachemark run {values['plan']}`, commit {for_markdown(values['commit'])}, {for_markdown(values['machine'])}, "
        f"{count(values['threads'], 'thread')}, torch {for_markdown(values['torch'])}, {dtype}",
        *([f"times are medians of {requested['repeats']} at batch {requested['batch']}"] if timed else []),
        *([f"{count(values['reused'], 'case')} measured in an earlier run"] if values["reused"] else []),
        *([f"the run is {for_markdown(values['state'])}"] if values["state"] != "finished" else []),
    ]
    return f"{'; '.join(parts)}."


def _calibrated(calibrations: Sequence[Row]) -> Iterator[str]:
    if calibrations:
        noted = [name for name in ("seeds", *COST) if any(name in item for item in calibrations)]
        yield f"Calibrations{'' if 'machine' in noted else ' (machine not recorded)'}:"
        yield table(("method", "digest", "samples", *noted),
                    ([for_markdown(item.get(name, DASH)) for name in ("method", "digest", "samples", *noted)] for item in calibrations))


def main() -> None:
    """Print the tables of a plan, or take their values from a store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*SECTIONS, *_sections()]
    parser.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("store", type=Path, nargs="?", help="take the values of a plan from this store")
    arguments = parser.parse_args()
    if arguments.name not in SECTIONS:
        print(recorded(arguments.name))
        return
    if arguments.store:
        try:
            values = take(arguments.store, arguments.name)
        except CachemarkError as error:
            raise SystemExit(str(error)) from None
        (FOLDER / f"{arguments.name}.json").write_text(canonical(values) + "\n", encoding="utf-8")
    print(text(stored(arguments.name)))


if __name__ == "__main__":
    main()
