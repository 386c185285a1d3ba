"""Origin of a script's values: code and machine, for its first line and its JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from cachemark import __version__
from cachemark.machine.environment import Environment, environment
from cachemark.plans.reuse import code_identity


@dataclass
class Origin:
    """Code and machine of a script that computes on ``threads`` threads of the CPU."""

    threads: int
    environment: Environment = field(init=False)
    code: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.environment, self.code = environment("cpu", self.threads), code_identity()

    @property
    def commit(self) -> str:
        """The first digits of the commit, and whether the code differs from it."""
        return f"{self.code['commit'][:10]}{' (dirty)' if self.code['dirty'] else ''}"

    def __str__(self) -> str:
        return f"cachemark {__version__}, commit {self.commit}, {self.environment.machine_class}, torch {self.environment.facts['torch']}"

    def write(self, path: str | None, **results: Any) -> None:
        """Write the results as JSON, if a path is given."""
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"environment": self.environment.to_json(), "code": self.code, **results}, file, indent=1)
