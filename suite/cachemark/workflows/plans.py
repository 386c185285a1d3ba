"""A plan made ready: read, joined by the methods of plug-ins, and narrowed to what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core import plugins as plugin_files
from ..plans import schema
from ..plans.schema import Plan


def prepare(plan: Plan | str | Path, plugins: Sequence[str | Path] = (), methods: Sequence[str] = ()) -> tuple[Plan, tuple[str, ...]]:
    """A plan (the name of a shipped one, a TOML file, or a plan) with the methods of plug-in files and ``methods`` in every block, and the
    absolute paths of the files that a trial must load. Raises BadPlan and BadPlugin."""
    found = [name for file in plugins for name in plugin_files.load(file)]
    loaded = plan if isinstance(plan, Plan) else schema.load(str(plan))
    joined = loaded.joined([*found, *methods])
    for file in joined.files():
        plugin_files.load(file)
    return joined, tuple(str(Path(file).resolve()) for file in (*plugins, *joined.files()))
