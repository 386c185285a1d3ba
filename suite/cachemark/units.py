"""Every metric: its name, unit, direction, and whether two runs of the same code must agree exactly.

``version`` belongs to the definition, not to the code: it is raised when a number with this name would no longer be
comparable with an older one, and it is part of the skip key and of exported histories.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import unknown


@dataclass(frozen=True)
class Metric:
    """One measured quantity. ``better`` is ``lower`` or ``higher``; ``kind`` says which column family it belongs to."""

    name: str
    unit: str
    better: str
    kind: str  # speed | work | memory | fidelity | quality
    title: str
    meaning: str
    deterministic: bool = False
    version: int = 1


_ALL = (
    Metric("latency", "s", "lower", "speed", "Latency", "Wall time of one batch, labels to images, image decoding included."),
    Metric("latency_tokens", "s", "lower", "speed", "Latency, tokens only", "Wall time of one batch without image decoding."),
    Metric("tokens_per_s_first", "token/s", "higher", "speed", "Tokens/s, first half",
           "Tokens of the whole batch over the first half of the image, per second; a CFG pair is one token."),
    Metric("tokens_per_s_last", "token/s", "higher", "speed", "Tokens/s, last half",
           "Tokens of the whole batch over the last half of the image, per second; a CFG pair is one token."),
    Metric("flops", "FLOP", "lower", "work", "FLOPs of an image",
           "Matrix products and attention of all passes for one image, both CFG rows, a multiplication and an addition being two; "
           "image decoding left out.", True),
    Metric("kv_logical", "B", "lower", "memory", "KV live", "Bytes of live keys and values at the fullest step, both CFG rows.", True),
    Metric("kv_allocated", "B", "lower", "memory", "KV allocated", "Bytes of all key and value buffers, stage included.", True),
    Metric("kv_stage", "B", "lower", "memory", "Stage", "Bytes of the buffer that layers share, part of KV allocated.", True),
    Metric("kv_state", "B", "lower", "memory", "Method state", "Bytes of everything else a method or its slots keep.", True),
    Metric("peak_memory", "B", "lower", "memory", "Peak memory",
           "CUDA: allocator peak above the loaded model. CPU: peak of live tensor bytes above it."),
    Metric("token_agreement", "share", "higher", "fidelity", "Token agreement", "Share of positions with the full cache's token.", True),
    Metric("kl", "nat/token", "lower", "fidelity", "KL", "KL(full || method) under the full cache's tokens, mean over positions.", True),
    Metric("token_distance", "", "lower", "fidelity", "Token distance",
           "Root mean square difference to the full cache's continuous tokens at the same seed.", True),
    Metric("forced_distance", "", "lower", "fidelity", "Forced distance",
           "The same, each token drawn with the same noise from what the full cache's own tokens give: an upper bound of the "
           "2-Wasserstein distance of what is drawn from.", True),
    Metric("psnr", "dB", "higher", "fidelity", "PSNR", "Against the full cache's image at the same seed, capped at 60 dB.", True),
    Metric("ssim", "", "higher", "fidelity", "SSIM", "Against the full cache's image at the same seed.", True),
    Metric("legend", "share", "higher", "quality", "Legend score",
           "Share of hues that obey the image's own legend (object, ground, two footer corners)."),
)
METRICS: dict[str, Metric] = {m.name: m for m in _ALL}


def metric(name: str) -> Metric:
    """The metric of that name, or an error with the nearest one."""
    try:
        return METRICS[name]
    except KeyError:
        raise unknown("metric", name, METRICS) from None
