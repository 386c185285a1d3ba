"""ZipAR follows its schedule on every next-token model; what a token sees is in golden vectors of the authors' code."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.contract.decoder import Decoder
from cachemark.contract.method import Method
from cachemark.core.errors import BadParameter, Unsupported
from cachemark.core.spec import Sampling
from cachemark.decoders.zipar import ZipAR
from cachemark.kit.driver import layout_of
from cachemark.kit.next_token import GRID
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.methods.streaming import Streaming
from cachemark.models.raster import RasterModel
from support.tiny_models import BUILDS

from .test_graph import captured
from .test_windows import SAMPLINGS, SEEDS, N, Numbered, generate, graph_memory, poisoned, sequential

WINDOWS = (2, 3, 5)


# -- the schedule -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("lines", "line", "window"), [
    (lines, line, window) for lines, line in ((6, 6), (16, 16), (4, 7), (1, 5)) for window in range(2, line + 1)])
def test_passes_follow_the_formula_and_feed_each_token_once(lines: int, line: int, window: int) -> None:
    layout = layout_of((1,), lines=lines, line=line)
    fronts = ZipAR(window=window).schedule(layout)
    assert len(fronts) == (2 * line + (lines - 2) * window if lines > 1 else line)
    assert sorted(place for front in fronts for place in front.draws) == list(range(lines * line))
    own = [place for front in fronts for place, token in zip(front.step.places, front.takes, strict=True) if place == token]
    assert sorted(own) == list(range(lines * line - 1))
    stand_ins = sum(len(front.takes) for front in fronts) - len(own)
    assert stand_ins == (max(0, lines - 2) if window < line else 0)
    drawn: set[int] = set()
    for front in fronts:
        assert drawn.issuperset(front.takes), "every token fed was drawn before"
        assert front.draws == tuple(place + 1 for place in front.step.places[len(front.takes) - len(front.draws) :]) or not front.takes
        for row, column in (divmod(place, line) for place in front.draws if place >= line):
            assert sum((row - 1) * line + above in drawn for above in range(line)) >= min(line, window + column)
        drawn.update(front.draws)


def test_a_line_end_stands_in_for_a_line_end() -> None:
    layout = replace(layout_of((1,), lines=6, line=6), line_ends=True)
    for window in WINDOWS:
        steps = [zip(front.step.places, front.takes, strict=True) for front in ZipAR(window=window).schedule(layout)]
        assert [pair for pairs in steps for pair in pairs if pair[0] != pair[1]] == [(11, 5), (17, 5), (23, 5), (29, 5)]


# -- the tokens -------------------------------------------------------------------------------------------------------
def test_a_window_as_wide_as_a_line_gives_the_tokens_of_sequential_decoding_and_a_narrower_one_others_in_fewer_passes() -> None:
    for sampling in map(SAMPLINGS.get, ("guided", "interval", "greedy")):
        decoder = ZipAR(window=GRID)
        assert torch.equal(generate(decoder, sampling), sequential(sampling))
        assert decoder.kept == decoder.fed == [1] * N
    for window in WINDOWS:
        decoder, marks = ZipAR(window=window), list[int]()
        tokens = generate(decoder, mark=marks.append)
        assert marks == list(range(N)), "tokens are counted as they exist"
        assert len(decoder.kept) == 2 * GRID + (GRID - 2) * window
        assert sum(decoder.kept) == N
        assert torch.equal(tokens[:, : GRID + window], sequential()[:, : GRID + window]), "until the third line starts nothing is missing"
        assert not torch.equal(tokens, sequential())
        assert torch.equal(generate(ZipAR(window=window)), tokens), "the same seeds, the same images"


def test_removed_entries_are_never_read_codecs_store_the_same_positions_and_the_graph_engine_captures_each_pass_once() -> None:
    for method in (poisoned(Full), Numbered):
        assert torch.equal(generate(ZipAR(window=2), method=method), generate(ZipAR(window=2)))
    memory = graph_memory()
    for seeds in (SEEDS[:2], SEEDS[2:4], SEEDS[4:6]):
        decoder = ZipAR(window=2)
        assert torch.equal(generate(decoder, SAMPLINGS["interval"], seeds, memory=memory),
                           generate(ZipAR(window=2), SAMPLINGS["interval"], seeds))
        assert captured(memory) == len(decoder.kept)
    for name in ("int8", "int4"):
        own = partial(Memory, codec=CODECS[name])
        assert torch.equal(generate(ZipAR(window=GRID), memory=own()), generate(None, memory=own()))
        assert torch.equal(generate(ZipAR(window=2), memory=own(), seeds=[3]), generate(ZipAR(window=2), memory=own())[3:4])


# -- all next-token models ----------------------------------------------------------------------------------------------
@cache
def family(name: str) -> RasterModel:
    tiny = BUILDS[name]().initialise(0).eval()
    for parameter in tiny.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1  # so that a token depends on what it sees
    return tiny


def asked(name: str, labels: list[int], decoder: Decoder | None, method: Method | None = None) -> Tensor:
    sampling, seeds = Sampling(cfg_scale=3.0), [10 + label for label in labels]
    return family(name).generate(torch.tensor(labels), seeds, method or Full(), sampling, Memory(), decoder=decoder)


@pytest.mark.parametrize("name", ["janus", "emu3", "lumina", "llamagen-t2i"])
def test_prompts_of_several_lengths_run_on_every_model(name: str) -> None:
    line = family(name).layout([0], Sampling(), [0]).line
    own = asked(name, [0, 1, 2], None)
    assert torch.equal(asked(name, [0, 1, 2], ZipAR(window=line)), own)
    tokens = asked(name, [0, 1, 2], ZipAR(window=2))
    evicting = asked(name, [0, 1, 2], None, Linear(B=2 * line))
    assert not any(torch.equal(other, own) for other in (tokens, evicting))
    for label in range(3):
        assert torch.equal(asked(name, [label], ZipAR(window=2))[0], tokens[label])
        assert torch.equal(asked(name, [label], None, Linear(B=2 * line))[0], evicting[label])
    if name in ("emu3", "lumina"):
        ends = tokens.unflatten(1, (-1, line))[:, :, -1]
        assert (ends == ends[0, 0]).all()


# -- refusals -----------------------------------------------------------------------------------------------------------
Sliding = type("Sliding", (Full,), {"observe": lambda *_: None})  # overrides a scope: its inherited ``fronts`` is not trusted
REFUSED: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    **{f"{make().name} needs whole lines": (lambda make=make: generate(ZipAR(window=2), method=make), Unsupported)
       for make in (lambda: Linear(B=3 * GRID, anchor=1), lambda: Streaming(B=9), Sliding)},
    "a window wider than a line": (lambda: generate(ZipAR(window=GRID + 1)), BadParameter),
    "keys that share ranges": (lambda: generate(ZipAR(window=2), memory=Memory(codec=CODECS["kivi4"])), Unsupported),
    "a model with a preview": (
        lambda: family("glm-image").generate(torch.arange(2), [0, 1], Full(), Sampling(), Memory(), decoder=ZipAR(window=2)), Unsupported),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_schedule_cannot_serve_is_refused(reason: str) -> None:
    run, error = REFUSED[reason]
    with pytest.raises(error) as raised:
        run()
    assert raised.value.remedy  # type: ignore[attr-defined]
