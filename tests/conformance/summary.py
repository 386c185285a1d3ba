"""Summary of the checks of stored vectors, for the model cards; ``make docs`` rewrites it by ``python -m conformance.summary``."""

import json
from pathlib import Path
from typing import Any

import cachemark

from .discovery import DEFAULT, find

PATH = Path(cachemark.__file__).parent / "data" / "conformance.json"


def summary(folder: Path = DEFAULT) -> dict[str, Any]:
    """Return, by vector file, its family, description, methods, and checks with tolerances."""
    by_name: dict[str, Any] = {}
    for item in find(folder):
        name = item.path.relative_to(folder).with_suffix("").as_posix()
        entry = {"family": name.partition("/")[0], "about": item.kind.about, "methods": list(item.kind.methods), "checks": {}}
        by_name.setdefault(name, entry)["checks"][item.check.name] = item.check.tolerance
    return by_name


if __name__ == "__main__":
    PATH.write_text(json.dumps(summary(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
