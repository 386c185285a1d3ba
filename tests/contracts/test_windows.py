"""Jacobi decoding gives the tokens of sequential decoding for any window, drafts, sampling and method, and holds their entries."""

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Layout, Site, Step
from cachemark.contract.decoder import Decoder, Rehearsal, beyond, horizon, spare, widest
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.decoders.jacobi import Jacobi
from cachemark.decoders.scd import SCD
from cachemark.decoders.sjd import SJD
from cachemark.kit.common import calibration
from cachemark.kit.next_token import GRID, model
from cachemark.methods import registry
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
CASES = [*(("guided", window, "newest", "mha") for window in WINDOWS), *((name, GRID + 1, "newest", "mha") for name in SAMPLINGS),
         ("guided", 4, "newest", "gqa"), ("guided", 4, "left", "mha"), ("guided", 16, "above", "gqa")]
AHEAD = [("interval", 9, "newest", "gqa"), ("greedy", 9, "above", "gqa"), ("top-k", 9, "newest", "gqa")]  # past lines of LineAR


@pytest.mark.parametrize(("name", "window", "proposals", "attention", "method"), [
    *((*case, "full") for case in dict.fromkeys(CASES)), *((*case, "linear") for case in AHEAD)])
def test_tokens_are_those_of_sequential_decoding(name: str, window: int, proposals: str, attention: str, method: str) -> None:
    decoder, more = Jacobi(window=window, proposals=proposals, look_ahead=method != "full"), {"method": METHODS[method]}
    assert torch.equal(*(generate(own, SAMPLINGS[name], attention=attention, **more) for own in (decoder, None)))
    assert sum(decoder.kept) == N
    assert all(1 <= kept <= fed <= window for kept, fed in zip(decoder.kept, decoder.fed, strict=True))
    assert len(decoder.kept) == N if window == 1 else 1 + -(-(N - 1) // window) <= len(decoder.kept) < N


class Proposing(Jacobi):
    drafts: Tensor

    def propose(self, accepted: int, count: int, tokens: Tensor) -> None:
        tokens[:, accepted : accepted + count - 1] = self.drafts[:, accepted : accepted + count - 1]


def test_right_drafts_take_the_fewest_passes_and_wrong_ones_the_most() -> None:
    true = sequential()
    for window in (2, 5, 16, N):
        for drafts, passes in ((true, 1 + -(-(N - 1) // window)), ((true + 1) % 64, N)):
            (decoder := Proposing(window=window)).drafts = drafts
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


METHODS: dict[str, Callable[[], Method]] = {
    "full": Full, "linear": lambda: Linear(B=3 * GRID, anchor=1), "wide": lambda: Linear(B=4 * GRID, anchor=2),
    "rkv": lambda: RKV(B=3 * GRID, alpha=4), "long": lambda: RKV(B=3 * GRID, alpha=GRID + 3), "streaming": lambda: Streaming(B=9),
}  # fmt: skip


@pytest.mark.parametrize(("name", "window", "ahead"), [
    ("full", 5, False), ("linear", 5, False), ("streaming", 5, False), ("long", GRID + 1, True)])
def test_nothing_is_recorded_behind_a_rehearsal(name: str, window: int, ahead: bool) -> None:
    """Else a timed image would meet a pass that no image before it has run, and pay for its recording."""
    memory, samples = graph_memory(), (SEEDS[2:4], SEEDS[4:6])
    own = [generate(None, SAMPLINGS["interval"], seeds, METHODS[name]) for seeds in samples]
    generate(Rehearsal(window=window, look_ahead=ahead), SAMPLINGS["interval"], SEEDS[:2], METHODS[name], memory=memory)
    whole = captured(memory)
    if not ahead:
        assert whole == N if name == "full" else whole < N, "one for every number of known tokens; methods that evict come back to lengths"
    for make in (Jacobi, SCD, partial(Jacobi, proposals="left")):
        decoder = make(window=window, look_ahead=ahead)
        for seeds, expected in zip(samples, own, strict=True):
            tokens = generate(decoder, SAMPLINGS["interval"], seeds, METHODS[name], memory=memory)
            assert torch.equal(tokens, expected) or not isinstance(decoder, Jacobi)
            assert captured(memory) == whole


def test_a_codec_alone_decides_the_tokens() -> None:
    """Keys that share ranges are served one by one, and leave nothing to look at past a line."""
    for codec, method in itertools.product((CODECS["int8"], CODECS["kivi4"]), ("full", "linear")):
        memory, plain, decoder = Memory(codec=codec), Memory(codec=codec), Jacobi(window=8, look_ahead=method == "linear")
        assert torch.equal(generate(decoder, method=METHODS[method], memory=memory), generate(None, method=METHODS[method], memory=plain))
        assert (decoder.fed == [1] * N) == codec.grouped
        assert (memory.nbytes("slots") == plain.nbytes("slots")) == (codec.grouped or method == "full")


# -- what is held ------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("make", [
    pytest.param(make, id=name, marks=[pytest.mark.slow] * (name in ("maximal", "reused", "grouped")))
    for name, make in {"jacobi": Jacobi, **DECODERS}.items()])
def test_every_place_is_kept_once_and_rejected_entries_are_never_read(make: Callable[..., Decoder]) -> None:
    """The same seeds, the same images; of a speculative decoder they are others than those of sequential decoding."""
    for proposals, method in (("uniform", Full), ("above", Full), ("uniform", poisoned(Full)), ("uniform", Numbered)):
        decoder = make(window=8, proposals=proposals)
        tokens = generate(decoder, method=method)
        assert sum(decoder.fed) > sum(decoder.kept) == N
        assert all(1 <= kept <= min(8, fed) for kept, fed in zip(decoder.kept, decoder.fed, strict=True))
        assert max(decoder.fed) == 8
        assert torch.equal(tokens, generate(make(window=8, proposals=proposals)))
        assert torch.equal(tokens, sequential()) is (make is Jacobi)
    for window in (5, 16) if make is Jacobi else ():
        tokens = generate(ahead(window=window), method=lambda: poisoned(Linear)(B=3 * GRID, anchor=1))
        assert torch.equal(tokens, generate(None, method=METHODS["linear"])), "what does not stay behind a line is never read"


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


# -- speculative decoders ------------------------------------------------------------------------------------------------
def test_options_that_leave_nothing_to_choose_are_plain_sjd() -> None:
    """No draft exceeds such a ratio, and none has so many tokens of the vocabulary below it."""
    for options, plain in (({"reuse": 1e15}, True), ({"group": 2 * 64, "proposals": "newest"}, True), ({"reuse": 1.0}, False),
                           ({"group": 14}, False)):
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
    seen.clear()
    tokens = generate(make(window=8, proposals="newest"), SAMPLINGS["top-k"], see=lambda _, logits: seen.append(logits.clone()))
    allowed = torch.cat(seen, 1)
    rank = (allowed > allowed.gather(-1, tokens[..., None])).sum(-1)
    assert 0 < int(rank.max()) < SAMPLINGS["top-k"].top_k


@with_every_decoder
def test_it_composes_with_a_method_up_to_its_horizon(make: Callable[..., Decoder]) -> None:
    """What is drawn before an eviction is decided behind it: greedy tokens past the end of a line are those of the method."""
    own, decoder = generate(None, SAMPLINGS["greedy"], method=METHODS["linear"]), make(window=8, proposals="newest", look_ahead=True)
    assert torch.equal(generate(decoder, SAMPLINGS["greedy"], method=METHODS["linear"]), own)
    assert max(decoder.fed) == 8 > max(decoder.kept)
    decoder = make(window=16, proposals="newest")
    generate(decoder, method=METHODS["linear"])
    assert sum(decoder.kept) == N
    assert max(decoder.kept) > 1
    ends = torch.tensor(decoder.kept).cumsum(0)[:-1]
    assert set(range(GRID + 1, N, GRID)) <= set(ends.tolist()), "a pass ends with each line, whose last token has been fed"


# -- past the end of a line --------------------------------------------------------------------------------------------
ahead = partial(Jacobi, look_ahead=True)


@pytest.mark.parametrize(("name", "window"), [
    *((name, GRID + 1) for name in ("linear", "wide", "rkv", "long")), ("linear", 2), ("rkv", N), ("long", 2), ("wide", N)])
def test_tokens_are_the_method_s_own_and_no_more_live_than_a_window_above_its_budget(name: str, window: int) -> None:
    method, decoder, memory = METHODS[name](), ahead(window=window), Memory()
    own, plain = METHODS[name](), Memory()
    assert torch.equal(generate(decoder, method=lambda: method, memory=memory), generate(None, method=lambda: own, memory=plain))
    assert sum(decoder.kept) == N
    assert max(decoder.kept) <= GRID
    known = [sum(decoder.kept[:number]) for number in range(len(decoder.kept))]
    looked = [fed for accepted, fed in zip(known, decoder.fed, strict=True) if accepted and (accepted - 1) % GRID + fed > GRID]
    assert looked, "some passes go past the line's end"
    (bank,), (narrow,) = method.banks, own.banks
    assert narrow.capacity < bank.capacity == min(narrow.capacity + window - 1, bank.layout.stored)
    entry = len(bank.sites) * bank.layout.rows
    assert narrow.peak < bank.peak <= narrow.peak + (window - 1) * entry
    assert own.logical_bytes < method.logical_bytes
    assert plain.nbytes("slots") < memory.nbytes("slots")


# -- who is looked past, and who is not -------------------------------------------------------------------------------
@pytest.mark.parametrize(("cls", "override", "expected"), [
    (Linear, "", (GRID - 3, N - 3)), (Linear, "footnotes", (GRID - 3, N - 3)), (Linear, "observe", (1, 0)),
    (Linear, "horizon", (GRID - 3, 0)), (Full, "", (N - 3, 0)), (Full, "footnotes", (N - 3, 0)), (Full, "evict", (1, 0)),
    (Full, "observe", (1, 0)), (Method, "", (1, 0)),
])  # fmt: skip
def test_what_observes_or_evicts_inherits_no_horizon(cls: type[Method], override: str, expected: tuple[int, int]) -> None:
    method = type("Derived", (cls,), {override: getattr(cls, override)} if override else {})(**({"B": 3 * GRID} if cls is Linear else {}))
    method.layout, method.banks = model("mha").layout(SEEDS, GUIDED), []
    assert (horizon(method, 3), beyond(method, 3)) == expected


EVICTING = [name for name in registry.METHODS if (cls := registry.METHODS.get(name)).__module__.startswith("cachemark.methods")
            and "next-token" in cls.paradigms and cls.horizon is Method.horizon]


@pytest.mark.parametrize(("name", "more"), [
    *(pytest.param(name, {}, marks=[pytest.mark.slow] * (number % 3 > 0)) for number, name in enumerate(EVICTING)),
    ("linear", {"anchor": 1, "score": "accumulated"})])
def test_a_method_without_a_horizon_is_served_one_token_a_pass_to_the_byte(name: str, more: dict[str, Any]) -> None:
    cls, layout = registry.METHODS.get(name), model("mha").layout(SEEDS, GUIDED)
    assert (spare(METHODS["linear"](), layout, ahead(window=8)), spare(METHODS["linear"](), layout, Jacobi(window=8))) == (7, 0)
    make = partial(cls.build, {**calibration(cls, layout), **cls.parameters_for(Fraction(1, 2), layout), **more})
    outcomes, decoder = [], ahead(window=8)
    for used in (None, decoder):
        memory, method, logits = Memory(), make(), list[Tensor]()
        tokens = generate(used, memory=memory, method=lambda method=method: method,
                          see=lambda _, guided, logits=logits: logits.append(guided.clone()))
        outcomes.append((tokens, torch.cat(logits, 1), method.logical_bytes, [memory.nbytes(kind) for kind in ("slots", "workspace")]))
    assert decoder.kept == [1] * N
    assert all(map(torch.equal, outcomes[0][:2], outcomes[1][:2]))
    assert outcomes[0][2:] == outcomes[1][2:]
    assert widest(make(), layout) == 1
    assert spare(make(), layout, decoder) == 0
