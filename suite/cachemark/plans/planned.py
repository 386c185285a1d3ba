"""A case of a plan, and the same with what a run adds before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ..core.limits import Rates
from ..core.outside_metrics import KEY
from ..core.spec import Case
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from .reuse import Earlier, KnownSeeds


@dataclass(frozen=True)
class Planned:
    """A case of an expanded plan.

    ``unsupported_reason``: why the method cannot run; ``engine_reason``: why ``auto`` is not the graph engine; ``idle_reason``: why the
    method changes nothing on this model; each may be empty. ``priority``: that of its block. ``needs``: digests of required plug-ins."""

    case: Case
    request: Request
    unsupported_reason: str = ""
    priority: int = 0
    engine_reason: str = ""
    idle_reason: str = ""
    needs: tuple[str, ...] = ()

    @property
    def runs_plugin(self) -> bool:
        """True if its method, model, decoder or a metric belongs to a plug-in."""
        return bool(self.needs or self.case.evaluation.get(KEY))

    @property
    def entry(self) -> ModelEntry:
        """The model for the requested prompts. Raises like :meth:`ModelEntry.for_request`."""
        entry: ModelEntry = MODELS.get(self.case.model)
        return entry.for_request(self.request)


@dataclass(frozen=True)
class Prepared(Planned):
    """A planned case with what the store and the device add to it: everything that its process needs.

    ``result_key`` and its ``result_parts`` identify the result in the store, which has it if ``stored``. ``rates``: measured rates of the
    device. ``feature_cache``: the folder of finished parts of its quality pass; ``full_features``: that of its full cache.
    ``sample_batch``: plan and npz file of the images of its quality pass, if they are written. ``known`` and ``known_full``: stored tokens
    of some of its samples and of its full cache's. ``reusable``: an earlier outcome with reusable quality."""

    result_key: str = ""
    result_parts: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False
    rates: Rates | None = None
    feature_cache: Path | None = None
    full_features: Path | None = None
    sample_batch: tuple[str, str] = ("", "")
    known: KnownSeeds | None = None
    known_full: KnownSeeds | None = None
    reusable: Earlier | None = None

    @classmethod
    def of(cls, planned: Planned, **added: Any) -> Self:
        """Return a planned case with these fields added or changed, and no others."""
        return cls(**{**{f.name: getattr(planned, f.name) for f in fields(Planned)}, **added})
