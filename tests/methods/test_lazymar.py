"""LazyMAR and random tokens: the schedule, who goes on, budgets, and what a wrong parameter is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, masked_steps, placed
from cachemark.core.spec import Sampling
from cachemark.methods.base.lazy_schedule import PUBLISHED, Scheduled
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.random_tokens import RandomTokens
from cachemark.models.mar import SIZES

GUIDED = Sampling(cfg_scale=3.0)
BATCH = 3
METHODS = (LazyMAR, RandomTokens)


def layout(steps: int = 64, batch: int = BATCH, sampling: Sampling = GUIDED) -> MaskedLayout:
    """MAR-B's."""
    return SIZES["B"].layout(range(100, 100 + batch), replace(sampling, steps=steps))


def resolved(method: Scheduled, steps: int = 64) -> Scheduled:
    method.resolve(layout(steps))
    return method


# -- the schedule -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("steps", "schedule"), [(64, "published"), (32, "published"), (16, "scaled"), (63, "scaled"), (256, "scaled")])
def test_the_published_schedule_is_for_what_the_authors_ran(steps: int, schedule: str) -> None:
    assert resolved(LazyMAR(), steps).schedule == schedule


@pytest.mark.parametrize("steps", [8, 16, 100, 128, 256])
def test_a_scaled_schedule_refreshes_as_often(steps: int) -> None:
    """Full are all passes below 5/64, then those into whose share a refresh of 64 passes falls."""
    due = [index for index, full in enumerate(resolved(LazyMAR()).full) if full and index >= 5]
    read = [64 * index // steps for index in range(steps)]
    expected = [at < 5 or any(before < refresh <= at for refresh in due) for before, at in zip([-1, *read], read, strict=False)]
    assert resolved(LazyMAR(), steps).full == expected


def test_a_scaled_schedule_reads_the_table_at_its_share() -> None:
    method = resolved(LazyMAR(extra=0), 128)
    for step, full, size in zip(method.steps, method.full, method.kept, strict=True):
        forced = step.count + (method.steps[step.index - 1].count if step.index else 0)
        assert size == (320 if full else max(forced, int(320 * PUBLISHED[step.index // 2])))


@pytest.mark.parametrize("extra", [0, 15])
def test_forced_tokens_and_some_more_always_go_on(extra: int) -> None:
    method = resolved(LazyMAR(table=[0.0] * 64, extra=extra))
    for before, step, full, size in zip(method.steps, method.steps[1:], method.full[1:], method.kept[1:], strict=False):
        assert size == (320 if full else before.count + step.count + extra)


def test_a_count_takes_the_place_of_the_table() -> None:
    method = resolved(LazyMAR(count=50))
    assert {size for full, size in zip(method.full, method.kept, strict=True) if not full} == {50}
    assert resolved(LazyMAR(count=1000)).kept == [320] * 64


def test_without_a_token_cache_all_tokens_go_on() -> None:
    assert resolved(LazyMAR(token_cache=False)).kept == [320] * 64


def test_random_tokens_keeps_as_many_as_lazymar() -> None:
    assert resolved(RandomTokens()).kept == resolved(LazyMAR()).kept
    assert resolved(RandomTokens()).full == resolved(LazyMAR()).full
    assert resolved(RandomTokens()).rows == 2 * BATCH, "the condition cache is none of it"


# -- who goes on ------------------------------------------------------------------------------------------------------
def begun(method: Scheduled, batch: int = BATCH) -> tuple[Scheduled, MaskedStep]:
    """A method in the middle of an image, and a pass that keeps 48 of 320 tokens."""
    shape = layout(batch=batch)
    method.begin(shape, [], Memory())
    order = torch.stack([torch.randperm(256, generator=torch.Generator().manual_seed(seed)) for seed in shape.seeds])
    return method, placed(masked_steps(shape, 64), order)[30]


def values_of(similarity: Tensor) -> tuple[Tensor, Tensor]:
    """Return values before and now, (rows, 12, 320, 64), with cosine ``similarity`` (rows, 320)."""
    before = torch.zeros(len(similarity), 12, 320, 64)
    before[..., 0] = 2.0
    now = torch.zeros_like(before)
    now[..., 0], now[..., 1] = similarity[:, None], (1 - similarity.square()).sqrt()[:, None]
    return before, now


def goes_on(method: Scheduled, step: MaskedStep, similarity: Tensor) -> Tensor:
    """(rows, 320): whether a token goes on."""
    before, now = values_of(similarity)
    if isinstance(method, LazyMAR) and method.values is not None:
        method.values.copy_(before)
    chosen = method.choose(step, now, now, now)[:, : method.kept[step.index]]
    return torch.zeros_like(similarity, dtype=torch.bool).scatter(1, chosen, True)


def forced_of(step: MaskedStep, rows: int = BATCH) -> Tensor:
    places = 64 + torch.cat((step.generating, step.previous), 1)[:rows]
    return torch.zeros(rows, 320, dtype=torch.bool).scatter(1, places, True)


SIMILARITY = torch.rand(BATCH, 320, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.05


@pytest.mark.parametrize(("select", "sign"), [("similarity", 1), ("min-similarity", -1)])
def test_beside_forced_tokens_the_extreme_ones_go_on(select: str, sign: int) -> None:
    method, step = begun(LazyMAR(select=select))
    on, forced = goes_on(method, step, SIMILARITY), forced_of(step)
    assert on.sum(1).tolist() == [method.kept[30]] * BATCH == [48] * BATCH
    assert on[forced].all()
    for row in range(BATCH):
        score = sign * SIMILARITY[row]
        assert score[on[row] & ~forced[row]].max() < score[~on[row]].min()


@pytest.mark.parametrize(("forced", "dropped"), [("zero", True), ("always", False)])
def test_a_forced_token_counts_as_alike_by_nothing(forced: str, dropped: bool) -> None:
    """As published, 48 tokens that point the other way go before it."""
    method, step = begun(LazyMAR(forced=forced))
    opposite = SIMILARITY.clone()
    opposite[:, :48] *= -1
    on = goes_on(method, step, opposite)
    assert bool(on[forced_of(step)].any()) is not dropped
    assert bool(on[:, :48].all()) is dropped


def known_of(step: MaskedStep) -> Tensor:
    """Tokens that have a value, the class's places among them."""
    with_value = torch.zeros(BATCH, 320, dtype=torch.bool).scatter(1, 64 + step.known[:BATCH], True)
    with_value[:, :64] = True
    return with_value


@pytest.mark.parametrize("select", ["predicted", "unpredicted"])
def test_tokens_with_or_without_a_value_stay_behind_first(select: str) -> None:
    method, step = begun(LazyMAR(select=select))
    on, free = goes_on(method, step, SIMILARITY), ~forced_of(step)
    with_value = known_of(step)
    assert not on[(with_value if select == "predicted" else ~with_value) & free].any()
    assert on.sum() == 48 * BATCH


@pytest.mark.parametrize("cls", METHODS)
def test_random_tokens_belong_to_the_sample(cls: type[Scheduled]) -> None:
    parameters = {"select": "random"} if cls is LazyMAR else {}
    method, step = begun(cls(**parameters))
    on = goes_on(method, step, SIMILARITY)
    alone, same = begun(cls(**parameters), batch=1)
    assert torch.equal(goes_on(alone, same, SIMILARITY[:1]), on[:1])
    assert (on & ~forced_of(step)).sum(1).tolist() == (48 - forced_of(step).sum(1)).tolist()
    assert not torch.equal(on[0], on[1])
