"""The identity of a measured case.

A case is one configuration of a plan. Its key is a hash of canonical JSON: equal on all machines, and different if any field differs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from .errors import BadBudget
from .outside_metrics import know
from .seeds import series_of
from .stored_table import checked_fields
from .wording import shown

FULL, SEQUENTIAL = "full", "sequential"
ENTRIES, FLOPS = "entries", "FLOPs"  # the quantities that a budget can be a fraction of
TOKENS, DISTRIBUTION = "tokens", "distribution"  # the properties of sequential decoding that a decoder can preserve
OWN = ("method", "variant", "parameters", "budget", "budget_kind", "role", "codec", "decoder")  # not shared with its full cache
AROUND = ("samples", "batch", "warmup", "repeats", "evaluation")  # fields that the tokens of one sample do not depend on
REFERENCE_SAMPLES = "reference_samples"  # of a case's evaluation: number of samples of its reference rows, if smaller
FORCED_SAMPLES = "forced_samples"  # likewise: how many are compared along the full cache's own tokens
LATER = {"budget_kind": ENTRIES, "kernel": "auto"}  # fields of a case that older keys do not have, with the values that they stand for
QUALITY_PASS = "quality"  # of a case's evaluation: the comparison of many images with real ones
MICRO, GOOGLE, HYPERFINE, CODSPEED, BENCHER = IMPORTED = ("pytest-benchmark", "google-benchmark", "hyperfine", "codspeed", "bencher")
"""Programs whose benchmarks are imported: model, engine and plan of such a case."""
MAX_BATCH = "max_batch"  # of a case's evaluation, if its largest batch is searched
FINEST, LONGEST_BUDGET = 10**6, 100  # the largest denominator of a budget, and the most characters that one is written with
SIMPLE = 16  # the largest denominator of a share that is printed as a fraction


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace every NaN and infinity by None, because JSON has neither."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any, length: int = 16) -> str:
    """Return the first ``length`` hex digits of the SHA-256 of ``canonical(value)``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def shown_share(budget: str) -> str:
    """Return a budget for display.

    A simple fraction stays as it is (``1/4``); any other is a decimal of three significant digits (``0.62``). A kind after it stays."""
    number, space, kind = budget.partition(" ")
    try:
        share = _share(number)
    except (ValueError, ZeroDivisionError):  # a stored text that is not a number
        return budget
    return (str(share) if share.denominator <= SIMPLE else f"{float(share):.3g}") + space + kind


def shown_label(name: str) -> str:
    """Return a label or title with its budget formatted by :func:`shown_share`.

    ``linear 1019/1644`` becomes ``linear 0.62``."""
    return re.sub(r"(?<![\w/.])\d+/[1-9]\d*(?![\w/.])", lambda match: shown_share(match[0]), name)


@dataclass(frozen=True)
class Budget:
    """An exact fraction of the full cache that is kept: ``1``, ``1/4`` or ``0.25``, which equals ``1/4``."""

    ratio: Fraction

    @classmethod
    def parse(cls, text: str | int | float) -> Budget:
        try:
            ratio = _share(str(text)).limit_denominator(FINEST)
        except (ValueError, ZeroDivisionError):
            percent = re.fullmatch(r"([0-9]{1,2}(\.[0-9]{1,3})?) ?%", str(text))
            remedy = f"Write {float(percent[1]) / 100:g}." if percent else "Write a share of the full cache such as 1/4 or 0.25."
            raise BadBudget(f"Budget {shown(text)} is not a number.", remedy=remedy) from None
        if not 0 < ratio <= 1:
            raise BadBudget(f"Budget {shown(text)} is outside (0, 1].",
                            remedy=f"Write a share of the full cache such as 1/4, at least 1/{FINEST}.")
        return cls(ratio)

    def __str__(self) -> str:
        return str(self.ratio)


def _share(text: str) -> Fraction:
    """Parse a fraction. A number with a huge exponent becomes 0 or 2 instead of millions of digits."""
    if not text.isascii() or "_" in text:  # Fraction reads both
        raise ValueError("a number in other digits than 0 to 9")
    power = re.fullmatch(r"[\s\d.+_-]*e([+-]?\d+)\s*", text[:LONGEST_BUDGET], re.IGNORECASE)
    if power and abs(int(power[1])) > LONGEST_BUDGET:
        return Fraction(0 if int(power[1]) < 0 else 2)
    if len(text) > LONGEST_BUDGET:
        raise ValueError(f"a number of {len(text)} characters")
    return Fraction(text)


RANGES: Mapping[str, tuple[float, float]] = {  # of sampling settings in files that people edit; 0 steps are the model's default
    "cfg_scale": (-1_000, 1_000), "cfg_interval": (-1, 1_000_000), "temperature": (0, 1_000), "top_k": (0, 10_000_000), "top_p": (0, 1),
    "steps": (0, 10_000), "diffusion_steps": (0, 10_000),
}  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    ``cfg_interval`` −1 guides every position; ``top_k`` 0 and ``top_p`` 1 are off. ``steps`` is the number of steps of a masked model, and
    ``diffusion_steps`` the number of its head's steps per token; 0 is the model's default."""

    cfg_scale: float = 1.0
    cfg_schedule: str = "constant"
    cfg_interval: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    steps: int = 0
    diffusion_steps: int = 0


_DRAWN = ("cfg_scale", "temperature", "top_k", "top_p")
SAMPLING_OF = {  # the settings that models of a paradigm read
    "next-token": (*_DRAWN, "cfg_interval"), "next-scale": _DRAWN, "masked": ("cfg_scale", "temperature", "steps", "diffusion_steps"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One configuration: everything that changes its values, with resolved ``parameters``.

    ``weights`` is ``random:<seed>`` or the SHA-256 of the weights file, then a slash and the same for the image decoder. ``seeds`` names a
    fixed subset of seeds, ``samples`` the number used. ``role`` is ``candidate``, ``baseline`` (the full cache that candidates are
    compared with), or a reference row of fidelity: ``other_seeds``, or ``other_batch`` (half the batch size). ``variant`` distinguishes
    several sets of parameters of one method. ``budget_kind``: the budget is a fraction of the stored ``ENTRIES`` (of a masked model: the
    FLOPs) or of the ``FLOPS`` of a next-scale model. ``decoder`` is empty for sequential decoding, else the ``name`` of a decoder, its
    resolved parameters and its ``variant``. ``kernel``: the attention kernel to try first. The fields of ``LATER`` are not part of the key
    with the values there."""

    model: str
    weights: str
    grid: tuple[int, int]
    conditions: str
    sampling: Sampling
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    codec: str = "native"
    budget: str = "1"
    batch: int = 1
    seeds: str = "s64"
    samples: int = 64
    dtype: str = "float32"
    engine: str = "eager"
    device_class: str = "cpu"
    warmup: int = 2
    repeats: int = 5
    role: str = "candidate"
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    decoder: Mapping[str, Any] = field(default_factory=dict)
    budget_kind: str = ENTRIES
    kernel: str = "auto"

    def __post_init__(self) -> None:
        know(self.evaluation)

    def to_json(self) -> dict[str, Any]:
        data = {name: _copied(getattr(self, name)) for name in _FIELDS}
        data.update(grid=list(self.grid), sampling=dict(vars(self.sampling)))
        return {name: value for name, value in data.items() if LATER.get(name) != value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Invert :meth:`to_json`.

        Raises BadField for a field of another type, TypeError without one that is needed.
        """
        return cls(**checked_fields(cls, data))

    def worded(self, **changes: Any) -> Case:
        """Return the case with other texts for display, under the same key and configuration."""
        made = replace(self, **changes)
        vars(made).update(key=self.key, cell=self.cell)  # cached, so that neither is computed
        return made

    @cached_property
    def key(self) -> str:
        """16 hex digits that identify this case everywhere."""
        return digest(self._body())

    @cached_property
    def cell(self) -> str:
        """Hash of the fields that a candidate shares with its full cache."""
        return digest({name: value for name, value in self._body().items() if name not in OWN})

    def _body(self) -> dict[str, Any]:
        """Return the fields of :meth:`to_json` uncopied, for reports with thousands of cases."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) != LATER.get(name)} | {"sampling": vars(self.sampling)}

    @property
    def stated_budget(self) -> str:
        """The budget, with its kind unless that is entries: ``1/2`` or ``1/2 FLOPs``."""
        return self.budget if self.budget_kind == ENTRIES else f"{self.budget} {self.budget_kind}"

    @property
    def generation(self) -> str:
        """Hash of everything that the tokens of a sample depend on, but for the samples generated with it.

        Cases that differ in the number of samples, timed repeats or metrics share it."""
        body = {**self._body(), "seeds": series_of(self.seeds)}
        return digest({name: value for name, value in body.items() if name not in AROUND})

    @property
    def full_cache(self) -> Case:
        """The baseline that this case is compared with."""
        return replace(self, method=FULL, parameters={}, variant="", budget="1", budget_kind=ENTRIES, role="baseline", codec="native",
                       decoder={})

    @cached_property
    def label(self) -> str:
        """Short text for people.

        Such as ``linear 1/4``, ``lazymar: head cache 1``, ``full (other seeds)`` or ``full + jacobi 16``."""
        budget = "" if self.method == FULL and self.budget == "1" else f" {shown_share(self.stated_budget)}"
        codec = "" if self.codec == "native" else f" {self.codec}"
        role = f" ({self.role.replace('_', ' ')})" if self.role in ("other_seeds", "other_batch") else ""
        return f"{self._worded_method}{budget}{codec}{self._added}{role}"

    @property
    def title(self) -> str:
        """The label after its model, for lists with several models."""
        return f"{self.model} {self.label}"

    @property
    def full_title(self) -> str:
        """The title with the batch size, which names a configuration in incidents and options."""
        return f"{self.title}, batch {self.batch}"

    @property
    def is_micro(self) -> bool:
        """True for an imported micro-benchmark, which has no model and no full cache."""
        return self.engine in IMPORTED

    @property
    def compared(self) -> int:
        """Number of samples compared with the full cache's; reference rows may use fewer."""
        return self.noted if self.role in ("other_seeds", "other_batch") else self.samples

    @property
    def compared_batch(self) -> int:
        """Number of images per generation of the full cache's images that are compared."""
        return min(int(self.evaluation.get("batch", self.batch)), self.samples)

    @property
    def own_batch(self) -> int:
        """Number of images per generation of this case that are compared: half as many in the reference row of another batch size."""
        return self.compared_batch // 2 or 2 if self.role == "other_batch" else self.compared_batch

    @property
    def noted(self) -> int:
        """Number of samples of the reference rows."""
        return self._stated(REFERENCE_SAMPLES, self.samples)

    @property
    def forced(self) -> int:
        """Number of samples compared along the full cache's tokens; 0 for other seeds."""
        return 0 if self.role == "other_seeds" else self._stated(FORCED_SAMPLES, self.compared)

    def _stated(self, name: str, most: int) -> int:
        return min(most, int(self.evaluation.get(name, most)))

    def measures(self, what: str) -> bool:
        """Return whether this part of the evaluation is requested and nothing is missing for it."""
        return "missing" not in {**self.metrics, **self.evaluation}.get(what, {"missing": ""})

    @property
    def plugin_metrics(self) -> list[str]:
        """Full names of the requested plug-in metrics."""
        return [name for name, definition in self.metrics.items() if "code" in definition]

    @property
    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """Definition, or missing file, of each requested metric by name."""
        metrics = self.evaluation.get("metrics")
        return {name: value for name, value in metrics.items() if isinstance(value, Mapping)} if isinstance(metrics, Mapping) else {}

    @property
    def named(self) -> str:
        """The method with its variant, and the decoder unless it is sequential."""
        return f"{self._worded_method}{self._added}"

    @property
    def _worded_method(self) -> str:
        return f"{self.method}: {self.variant}" if self.variant else self.method

    @property
    def _added(self) -> str:
        """The decoder with its variant, else its window and look-ahead; empty for the sequential one."""
        if not self.decoder:
            return ""
        name, variant, window = (self.decoder.get(key, "") for key in ("name", "variant", "window"))
        ahead = " ahead" if self.decoder.get("look_ahead") else ""
        return f" + {name}: {variant}" if variant else f" + {name} {window}".rstrip() + ahead


def _copied(value: Any) -> Any:
    """Return a copy of nested tables and lists; ``asdict`` takes ten times as long."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value


_FIELDS = tuple(item.name for item in fields(Case))
