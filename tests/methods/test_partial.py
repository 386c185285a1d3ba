"""LazyMAR, random tokens and MARché: the schedule, who goes on, the active set, and its attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep, masked_steps, placed, take
from cachemark.contract.block import Block
from cachemark.core.spec import Sampling
from cachemark.kit.masked import CONFIG, SEEDS, MaskedCell
from cachemark.methods.base.lazy_schedule import PUBLISHED, Scheduled
from cachemark.methods.base.partial import Selecting
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.marche import MARche, joined, relevance
from cachemark.methods.random_tokens import RandomTokens
from cachemark.models.mar import SIZES

ROWS = 3
# -- MARché -----------------------------------------------------------------------------------------------------------
BATCH = 2
PASS = 40  # it and the pass before predict several tokens


def layout(steps: int = 64, batch: int = ROWS) -> MaskedLayout:
    return SIZES["B"].layout(range(100, 100 + batch), Sampling(cfg_scale=3.0, steps=steps))


def resolved(method: Any, steps: int = 64, batch: int = ROWS) -> Any:
    method.resolve(layout(steps, batch))
    return method


@pytest.mark.parametrize("steps", [16, 100, 128])
def test_a_scaled_schedule_refreshes_as_often_and_reads_the_table_at_its_share(steps: int) -> None:
    """Full are all passes below 5/64, then those into whose share a refresh of 64 passes falls; the authors ran 64 and 32."""
    schedules = {steps: resolved(LazyMAR(), steps).schedule for steps in (64, 32, 16, 63, 256)}
    assert schedules == {64: "published", 32: "published", 16: "scaled", 63: "scaled", 256: "scaled"}
    due = [index for index, full in enumerate(resolved(LazyMAR()).full) if full and index >= 5]
    read = [64 * index // steps for index in range(steps)]
    expected = [at < 5 or any(before < refresh <= at for refresh in due) for before, at in zip([-1, *read], read, strict=False)]
    method = resolved(LazyMAR(extra=0), steps)
    assert method.full == expected
    for step, at, full, size in zip(method.steps, read, method.full, method.kept, strict=True):
        assert size == (320 if full else max(forced_count(method, step), int(320 * PUBLISHED[at])))


def forced_count(method: Scheduled | MARche, step: MaskedStep) -> int:
    return step.count + (method.steps[step.index - 1].count if step.index else 0)


def test_forced_tokens_and_some_more_always_go_on_and_random_tokens_keeps_as_many() -> None:
    assert resolved(LazyMAR(token_cache=False)).kept == resolved(LazyMAR(count=1000)).kept == [320] * 64
    for extra in (0, 15):
        method = resolved(LazyMAR(table=[0.0] * 64, extra=extra))
        passes = zip(method.steps, method.full, strict=True)
        assert method.kept == [320 if full else forced_count(method, step) + extra for step, full in passes]
    own, lazy = resolved(RandomTokens()), resolved(LazyMAR())
    assert (own.kept, own.full) == (lazy.kept, lazy.full)
    assert own.rows == 2 * ROWS, "the condition cache is none of it"


def begun(method: Selecting, batch: int, index: int) -> MaskedStep:
    shape = layout(batch=batch)
    method.begin(shape, [], Memory())
    orders = [torch.randperm(256, generator=torch.Generator().manual_seed(seed)) for seed in shape.seeds]
    return placed(masked_steps(shape, 64), torch.stack(orders))[index]


def marked(places: Tensor) -> Tensor:
    return torch.zeros(len(places), 320, dtype=torch.bool).scatter(1, places, True)


@pytest.mark.parametrize(("method", "sign"), [
    (LazyMAR(), 1), (LazyMAR(select="min-similarity"), -1), (LazyMAR(select="predicted"), 0), (LazyMAR(select="unpredicted"), 0),
    (LazyMAR(select="random"), 0), (RandomTokens(), 0)])  # fmt: skip
def test_beside_forced_tokens_the_chosen_ones_go_on(method: Scheduled, sign: int) -> None:
    """By their likeness, those that lack a value, those that have one, as the class's places do, or others in every row."""
    step = begun(method, ROWS, 30)
    similarity = torch.rand(ROWS, 320, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.05
    before, now = torch.zeros(2, ROWS, 12, 320, 64)
    before[..., 0] = 2.0
    now[..., 0], now[..., 1] = similarity[:, None], (1 - similarity.square()).sqrt()[:, None]
    if isinstance(method, LazyMAR) and method.values is not None:
        method.values.copy_(before)
    on = marked(method.choose(step, now, now, now)[:, : method.kept[step.index]])
    forced = marked(64 + torch.cat((step.generating, step.previous), 1)[:ROWS])
    assert on.sum(1).tolist() == [method.kept[step.index]] * ROWS == [48] * ROWS
    if sign:
        assert on[forced].all()
        scores = [sign * row for row in similarity]
        assert all(score[row & ~must].max() < score[~row].min() for score, row, must in zip(scores, on, forced, strict=True))
    elif getattr(method, "select", "random") == "random":
        assert not torch.equal(on[0], on[1])
    else:
        with_value = marked(torch.cat((torch.arange(64).expand(ROWS, -1), 64 + step.known[:ROWS]), 1))
        behind = with_value if method.select == "predicted" else ~with_value
        assert not on[behind & ~forced].any()


def marche(steps: int = 64, **parameters: Any) -> MARche:
    return resolved(MARche(**parameters), steps, BATCH)


def active_of(**parameters: Any) -> tuple[list[set[int]], list[set[int]], list[set[int]], Tensor]:
    """Return, per row of one pass, active, generating and caching tokens, and each token's relevance."""
    method = MARche(**parameters)
    step = begun(method, BATCH, PASS)
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2 * BATCH, 12, 320, 64, generator=draw) for _ in range(3))
    chosen = method.choose(step, q, k, v)[:, : method.kept[step.index]]
    sets = [[set(row) for row in places.tolist()] for places in (chosen, 64 + step.generating, 64 + step.previous)]
    return sets[0], sets[1], sets[2], relevance(q, k, 64 + step.generating)


def test_every_third_pass_is_full_and_more_forced_tokens_than_active_ones_leave_none_to_refresh() -> None:
    method = marche()
    assert [index for index, full in enumerate(method.full) if full] == list(range(0, 64, 3))
    assert {size for size, full in zip(method.kept, method.full, strict=True) if not full} == {64}
    assert marche(period=100).full == [True] + [False] * 63
    method = marche(8)
    for step, full, size in zip(method.steps, method.full, method.kept, strict=True):
        assert size == (320 if full else max(64, forced_count(method, step)))
    assert max(size for size, full in zip(method.kept, method.full, strict=True) if not full) > 64


def test_the_active_set_is_three_kinds_of_tokens_random_ones_depend_on_the_row_alone_and_a_kind_that_is_off_is_left_out() -> None:
    for refresh in ("high", "low"):
        for active, generating, caching, score in zip(*active_of(refresh=refresh), strict=True):
            assert generating | caching < active
            candidates = torch.tensor(sorted(set(range(320)) - generating - caching))
            order = score[candidates].argsort(descending=refresh == "high")
            assert active - generating - caching == set(candidates[order[: 64 - len(generating | caching)]].tolist())
    free, again = ([a - g - c for a, g, c in zip(*active_of(refresh="random", select_layer=layer)[:3], strict=True)] for layer in (2, 1))
    assert free == again
    assert free[0] != free[1]
    for kind in ("generating", "caching"):
        for active, generating, caching, _ in zip(*active_of(**{kind: False}), strict=True):
            out, included = (generating, caching) if kind == "generating" else (caching, generating)
            assert (len(active), out & active, included <= active) == (64, set(), True)
        assert marche(active=320, **{kind: False}).kept[PASS] == 320 - len(out)


def test_a_blind_set_knows_no_kinds_and_some_blocks_compute_everything() -> None:
    active, generating, *_ = active_of(refresh="blind")
    assert [len(row) for row in active] == [64] * len(active)
    assert not all(g <= a for g, a in zip(generating, active, strict=True))
    method = marche(select_layer=3, refresh_layers=[2, 5])
    assert [block + 1 for block in range(12) if method.spans(block) == (True, True)] == [1, 2, 3, 5]
    assert method.selects_at == 2


@pytest.mark.parametrize("generating", [True, False])
def test_a_token_that_is_left_out_keeps_its_last_hidden_state(generating: bool) -> None:
    """Between what stands behind block ``select_layer`` and what leaves the decoder, in every partial pass."""
    states: list[Tensor] = []
    outs: list[tuple[MaskedStep, Tensor]] = []

    def block(self: MARche, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = MARche.block(self, site, step, tokens, block)
        states.extend([tokens.x] if site == ("decoder", self.selects_at) and not self.full[step.index] else ())
        return tokens

    def stack(self: MARche, name: str, step: MaskedStep, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        out = MARche.stack(self, name, step, tokens, run)
        outs.extend([(step, out)] if name == "decoder" and not self.full[step.index] else ())
        return out

    method = type("Watched", (MARche,), {"block": block, "stack": stack})(active=14, generating=generating)
    MaskedCell(MARche, (), "native").generate(method, Memory(), SEEDS, None, with_logits=False)
    assert len(states) == len(outs) == 5
    for behind, (step, out) in zip(states, outs, strict=True):
        places = CONFIG.buffer + step.generating
        assert torch.equal(take(out, places), take(behind, places)) is not generating
        assert int((out == behind).all(-1).sum()) == (CONFIG.buffer + CONFIG.tokens - 14) * len(out)


def test_relevance_is_the_attention_that_generating_tokens_pay() -> None:
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, 3, 10, 4, generator=draw) for _ in range(2))
    places = torch.tensor([[1, 7], [0, 9]])
    paid = relevance(q, k, places)
    for row in range(2):
        weights = torch.stack([(q[row, head] @ k[row, head].T / 2).softmax(-1) for head in range(3)])
        assert torch.allclose(paid[row], weights[:, places[row]].sum((0, 1)), atol=1e-6)
    assert torch.allclose(paid.sum(1), torch.tensor(6.0))
    # parts of very different height do not overflow in the paper's attention, which is another kernel
    assert MARche(partitioned=True).kernel != MARche().kernel
    q, k, v = torch.ones(1, 1, 1, 4), torch.full((1, 1, 2, 4), 200.0), torch.tensor([[[[1.0] * 4, [3.0] * 4]]])
    low = k - 300
    assert torch.allclose(joined(q, (k, v), (low, v + 10)), torch.full((1, 1, 1, 4), 2.0))
    assert torch.allclose(joined(q, (low, v + 10), (k, v)), torch.full((1, 1, 1, 4), 2.0))
