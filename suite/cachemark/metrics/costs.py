"""Costs of a case: wall time, work and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .base import CostMetric, Costs


class Latency(CostMetric):
    """Wall time of one batch, labels to images, image decoding included."""

    name = "latency"
    expected = "always"
    unit = "s"

    def measure(self, costs: Costs) -> Sequence[float]:
        return list(costs.seconds)


class TokenLatency(CostMetric):
    """Wall time of one batch without image decoding."""

    name = "latency_tokens"
    expected = "always"
    title = "Latency, tokens only"
    unit = "s"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [marks[costs.tokens - 1] for marks in costs.marks]


class FirstHalfRate(CostMetric):
    """Tokens of the whole batch over the first half of the image, per second; a CFG pair is one token."""

    name = "tokens_per_s_first"
    cost_name = "seconds_per_token_first"
    expected = "always"
    title = "Tokens/s, first half"
    unit = "token/s"
    better = "higher"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [costs.half * costs.batch / marks[costs.half - 1] for marks in costs.marks]


class LastHalfRate(CostMetric):
    """Tokens of the whole batch over the last half of the image, per second; a CFG pair is one token."""

    name = "tokens_per_s_last"
    cost_name = "seconds_per_token_last"
    expected = "always"
    title = "Tokens/s, last half"
    unit = "token/s"
    better = "higher"

    def measure(self, costs: Costs) -> Sequence[float]:
        tokens = (costs.tokens - costs.half) * costs.batch
        return [tokens / (marks[costs.tokens - 1] - marks[costs.half - 1]) for marks in costs.marks]


class Counted(CostMetric):
    """A number that storage, engine, decoder or arithmetic count while the case runs: the field ``counted`` of its costs."""

    counted: ClassVar[str]

    def measure(self, costs: Costs) -> Sequence[float]:
        counted = getattr(costs, self.counted)
        if counted is None:
            return ()
        return list(counted) if isinstance(counted, Sequence) else [float(counted)]


class Flops(Counted):
    """Matrix products and attention of all passes for one image, both CFG rows, a multiplication and an addition being two; image decoding
    left out."""

    name = "flops"
    expected = "masked"
    counted = "flops"
    title = "FLOPs of an image"
    unit = "FLOP"
    kind = "work"
    deterministic = True


class Passes(Counted):
    """Passes that an image took, under a decoder that draws several tokens in one."""

    name = "passes"
    counted = "passes"
    unit = "pass"
    kind = "work"
    deterministic = True


class RejectedDrafts(Counted):
    """Tokens of an image that passes drew and did not keep, under a decoder that draws several in one."""

    name = "drafts_rejected"
    counted = "rejected"
    title = "Rejected drafts"
    unit = "token"
    kind = "work"
    deterministic = True


class CaptureSeconds(Counted):
    """Graph engine: seconds to record all passes of a generation, once per case and outside of every latency."""

    name = "capture_seconds"
    counted = "capture_seconds"
    title = "Capture"
    unit = "s"
    kind = "work"


class Bytes(Counted):
    """Bytes that a case allocates."""

    unit = "B"
    kind = "memory"
    deterministic = True


class LiveKeys(Bytes):
    """Bytes of live keys and values at the fullest step, both CFG rows."""

    name = "kv_logical"
    expected = "always"
    counted = "live_bytes"
    title = "KV live"


class PeakKeys(Bytes):
    """Bytes of live keys and values at the fullest moment between two layers of a pass, where heads differ in length."""

    name = "kv_high_water"
    counted = "high_water_bytes"
    title = "KV high water"


class AllocatedKeys(Bytes):
    """Bytes of all key and value buffers, stage included."""

    name = "kv_allocated"
    expected = "always"
    title = "KV allocated"

    def measure(self, costs: Costs) -> Sequence[float]:
        return () if costs.slot_bytes is None else [float(costs.slot_bytes + (costs.stage_bytes or 0))]


class Workspace(Bytes):
    """Bytes of the buffer that layers share, part of KV allocated."""

    name = "kv_stage"
    expected = "always"
    counted = "stage_bytes"
    title = "Stage"


class MethodState(Bytes):
    """Bytes of everything else a method or its slots keep."""

    name = "kv_state"
    expected = "always"
    counted = "state_bytes"
    title = "Method state"


class GraphPool(Bytes):
    """Graph engine: bytes in which recorded passes compute, and of the storage that feeds them."""

    name = "graph_pool"
    counted = "graph_bytes"
    title = "Graph pool"
    deterministic = False


class PeakMemory(Bytes):
    """Peak of memory above the loaded model."""

    name = "peak_memory"
    expected = "always"
    counted = "peak_bytes"
    title = "Peak memory"
    meaning = "CUDA: allocator peak above the loaded model. CPU: peak of live tensor bytes above it."
    deterministic = False
    searched = True


class Throughput(CostMetric):
    """Images per second at the plan's batch, decoding included."""

    name = "throughput"
    cost_name = "seconds_per_image"
    title = "Throughput, equal batch"
    unit = "image/s"
    better = "higher"
    searched = alone = True

    def measure(self, costs: Costs) -> Sequence[float]:
        return [costs.batch / seconds for seconds in costs.seconds]


class LargestThroughput(CostMetric):
    """Images per second at the largest batch that fits into the memory of the device, or into the limit that was set."""

    name = "throughput_max"
    cost_name = "seconds_per_image_max"
    expected = "search"
    title = "Throughput, equal memory"
    unit = "image/s"
    better = "higher"
    searched = alone = True

    def measure(self, costs: Costs) -> Sequence[float]:
        return [(costs.largest_batch or 0) / seconds for seconds in costs.largest_seconds]


class LargestBatch(Counted):
    """Images at once that fit into that memory."""

    name = "max_batch"
    expected = "search"
    counted = "largest_batch"
    title = "Largest batch"
    unit = "image"
    better = "higher"
    kind = "memory"
    searched = alone = True
