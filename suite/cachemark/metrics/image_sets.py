"""Metrics of a whole set of images: FID, sFID, KID, Inception score, precision, recall and class accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .base import ImageSet, SetMetric, known


class FeatureMetric(SetMetric):
    """A value that torch-fidelity computes from features; its last bit depends on the number of threads."""

    def measure(self, images: ImageSet) -> Sequence[float]:
        return [images.intervals[self.name].value] if self.name in images.intervals else ()

    def facts(self, images: ImageSet) -> Mapping[str, Any]:
        interval = images.intervals[self.name]
        return {"intervals": known(interval.low, interval.high)}


class FrechetDistance(FeatureMetric):
    """Fréchet distance between normal distributions fitted to features of the images and of real ones."""

    name = "fid"
    title = "FID"
    better = "lower"
    per_feature = 3

    def facts(self, images: ImageSet) -> Mapping[str, Any]:
        from .compute.quality_intervals import difference

        compared = {**super().facts(images), "bias": images.intervals[self.name].bias}
        if floor := images.preset.reference.floors.get(len(images.features)):
            compared["real"] = list(floor)
        if images.full is not None:
            compared["to_full"] = known(*difference(images.features, images.full, images.preset.reference)[:3])
        return compared


class SpatialDistance(FeatureMetric):
    """Fréchet distance between normal distributions fitted to features by position, which shows the layout of images."""

    name = "sfid"
    title = "sFID"
    better = "lower"
    per_feature = 3
    resampled = False  # 2,023 features, whose subsets would take as long as those of FID again
    column = False


class KernelDistance(FeatureMetric):
    """Squared maximum mean discrepancy between features of the images and of real ones, cubic kernel."""

    name = "kid"
    title = "KID"
    better = "lower"
    column = False


class InceptionScore(FeatureMetric):
    """Exponential of the mean divergence of an image's class probabilities from the set's mean."""

    meaning = "How clearly each image shows one class, and how evenly the classes occur."
    name = "isc"
    title = "Inception score"
    within = (1.0, math.inf)
    per_class = 40
    column = False


class Precision(FeatureMetric):
    """Fraction of the images inside the manifold of real ones."""

    name = "precision"
    title = "Precision"
    unit = "share"
    grows = True


class Recall(FeatureMetric):
    """Fraction of the real images inside the manifold of the set."""

    name = "recall"
    title = "Recall"
    unit = "share"
    grows = True


class ClassAccuracy(SetMetric):
    """Fraction of images that the preset's feature network classifies as the requested class."""

    name = "class_accuracy"
    title = "Class accuracy"
    unit = "share"
    within = (0.0, 1.0)
    family = False

    def measure(self, images: ImageSet) -> Sequence[float]:
        import torch

        if not images.preset.names_classes:
            return ()
        predicted: list[float] = (images.features.logits.argmax(1) == torch.tensor(images.labels)).double().tolist()
        return predicted
