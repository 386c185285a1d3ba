"""Rule of the method; and the checks of the kit."""

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, Site, Step
from cachemark.workflows.prove import prove_method
from cachemark_knorm.method import KNorm

SITE, KEYS = Site("decoder", 0), (3.0, 1.0, 4.0, 2.0)


def test_the_largest_norms_go_and_the_condition_stays() -> None:
    layout = Layout("next-token", condition=(1,), lines=2, line=2, heads=1, kv_heads=1, head_dim=4, layers=1, seeds=(0,), branches=(0,))
    method = KNorm(B=2)
    method.begin(layout, [SITE], Memory())
    slot = method.slots[SITE]
    for index, norm in enumerate((9.0, *KEYS)):
        step = Step(index, 5, max(0, index - 1), min(index, 1), edges=("token",))
        entry = torch.tensor([norm, 0, 0, 0]).expand(1, 1, 1, 4)
        method.attend(SITE, step, entry, entry, entry)
        method.end_step(step)
    assert sorted(slot.bank.keys().norm(dim=-1).flatten().tolist()) == [1.0, 2.0, 9.0]


def test_the_method_passes_the_kit() -> None:
    (report,) = prove_method("knorm")
    assert report.passed, [(check.name, finding) for check in report.checks for finding in check.findings]
