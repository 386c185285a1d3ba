"""Muon: what it does to singular values, and that it moves as torch's own does."""

from __future__ import annotations

import pytest
import torch

from tools.train.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_singular_values_end_near_one(shape: tuple[int, int]) -> None:
    batch = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(batch))
    assert values.shape == (3, 16 if 16 in shape else 24)
    if shape[0] != shape[1]:  # a random square matrix has singular values near zero, which five rounds do not lift
        assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
def test_it_moves_as_torchs_own() -> None:
    generator = torch.Generator().manual_seed(3)
    ours = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in ((32, 16), (16, 32), (16, 16))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    muon, two = Muon(ours, lr=0.02, momentum=0.95), torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.0)
    start = [p.detach().clone() for p in ours]
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        muon.step()
        two.step()
    for p, q, origin in zip(ours, theirs, start, strict=True):
        assert (p - q).norm() < 0.02 * (p - origin).norm()  # theirs iterates in bf16


def test_only_matrices() -> None:
    with pytest.raises(ValueError, match=r"shape \[\(5,\)\]"):
        Muon([torch.nn.Parameter(torch.ones(5))])
