"""Unit and direction of each metric, for its heading in ``docs/reference/metrics.md``."""

from __future__ import annotations

import re

from cachemark.core.units import FAMILIES, METRICS

HEADING = re.compile(r"^(### `([a-z0-9_]+)(?:_…)?`\n\n)", re.M)


def with_units(page: str) -> str:
    """Return the page with unit and direction before the definition of each metric."""
    about = {**METRICS, **FAMILIES}
    return HEADING.sub(lambda heading: f"{heading[1]}*{about[heading[2]].unit or 'no unit'}, {about[heading[2]].better} is better.* ", page)
