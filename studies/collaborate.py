"""A drafter with a refiner next to single models and to fewer scales: images of equal seeds, and FLOPs.

Each row has the FLOPs of an image as a fraction of tiny-var's, and means over images with 95 % intervals: of class accuracy, of color
consistency, and of their differences from the row of a single model with as many FLOPs (``RIVAL``). From 250 images on also FID and
precision.

The rival's weights are not bundled: ``python -m tools.train tiny-var-d3 --out weights`` trains them.

    python -m studies.collaborate weights/tiny-var-d3.safetensors [--images 200] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core import seeds
from cachemark.methods.fewer_scales import FewerScales
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.presets import preset
from cachemark.metrics.compute.quality_intervals import intervals
from cachemark.models.catalogue.family import CatalogueModel
from cachemark.models.catalogue.next_scale import FAMILY, TINY_SIZES
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.models.tiny.networks import FEATURE_WEIGHTS
from cachemark.models.tiny.tokenizers import MSVQ_WEIGHTS
from cachemark.models.weights import packaged
from cachemark.roofline.flops_budget import image_flops
from cachemark.stats.intervals import ANY, mean_over_seeds

from .origin import Origin

WHOLE, RIVAL, BATCH = "tiny-var", "tiny-var-d3", 50
ROWS: tuple[tuple[str, int], ...] = (  # models, and how many of their last scales are skipped
    (WHOLE, 0), (WHOLE, 1), (WHOLE, 2), ("tiny-var+d2-n7", 0), ("tiny-var+d2-n6", 0), ("tiny-var+d2-n5", 0), (RIVAL, 0), ("tiny-var-d2", 0),
)


def images(model: str, skipped: int, count: int, rival: str) -> tuple[Tensor, float]:
    """Return images (count, 3, 64, 64) of the first seeds, and the FLOPs of one as a fraction of the whole model's.

    ``rival``: path of the weights of ``RIVAL``.
    """
    entry, subset = third_model() if model == RIVAL else MODELS.get(model), chosen_seeds(count)
    loaded, sampling, made = entry.load(Request(weights=rival if model == RIVAL else "")), entry.presets["paper"], []
    for first in range(0, count, BATCH):
        part = slice(first, min(first + BATCH, count))
        labels = torch.tensor(subset.labels[part])
        method = FewerScales(count=skipped) if skipped else Method()
        made.append(loaded.decode(loaded.generator.generate(labels, subset.seeds[part], method, sampling, Memory())))
    full = MODELS.get(WHOLE)
    flops = image_flops(FewerScales(count=skipped) if skipped else Method(), entry.shape(sampling, 1))
    return torch.cat(made), flops / image_flops(Method(), full.shape(sampling, 1))


def chosen_seeds(count: int) -> seeds.Subset:
    """Return the smallest subset with this many seeds, from 256 on."""
    return seeds.subset(seeds.smallest_subset(max(count, 256)), 10)


def of_set(made: Tensor) -> dict[str, list[float]]:
    """Return FID and precision against scenes, with the ends of intervals that can be stated."""
    scenes = preset("scene")
    found = intervals(scenes.extract(made, device="cpu"), scenes.reference, **scenes.options)
    numbers = {name: (found[name].value, found[name].low, found[name].high) for name in ("fid", "precision")}
    return {name: [round(x, 3) for x in three if not math.isnan(x)] for name, three in numbers.items()}


def third_model() -> ModelEntry:
    """Return the entry of the model that is trained and not bundled."""
    whole = MODELS.get(WHOLE)
    model = CatalogueModel(FAMILY, RIVAL, TINY_SIZES[RIVAL], f"{RIVAL}.safetensors", MSVQ_WEIGHTS, whole.presets, "", preset=whole.preset)
    return model.entry


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rival")
    options.add_argument("--images", type=int, default=200)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--json")
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    origin = Origin(chosen.threads)
    reader = FEATURE_WEIGHTS.load(packaged("tiny-features.safetensors"))
    labels, values, rows = torch.tensor(chosen_seeds(chosen.images).labels[: chosen.images]), dict[tuple[str, int], dict[str, Tensor]](), \
        list[dict[str, Any]]()
    with torch.inference_mode():
        for model, skipped in ROWS:
            made, share = images(model, skipped, chosen.images, chosen.rival)
            right = (reader(made.clamp(-1, 1))[1].argmax(1) == labels).double()
            values[model, skipped] = {"class_accuracy": right, "color_consistency": matching_colors(made).double().mean(1)}
            rows.append({"model": model, "skipped_scales": skipped, "flops": round(share, 4)} | (of_set(made) if len(made) >= 250 else {}))
            print(rows[-1], {name: round(float(of.mean()), 3) for name, of in values[model, skipped].items()}, flush=True)
    for which, row in zip(ROWS, rows, strict=True):
        own = values[which]
        for name, of in own.items():
            for key, numbers in ((name, of), (f"{name} less {RIVAL}'s", of - values[RIVAL, 0][name])):
                mean = mean_over_seeds(numbers.tolist(), (0.0, 1.0) if key == name else ANY)
                row[key] = [round(float(number), 4) for number in (mean.value, mean.low, mean.high)]
    print(json.dumps(rows, indent=1))
    origin.write(chosen.json, images=chosen.images, rows=rows)


if __name__ == "__main__":
    main()
