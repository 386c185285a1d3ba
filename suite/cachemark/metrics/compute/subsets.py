"""FID, KID, Inception score and recall of many subsets of a set of images at once.

torch-fidelity computes them for one set. A few hundred calls take minutes, at 50 000 images days, so work that subsets share is done
once here. Values are the same; tests compare them with torch-fidelity on the subsets.

``subset_masks`` (R, N) bool: which of the N images are in each of the R subsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .extractor import toolkit
from .image_features import ImageFeatures, RealImages, scatter

BLOCK = 500  # images whose distances to all others are in memory at a time
DEPTH = 32  # neighbors of an image that are sorted first; more are rarely needed


def drawn(count: int, resamples: int, strata: Tensor, share: float, seed: int) -> Tensor:
    """Return random subsets without a fraction ``share`` of each of the ``strata`` (count,) int64."""
    draws, sizes = torch.Generator().manual_seed(seed), strata.bincount()
    order = torch.rand(resamples, count, generator=draws, dtype=torch.float64) + strata  # sorts by stratum, at random within it
    ranked = order.argsort(1)
    starts = (sizes.cumsum(0) - sizes).tolist()
    equal = round(share * count / len(sizes)) if int(sizes.max() - sizes.min()) <= 1 else 0  # as many of each, where they are equal
    gone = ranked[:, torch.cat([start + torch.arange(max(min(1, size - 1), equal or round(share * size)))
                                for start, size in zip(starts, sizes.tolist(), strict=True)])]
    return torch.ones(resamples, count, dtype=torch.bool).scatter_(1, gone, False)


def fid(images: ImageFeatures, reference: RealImages, subset_masks: Tensor, chosen: Mapping[str, Any]) -> Tensor:
    """Return FID of each subset, (R,) float64.

    The trace of the root of Σ₁Σ₂ is computed from the symmetric Σ₂^½ Σ₁ Σ₂^½, which has the same eigenvalues; of fewer images than
    features from their products, which have the same eigenvalues but zeros and are a smaller matrix.
    """
    features = images.features
    centre = features.mean(0, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(reference.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    traces, away = reference.covariance.trace(), centre - reference.mean.double()
    subset = (_of_few if len(features) < features.shape[1] else _of_many)(features, centre, root)
    distances = []
    for inside in subset_masks:
        mean, trace, squares = subset(inside)
        shared = torch.linalg.eigvalsh(squares).clamp(min=0).sqrt().sum()
        distances.append((away + mean).square().sum() + trace + traces - 2 * shared)
    return torch.stack(distances)


_Spread = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # of a subset: mean − centre, trace of Σ₁, a matrix with the eigenvalues


def _of_many(features: Tensor, centre: Tensor, root: Tensor) -> _Spread:
    total = scatter(features, centre)

    def spread(inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gone, count = features[~inside].double() - centre, int(inside.sum())
        mean = -gone.sum(0) / count
        covariance = (total - gone.T @ gone - count * torch.outer(mean, mean)) / (count - 1)
        return mean, covariance.trace(), root @ covariance @ root

    return spread


def _of_few(features: Tensor, centre: Tensor, root: Tensor) -> _Spread:
    rows = features.double() - centre
    lengths, products = rows.square().sum(1), rows @ root
    products = products @ products.T

    def spread(inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own, mean, count = products[inside][:, inside], rows[inside].mean(0), int(inside.sum())
        trace = (lengths[inside].sum() - count * mean.square().sum()) / (count - 1)
        own = own - own.mean(0)
        return mean, trace, (own - own.mean(1, keepdim=True)) / (count - 1)

    return spread


def kid(images: ImageFeatures, reference: RealImages, subset_masks: Tensor, chosen: Mapping[str, Any]) -> Tensor:
    """Return the unbiased squared MMD of each subset without the reference's own term, (R,) float64.

    The constant term does not matter for differences. torch-fidelity's mean over subsets approaches this value plus the constant.
    """
    mine, real = images.features.numpy(), reference.features.numpy()
    kernel = {"poly": toolkit().metric_kid.kernel_poly, "rbf": toolkit().metric_kid.kernel_rbf}[chosen["kid_kernel"]]
    weights, counts = subset_masks.double(), subset_masks.sum(1).double()
    within, across = torch.zeros(len(subset_masks), dtype=torch.float64), []
    for start in range(0, len(mine), BLOCK):
        rows = mine[start : start + BLOCK]
        own = torch.from_numpy(kernel(rows, mine, **chosen)).double()
        own[torch.arange(len(rows)), start + torch.arange(len(rows))] = 0
        within += ((own @ weights.T) * weights.T[start : start + BLOCK]).sum(0)
        across.append(torch.from_numpy(kernel(rows, real, **chosen)).double().mean(1))
    return within / (counts * (counts - 1)) - 2 * (weights @ torch.cat(across)) / counts


def chunks(count: int, chosen: Mapping[str, Any]) -> Tensor:
    """Return the split of the Inception score of each image, (N,) int64: of a fixed size in order, or as torch-fidelity draws it."""
    if size := chosen["isc_split_size"]:
        return torch.arange(count) // size
    splits = chosen["isc_splits"]
    order = np.random.RandomState(chosen["rng_seed"]).permutation(count) if chosen["samples_shuffle"] else np.arange(count)
    ends = torch.tensor([(i + 1) * count // splits for i in range(splits)])
    numbers = torch.empty(count, dtype=torch.int64)
    numbers[torch.from_numpy(order)] = torch.searchsorted(ends, torch.arange(count), right=True)
    return numbers


def isc(images: ImageFeatures, reference: RealImages, subset_masks: Tensor, chosen: Mapping[str, Any]) -> Tensor:
    """Return the Inception score of each subset, (R,) float64, with the splits of the whole set."""
    split, scores = chunks(len(images), chosen), []
    for i in range(int(split.max()) + 1):
        inside = split == i
        logits, weights = images.logits[inside].double(), subset_masks[:, inside].double()
        shares, counts = logits.softmax(1), weights.sum(1, keepdim=True)
        own = (shares * logits.log_softmax(1)).sum(1)
        mean = weights @ shares / counts
        scores.append(((weights @ own) / counts[:, 0] - torch.xlogy(mean, mean).sum(1)).exp())
    return torch.stack(scores).mean(0)


def recall(images: ImageFeatures, reference: RealImages, subset_masks: Tensor, chosen: Mapping[str, Any]) -> Tensor:
    """Return the fraction of real images inside the manifold of each subset, (R,) float64.

    The manifold is the union of balls around images, each with a radius up to the image's k-th neighbor in the subset.
    """
    radii = torch.cat(list(_radii(images.features, subset_masks, chosen["prc_neighborhood"] + 1)), 1)
    largest, inside = radii.amax(0), torch.zeros(len(subset_masks), dtype=torch.int64)
    for real in reference.features.split(BLOCK):
        distances = torch.cdist(real, images.features)
        row, image = (distances <= largest).nonzero(as_tuple=True)
        near = distances[row, image]
        for r, own in enumerate(radii):
            covered = torch.zeros(len(real), dtype=torch.bool)
            covered[row[near <= own[image]]] = True
            inside[r] += covered.sum()
    return inside.double() / len(reference.features)


def _radii(features: Tensor, subset_masks: Tensor, nth: int) -> Iterator[Tensor]:
    """Yield each image's distance to its ``nth`` nearest in each subset, (R, block); −1 outside it."""
    for start in range(0, len(features), BLOCK):
        distances = torch.cdist(features[start : start + BLOCK], features)
        depth = min(max(DEPTH, 2 * nth), len(features))
        while True:
            near, image = distances.topk(depth, largest=False)
            reached = subset_masks[:, image].cumsum(2, dtype=torch.int32) >= nth  # (R, block, depth)
            mine = subset_masks[:, start : start + BLOCK]
            if bool(reached[..., -1][mine].all()) or depth == len(features):
                break
            depth = min(2 * depth, len(features))
        place = reached.int().argmax(2)
        yield torch.where(mine, near.expand(len(subset_masks), -1, -1).gather(2, place[..., None])[..., 0], -1.0)
