"""A run on GitHub: step summary, annotations, and the text of a pull-request comment."""

from __future__ import annotations

import html
from collections.abc import Iterable

from ..analysis.baseline_comparison import BaselineComparison
from ..analysis.report_view import ReportView
from ..core.formatting import DASH
from ..core.verdicts import CHANGED, MISSING, REGRESSED
from ..core.wording import on_one_line
from ..gate.judgement import RunJudgement
from ..store.rows import Verdict
from .documents import NOTE, REASON, markdown
from .escape import JOINER, for_markdown, slug
from .tables import NAME, tables

SUMMARY_BYTES = 1024 * 1024  # of a step's summary; GitHub drops one that is longer
COMMENT_CHARACTERS = 65_536  # of a comment; GitHub refuses one that is longer
ANNOTATIONS = 10  # of one kind in a step; GitHub does not show more
ANSWERS = 12  # models with a recommendation in the comment
SHOWN = 50  # rows of a comparison in a table
_HEAD = "| case | metric | verdict | then | now | × then | reason |\n| :-- | :-- | --: | --: | --: | --: | --: |"
_LEVELS = {REGRESSED: "error", MISSING: "warning", CHANGED: "notice"}


def summary(view: ReportView, result: RunJudgement | None = None) -> str:
    """Return Markdown for ``$GITHUB_STEP_SUMMARY``, at most 1 MiB."""
    return _fitting([*_head(view, result), *(markdown([table]) for table in tables(view))], SUMMARY_BYTES)


def comment(view: ReportView, result: RunJudgement | None = None) -> str:
    """Return Markdown for a pull-request comment, at most 65,536 characters and bytes.

    It starts with an invisible mark that depends only on the plan, so that the comment of the last push can be replaced.
    """
    title, *paragraphs = _head(view, result)
    mark = f"<!-- cachemark {slug(view.plan)} -->\n{title}"
    folded = []
    for table in tables(view):
        heading = html.escape(on_one_line(table.title, NAME), quote=False).replace("#", f"#{JOINER}").replace("@", f"@{JOINER}")
        folded.append(f"<details><summary>{heading}</summary>\n\n{markdown([table])}\n</details>\n")
    return _fitting([mark, *paragraphs, *folded], COMMENT_CHARACTERS)


def _head(view: ReportView, result: RunJudgement | None) -> list[str]:
    """Return the title, the verdicts and the answers."""
    lines = [f"- **{for_markdown(chapter.heading, NAME)}**: {for_markdown(chapter.answer.text, REASON)}" for chapter in view.chapters]
    plugins = [f"  - {for_markdown(f'{name} on {chapter.heading}', NAME)}: {for_markdown(line, REASON)}"
               for chapter in view.chapters for name, line in chapter.plugins]
    answers = ["\n".join([*lines[:ANSWERS], *plugins[:ANSWERS]]) + "\n"] if lines else []
    return [f"## cachemark {for_markdown(view.plan, NAME)}\n", *_verdicts(result), *answers]


def workflow_commands(result: RunJudgement) -> list[str]:
    """Return workflow commands: errors for regressions, warnings for missing cases, notices for changes.

    GitHub shows ten of a kind; the tenth counts the others.
    """
    commands, fails = list[str](), set(result.failing)
    kinds = {REGRESSED: [row for row in result.failing if not result.decision_on(row)],
             **{verdict: [row for row in result.all_rows if row not in fails and row.verdict == verdict] for verdict in (MISSING, CHANGED)}}
    for verdict, rows in kinds.items():
        level = _LEVELS[verdict]
        texts = [_annotation(level, row, BaselineComparison(row).movement) for row in rows]
        if len(texts) > ANNOTATIONS:
            more = len(texts) - ANNOTATIONS + 1
            texts = [*texts[: ANNOTATIONS - 1], f"::{level} title=cachemark::{more} more {verdict}; see the summary of the step"]
        commands += texts
    return commands


def _annotation(level: str, row: Verdict, values: str) -> str:
    ratio = f" (× {row.change:.3f})" if row.change is not None else ""
    change = " ".join(filter(None, (values + ratio, row.reason)))
    title, text = (on_one_line(part, limit).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
                   for part, limit in ((f"cachemark {row.label}", NAME), (f"{row.metric} {row.verdict}: {change}", REASON)))
    return f"::{level} title={title.replace(':', '%3A').replace(',', '%2C')}::{text}"


def _verdicts(result: RunJudgement | None) -> list[str]:
    if result is None:
        return ["Not compared with a baseline.\n"]
    lines = f"**{for_markdown(result.in_words, NOTE)}**\n\n"
    lines += "\n".join(f"- {for_markdown(line, NOTE if 'cachemark ' in line else REASON)}" for line in result.summary()) + "\n"
    changed = [row for verdict in _LEVELS for row in result.all_rows if row.verdict == verdict]
    if not changed:
        return [lines]
    more = f"\nand {len(changed) - SHOWN} more.\n" if len(changed) > SHOWN else ""
    rows = []
    for row in changed[:SHOWN]:
        names = (for_markdown(text, NAME) for text in (row.label, row.metric, row.verdict))
        change = DASH if row.change is None else f"{row.change:.3f}"
        reason = for_markdown("; ".join(filter(None, (result.decision_on(row), row.reason))), REASON)
        rows.append(f"| {' | '.join((*names, *BaselineComparison(row).texts, change, reason))} |")
    return [lines, "\n".join((_HEAD, *rows)) + f"\n{more}"]


def _fitting(parts: Iterable[str], most: int) -> str:
    cut = "\nThe rest does not fit here; see `cachemark report`.\n"
    text, note = "", ""
    for part in parts:
        if len(f"{text}\n{part}{cut}".encode()) > most:
            note = cut
            break
        text += f"\n{part}" if text else part
    return text + note
