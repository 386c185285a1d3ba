"""Values of an outcome beside its samples, in JSON one flat table of its ``facts``.

Each writer fills one class, :class:`Facts` has the fields of all. A field that was not recorded is None. A new value is a field here and
the line that fills it; with a ``column`` the report shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from .limits import Limit
from .stored_table import StoredTable, needed, stored


# -- tables within the facts ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DecoderFacts(StoredTable):
    """The decoder of a case."""

    source: str | None = stored("paper or code that it follows")
    rows: str | None = stored("how the rows of a batch advance: together")
    keeps: str | None = stored("what it keeps of sequential decoding: tokens, distribution, or nothing")


@dataclass(frozen=True)
class WeightsSource(StoredTable):
    """A file of weights on Hugging Face."""

    repository: str = needed("repository")
    revision: str = needed("commit")
    file: str = needed("file")
    sha256: str = needed("SHA-256 of the file")


@dataclass(frozen=True)
class PluginSource(StoredTable):
    """The plug-in file that defines a method."""

    file: str = needed("name of the file")
    digest: str = needed("hash of its code")
    title: str | None = stored("title of the method")
    commit: str | None = stored("commit of its own repository")
    edited: bool | None = stored("whether the file differs from that commit")


@dataclass(frozen=True)
class LiveBytes(StoredTable):
    """Bytes of keys and values over one generation."""

    tokens: Sequence[int] = needed("tokens of an image that were drawn", "tokens")
    live: Sequence[float] = needed("used bytes after them, whole batch", "B")


@dataclass(frozen=True)
class CapturedPasses(StoredTable):
    """Passes of the graph engine."""

    captured: int = needed("passes that run from a graph")
    missed: int = needed("passes that run as written for want of memory")


@dataclass(frozen=True)
class EnergyFacts(StoredTable):
    """The origin of the energy values, or why there are none."""

    source: str | None = stored("sensor")
    error: float | None = stored("relative error of the sum of joules", "share")
    absent: str | None = stored("why there is no energy")


@dataclass(frozen=True)
class StepSlope(StoredTable):
    """Growth of a decode step's time with the entries that it attends to."""

    slope: float = needed("time per entry", "s")
    intercept: float = needed("time of a step without any entry", "s")
    r2: float = needed("coefficient of determination of the fit", "share")
    bytes_per_s: float | None = stored("bytes of an entry / slope; null if the slope is not positive", "B/s", null=True)
    lines: int | None = stored("token lines in the fit")


@dataclass(frozen=True)
class TokensPerPass(StoredTable):
    """Tokens that a decoder draws per pass, over the timed generations."""

    mean: float = needed("mean", "tokens")
    spread: float = needed("standard deviation", "tokens")
    least: float = needed("smallest", "tokens")
    most: float = needed("largest", "tokens")


@dataclass(frozen=True)
class Reused(StoredTable):
    """Quality that was taken over from an earlier outcome of the case."""

    metrics: Sequence[str] = needed("metrics that were taken over")
    source: str = needed("result key of the outcome that measured them", key="from")


@dataclass(frozen=True)
class TakenOver(StoredTable):
    """Samples whose tokens were taken over from an outcome with another number of samples."""

    samples: int = needed("number of samples")
    source: str = needed("result key of the outcome that generated them", key="from")


@dataclass(frozen=True)
class MetricFault(StoredTable):
    """Reason why a plug-in's metric has no values."""

    fault: str = needed("kind of fault")
    said: str = needed("details")


@dataclass(frozen=True)
class UnreadReadings(StoredTable):
    """Readings of a GPU that failed."""

    times: int = needed("number")
    errors: Sequence[str] = needed("errors")


@dataclass(frozen=True)
class DeviceReadings(StoredTable):
    """Readings of a GPU while the case ran."""

    uuid: str | None = stored("UUID")
    readings: int | None = stored("number of readings")
    sm_mhz: Sequence[float] | None = stored("clock under load: least, median, most", "MHz")
    celsius: Sequence[float] | None = stored("temperature: least, median, most", "°C")
    watts: Sequence[float] | None = stored("power: least, median, most", "W")
    joules: float | None = stored("energy of the case", "J", null=True)
    slowed_by: Sequence[str] | None = stored("reasons for reduced clocks")
    locked_mhz: int | None = stored("locked clock", "MHz", null=True)
    unread: UnreadReadings | None = stored("failed readings")
    unseen: Sequence[str] | None = stored("disturbances that the driver does not show")


@dataclass(frozen=True)
class SearchEnd(StoredTable):
    """The attempt that ended a search for the largest batch before it was done."""

    status: str = needed("its status")
    log: str = needed("its log")


@dataclass(frozen=True)
class ProcessBias(StoredTable):
    """Variation from process to process that A/A pairs of the machine have shown."""

    deviation: float = needed("standard deviation of the log ratio of two processes", "share")
    pairs: int = needed("number of A/A pairs")


@dataclass(frozen=True)
class PairFacts(StoredTable):
    """The place of an outcome in a comparison in pairs."""

    run: int = needed("run of the comparison")
    configuration: str = needed("configuration; A/A tests have their own")
    number: int = needed("number of the pair")
    swapped: bool | None = stored("whether the second side ran first")
    redone: int | None = stored("earlier attempts that the device invalidated")
    what: str | None = stored("times or images")
    side: str | None = stored("before or after")
    name: str | None = stored("name of the side")


# -- what each writer fills -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class DeclaredFacts(StoredTable):
    """Declarations of a case, before it is measured."""

    writer: ClassVar[str] = "trial/child/facts.py"
    kernel: str | None = stored("attention kernel")
    kernel_reason: str | None = stored("why earlier kernels of the table refuse the case, on a device")
    source: str | None = stored("paper or code that the method follows")
    plugin: PluginSource | None = stored("plug-in that defines the method")
    footnotes: Sequence[str] | None = stored("remarks on the values, for the report")
    paradigm: str | None = stored("next-token, next-scale or masked")
    decoder: DecoderFacts | None = stored("parallel decoder")
    idle: str | None = stored("why the declared costs of the method equal the full cache's")
    weights_sources: Mapping[str, WeightsSource] | None = stored("origin of weights from Hugging Face, by parameter")
    engine_reason: str | None = stored("why engine auto is not the graph engine here")
    true_ratio: float | None = stored("actual budget: entries or FLOPs of an image / the full cache's", "share")
    flops: Mapping[str, float] | None = stored("FLOPs of an image by kind of work", "FLOP")
    generated: float | None = stored("tokens of the generated scales / all tokens, if scales are skipped", "share")
    quality_only: str | None = stored("why its speed is not compared")
    different_kernel: str | None = stored("why its kernel, which is not the full cache's, is part of its cost")
    limit: Limit | None = stored("roofline time")


@dataclass(frozen=True)
class TimingFacts(StoredTable):
    """Records of the timed generations of a case."""

    writer: ClassVar[str] = "trial/child/timing.py"
    kv_by_step: LiveBytes | None = stored("keys and values over one generation", key="live_bytes")
    graph: CapturedPasses | None = stored("captured passes")
    energy: EnergyFacts | None = stored("origin of the energy values")
    full_beside: Sequence[float] | None = stored("latencies of the full cache, each right before or after one of the case's", "s")
    other_load: float | None = stored("processors that other processes kept busy meanwhile, mean", "CPUs")
    slope: StepSlope | None = stored("step time over attended entries")
    tokens_per_pass: TokensPerPass | None = stored("tokens per pass under a decoder")


@dataclass(frozen=True)
class SetFacts(StoredTable):
    """Additions to the values of a set of images, by metric."""

    writer: ClassVar[str] = "trial/child/quality.py"
    intervals: Mapping[str, Sequence[float | None]] | None = stored("ends of the 95 % interval; null: unknown")
    bias: Mapping[str, float | None] | None = stored("part of the value that is due to the number of images")
    real: Mapping[str, Sequence[float]] | None = stored("value of as many real images, with both ends")
    to_full: Mapping[str, Sequence[float | None]] | None = stored("difference from the full cache's value, with both ends")
    quality_metrics: Sequence[str] | None = stored("metrics of the quality pass")
    quality_seconds: float | None = stored("duration of the quality pass", "s")
    reused: Reused | None = stored("quality of an earlier outcome")


@dataclass(frozen=True)
class ImageFacts(StoredTable):
    """Records of the images whose fidelity was measured."""

    writer: ClassVar[str] = "trial/child/judge.py"
    redrawn: float | None = stored("share of the full cache's tokens that a decoder's windows draw again", "share")
    grid_prompts: Sequence[str] | None = stored("prompts of the picture's tiles")
    taken_over: TakenOver | None = stored("samples that were not generated again")
    images_hash: str | None = stored("SHA-256 of the decoded images")
    grid_seeds: Sequence[int] | None = stored("seeds of the picture's tiles")
    grid_classes: Sequence[Any] | None = stored("classes, numbers or names, of the picture's tiles")
    grid_width: int | None = stored("width of a tile, if it is not square", "px")
    metric_faults: Mapping[str, MetricFault] | None = stored("metrics of plug-ins that have no values")


@dataclass(frozen=True)
class PlaceFacts(StoredTable):
    """Place and process of the case."""

    writer: ClassVar[str] = "trial"
    share: Sequence[int] | None = stored("share of the quality images that was made: index from 0, of how many")
    threads: int | None = stored("CPU threads")
    cpus: Sequence[int] | None = stored("processors; empty: any")
    memory_cap: int | None = stored("bytes of the device that may be allocated", "B")
    device: DeviceReadings | None = stored("readings of the GPU")
    result_parts: Mapping[str, str] | None = stored("parts of the result key")
    busy_places: Sequence[int] | None = stored("most slots of the machine that ran at once, of how many")


@dataclass(frozen=True)
class RunFacts(StoredTable):
    """Additions of a run, a search, a comparison or an import."""

    writer: ClassVar[str] = "workflows"
    tried: Sequence[Sequence[Any]] | None = stored("batches that a search tried, each with its status")
    search_ended: SearchEnd | None = stored("attempt that ended a search early")
    process_bias: ProcessBias | None = stored("process-to-process variation of the machine")
    pair: PairFacts | None = stored("place in a comparison in pairs")
    rounds: int | None = stored("rounds of a micro-benchmark")
    iterations: int | None = stored("calls per round of a micro-benchmark")
    options: Any = stored("options of a micro-benchmark")
    fingerprint: str | None = stored("fingerprint of the machine of a micro-benchmark")
    extra_info: Any = stored("what the author of a micro-benchmark added")


GROUPS: tuple[type[StoredTable], ...] = (DeclaredFacts, TimingFacts, SetFacts, ImageFacts, PlaceFacts, RunFacts)


@dataclass(frozen=True)
class Facts(RunFacts, PlaceFacts, ImageFacts, SetFacts, TimingFacts, DeclaredFacts):
    """All values of an outcome beside its samples."""

    def noted(self, *notes: str) -> Self:
        """Return these facts with more footnotes."""
        return replace(self, footnotes=[*(self.footnotes or ()), *notes]) if notes else self
