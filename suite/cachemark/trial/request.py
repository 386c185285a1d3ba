"""The request that a run sends to the process of a trial: cases, task and setup.

A new option is one field of :class:`TrialRequest` and nothing else. The child may be another copy of the code (an older commit under
comparison): it ignores unknown fields, and missing ones have their default. Increase ``PROTOCOL`` for a change that an older copy would
misunderstand: then both sides refuse.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ..core.errors import Unsupported
from ..core.facts import SetFacts
from ..core.limits import Rates
from ..core.spec import Case
from ..models.checkpoints import HASHED
from ..models.protocol import Request
from ..plans.planned import Prepared
from ..plans.reuse import Earlier, KnownSeeds

PROTOCOL = 2  # trial/identity.py reads this line in other copies of the code
GO_ON = b"go on"  # the message to a worker that waits
PARENT_ONLY = ("timeout", "gpu", "python", "code")  # fields for starting the process


class Task(enum.StrEnum):
    """Work that a trial does on each of its cases."""

    CASE = "case"  # times, bytes, fidelity and quality: everything in its plan
    TIMES = "times"  # a side of a pair: times and bytes
    IMAGES = "images"  # a side of a pair: its images are evaluated, nothing is timed
    PROBE = "probe"  # times and bytes of one batch, for the search of the largest that fits
    FEATURES = "features"  # features of a share of its quality images, which stay on disk for the run that needs them


def hashes() -> tuple[tuple[str, int, int, str], ...]:
    """Return the files that this process has hashed."""
    return tuple((path, size, changed, digest) for (path, size, changed), digest in HASHED.items())


@dataclass(frozen=True)
class TrialRequest:
    """The cases of a trial and how they are run.

    ``timeout``: seconds without a message, from the start of a case or the last message. ``threads``: CPU threads, on the processors
    ``cpus`` (empty: any). ``plugins``: Python files; each case imports the ones that it needs. ``share``: index and number of shares of
    features. ``pauses``: wait for the parent after each generation. ``memory_cap``: bytes of the device that may be allocated (0: all).
    ``gpu``: UUID of the only visible device (empty: all). ``python``: the interpreter, ``code``: a folder with another copy of the package
    (empty: as in this process). ``hashed``: path,
    size, time of the last change and SHA-256 of files that need not be read again."""

    timeout: float = 600.0
    threads: int = 1
    plugins: tuple[str, ...] = ()
    task: Task = Task.CASE
    share: tuple[int, int] = (0, 1)
    cpus: tuple[int, ...] = ()
    pauses: bool = False
    memory_cap: int = 0
    gpu: str = ""
    python: str = ""
    code: str = ""
    cases: tuple[Prepared, ...] = ()
    hashed: tuple[tuple[str, int, int, str], ...] = field(default_factory=hashes, compare=False)

    @property
    def command(self) -> list[str]:
        """Interpreter with -P, so that a user's random.py does not replace a module."""
        return [self.python or sys.executable, "-P"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the worker: allowed ones, the number of threads, and only the leased GPU."""
        own = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        own |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no compiler processes next to the measured one
        own |= {"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu else {}
        own |= {"PYTHONPATH": os.pathsep.join(filter(None, (self.code, os.environ.get("PYTHONPATH", ""))))} if self.code else {}
        if any(planned.request.metrics for planned in self.cases):  # some networks would download missing files
            own |= {"HF_HUB_OFFLINE": "1", "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
        return {**{name: value for name, value in os.environ.items() if ALLOWED.fullmatch(name)}, **own}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that the worker needs, and the protocol."""
        sent = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in PARENT_ONLY}
        return {**sent, "cases": [_planned_json(planned) for planned in self.cases], "protocol": PROTOCOL}

    def take_hashes(self) -> None:
        """Use the hashes of files that the parent has computed."""
        HASHED.update({(path, size, changed): digest for path, size, changed, digest in self.hashed})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialRequest:
        """Invert :meth:`to_json`; Unsupported if the parent uses another protocol."""
        if data.get("protocol") != PROTOCOL:
            raise other_protocol("The parent", data.get("protocol") or 0)
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in _known(data, cls).items()}
        values |= {"task": Task(data["task"]), "cases": tuple(_planned(item) for item in data["cases"])}
        return cls(**values)


ALLOWED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|TMP|TEMP|VIRTUAL_ENV|CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD|XDG_CACHE_HOME|CC|CXX"
    r"|LC_\w+|PYTHON\w*|(OMP|MKL|OPENBLAS|NUMEXPR|KMP|GOMP|ATEN|ONEDNN|DNNL)_\w+|(CUDA|NVIDIA|CUBLAS|CUDNN|NCCL|TORCH|PYTORCH|TORCHINDUCTOR|TRITON)_\w+"
    r"|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|CACHEMARK_(?!STORE)\w+"
)
"""Environment variables that a trial gets. It runs other people's code, so passwords and tokens are not among them, whatever their name."""


def other_protocol(who: str, number: float) -> Unsupported:
    """Return the error about a copy of the code with protocol ``number`` (0: none)."""
    theirs = f"protocol {number}" if number else "a protocol without a number"
    return Unsupported(
        f"{who} speaks {theirs} and this copy of cachemark speaks protocol {PROTOCOL}: they cannot run trials for each other.",
        remedy="Compare commits that share a protocol; for older ones, check out the newest of them and run from there.",
    )


def _known(data: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Return the entries that are fields of a class."""
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in data.items() if name in names}


def _planned_json(planned: Prepared) -> dict[str, Any]:
    """Return a case without default values of its request, which older copies of the code may not know."""
    request = {f.name: value for f in fields(planned.request) if (value := getattr(planned.request, f.name)) != f.default}
    return {
        "case": planned.case.to_json(), "request": {**request, "dtype": str(planned.request.dtype)},
        "unsupported_reason": planned.unsupported_reason, "feature_cache": str(planned.feature_cache or ""),
        "full_features": str(planned.full_features or ""), "rates": planned.rates and asdict(planned.rates),
        "reusable": planned.reusable and {**vars(planned.reusable), "facts": planned.reusable.facts.to_json()},
        "known": planned.known and vars(planned.known), "known_full": planned.known_full and vars(planned.known_full),
        "engine_reason": planned.engine_reason, "needs": list(planned.needs), "sample_batch": list(planned.sample_batch),
    }


def _planned(item: Mapping[str, Any]) -> Prepared:
    request_data = _known(item["request"], Request)
    metrics = tuple(tuple(option) for option in request_data.get("metrics", ()))
    request_data |= {"metrics": metrics, "grid": tuple(request_data.get("grid", ()))}
    request = Request(**{**request_data, "dtype": getattr(torch, item["request"]["dtype"].removeprefix("torch."))})
    feature_cache, full_features = (Path(item[name]) if item[name] else None for name in ("feature_cache", "full_features"))
    rates = Rates(**item["rates"]) if item["rates"] else None
    earlier = item["reusable"]
    reusable = Earlier(**{**earlier, "facts": SetFacts.from_json(earlier["facts"])}) if earlier else None
    known, known_full = (KnownSeeds(**item[name]) if item.get(name) else None for name in ("known", "known_full"))
    case, reason = Case.from_json(item["case"]), str(item["unsupported_reason"])
    return Prepared(case, request, reason, engine_reason=item["engine_reason"], needs=tuple(item["needs"]), rates=rates,
                    feature_cache=feature_cache, full_features=full_features, sample_batch=tuple(item.get("sample_batch", ("", ""))),
                    known=known, known_full=known_full, reusable=reusable)
