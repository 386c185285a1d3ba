"""What SkipVAR's decisions are worth on tiny-var: its images against the same outcomes shuffled over the images.

    python -m studies.skipvar_decisions results.sqlite

``results.sqlite``: a store of the plan `compute`, with its artifacts. Generates the 2000 images of `s2k` up to the decision, and takes what
follows from the stored images of the plain methods that compute the same. Shuffling keeps the FLOPs, and chooses without regard to the
image. Prints a row for each plain method and each threshold: FLOPs, FID and class accuracy over the 2000 images, SSIM over 64, and the
central 95 % of each after shuffling.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.deciding import Pictured
from cachemark.contract.method import Method
from cachemark.core import seeds
from cachemark.core.result import Outcome
from cachemark.methods.base import calibrations
from cachemark.methods.base.image_edges import high_frequencies, moved_edges
from cachemark.methods.base.outcome_profile import LAST, THRESHOLDS, OutcomeProfile
from cachemark.methods.skipvar import OUTCOMES, PICTURE, chosen
from cachemark.metrics.compute import presets, subsets
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.roofline.scale_flops import share
from cachemark.store.db import Store

MODEL, SEEDS, BATCH, SHUFFLES = "tiny-var", "s2k", 100, 200
NAMES = ["full", *(f"{count} skipped" for count in range(1, LAST + 1)), *(f"{count} unguided" for count in range(1, LAST + 1))]


class Images(NamedTuple):
    """Images of all seeds under one outcome: features (images, width), logits, right classes (images,) and SSIM of the first ones."""

    features: Tensor
    logits: Tensor
    right: Tensor
    ssim: Tensor


class UpToDecision(OutcomeProfile):
    """Notes what a decision reads, and computes nothing more."""

    def decide(self, pictured: Pictured) -> list[Method]:
        old, new = pictured(min(PICTURE, *self.layout.scales[-1]))
        self.features.append(torch.stack((moved_edges(old, new), high_frequencies(new)), 1).double())
        return [OUTCOMES[LAST]] * self.layout.batch


def read_by_decisions() -> Tensor:
    """Return the two numbers of each image by which SkipVAR decides, (images, 2)."""
    entry = MODELS.get(MODEL)
    loaded, subset, profile = entry.load(Request()), seeds.subset(SEEDS, entry.classes), UpToDecision(PICTURE, OUTCOMES)
    for at in range(0, len(subset), BATCH):
        part = slice(at, at + BATCH)
        labels = torch.tensor(subset.labels[part])
        loaded.generator.generate(labels, subset.seeds[part], profile, entry.presets["paper"], Memory("cpu"))
    return torch.cat(profile.features)


def plain_images(path: Path) -> dict[int, Images]:
    """Return the images of each outcome that the store has, by its number in ``OUTCOMES``."""
    entry, found = MODELS.get(MODEL), dict[int, Images]()
    layout = entry.shape(entry.presets["paper"], 4)
    with Store.open(path, create=False, read_only=True) as store:
        outcomes = [outcome for run in store.runs() for outcome in store.outcomes(run.id)]
        for outcome in outcomes:
            number = _number(outcome, len(layout.scales))
            folder = store.artifacts.parts / (outcome.facts.reused.source if outcome.facts.reused else outcome.result_key)
            parts = sorted(folder.glob("*.safetensors"))
            if number is not None and parts and outcome.ok and "class_accuracy" in outcome.samples:
                extractor = presets.preset(outcome.case.evaluation["quality"]["preset"]).extractor
                joined = ImageFeatures.joined([ImageFeatures.load(part, extractor) for part in parts])
                right = torch.tensor(outcome.samples["class_accuracy"], dtype=torch.float64)
                ssim = torch.tensor(outcome.samples["ssim"] if number else [1.0] * outcome.case.samples, dtype=torch.float64)
                found[number] = Images(joined.features, joined.logits, right, ssim)
    return found


def _number(outcome: Outcome, scales: int) -> int | None:
    case, parameters = outcome.case, outcome.case.parameters
    if case.model != MODEL or case.codec != "native" or case.decoder:
        return None
    if case.role == "baseline":
        return 0
    plain = {"fewer_scales": lambda: parameters["count"], "guidance_off": lambda: LAST + scales - parameters["start"]}
    return plain[case.method]() if case.method in plain else None


def values(made: Tensor, images: Mapping[int, Images], preset: presets.Preset) -> Tensor:
    """Return FID, class accuracy and SSIM, (draws, 3), of images with the outcomes ``made`` (draws, images)."""
    numbers, stacked = list(images), Images(*map(torch.stack, zip(*images.values(), strict=True)))  # (outcomes, images, ...)
    chosen_images = torch.stack([made == number for number in numbers], 1)  # (draws, outcomes, images)
    features = ImageFeatures(preset.extractor.name, stacked.features.flatten(0, 1), stacked.logits.flatten(0, 1))
    fid = subsets.fid(features, preset.reference, chosen_images.flatten(1), {})
    right, ssim = ((chosen_images[..., : part.size(1)] * part).sum(1).mean(1) for part in (stacked.right, stacked.ssim))
    return torch.stack((fid, right, ssim), 1)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    images, read = plain_images(parser.parse_args().store), read_by_decisions()
    entry, draw, preset = MODELS.get(MODEL), torch.Generator().manual_seed(0), presets.preset("scene")
    layout, facts = entry.shape(entry.presets["paper"], 4), calibrations.measured("skipvar", entry.identity(Request()))
    cost = torch.tensor([float(share(outcome, layout)) for outcome in OUTCOMES])
    print("| threshold | outcomes | FLOPs | FID | shuffled | class accuracy | shuffled | SSIM | shuffled |", "|---" * 9 + "|", sep="\n")
    for number in sorted(images):
        fid, right, ssim = values(torch.full((1, len(read)), number), images, preset)[0].tolist()
        print(f"| | {NAMES[number]}: all | {cost[number]:.3f} | {fid:.1f} | | {right:.3f} | | {ssim:.3f} | |")
    for row, threshold in enumerate(THRESHOLDS):
        skipped, unguided = (torch.tensor(chosen(read, facts[name][row])) for name in ("skip", "unguided"))
        made = torch.where(skipped > 0, skipped, torch.where(unguided > 0, LAST + unguided, 0))
        counts = made.bincount(minlength=len(OUTCOMES)).tolist()
        named = ", ".join(f"{NAMES[number]}: {count}" for number, count in enumerate(counts) if count)
        if missing := [NAMES[number] for number, count in enumerate(counts) if count and number not in images]:
            print(f"| {threshold} | {named} | the store has no images with {', '.join(missing)} |" + " |" * 6)
            continue
        own = values(made[None], images, preset)[0]
        shuffled = values(torch.stack([_shuffled(made, len(images[0].ssim), draw) for _ in range(SHUFFLES)]), images, preset)
        low, high = shuffled.quantile(torch.tensor((0.025, 0.975), dtype=shuffled.dtype), 0)
        cells = [f"{own[place]:.{digits}f} | {low[place]:.{digits}f} to {high[place]:.{digits}f}" for place, digits in enumerate((2, 3, 3))]
        print(f"| {threshold} | {named} | {cost[made].mean():.3f} | {' | '.join(cells)} |")


def _shuffled(made: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return outcomes in random order, those of the first ``count`` images among themselves, so that both sets keep their FLOPs."""
    first, others = made[:count], made[count:]
    return torch.cat([part[torch.randperm(len(part), generator=draw)] for part in (first, others)])


if __name__ == "__main__":
    main()
