"""A case of a plan, with everything that its process needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.limits import Rates
from ..core.outside_metrics import KEY
from ..core.spec import Case
from ..models.protocol import ModelEntry, Request
from ..models.registry import MODELS
from .reuse import Earlier, KnownSeeds


@dataclass(frozen=True)
class Planned:
    """A case with everything needed to run it.

    ``unsupported_reason``: why the method cannot run, or empty. ``feature_cache``: the folder of finished parts of its quality pass;
    ``full_features``: the folder of its full cache. ``rates``: measured rates of the device. ``reusable``: an earlier outcome with
    reusable quality. ``known`` and ``known_full``: stored tokens of some of its samples and of its full cache's. ``engine_reason``: why
    ``auto`` is not the graph engine, or empty. ``needs``: digests of required plug-ins.
    ``sample_batch``: plan and npz file of the images of its quality pass, if they are written. ``idle_reason``: why the method changes
    nothing on this model, or empty. ``result_key`` and its ``result_parts`` identify the result in the store, which has it if
    ``stored``."""

    case: Case
    request: Request
    unsupported_reason: str = ""
    feature_cache: Path | None = None
    full_features: Path | None = None
    rates: Rates | None = None
    priority: int = 0
    reusable: Earlier | None = None
    known: KnownSeeds | None = None
    known_full: KnownSeeds | None = None
    engine_reason: str = ""
    needs: tuple[str, ...] = ()
    sample_batch: tuple[str, str] = ("", "")
    idle_reason: str = ""
    result_key: str = ""
    result_parts: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False

    @property
    def runs_plugin(self) -> bool:
        """True if its method, model, decoder or a metric belongs to a plug-in."""
        return bool(self.needs or self.case.evaluation.get(KEY))

    @property
    def entry(self) -> ModelEntry:
        """The model for the requested prompts. Raises like :meth:`ModelEntry.for_request`."""
        entry: ModelEntry = MODELS.get(self.case.model)
        return entry.for_request(self.request)
