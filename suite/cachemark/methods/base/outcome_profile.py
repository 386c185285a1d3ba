"""Calibration of SkipVAR: generate the images of every outcome and fit classifiers to their SSIM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cache.layout import Layout
from ...contract.deciding import Deciding, Pictured
from ...contract.method import Method
from .calibrations import shape_of
from .image_edges import high_frequencies, moved_edges
from .profiles import rounded

LAST = 3  # scales that an image may skip or compute without guidance
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.84, 0.86, 0.88, 0.9, 0.95)
NEVER = -1000.0  # added to a class that no image has
DECIMALS, NEWTON = 6, 30  # of the weights; steps of a fit


class OutcomeProfile(Deciding):
    """The full cache with a record of a decision's features; :meth:`note` takes each outcome's SSIM.

    ``picture``: tokens along a side of the images that are read. ``compared``: the outcomes, the full cache's first, then those with fewer
    scales and those with less guidance.
    """

    def __init__(self, picture: int, outcomes: Sequence[Method]) -> None:
        self.picture, self.compared = picture, outcomes[1:]
        self.features, self.similarities = list[Tensor](), list[Tensor]()

    def decides_after(self, layout: Layout) -> int:
        return len(layout.scales) - LAST - 1

    def decide(self, pictured: Pictured) -> Sequence[Method]:
        old, new = pictured(min(self.picture, *self.layout.scales[-1]))
        self.features.append(torch.stack((moved_edges(old, new), high_frequencies(new)), 1).double().cpu())
        return ()

    def expected(self, layout: Layout) -> Sequence[tuple[float, Method]]:
        return [(1.0, self)]

    def note(self, similarities: Sequence[Tensor]) -> None:
        """Take the SSIM of the images that :attr:`compared` have made, (batch,) each."""
        self.similarities.append(torch.stack(list(similarities), 1).double().cpu())

    @property
    def facts(self) -> Mapping[str, Any]:
        """The classifiers and the outcomes of the images they were fitted to, for each threshold."""
        features, similarities = torch.cat(self.features), torch.cat(self.similarities)
        tables: dict[str, list[Any]] = {"skip": [], "unguided": [], "outcomes": []}
        for threshold in THRESHOLDS:
            skip, unguided = (_most(part >= threshold) for part in (similarities[:, :LAST], similarities[:, LAST:]))
            tables["skip"].append(by_skip := fitted(features, skip))
            tables["unguided"].append(by_row := fitted(features[skip == 0], unguided[skip == 0]))
            skipped, without = ((features @ table[:, :2].T + table[:, 2]).argmax(1) for table in (by_skip, by_row))
            made = torch.where(skipped > 0, skipped, torch.where(without > 0, LAST + without, 0))
            tables["outcomes"].append(made.bincount(minlength=2 * LAST + 1) / len(made))
        lists = {name: rounded([table.tolist() for table in each], DECIMALS) for name, each in tables.items()}
        return {**shape_of(self.layout), "thresholds": list(THRESHOLDS), **lists}


def _most(passes: Tensor) -> Tensor:
    """Return the largest count (from 1) whose column of ``passes`` (images, counts) is true, else 0."""
    return (passes * torch.arange(1, passes.size(1) + 1)).amax(1)


def fitted(features: Tensor, labels: Tensor, classes: int = LAST + 1) -> Tensor:
    """Fit a multinomial logistic regression to ``features`` (images, 2).

    Returns (classes, 3), two weights and a bias. Features are standardized; squares of their weights are halved and added to the negative
    log-likelihood. A class without images is never chosen.
    """
    present = labels.unique().tolist()
    table = torch.zeros(classes, 3, dtype=torch.float64)
    table[:, 2] = NEVER
    if len(present) < 2:
        table[present[0] if present else 0, 2] = 0.0
        return table
    mean, scale = features.mean(0), features.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    x, y = (features - mean) / scale, torch.tensor([present.index(label) for label in labels.tolist()])
    own = _regressed(torch.cat((x, torch.ones_like(x[:, :1])), 1), y, len(present))
    table[present, :2] = own[:, :2] / scale
    table[present, 2] = own[:, 2] - (own[:, :2] * mean / scale).sum(1)
    return table


def _regressed(x: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Fit ``x`` (images, 3) by a damped Newton method; return weights (classes, 3)."""
    own, penalty = torch.zeros(classes, 3, dtype=torch.float64), torch.tensor((1.0, 1.0, 1e-8), dtype=torch.float64)
    targets, diagonal = F.one_hot(labels, classes).double(), torch.eye(classes, dtype=torch.float64)

    def loss(weights: Tensor) -> Tensor:
        return F.cross_entropy(x @ weights.T, labels, reduction="sum") + (penalty * weights.square()).sum() / 2

    for _ in range(NEWTON):
        p = (x @ own.T).softmax(1)
        gradient = ((p - targets).T @ x + penalty * own).flatten()
        curvature = p[:, :, None] * (diagonal - p[:, None])  # (images, classes, classes)
        hessian = torch.einsum("nab,ni,nj->aibj", curvature, x, x).reshape(3 * classes, -1) + torch.diag(penalty.repeat(classes))
        step, size = torch.linalg.solve(hessian, gradient).view_as(own), 1.0
        while size > 1e-6 and loss(own - size * step) > loss(own):
            size /= 2
        own = own - size * step
        if float(step.abs().max()) < 1e-10:
            break
    return own
