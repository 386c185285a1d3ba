"""Tables for documents: values as on the page, margins, bold entries, and reasons for empty cells."""

import os
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.columns import cells, column_groups
from cachemark.analysis.quality_claims import standing
from cachemark.analysis.report_view import build
from cachemark.core import formatting as fmt
from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome
from cachemark.export.documents import latex, markdown
from cachemark.export.tables import Table, TableEntry, TableLine, tables
from report import report_sample as sample

GOLD = Path(__file__).parent / "gold"
REGOLD = "CACHEMARK_REGOLD"


def table(outcomes: Sequence[Outcome]) -> Table:
    (exported,) = tables(build(sample.RUN, outcomes))
    return exported


def lines(of: Table) -> list[TableLine]:
    return [line for block in of.blocks for line in block]


def column(of: Table, key: str) -> dict[str, TableEntry]:
    """A column's entries by the method and budget of their line."""
    number = [c.key for c in of.columns].index(key)
    return {f"{line.name} {line.budget.split()[0]}": line.entries[number] for line in lines(of) if line.entries}


def bold(of: Table, key: str) -> set[str]:
    return {name for name, entry in column(of, key).items() if entry.best}


@pytest.mark.parametrize(("write", "name"), [(markdown, "table.md"), (latex, "table.tex")])
def test_a_table_is_as_in_the_gold_file(write: Callable[[Sequence[Table]], str], name: str) -> None:
    text = write(tables(build(sample.RUN, sample.mixed()), ["speedup", "saving", "kl", "color_consistency"], ["linear", "random", "rkv"]))
    if os.environ.get(REGOLD):
        (GOLD / name).write_text(text, encoding="utf-8")
    hint = f"if the change is meant: {REGOLD}=1 pytest tests/export/{Path(__file__).name}, then read the diff of {name}"
    assert text == (GOLD / name).read_text(encoding="utf-8"), hint


def test_every_figure_is_the_text_of_the_page() -> None:
    ((part,), _) = standing(sample.mixed())
    columns = column_groups(part)
    for row, line in zip(part.rows, lines(table(sample.mixed())), strict=True):
        page = {cell.key: cell.text for cell in cells(row, columns) if not cell.empty}
        if not row.ok:
            assert (line.status, line.entries) == (page["status"], ())
            continue
        keys = [c.key for group in columns for c in group.columns]
        assert {key: entry.text for key, entry in zip(keys, line.entries, strict=True) if not entry.missing} == page


def test_a_margin_reaches_to_the_farther_end() -> None:
    (part,) = case_groups(sample.outcomes())
    row = next(r for r in part.candidates if r.case.label == "linear 1/4")
    exported, kl, speed, latency = table(sample.outcomes()), row.fidelity["kl"], row.speedup, sorted(row.outcome.samples["latency"])
    margins = {key: column(exported, key)["LineAR 1/4"].with_margin for key in ("kl", "speedup", "latency", "kv_logical")}
    assert margins == {
        "kl": f"{kl.value:.3f} ± {max(kl.high - kl.value, kl.value - kl.low):.3f}",
        "speedup": f"{fmt.times(speed.value)} ({speed.low:.2f}–{speed.high:.2f})",
        "latency": f"{latency[2]:.2f} s ({latency[0]:.2f}–{latency[-1]:.2f})", "kv_logical": "964 KiB"}
    assert column(exported, "speedup")["full 1"].with_margin == "1.00×"


def as_good(outcome: Outcome) -> Outcome:
    """The outcome with the full cache's color consistency, so that it may be ranked."""
    return sample.measured(outcome, color_consistency=list(sample.full().samples["color_consistency"]))


def noise(name: str, size: float = 1.0) -> list[float]:
    stream = random.Random(name)
    return [size * stream.gauss(0, 1) for _ in range(sample.SEEDS)]


SPREAD = [20 + value for value in noise("seeds", 3)]  # what seeds do to every method alike


def psnr_of(*alternatives: list[float]) -> set[str]:
    """Which methods at a half are bold where ``linear`` has the values ``SPREAD`` and the others these."""
    named = zip(("linear", "random", "window"), (SPREAD, *alternatives), strict=False)
    candidates = [sample.measured(sample.candidate(method, "1/2"), psnr=values) for method, values in named]
    return bold(table([sample.full(), *candidates, sample.other_seeds()]), "psnr")


def test_bold_is_what_may_be_the_best() -> None:
    assert psnr_of([value - 0.1 for value in SPREAD]) == {"LineAR 1/2"}
    shaken = [value + noise for value, noise in zip(SPREAD, noise("own", 2), strict=True)]
    centred = [value - (sum(shaken) - sum(SPREAD)) / sample.SEEDS - 0.05 for value in shaken]
    assert psnr_of(centred) == {"LineAR 1/2", "random 1/2"}
    assert psnr_of([value - 5 for value in centred]) == {"LineAR 1/2"}

    def of(*latency: float) -> set[str]:
        candidates = [sample.measured(sample.candidate("linear", "1/2"), latency=[1.0, 1.02, 1.04]),
                      sample.measured(sample.candidate("random", "1/2"), latency=list(latency))]
        return bold(table([sample.measured(sample.full(), latency=[2.0, 2.0, 2.0]), *candidates]), "speedup")

    assert of(1.03, 1.06, 1.08) == {"LineAR 1/2", "random 1/2"}
    assert of(1.11, 1.12, 1.13) == {"LineAR 1/2", "random 1/2"}, "which two processes may differ by"
    assert of(1.18, 1.19, 1.20) == {"LineAR 1/2"}
    worse = sample.measured(sample.candidate("linear", "1/4"), latency=[0.1] * 5,
                  token_agreement=list(sample.other_seeds().samples["token_agreement"]))
    results = [sample.full(), *map(as_good, (worse, sample.candidate("random", "1/4"), sample.candidate("window", "1/4")))]
    exported = table([*results, sample.other_seeds()])
    assert column(exported, "speedup")["LineAR 1/4"].text > column(exported, "speedup")["window 1/4"].text
    assert "LineAR 1/4" not in bold(exported, "speedup")
    assert "window 1/4" in bold(exported, "speedup")
    assert "LineAR 1/4" in bold(table(results), "speedup")  # not distinguishable without the different-seed reference
    assert not [entry for line in exported.blocks[0] for entry in line.entries if entry.best]


def test_a_plain_table_has_paired_differences_and_only_comments_around_it() -> None:
    view = build(sample.RUN, sample.mixed())
    ((plain,), (noted,)) = (tables(view, ["color_consistency", "kl"], plain=plain) for plain in (True, False))
    assert [line for line in lines(plain) if line.name.startswith("full (")] == []
    scores = {o.case.label: np.mean(o.samples["color_consistency"]) for o in sample.mixed() if "color_consistency" in o.samples}
    entry, difference = column(plain, "color_consistency")["window 1/2"], scores["window 1/2"] - scores["full"]
    assert (entry.ends, entry.margin) == (f"−{100 * abs(difference):.1f} pt", "")
    assert entry.text == column(noted, "color_consistency")["window 1/2"].text
    assert (plain.notes, plain.reasons, plain.comments[-1]) == ((), (), noted.notes[-1])
    assert {entry.ends for entry in column(plain, "kl").values()} == {""}, "a distance from the full cache has no difference from it"
    assert "Brackets:" not in latex(tables(view, ["kl"], plain=True))
    text = latex([plain])
    assert "Brackets:" in text
    assert f"($-${100 * abs(difference):.1f} pt)" in text
    assert "in points (pt). 64 seeds, batch 16, median of 5 timed repeats, Example CPU, 8 threads.}" in text
    assert "± " not in text.split("% ±")[0].partition("\\bottomrule")[0]
    assert all(line.startswith("%") for line in text.partition("\\end{tabular}")[2].splitlines() if line and line != "\\end{table}")


@pytest.mark.parametrize(("columns", "methods", "said"), [(["psrn"], [], "Unknown column 'psrn'. Did you mean 'psnr'"),
                                                          ([], ["linaer"], "Unknown method 'linaer'. Did you mean 'linear'")])
def test_a_name_that_is_none_is_refused(columns: list[str], methods: list[str], said: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(said)):
        tables(build(sample.RUN, sample.mixed()), columns, methods)
