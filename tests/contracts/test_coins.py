"""Speculative decoders on a model. tests/decoders shows by counting that they keep the distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.methods.linear import Linear
from cachemark.methods.streaming import Streaming

from .cells import GRID
from .test_windows import SAMPLINGS, SEEDS, N, Numbered, Poisoned, generate, sequential

DECODERS: dict[str, Callable[..., Decoder]] = {"sjd": SJD, "gumbel": SCD, "maximal": partial(SCD, coupling="maximal")}
with_every_decoder = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)


@with_every_decoder
def test_every_place_is_kept_once_and_the_images_are_others(make: Callable[..., Decoder]) -> None:
    for proposals in ("uniform", "newest", "left", "above"):
        decoder = make(window=8, proposals=proposals)
        tokens = generate(decoder)
        assert sum(decoder.kept) == N
        assert all(1 <= kept <= fed <= 8 for kept, fed in zip(decoder.kept, decoder.fed, strict=True))
        assert not torch.equal(tokens, sequential())
        assert torch.equal(generate(make(window=8, proposals=proposals)), tokens), "the same seeds, the same images"


@with_every_decoder
def test_greedy_tokens_are_those_of_sequential_decoding(make: Callable[..., Decoder]) -> None:
    """Then a distribution allows one token only."""
    decoder = make(window=8)
    assert torch.equal(generate(decoder, SAMPLINGS["greedy"]), sequential(SAMPLINGS["greedy"]))
    assert len(decoder.kept) < N


@with_every_decoder
def test_greedy_tokens_past_the_end_of_a_line_are_those_of_the_method(make: Callable[..., Decoder]) -> None:
    """What is drawn before an eviction is decided behind it."""
    own = generate(None, SAMPLINGS["greedy"], method=lambda: Linear(B=3 * GRID, anchor=1))
    decoder = make(window=8, proposals="newest", look_ahead=True)
    assert torch.equal(generate(decoder, SAMPLINGS["greedy"], method=lambda: Linear(B=3 * GRID, anchor=1)), own)
    assert max(decoder.fed) == 8 > max(decoder.kept)


@with_every_decoder
@pytest.mark.parametrize("name", ["top-k", "top-p", "interval"])
def test_truncated_distributions_give_tokens_that_they_allow(make: Callable[..., Decoder], name: str) -> None:
    decoder, allowed = make(window=8, proposals="newest"), []

    def see(first: int, logits: torch.Tensor) -> None:
        allowed.append(logits.clone())

    tokens = generate(decoder, SAMPLINGS[name], see=see)
    rank = (torch.cat(allowed, 1) > torch.cat(allowed, 1).gather(-1, tokens[..., None])).sum(-1)
    assert name != "top-k" or int(rank.max()) < SAMPLINGS[name].top_k
    assert int(rank.max()) > 0


@with_every_decoder
def test_a_rejected_entry_is_never_read(make: Callable[..., Decoder]) -> None:
    assert torch.equal(generate(make(window=8), method=Poisoned), generate(make(window=8)))


@with_every_decoder
def test_behind_each_pass_exactly_the_kept_tokens_live_in_order(make: Callable[..., Decoder]) -> None:
    decoder = make(window=8)
    generate(decoder, method=Numbered)
    assert sum(decoder.kept) == N


@with_every_decoder
def test_it_composes_with_a_method_up_to_its_horizon(make: Callable[..., Decoder]) -> None:
    decoder = make(window=16, proposals="newest")
    generate(decoder, method=lambda: Linear(B=3 * GRID, anchor=1))
    assert sum(decoder.kept) == N
    assert max(decoder.kept) > 1
    ends = torch.tensor(decoder.kept).cumsum(0)[:-1]
    assert set(range(GRID + 1, N, GRID)) <= set(ends.tolist()), "a pass ends with each line, whose last token has been fed"
    single = make(window=16)
    generate(single, method=lambda: Streaming(B=3 * GRID))
    assert single.kept == [1] * N


@with_every_decoder
def test_distributions_of_drafts_are_counted(make: Callable[..., Decoder]) -> None:
    sizes = {}
    for window in (1, 8):
        memory = Memory()
        generate(make(window=window), memory=memory)
        sizes[window] = memory.nbytes("state")
    rings = 2 if make is DECODERS["gumbel"] else 1  # noise of the places too
    assert sizes[8] - sizes[1] == rings * 7 * len(SEEDS) * 64 * 4
