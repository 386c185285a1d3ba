"""No file outside ``metrics`` names a metric: everything about it is an attribute of its class."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path

import cachemark
from cachemark.core.units import FAMILIES, METRICS

PACKAGE = Path(cachemark.__file__).parent
COSTS = "fields of Costs, and facts"
ALLOWED = {
    "core/units.py": "the one list of metrics from which speedups, savings, ranks and charts are derived",
    "core/spec.py": "the key under which a case asks for its largest batch",
    "models/prompt_lists.py": "kinds of lists of prompts",
    "models/catalogue/family.py": "a model names the metrics that are made for it",
    "plans/expand.py": "kid_subset_size, an option of torch-fidelity",
    "trial/child/decisions.py": COSTS, "trial/child/measure.py": COSTS, "trial/child/timing.py": COSTS,
    "cli/advise.py": "passes of a decoder, no metric", "cli/generate.py": "what one generation took, no metric",
}  # fmt: skip


def is_name(text: str) -> bool:
    return text in METRICS or text in FAMILIES or any(text.startswith(f"{family}_") for family in FAMILIES)


def naming(path: Path) -> bool:
    """True of a file with a text that is the name of a metric."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return any(token.type == tokenize.STRING and is_name(token.string.strip("\"'")) for token in tokens)


def test_metrics_are_named_where_they_are_declared() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert {name for name, path in files.items() if not name.startswith("metrics/") and naming(path)} == ALLOWED.keys()
