"""The tables of README are those of the sample report, figure by figure."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from page import Page

ROOT = Path(__file__).parents[2]
HEADS = ("| method | budget | KL, nat/token |", "| method | share of full | KL, nat/token |")
COLUMNS = {"KL": 2, "Agreement": 3, "PSNR": 4, "Legend score": 5, "Speed-up": 7}  # of the report, and where README has them


@pytest.fixture(scope="module")
def page() -> Page:
    return Page((ROOT / "reports" / "demo.html").read_text(encoding="utf-8"))


def readme(head: str) -> list[list[str]]:
    """The rows of the table that begins with ``head``."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").split(head, 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def report(page: Page, model: int) -> dict[tuple[str, str], dict[str, str]]:
    """The headline rows of the model of that number, by method and budget, each a text by column."""
    table = [t for t in page.tables() if len(t) > 2 and "KL" in t[1]][model]
    named = {}
    for row in table[2:]:
        if len(row) == len(table[1]):
            method, budget = row[1].removesuffix("quality only").strip(), row[2].split()[0]
            named[method, budget] = {title: row[k] for k, title in enumerate(table[1])}
    return named


def figures(text: str, share: bool) -> list[str]:
    """The numbers of a cell as the report writes them; a share is a percentage there."""
    found = re.findall(r"\d+\.\d+|\d+", text)
    return [f"{100 * float(number):.1f}" for number in found] if share else found


@pytest.mark.parametrize(("model", "head"), list(enumerate(HEADS)))
def test_every_figure_is_the_report_s(model: int, head: str, page: Page) -> None:
    rows, compared = report(page, model), 0
    budgets = {round(float(Fraction(budget)), 2): budget for _, budget in rows}
    for cells in readme(head):
        role = {"*floor*": " floor", "*numerics*": " numerics"}.get(cells[0].split(":")[0], "")
        name = f"full{role}" if role else cells[0]
        held = rows[name, budgets[round(float(Fraction(cells[1])), 2)]]
        for title, place in COLUMNS.items():
            text = cells[place]
            if not text or cells[0] == "full" or text == "quality only":
                continue
            share = title in ("Agreement", "Legend score")
            wanted = re.findall(r"\d+\.\d+|\d+", held[title])
            given = figures(text, share)
            assert [float(x) for x in given] == [float(x) for x in wanted[: len(given)]], (name, title)
            compared += len(given)
    assert compared > 50


def test_both_name_one_commit(page: Page) -> None:
    stated = re.search(r"`make demo`, commit ([0-9a-f]{10})", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert stated is not None
    assert any(element.text.startswith(stated[1]) for element in page.elements if element.tag in ("code", "bdi", "dd"))
