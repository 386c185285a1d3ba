"""Jacobi decoding gives the tokens of sequential decoding for any window, drafts and sampling.

Rejected entries are never read, and after a rehearsal the graph engine captures nothing. That speculative decoders keep the
distribution is shown by counting, in tests/decoders.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Layout, Site, Step, window_step
from cachemark.contract.decoder import Decoder, Rehearsal
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.kit.next_token import GRID, model
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.methods.rkv import RKV
from cachemark.methods.streaming import Streaming
from cachemark.models.sampling import guide_window

from .test_graph import capture_on_cpu, captured

N = GRID**2
SEEDS = list(range(8))
DECODERS: dict[str, Callable[..., Decoder]] = {
    "sjd": SJD, "gumbel": SCD, "maximal": partial(SCD, coupling="maximal"), "reused": partial(SJD, reuse=1.0),
    "grouped": partial(SJD, group=14),
}  # fmt: skip
with_every_decoder = pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS)
WINDOWS = (1, 3, GRID, GRID + 1, N)
GUIDED = Sampling(cfg_scale=1.5)
SAMPLINGS = {
    "guided": GUIDED, "free": Sampling(), "interval": Sampling(cfg_scale=2.0, cfg_interval=9), "cold": Sampling(1.5, temperature=0.7),
    "top-k": Sampling(1.5, top_k=5), "top-p": Sampling(1.5, top_p=0.8), "greedy": Sampling(1.5, temperature=0.0),
}  # fmt: skip


def generate(
    decoder: Decoder | None, sampling: Sampling = GUIDED, seeds: list[int] = SEEDS, method: Callable[[], Method] = Full,
    attention: str = "mha", memory: Memory | None = None, **more: Any,
) -> Tensor:
    labels = torch.tensor([seed % 10 for seed in seeds])
    return model(attention).generate(labels, seeds, method(), sampling, memory or Memory(), decoder=decoder, **more)


@functools.cache
def sequential(sampling: Sampling = GUIDED, attention: str = "mha") -> Tensor:
    return generate(None, sampling, attention=attention)


# -- the tokens -------------------------------------------------------------------------------------------------------
CASES = [(name, window) for name in SAMPLINGS for window in (WINDOWS if name == "guided" else (GRID + 1,))]


@pytest.mark.parametrize(("name", "window"), CASES)
def test_tokens_are_those_of_sequential_decoding(name: str, window: int) -> None:
    decoder = Jacobi(window=window)
    assert torch.equal(generate(decoder, SAMPLINGS[name]), sequential(SAMPLINGS[name]))
    assert sum(decoder.kept) == N
    assert all(1 <= kept <= fed <= window for kept, fed in zip(decoder.kept, decoder.fed, strict=True))
    assert len(decoder.kept) == N if window == 1 else 1 + -(-(N - 1) // window) <= len(decoder.kept) < N


@pytest.mark.parametrize(("proposals", "attention"), [("newest", "gqa"), ("left", "mha"), ("above", "gqa")])
def test_drafts_decide_only_how_many_passes_it_takes(attention: str, proposals: str) -> None:
    for window in (4, 16):
        assert torch.equal(generate(Jacobi(window=window, proposals=proposals), attention=attention), sequential(attention=attention))


class Proposing(Jacobi):
    def __init__(self, window: int, drafts: Tensor) -> None:
        super().__init__(window=window)
        self.drafts = drafts

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        tokens[:, accepted : accepted + count - 1] = self.drafts[:, accepted : accepted + count - 1]


@pytest.mark.parametrize("window", [2, 5, 16, N])
def test_right_drafts_take_the_fewest_passes_and_wrong_ones_the_most(window: int) -> None:
    true = sequential()
    for drafts, passes in ((true, 1 + -(-(N - 1) // window)), ((true + 1) % 64, N)):
        decoder = Proposing(window, drafts)
        assert torch.equal(generate(decoder), true)
        assert len(decoder.kept) == passes


def test_forced_tokens_are_all_kept_and_their_logits_are_the_sequential_ones() -> None:
    forced, seen = sequential(), {1: [], 7: []}
    for window, logits in seen.items():
        decoder, marks = Jacobi(window=window), []
        tokens = generate(decoder, forced=forced, mark=marks.append,
                          see=lambda first, guided, logits=logits: logits.append((first, guided.clone())))
        assert torch.equal(tokens, forced)
        assert len(decoder.kept) == 1 + -(-(N - 1) // window)
        assert marks == list(range(N))
        assert [first for first, _ in logits] == [sum(decoder.kept[:i]) for i in range(len(decoder.kept))]
    alone, windowed = (torch.cat([guided for _, guided in logits], 1) for logits in seen.values())
    assert alone.shape == (len(SEEDS), N, 64)
    assert torch.allclose(alone, windowed, atol=1e-4)


def graph_memory() -> Memory:
    whole = model("mha")
    return capture_on_cpu(Memory(), [*whole.parameters(), whole.rope])


RECORDED: dict[str, Callable[[], Method]] = {
    "full": Full, "linear": lambda: Linear(B=3 * GRID, anchor=1), "rkv": lambda: RKV(B=3 * GRID, alpha=4),
    "long": lambda: RKV(B=3 * GRID, alpha=GRID + 3), "streaming": lambda: Streaming(B=9),
}  # fmt: skip


@pytest.mark.parametrize(("name", "window", "ahead"), [
    ("full", 5, False), ("linear", 5, False), ("rkv", 5, False), ("streaming", 5, False), ("linear", GRID + 1, True),
    ("long", GRID + 1, True),
])  # fmt: skip
def test_nothing_is_recorded_behind_a_rehearsal(name: str, window: int, ahead: bool) -> None:
    """Else a timed image would meet a pass that no image before it has run, and pay for its recording."""
    memory, samples = graph_memory(), (SEEDS[2:4], SEEDS[4:6])
    own = [generate(None, SAMPLINGS["interval"], seeds, RECORDED[name]) for seeds in samples]
    generate(Rehearsal(window=window, look_ahead=ahead), SAMPLINGS["interval"], SEEDS[:2], RECORDED[name], memory=memory)
    whole = captured(memory)
    if not ahead:
        assert whole == N if name == "full" else whole < N, "one for every number of known tokens; methods that evict come back to lengths"
    for make in (Jacobi, SCD, partial(Jacobi, proposals="left")):
        decoder = make(window=window, look_ahead=ahead)
        for seeds, expected in zip(samples, own, strict=True):
            tokens = generate(decoder, SAMPLINGS["interval"], seeds, RECORDED[name], memory=memory)
            assert torch.equal(tokens, expected) or not isinstance(decoder, Jacobi)
            assert captured(memory) == whole


@pytest.mark.parametrize("name", ["int8", "kivi4"])
def test_a_codec_does_not_change_that(name: str) -> None:
    decoder = Jacobi(window=8)
    assert torch.equal(generate(decoder, memory=Memory(codec=CODECS[name])), generate(None, memory=Memory(codec=CODECS[name])))
    assert (len(decoder.kept) == N) == CODECS[name].grouped, "keys that share ranges are served one by one"


# -- what is held -----------------------------------------------------------------------------------------------------


def poisoned(cls: type[Method]) -> type[Any]:
    """Return a method that writes NaN over everything behind the live entries before each pass."""

    def attend(self: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for slot in self.slots.values() if site.layer == 0 else ():
            for part in (*slot.k, *slot.v):
                part[:, :, slot.live[0] :] = float("nan")
        return cls.attend(self, site, step, q, k, v)

    return type("Poisoned", (cls,), {"fronts": cls.fronts, "horizon": cls.horizon, "beyond": cls.beyond, "attend": attend})


class Numbered(Full):
    """Checks what is live behind each pass and its position, which differ, and that drafts count in the peak."""

    fronts = True

    def begin(self, layout: Layout, sites: Any, memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.places: set[int] = set()

    def horizon(self, first: int) -> int:
        return super().horizon(first)

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        (bank,) = self.banks
        fed = step.first + step.count
        self.places.update(step.places or range(fed))
        assert bank.live_visual == fed
        stored = bank.visual[..., 1 : 1 + fed]
        assert ((stored.sort(-1).values if step.places else stored) == torch.tensor(sorted(self.places))[:fed]).all()

    def roll_back(self, count: int) -> None:
        (bank,) = self.banks
        before = bank._entries()
        super().roll_back(count)
        assert bank._entries() == before - 2 * len(self.slots) * len(SEEDS) * count
        assert bank.peak >= before


@pytest.mark.parametrize("make", [Jacobi, *DECODERS.values()], ids=["jacobi", *DECODERS])
def test_rejected_entries_are_never_read_and_kept_ones_live_in_order(make: Callable[..., Decoder]) -> None:
    expected = generate(make(window=8))
    for method in (poisoned(Full), Numbered):
        decoder = make(window=8)
        assert torch.equal(generate(decoder, method=method), expected)
        assert sum(decoder.fed) > sum(decoder.kept) == N


@pytest.mark.parametrize(("make", "rings"), [(Jacobi, 1), (SJD, 1), (DECODERS["maximal"], 1), (DECODERS["gumbel"], 2)])
def test_bytes_count_noise_or_distributions_of_the_window(make: Callable[..., Decoder], rings: int) -> None:
    """Those of keys and values are the same, drafts or not: the last places are full in the end."""
    sizes = {}
    for window in (0, 1, N):
        method, memory = Full(), Memory()
        generate(make(window=window) if window else None, memory=memory, method=lambda method=method: method)
        sizes[window] = method.logical_bytes, memory.nbytes("state")
    assert sizes[0][0] == sizes[1][0] == sizes[N][0]
    assert sizes[N][1] - sizes[1][1] == rings * (N - 1) * len(SEEDS) * 64 * 4


def test_a_window_of_one_is_the_pass_of_sequential_decoding() -> None:
    layout = model("mha").layout(SEEDS, GUIDED)
    assert window_step(layout, 4, 3) == Step(7, N, 4, 3, 2, ("token", "line"))
    assert window_step(layout, 0, 2 * GRID + 1) == Step(2 * GRID + 1, N, 0, 2 * GRID + 1, 3, ("token", "line"))
    assert window_step(layout, 0, 2).causal
    assert not window_step(layout, 0, 1).causal
    assert window_step(layout, 30, 5).last
    assert window_step(layout, 4, 7, 5) == Step(11, N, 4, 7, 1, ("token", "line"), beyond=5)
    assert window_step(layout, 3, 5, 3) == Step(8, N, 3, 5, 1, ("token",), beyond=3)
    assert window_step(layout, 4, 7, 5).staying == 2


# -- speculative decoders ------------------------------------------------------------------------------------------------
@with_every_decoder
def test_every_place_is_kept_once_and_the_images_are_others(make: Callable[..., Decoder]) -> None:
    for proposals in ("uniform", "above"):
        decoder = make(window=8, proposals=proposals)
        tokens = generate(decoder)
        assert sum(decoder.kept) == N
        assert all(1 <= kept <= min(8, fed) for kept, fed in zip(decoder.kept, decoder.fed, strict=True))
        assert max(decoder.fed) == 8
        assert not torch.equal(tokens, sequential())
    assert torch.equal(generate(make(window=8, proposals=proposals)), tokens), "the same seeds, the same images"


@pytest.mark.parametrize(("options", "plain"), [
    ({"reuse": 1e15}, True), ({"group": 2 * 64, "proposals": "newest"}, True), ({"reuse": 1.0}, False), ({"group": 14}, False)])
def test_options_that_leave_nothing_to_choose_are_plain_sjd(options: dict[str, Any], plain: bool) -> None:
    """No draft exceeds such a ratio, and none has so many tokens of the vocabulary below it."""
    expected = generate(SJD(window=8, proposals=options.get("proposals", "uniform")))
    assert torch.equal(generate(SJD(window=8, **options)), expected) is plain


@pytest.mark.parametrize(("make", "attention", "name"), [
    pytest.param(make, *(("gqa", "interval") if number % 2 else ("mha", "free")), id=id)
    for number, (id, make) in enumerate(DECODERS.items())
])  # fmt: skip
@torch.inference_mode()
def test_accepted_tokens_were_drawn_given_those_before_them(make: Callable[..., Decoder], attention: str, name: str) -> None:
    """The logits of accepted positions are those of one uncached pass over the finished tokens."""
    seen: list[Tensor] = []
    tokens = generate(make(window=8), SAMPLINGS[name], attention=attention, see=lambda first, logits: seen.append(logits.clone()))
    labels = torch.tensor([seed % 10 for seed in SEEDS])
    rows = (labels,) if name == "free" else (labels, torch.full_like(labels, 10))
    logits = model(attention).teacher(torch.cat(rows), tokens.repeat(len(rows), 1))
    assert torch.allclose(torch.cat(seen, 1), guide_window(logits, SAMPLINGS[name], range(N)), atol=1e-4)


@with_every_decoder
def test_images_do_not_depend_on_their_order_in_a_batch(make: Callable[..., Decoder]) -> None:
    tokens, order = generate(make(window=8)), [3, 7, 0, 5, 1, 6, 2, 4]
    assert torch.equal(generate(make(window=8), seeds=order), tokens[order])


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


@pytest.mark.parametrize(("make", "name"), [
    pytest.param(make, ("top-k", "top-p", "interval")[number % 3], id=id) for number, (id, make) in enumerate(DECODERS.items())
])  # fmt: skip
def test_truncated_distributions_give_tokens_that_they_allow(make: Callable[..., Decoder], name: str) -> None:
    decoder, allowed = make(window=8, proposals="newest"), []

    def see(first: int, logits: torch.Tensor) -> None:
        allowed.append(logits.clone())

    tokens = generate(decoder, SAMPLINGS[name], see=see)
    rank = (torch.cat(allowed, 1) > torch.cat(allowed, 1).gather(-1, tokens[..., None])).sum(-1)
    assert name != "top-k" or int(rank.max()) < SAMPLINGS[name].top_k
    assert int(rank.max()) > 0


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
