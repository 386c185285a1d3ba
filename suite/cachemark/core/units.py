"""Every metric: its name, unit and direction, and if two runs of the same code must agree exactly.

``version`` belongs to the definition, not to the code: it is raised when a number with this name would no longer be
comparable with an older one, and it is part of the skip key and of exported histories.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .errors import unknown


@dataclass(frozen=True)
class Metric:
    """One measured quantity. ``better`` is ``lower`` or ``higher``; ``kind`` says which column family it belongs to; ``within`` is the
    range that the figure of one image can have, from which follows how sure a mean over few of them is. ``derived``: it is measured
    nowhere, but follows from others that are.

    Whoever asks which of two figures is better asks here, so that no consumer has a direction of its own.
    """

    name: str
    unit: str
    better: str
    kind: str  # speed | work | memory | fidelity | quality
    title: str
    meaning: str
    deterministic: bool = False
    version: int = 1
    within: tuple[float, float] = (-math.inf, math.inf)
    derived: bool = False

    @property
    def apart(self) -> tuple[float, float]:
        """The range that the difference of the figures of two images can have."""
        reach = self.within[1] - self.within[0]
        return (-reach, reach)

    @property
    def timed(self) -> bool:
        """True of wall times and of rates, which vary from process to process and take a test to judge. Seconds of a fidelity or a quality,
        which a plug-in may state, are figures of images."""
        return self.kind == "speed" or (self.kind == "work" and self.unit == "s")

    def worst(self, values: Iterable[float]) -> float:
        """The least favourable of some figures."""
        return max(values) if self.better == "lower" else min(values)

    def loss(self, then: float, now: float) -> float:
        """By how much ``now`` is worse than ``then``, in the unit of the metric; negative where it is better."""
        return now - then if self.better == "lower" else then - now

    def cost_ratio(self, then: float, now: float) -> float:
        """Cost now over cost then of two figures >= 0: above 1 where ``now`` is worse, 1 where both are equal, inf where the cost was 0."""
        cost, before = (now, then) if self.better == "lower" else (then, now)
        return cost / before if before else (1.0 if cost == before else math.inf)


SHARE, POSITIVE = (0.0, 1.0), (0.0, math.inf)
METRICS: dict[str, Metric] = {m.name: m for m in (
    Metric("latency", "s", "lower", "speed", "Latency", "Wall time of one batch, labels to images, image decoding included."),
    Metric("latency_tokens", "s", "lower", "speed", "Latency, tokens only", "Wall time of one batch without image decoding."),
    Metric("tokens_per_s_first", "token/s", "higher", "speed", "Tokens/s, first half",
           "Tokens of the whole batch over the first half of the image, per second; a CFG pair is one token."),
    Metric("tokens_per_s_last", "token/s", "higher", "speed", "Tokens/s, last half",
           "Tokens of the whole batch over the last half of the image, per second; a CFG pair is one token."),
    Metric("flops", "FLOP", "lower", "work", "FLOPs of an image",
           "Matrix products and attention of all passes for one image, both CFG rows, a multiplication and an addition being two; "
           "image decoding left out.", True),
    Metric("passes", "pass", "lower", "work", "Passes", "Passes that an image took, under a decoder that draws several tokens in one.",
           True),
    Metric("drafts_rejected", "token", "lower", "work", "Rejected drafts",
           "Tokens of an image that passes drew and did not keep, under a decoder that draws several in one.", True),
    Metric("capture_seconds", "s", "lower", "work", "Capture",
           "Graph engine: seconds to record all passes of a generation, once per case and outside of every latency."),
    Metric("kv_logical", "B", "lower", "memory", "KV live", "Bytes of live keys and values at the fullest step, both CFG rows.", True),
    Metric("kv_high_water", "B", "lower", "memory", "KV high water",
           "Bytes of live keys and values at the fullest moment between two layers of a pass, where heads differ in length.", True),
    Metric("kv_allocated", "B", "lower", "memory", "KV allocated", "Bytes of all key and value buffers, stage included.", True),
    Metric("kv_stage", "B", "lower", "memory", "Stage", "Bytes of the buffer that layers share, part of KV allocated.", True),
    Metric("kv_state", "B", "lower", "memory", "Method state", "Bytes of everything else a method or its slots keep.", True),
    Metric("graph_pool", "B", "lower", "memory", "Graph pool",
           "Graph engine: bytes in which recorded passes compute, and of the storage that feeds them."),
    Metric("peak_memory", "B", "lower", "memory", "Peak memory",
           "CUDA: allocator peak above the loaded model. CPU: peak of live tensor bytes above it."),
    Metric("throughput", "image/s", "higher", "speed", "Throughput, equal batch",
           "Images per second at the plan's batch, decoding included."),
    Metric("throughput_max", "image/s", "higher", "speed", "Throughput, equal memory",
           "Images per second at the largest batch that fits into the memory of the device, or into the limit that was set."),
    Metric("max_batch", "image", "higher", "memory", "Largest batch", "Images at once that fit into that memory."),
    Metric("token_agreement", "share", "higher", "fidelity", "Token agreement", "Share of positions with the full cache's token.", True,
           within=SHARE),
    Metric("kl", "nat/token", "lower", "fidelity", "KL", "KL(full || method) under the full cache's tokens, mean over positions.", True,
           within=POSITIVE),
    Metric("token_distance", "", "lower", "fidelity", "Token distance",
           "Root mean square difference to the full cache's continuous tokens at the same seed.", True, within=POSITIVE),
    Metric("forced_distance", "", "lower", "fidelity", "Forced distance",
           "The same, each token drawn with the same noise from what the full cache's own tokens give: an upper bound of the "
           "2-Wasserstein distance of what is drawn from.", True, within=POSITIVE),
    Metric("psnr", "dB", "higher", "fidelity", "PSNR", "Against the full cache's image at the same seed, capped at 60 dB.", True,
           within=(0, 60)),
    Metric("ssim", "", "higher", "fidelity", "SSIM", "Against the full cache's image at the same seed.", True, within=(-1, 1)),
    Metric("lpips", "", "lower", "fidelity", "LPIPS",
           "How unlike the full cache's image at the same seed it looks to VGG16; where its weights are given.", True, within=POSITIVE),
    Metric("legend", "share", "higher", "quality", "Legend score",
           "Share of hues that obey the image's own legend (object, ground, two footer corners).", within=SHARE),
    Metric("prompt_score", "share", "higher", "quality", "Prompt score", "Share of images that show all that their caption asks for.",
           within=SHARE),
    Metric("prompt_object", "share", "higher", "quality", "Object", "Share of images with the shape that their caption asks for.",
           within=SHARE),
    Metric("prompt_colour", "share", "higher", "quality", "Colour", "Share of images whose objects have the colour that their caption asks "
           "for.", within=SHARE),
    Metric("prompt_count", "share", "higher", "quality", "Count", "Share of images with as many objects as their caption asks for.",
           within=SHARE),
    Metric("prompt_position", "share", "higher", "quality", "Position",
           "Share of images whose objects are on the side of the ground that their caption asks for.", within=SHARE),
    Metric("prompt_ground", "share", "higher", "quality", "Ground",
           "Share of images whose ground has the texture and the colour that their caption asks for.", within=SHARE),
    Metric("geneval", "share", "higher", "quality", "GenEval", "Share of images that show all that their prompt of GenEval asks for.",
           within=SHARE),
    Metric("geneval_overall", "share", "higher", "quality", "GenEval, overall",
           "The mean of the shares of the six kinds of prompts, which is the score that papers print.", within=SHARE, derived=True),
    *(Metric(f"geneval_{tag}", "share", "higher", "quality", f"GenEval, {title}",
             f"The same, of the images whose prompt asks for {what}.", within=SHARE)
      for tag, title, what in (
          ("single_object", "object", "one object"), ("two_object", "two objects", "two objects"),
          ("counting", "count", "a number of objects"), ("colors", "colour", "an object in a colour"),
          ("position", "position", "one object beside, above or below another"),
          ("color_attr", "attributes", "two objects, each in a colour of its own"))),
    Metric("dpg", "share", "higher", "quality", "DPG-Bench",
           "Share of DPG-Bench's questions about its prompt to which an image says yes, to those that they depend on too.", within=SHARE),
    Metric("image_reward", "", "higher", "quality", "ImageReward",
           "What people prefer, as ImageReward tells from an image and its prompt: 0 with a deviation of 1 over its authors' data."),
    Metric("hpsv2", "", "higher", "quality", "HPSv2",
           "What people prefer, as HPSv2 tells from an image and its prompt: the cosine between what it sees in both.", within=(-1, 1)),
    Metric("clip_score", "", "higher", "quality", "CLIP score",
           "100 times the cosine between CLIP's view of the image and of \"a photo of a\" and its class; where its model is given."),
    Metric("class_accuracy", "share", "higher", "quality", "Class accuracy",
           "Share of images that the feature network of the preset takes for the class they were asked to be.", within=SHARE),
)}

PROMPT_SCORES = tuple(name for name in METRICS if name.startswith("prompt_"))
GENEVAL = tuple(name for name in METRICS if name.startswith("geneval"))
GENEVAL_OVERALL, *GENEVAL_TASKS = GENEVAL[1:]
SCORES = ("legend", "prompt_score", "geneval", "dpg")  # shares by which images are judged one by one, where nothing is known of whole sets

# Metrics of a whole set of images, one family each. What they were compared with and how many images there were belong to the name,
# because figures differ with both: ``fid_scene_2k``. They follow from the images, but not to the last bit: how many threads sum up
# features changes it, so none is ``deterministic``.
FAMILIES: dict[str, Metric] = {m.name: m for m in (
    Metric("fid", "", "lower", "quality", "FID",
           "Fréchet distance between normal distributions fitted to features of the images and of real ones."),
    Metric("kid", "", "lower", "quality", "KID",
           "Squared maximum mean discrepancy between features of the images and of real ones, cubic kernel."),
    Metric("isc", "", "higher", "quality", "Inception score",
           "How surely each image shows one class, and how evenly all classes are shown."),
    Metric("precision", "share", "higher", "quality", "Precision", "Share of the images that lie among real ones."),
    Metric("recall", "share", "higher", "quality", "Recall", "Share of the real images that lie among those of the set."),
)}
SEEN = {"scene": (128, 10), "adm": (2048, 1008), "coco": (2048, 1008)}  # features and classes of the network of a preset
FID_IMAGES, ISC_IMAGES = 3, 40  # for each feature, and for each class: with fewer, the figure is about the number of images
_TAIL = re.compile(r"([a-z0-9]+)_([1-9][0-9]*)(k?)")


OUTSIDE: dict[str, Metric] = {}  # of plug-ins: :mod:`cachemark.core.outside_metrics` adds those that a case of this process states


def metric(name: str) -> Metric:
    """The metric of that name, or an error with the nearest one."""
    found = METRICS.get(name) or OUTSIDE.get(name) or _of_set(name)
    if found is None:
        raise unknown("metric", name, [*METRICS, *OUTSIDE, *_near(name)])
    return found


def is_metric(name: str) -> bool:
    """Return whether there is a metric of that name."""
    return name in METRICS or name in OUTSIDE or _of_set(name) is not None


def quality_name(base: str, preset: str, count: int) -> str:
    """The name of a metric of a whole set of ``count`` images: ``fid``, ``scene``, 2000 make ``fid_scene_2k``. Raises UnknownName for
    another base, and for a preset that is not of small letters and digits."""
    if base not in FAMILIES:
        raise unknown("metric of a set of images", base, FAMILIES)
    metric(name := f"{base}_{preset}_{_short(count)}")
    return name


def least_images(name: str) -> int:
    """The number of images from which on a figure of a whole set says something of the images: with fewer, their number alone adds more
    than a half of what the embedded models' FID is, or a tenth to an Inception score. 0 where nothing is known against it."""
    base, _, tail = name.partition("_")
    features, classes = SEEN.get(tail.split("_")[0], (0, 0))
    return {"fid": FID_IMAGES * features, "isc": ISC_IMAGES * classes}.get(base, 0)


def of_plug_ins(names: Iterable[str], kind: str) -> list[str]:
    """Those of some names that are metrics of plug-ins and of that kind, by the alphabet."""
    return sorted({name for name in names if name in OUTSIDE and OUTSIDE[name].kind == kind})


def image_count(name: str) -> int:
    """The number of images in the name of a metric of a whole set, 0 in any other name."""
    parts = _TAIL.fullmatch(name.partition("_")[2]) if _of_set(name) else None
    return _count(parts) if parts else 0


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics, without repetition: the fixed ones as they stand here, then those of whole sets by the alphabet."""
    given = set(names)
    return [*(name for name in METRICS if name in given), *sorted(given - METRICS.keys())]


def _of_set(name: str) -> Metric | None:
    """The metric of a whole set of images with that name, where it is spelt as :func:`quality_name` spells it."""
    base, _, tail = name.partition("_")
    family, parts = FAMILIES.get(base), _TAIL.fullmatch(tail)
    if family is None or parts is None or parts[2] + parts[3] != _short(_count(parts)):
        return None
    title = f"{family.title}, {parts[1]}, {parts[2]}{parts[3]} images"
    return replace(family, name=name, title=title)


def _near(name: str) -> list[str]:
    """Names of whole sets that may have been meant: any family with what stands behind the first underscore, and how all are spelt."""
    parts = _TAIL.fullmatch(name.partition("_")[2])
    tail = f"{parts[1]}_{_short(_count(parts))}" if parts else "<preset>_<images>"
    return [f"{base}_{tail}" for base in FAMILIES]


def _count(parts: re.Match[str]) -> int:
    return int(parts[2]) * (1000 if parts[3] else 1)


def _short(count: int) -> str:
    return f"{count // 1000}k" if count and count % 1000 == 0 else str(count)


def is_finite(value: float) -> bool:
    """Return whether a float can hold the number: an integer of JSON or TOML may have any length."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
