"""Costs of a case: wall time, work, memory, energy and money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..core.result import costs_per_1000
from .base import CostMetric, Costs


class Latency(CostMetric):
    """Wall time of one batch, labels to images, image including decoding."""

    name = "latency"
    unit = "s"

    def measure(self, costs: Costs) -> Sequence[float]:
        return list(costs.seconds)


class TokenLatency(CostMetric):
    """Wall time of one batch without image decoding."""

    name = "latency_tokens"
    title = "Latency, tokens only"
    unit = "s"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [marks[costs.tokens - 1] for marks in costs.marks]


class FirstHalfRate(CostMetric):
    """Tokens of the whole batch over the first half of the image, per second; a CFG pair is one token."""

    name = "tokens_per_s_first"
    cost_name = "seconds_per_token_first"
    title = "Tokens/s, first half"
    unit = "token/s"
    better = "higher"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [costs.half * costs.batch / marks[costs.half - 1] for marks in costs.marks]


class LastHalfRate(CostMetric):
    """Tokens of the whole batch over the last half of the image, per second; a CFG pair is one token."""

    name = "tokens_per_s_last"
    cost_name = "seconds_per_token_last"
    title = "Tokens/s, last half"
    unit = "token/s"
    better = "higher"

    def measure(self, costs: Costs) -> Sequence[float]:
        tokens = (costs.tokens - costs.half) * costs.batch
        return [tokens / (marks[costs.tokens - 1] - marks[costs.half - 1]) for marks in costs.marks]


class Counted(CostMetric):
    """A number that is counted while the case runs: the field ``counted`` of its costs."""

    counted: ClassVar[str]

    def measure(self, costs: Costs) -> Sequence[float]:
        counted = getattr(costs, self.counted)
        if counted is None:
            return ()
        return list(counted) if isinstance(counted, Sequence) else [float(counted)]


class Bytes(Counted):
    """Bytes that a case allocates."""

    unit = "B"
    kind = "memory"
    deterministic = True


FLOPS = Counted.variant(
    "flops", counted="flops", title="FLOPs of an image", unit="FLOP", kind="work", deterministic=True,
    meaning="FLOPs of matrix products and attention of all steps of an image, both CFG rows, without image decoding.")
PASSES = Counted.variant(
    "passes", counted="passes", unit="pass", kind="work", deterministic=True,
    meaning="Forward passes of an image under a parallel decoder.")
REJECTED_DRAFTS = Counted.variant(
    "drafts_rejected", counted="rejected", title="Rejected drafts", unit="token", kind="work", deterministic=True,
    meaning="Tokens of an image that a parallel decoder generated and rejected.")
CAPTURE_SECONDS = Counted.variant(
    "capture_seconds", counted="capture_seconds", title="Capture", unit="s", kind="work",
    meaning="Graph engine: seconds to capture all steps of a generation, once per case and outside the latency.")
LIVE_KEYS = Bytes.variant(
    "kv_logical", counted="kv_logical", title="KV live",
    meaning="Bytes of live keys and values at the fullest step, both CFG rows.")
PEAK_KEYS = Bytes.variant(
    "kv_peak", counted="kv_peak", title="KV peak",
    meaning="Bytes of live keys and values at their peak between two layers, if heads differ in length.")
ALLOCATED_KEYS = Bytes.variant(
    "kv_allocated", counted="allocated_bytes", title="KV allocated",
    meaning="Bytes of all key and value buffers, including the workspace.")
WORKSPACE = Bytes.variant(
    "kv_workspace", counted="workspace_bytes", title="Workspace",
    meaning="Bytes of the buffer that layers share, part of KV allocated.")
METHOD_STATE = Bytes.variant(
    "kv_state", counted="state_bytes", title="Method state",
    meaning="Bytes of everything else that a method or its slots store.")
GRAPH_POOL = Bytes.variant(
    "graph_pool", counted="graph_bytes", title="Graph pool", deterministic=False,
    meaning="Graph engine: bytes of captured steps and of their inputs.")
PEAK_MEMORY = Bytes.variant(
    "peak_memory", counted="peak_bytes", title="Peak memory", deterministic=False, searched=True,
    meaning="CUDA: allocator peak above the loaded model. CPU: peak of live tensor bytes above it.")


class EnergyPerImage(CostMetric):
    """Energy that the device uses for one image, including decoding."""

    name = "energy_per_image"
    unit = "J"
    kind = "energy"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [joules / costs.batch for joules in costs.joules]


MEAN_POWER = Counted.variant(
    "mean_power", counted="watts", unit="W", kind="energy", stated=True,
    meaning="Mean power of the device during a timed generation.")


class CostPer1000(CostMetric):
    """Price of 1,000 images: the latency times the price of the device, in the currency of run --price."""

    name = "cost_per_1000"
    title = "Cost of 1,000 images"
    kind = "energy"
    stated = True

    def measure(self, costs: Costs) -> Sequence[float]:
        return costs_per_1000(costs.seconds, costs.batch, costs.price) if costs.price else ()


class Throughput(CostMetric):
    """Images per second at the plan's batch, including decoding."""

    name = "throughput"
    cost_name = "seconds_per_image"
    title = "Throughput, equal batch"
    unit = "image/s"
    better = "higher"
    searched = alone = True

    def measure(self, costs: Costs) -> Sequence[float]:
        return [costs.batch / seconds for seconds in costs.seconds]


class LargestThroughput(Throughput):
    """Images per second at the largest batch that fits into device memory or the given limit."""

    name = "throughput_max"
    cost_name = "seconds_per_image_max"
    title = "Throughput, equal memory"

    def measure(self, costs: Costs) -> Sequence[float]:
        return [(costs.largest_batch or 0) / seconds for seconds in costs.largest_seconds]


LARGEST_BATCH = Counted.variant(
    "max_batch", counted="largest_batch", title="Largest batch", unit="image", better="higher", kind="memory", searched=True, alone=True,
    meaning="Images in one batch that fit into that memory.")
