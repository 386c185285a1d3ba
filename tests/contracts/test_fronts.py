"""ZipAR follows its schedule on every next-token model.

What a token sees is in golden vectors of the authors' code (tests/conformance), the distance from sequential decoding in tests/decoders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.codec import CODECS
from cachemark.cache.layout import Layout, Site, Step
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
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.glm_image import GlmImage, GlmImageConfig
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.lined import ImageIds
from cachemark.models.llama import LlamaConfig
from cachemark.models.llamagen import LlamaGenConfig
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.prompts import Prompts
from cachemark.models.raster import RasterModel

from .test_graph import captured
from .test_windows import SAMPLINGS, SEEDS, N, generate, graph_memory, sequential

WINDOWS = (2, 3, 5)
SHAPES = ((6, 6), (8, 8), (16, 16), (4, 7), (1, 5))


# -- the schedule -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("lines", "line"), SHAPES)
def test_passes_follow_the_formula_and_feed_each_token_once(lines: int, line: int) -> None:
    for window in range(2, line + 1):
        check_schedule(lines, line, window)


def check_schedule(lines: int, line: int, window: int) -> None:
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
        pairs = [(place, token) for front in ZipAR(window=window).schedule(layout)
                 for place, token in zip(front.step.places, front.takes, strict=True) if place != token]
        assert pairs == [(11, 5), (17, 5), (23, 5), (29, 5)]


# -- the tokens -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["guided", "interval", "greedy"])
def test_a_window_as_wide_as_a_line_gives_the_tokens_of_sequential_decoding(name: str) -> None:
    decoder = ZipAR(window=GRID)
    assert torch.equal(generate(decoder, SAMPLINGS[name]), sequential(SAMPLINGS[name]))
    assert decoder.kept == decoder.fed == [1] * N


@pytest.mark.parametrize("window", WINDOWS)
def test_a_narrower_window_gives_others_in_fewer_passes(window: int) -> None:
    decoder = ZipAR(window=window)
    tokens = generate(decoder)
    assert len(decoder.kept) == 2 * GRID + (GRID - 2) * window
    assert sum(decoder.kept) == N
    assert torch.equal(tokens[:, : GRID + window], sequential()[:, : GRID + window]), "until the third line starts nothing is missing"
    assert not torch.equal(tokens, sequential())
    assert torch.equal(generate(ZipAR(window=window)), tokens), "the same seeds, the same images"


@pytest.mark.parametrize(("window", "attention"), [(2, "gqa"), (3, "mha")])
def test_an_image_is_the_same_alone_and_in_any_batch(window: int, attention: str) -> None:
    whole = generate(ZipAR(window=window), attention=attention)
    for seeds in ([5], [2, 7], [6, 0, 3]):
        assert torch.equal(generate(ZipAR(window=window), seeds=seeds, attention=attention), whole[seeds])


def poisoned() -> Method:
    """Return the full cache that writes NaN behind its live entries after each pass, and whenever one is removed."""
    def spoil(method: Method) -> None:
        for slot in method.slots.values():
            for part in (*slot.k, *slot.v):
                part[:, :, slot.live[0] :] = float("nan")

    class Poisoned(Full):
        fronts = True

        def end_step(self, step: Step) -> None:
            super().end_step(step)
            spoil(self)

        def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if site.layer == 0:
                spoil(self)
            return super().attend(site, step, q, k, v)

    return Poisoned()


class Numbered(Full):
    """Checks that live entries have distinct positions, those that the schedule has fed so far."""

    fronts = True

    def begin(self, layout: Layout, sites: Any, memory: Memory) -> None:
        super().begin(layout, sites, memory)
        self.places: set[int] = set()

    def end_step(self, step: Step) -> None:
        super().end_step(step)
        self.places.update(step.places)
        (bank,) = self.banks
        stored = bank.visual[..., 1 : 1 + bank.live_visual].sort(-1).values
        assert (stored == torch.tensor(sorted(self.places))).all()
        assert bank.live_visual == step.first + step.count


@pytest.mark.parametrize("method", [poisoned, Numbered])
def test_removed_entries_are_never_read_and_each_position_has_one(method: Callable[[], Method]) -> None:
    assert torch.equal(generate(ZipAR(window=2), method=method), generate(ZipAR(window=2)))


def test_tokens_are_counted_as_they_exist() -> None:
    marks: list[int] = []
    generate(ZipAR(window=2), mark=marks.append)
    assert marks == list(range(N))


def test_the_graph_engine_captures_each_pass_once_and_gives_the_same_tokens() -> None:
    memory = graph_memory()
    for seeds in (SEEDS[:2], SEEDS[2:4], SEEDS[4:6]):
        decoder = ZipAR(window=2)
        assert torch.equal(generate(decoder, SAMPLINGS["interval"], seeds, memory=memory),
                           generate(ZipAR(window=2), SAMPLINGS["interval"], seeds))
        assert captured(memory) == len(decoder.kept)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_codec_of_entries_stores_the_same_positions(name: str) -> None:
    memory = partial(Memory, codec=CODECS[name])
    assert torch.equal(generate(ZipAR(window=GRID), memory=memory()), generate(None, memory=memory()))
    assert torch.equal(generate(ZipAR(window=2), memory=memory(), seeds=[3]), generate(ZipAR(window=2), memory=memory())[3:4])


# -- all next-token models ----------------------------------------------------------------------------------------------
DECODER = LlamaConfig(2, 4, 64, 96, 112, kv_heads=2)
ASKED = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
FAMILIES: dict[str, Callable[[], RasterModel]] = {
    "janus": lambda: Janus(JanusConfig(DECODER, codes=48, grid=5), ASKED),
    "emu3": lambda: Emu3(Emu3Config(DECODER, 5, 4, ImageIds(first=80, codes=32, line_end=70)), ASKED),
    "lumina": lambda: Lumina(LuminaConfig(replace(DECODER, qk_norm=True), 2, 3, Vocabulary(4, 32, 42, 0, 40, 41, 44)), ASKED),
    "llamagen_text": lambda: CaptionedLlamaGen(
        CaptionConfig(LlamaGenConfig(2, 2, 32, vocab=32, classes=10, grid=5), text=12, longest=6), [torch.ones(n, 12) for n in (2, 6, 3)]),
}


@cache
def family(name: str) -> RasterModel:
    tiny = FAMILIES[name]()
    tiny.initialise(0)
    for parameter in tiny.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1  # so that a token depends on what it sees
    return tiny.eval()


def asked(name: str, labels: list[int], decoder: Decoder | None) -> Tensor:
    sampling = Sampling(cfg_scale=3.0)
    return family(name).generate(torch.tensor(labels), [10 + label for label in labels], Full(), sampling, Memory(), decoder=decoder)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_of_several_lengths_run_on_every_model(name: str) -> None:
    line = family(name).layout([0], Sampling(), [0]).line
    own = asked(name, [0, 1, 2], None)
    assert torch.equal(asked(name, [0, 1, 2], ZipAR(window=line)), own)
    tokens = asked(name, [0, 1, 2], ZipAR(window=2))
    assert not torch.equal(tokens, own)
    for label in range(3):
        assert torch.equal(asked(name, [label], ZipAR(window=2))[0], tokens[label])
    if name in ("emu3", "lumina"):
        ends = tokens.unflatten(1, (-1, line))[:, :, -1]
        assert (ends == ends[0, 0]).all()


# -- refusals -----------------------------------------------------------------------------------------------------------
class Sliding(Full):
    """Overrides a scope, so that its inherited ``fronts`` is not trusted."""

    def observe(self, *arguments: Any) -> None:
        pass


REFUSED: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    **{f"{make().name} needs whole lines": (lambda make=make: generate(ZipAR(window=2), method=make), Unsupported)
       for make in (lambda: Linear(B=3 * GRID, anchor=1), lambda: Streaming(B=9), Sliding)},
    "a window wider than a line": (lambda: generate(ZipAR(window=GRID + 1)), BadParameter),
    "keys that share ranges": (lambda: generate(ZipAR(window=2), memory=Memory(codec=CODECS["kivi4"])), Unsupported),
    "a model with a preview": (
        lambda: previewing().generate(torch.arange(2), [0, 1], Full(), Sampling(), Memory(), decoder=ZipAR(window=2)), Unsupported),
}  # fmt: skip


def previewing() -> GlmImage:
    config = GlmImageConfig(replace(DECODER, qkv_bias=True), 48, 56, 4, 2, (1, 2, 1))
    return GlmImage(config, Prompts(((1, 2, 3), (4, 5, 6, 7)))).initialise(0).eval()


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_schedule_cannot_serve_is_refused(reason: str) -> None:
    run, error = REFUSED[reason]
    with pytest.raises(error) as raised:
        run()
    assert raised.value.remedy  # type: ignore[attr-defined]
