"""The number of CPU threads of a measurement that nobody names."""

import os
import re


def default_threads() -> int:
    """Return $OMP_NUM_THREADS (of nested levels the first), else the number of processors."""
    stated = re.match(r"\s*0*([1-9]\d{0,3})\s*(?:,|$)", os.environ.get("OMP_NUM_THREADS", ""), re.ASCII)
    return int(stated[1]) if stated else os.cpu_count() or 1
