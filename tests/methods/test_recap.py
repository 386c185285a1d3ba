"""ReCAP beside a plain implementation of its rules: groups, what a partial step computes, order, head steps, budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedLayout, MaskedStep
from cachemark.contract.method import Bidirectional, Method
from cachemark.core.spec import Sampling
from cachemark.kit.common import poison
from cachemark.kit.masked import CONFIG, SAMPLING, SEEDS, MaskedCell, model
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.full import Full
from cachemark.methods.recap import ReCAP
from cachemark.models.mar import SIZES
from cachemark.roofline.masked_flops import image_flops, share

STEPS, BUFFER, COUNT = CONFIG.steps, CONFIG.buffer, CONFIG.tokens
TOLERANCE = 1e-5  # of the largest token


def layout(steps: int = 64, size: str = "B") -> MaskedLayout:
    return SIZES[size].layout([100], Sampling(cfg_scale=3.0, steps=steps))


def resolved(steps: int = 64, **parameters: Any) -> ReCAP:
    method = ReCAP(**parameters)
    method.resolve(layout(steps))
    return method


def generated(method: Method, **options: Any) -> Tensor:
    return MaskedCell(type(method), (), "native").generate(method, options.get("memory", Memory()), SEEDS, None, with_logits=False).tokens


# -- a plain implementation -------------------------------------------------------------------------------------------
@dataclass
class Kept:
    """Keys and values of one stack by block and position; NaN where nothing has been stored."""

    parts: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def read(self, block: int, others: Sequence[int]) -> list[Tensor]:
        return [part[:, :, list(others)] for part in self.parts[block]] if others else []

    def write(self, block: int, positions: Sequence[int], *parts: Tensor) -> None:
        rows, heads, _, width = parts[0].shape
        fresh = [torch.full((rows, heads, BUFFER + COUNT, width), float("nan")) for _ in parts]
        for whole, part in zip(fresh, parts, strict=True):
            whole[:, :, list(positions)] = part
        self.parts[block] = (fresh[0], fresh[1])


def through(blocks: Any, x: Tensor, positions: Sequence[int], kept: Kept, others: Sequence[int]) -> Tensor:
    """Run blocks over tokens at ``positions``, which also attend to the stored entries of ``others``; store all if there are none."""
    for number, block in enumerate(blocks):
        q, k, v = (part.unflatten(-1, (CONFIG.heads, -1)).transpose(1, 2) for part in block.attn.qkv(block.norm1(x)).chunk(3, -1))
        keys, values = (torch.cat((*stored, own), 2) for stored, own in zip(
            zip(kept.read(number, others), strict=True) if others else ((), ()), (k, v), strict=True))
        weights = (q @ keys.mT / math.sqrt(q.size(-1))).softmax(-1)
        x = x + block.attn.proj((weights @ values).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        if not others:
            kept.write(number, positions, k, v)
    return x


def cosine(steps: int) -> list[int]:
    """Return how many tokens each step predicts."""
    unknown, counts = COUNT, []
    for step in range(1, steps + 1):
        remaining = 0 if step == steps else max(1, min(unknown - 1, math.floor(COUNT * math.cos(math.pi / 2 * step / steps))))
        counts.append(unknown - remaining)
        unknown = remaining
    return counts


@dataclass
class Plain:
    """ReCAP for one sample, as the paper's groups of a full and partial evaluations."""

    seed: int
    full_steps: int
    partial_steps: int = 1
    head_steps: int = 2  # in partial steps
    cache_buffer: bool = False
    order: str = "raster"

    @torch.no_grad()
    def generate(self) -> Tensor:
        self.tokens, self.known = torch.zeros(COUNT, CONFIG.channels), list[int]()
        self.classes = torch.stack((model().class_emb.weight[self.seed % CONFIG.classes], model().fake_latent[0]))
        order, counts = model().order(torch.tensor([self.seed]))[0].flip(0).tolist(), cosine(STEPS)
        while counts:
            opened = STEPS - len(counts)
            size = 1 if opened < self.full_steps else 1 + self.partial_steps
            mine, counts = counts[:size], counts[size:]
            group, order = order[: sum(mine)], order[sum(mine) :]
            self.run_group(sorted(group) if self.order == "raster" else group, mine)
        return self.tokens

    def run_group(self, group: list[int], counts: list[int]) -> None:
        before, encoder, decoder = list(self.known), Kept(), Kept()
        for partial, count in enumerate(counts):
            buffer = [] if partial and self.cache_buffer else list(range(BUFFER))
            drawn = [place for place in self.known if place not in before]
            encoded_at = buffer + [BUFFER + place for place in sorted(drawn if partial else self.known)]
            old = [at for at in [*range(BUFFER), *(BUFFER + place for place in before)] if at not in encoded_at]
            encoded = through(model().encoder_blocks, self.encoder_input(encoded_at), encoded_at, encoder, old)
            canvas = model().decoder_embed(model().encoder_norm(encoded))
            computed = buffer + [BUFFER + place for place in (sorted(group) if partial else range(COUNT))]
            x = torch.stack([canvas[:, encoded_at.index(at)] if at in encoded_at else model().mask_token[0].expand(2, -1)
                             for at in computed], 1) + model().decoder_pos_embed_learned[:, computed]
            others = [at for at in range(BUFFER + COUNT) if at not in computed]
            hidden = through(model().decoder_blocks, x, computed, decoder, others)
            now = sorted(group[sum(counts[:partial]) :][:count])
            z = model().decoder_norm(hidden[:, [computed.index(BUFFER + place) for place in now]])
            self.draw(z + model().diffusion_pos_embed_learned[:, now], now, self.head_steps if partial else CONFIG.diffusion[0])

    def encoder_input(self, positions: list[int]) -> Tensor:
        images = model().z_proj(self.tokens[[at - BUFFER for at in positions if at >= BUFFER]]).expand(2, -1, -1)
        buffers = self.classes[:, None].expand(-1, sum(at < BUFFER for at in positions), -1)
        return model().z_proj_ln(torch.cat((buffers, images), 1) + model().encoder_pos_embed_learned[:, positions])

    def draw(self, z: Tensor, places: list[int], passes: int) -> None:
        left = max(1, COUNT - len(self.known) - len(places))
        scale = 1 + (SAMPLING.cfg_scale - 1) * (COUNT - left) / COUNT
        noise = model().noise(torch.tensor([self.seed]), torch.tensor([places]), passes)
        schedule = model().diffloss.schedule((passes, 0), SAMPLING.temperature)
        self.tokens[places] = model().diffloss.sample(z, noise, scale, schedule, MaskedStep(0, 1), Bidirectional())[0]
        self.known += places


MODES: list[dict[str, Any]] = [
    {"full_steps": 4}, {"full_steps": 1, "partial_steps": 2}, {"full_steps": 0, "partial_steps": 3, "cache_buffer": True},
    {"full_steps": 3, "order": "sample"}, {"full_steps": 0, "partial_steps": 7, "cache_buffer": True},
]


@pytest.mark.parametrize("mode", MODES)
def test_it_draws_what_a_plain_implementation_draws(mode: dict[str, Any]) -> None:
    tokens = generated(ReCAP(**mode))
    for seed, ours in zip(SEEDS, tokens, strict=True):
        assert float((ours - Plain(seed, **mode).generate()).abs().max()) < TOLERANCE * float(tokens.abs().max())


@pytest.mark.parametrize("wrong", [{"partial_steps": 2}, {"head_steps": 3}, {"cache_buffer": True}, {"order": "sample"}, {"full_steps": 5}])
def test_a_plain_implementation_of_other_rules_draws_other_tokens(wrong: dict[str, Any]) -> None:
    tokens = generated(ReCAP(full_steps=4))
    other = torch.stack([Plain(seed, **{"full_steps": 4, **wrong}).generate() for seed in SEEDS])
    assert float((tokens - other).abs().max()) > 10 * TOLERANCE * float(tokens.abs().max())


def test_without_partial_steps_the_plain_implementation_is_the_full_model() -> None:
    plain = torch.stack([Plain(seed, full_steps=STEPS).generate() for seed in SEEDS])
    assert torch.allclose(plain, generated(Full()), atol=TOLERANCE * float(plain.abs().max()))


# -- groups -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("steps", "full", "partial"), [(36, 27, 9), (56, 42, 14), (84, 63, 21), (96, 72, 24), (48, 36, 12), (128, 96, 32)])
def test_a_quarter_of_the_published_steps_is_partial(steps: int, full: int, partial: int) -> None:
    method = resolved(steps)
    assert (sum(method.full), len(method.full) - sum(method.full)) == (full, partial)
    assert all(method.full[: steps // 2])


@pytest.mark.parametrize(("parameters", "partial"), [
    ({"full_steps": 2, "partial_steps": 3}, [3, 4, 5, 7]), ({"full_steps": 8}, []), ({"partial_steps": 0}, []),
    ({"full_steps": 0, "partial_steps": 9}, [1, 2, 3, 4, 5, 6, 7]), ({"full_steps": 5}, [6]),
])  # fmt: skip
def test_groups_are_a_full_step_and_partial_ones(parameters: dict[str, Any], partial: list[int]) -> None:
    assert [index for index, full in enumerate(resolved(8, **parameters).full) if not full] == partial


@dataclass
class Watched(ReCAP):
    """Records the positions that each step predicts, and those that partial steps compute in the decoder."""

    steps_seen: list[MaskedStep] = field(default_factory=list)
    computed: dict[int, Tensor] = field(default_factory=dict)

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        assert isinstance(step, MaskedStep)
        if name == "encoder":
            self.steps_seen.append(step)
        return super().stack(name, step, tokens, run)

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if site.stack == "decoder" and not self.full[step.index]:
            self.computed[step.index] = self.chosen
            assert q.size(2) == k.size(2) == self.chosen.size(1)
        return super().attend(site, step, q, k, v)


@pytest.mark.parametrize("order", ["raster", "sample"])
def test_the_order_within_a_group(order: str) -> None:
    """Groups have the sample's tokens; inside one, raster order or the sample's."""
    method = Watched(full_steps=2, partial_steps=2, order=order)
    generated(method)
    own = model().order(torch.tensor(SEEDS)).flip(1)
    for first in (2, 5):
        passes = method.steps_seen[first : first + 3]
        start, end = passes[0].first, passes[-1].first + passes[-1].count
        for row, places in enumerate(own[:, start:end].tolist()):
            expected = sorted(places) if order == "raster" else places
            for step in passes:
                assert step.generating[row].tolist() == sorted(expected[step.first - start :][: step.count])


def test_a_partial_step_computes_its_group_and_the_buffer() -> None:
    for cache_buffer in (False, True):
        method = Watched(full_steps=2, partial_steps=2, cache_buffer=cache_buffer)
        generated(method)
        group = torch.cat([step.generating for step in method.steps_seen[2:5]], 1)[0].sort().values
        expected = [*([] if cache_buffer else range(BUFFER)), *(BUFFER + group).tolist()]
        assert method.computed[3][0].tolist() == method.computed[4][0].tolist() == expected


class Spoiling(ReCAP):
    """Replaces the group's own stored keys and values before every partial step."""

    spoiled = 0

    def stack(self, name: str, step: Step, tokens: Tokens, run: Callable[[Tokens], Tensor]) -> Tensor:
        assert isinstance(step, MaskedStep)
        if name == "encoder" and not self.full[step.index]:
            assert self.encoder is not None
            assert self.places is not None
            first, end = self._group(step.index)
            group = BUFFER + self.sequence[:, COUNT - end : COUNT - first]
            for part in (*self.places.k, *self.places.v):
                for row, places in enumerate(group):
                    part[:, row, :, places] = float("nan")
                    self.spoiled += places.numel()
            for part in (*self.encoder.places.k, *self.encoder.places.v):
                poison(part[:, :, :, BUFFER + first :])
        return super().stack(name, step, tokens, run)


def test_stored_entries_of_the_groups_own_tokens_are_never_read() -> None:
    method = Spoiling(full_steps=0, partial_steps=3)
    assert torch.equal(generated(method), generated(ReCAP(full_steps=0, partial_steps=3)))
    assert method.spoiled


# -- the head ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fraction", "requested", "expected"), [
    (0.5, 100, 50), (0.4, 100, 40), (1.0, 100, 100), (0.01, 100, 2), (0.5, 2, 2),
])  # fmt: skip
def test_head_steps_of_partial_steps(fraction: float, requested: int, expected: int) -> None:
    method = resolved(head_fraction=fraction)
    for step in method.steps:
        (part,) = method.denoising(step, requested)
        assert part == (step.count, requested if method.full[step.index] else expected)


def test_with_all_head_steps_and_the_samples_order_images_are_paired() -> None:
    """Noise belongs to the position, so tokens of the leading full steps are the full model's bit for bit."""
    method = Watched(full_steps=5, order="sample", head_fraction=1.0)
    tokens, full = generated(method), generated(Full())
    known = method.steps_seen[6].known[: len(SEEDS), :, None].expand(-1, -1, CONFIG.channels)
    assert torch.equal(tokens.gather(1, known), full.gather(1, known))
    assert not torch.equal(tokens, full)
    assert (ReCAP().reorders, ReCAP(order="sample").reorders) == (True, False)


# -- budgets ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("partial_steps", [0, 1, 2, 3])
def test_flops_fall_with_every_whole_group(partial_steps: int) -> None:
    shape, size = layout(20), 1 + partial_steps
    flops = [image_flops(ReCAP(full_steps=full, partial_steps=partial_steps), shape) for full in range(20 % size, 21, size)]
    assert flops == sorted(flops)
    assert (flops[0] < flops[-1]) is (partial_steps > 0)


@pytest.mark.parametrize("partial_steps", [1, 2, 3])
def test_a_budget_gives_whole_groups(partial_steps: int) -> None:
    shape, method = layout(), ReCAP(partial_steps=partial_steps)
    fitted = method.fit(Fraction(85, 100), shape)["full_steps"]
    assert (64 - fitted) % (1 + partial_steps) == 0
    assert ReCAP(full_steps=fitted, partial_steps=partial_steps).own_budget(shape) <= Fraction(85, 100)
    assert method.fit(Fraction(1), shape) == {"full_steps": 64}


def test_its_own_budget_gives_its_own_parameters() -> None:
    assert ReCAP.parameters_for(ReCAP().own_budget(layout()), layout()) == {"full_steps": 32}


# TFLOP per image without image decoding: MAR in T steps, ReCAP with 100 and 50 head steps in partial steps, full steps of equal FLOPs.
SHEET = [("L", 96, 45.7, 37.5, 36.2, 72), ("L", 36, 21.4, 18.5, 17.3, 25), ("H", 128, 115.3, 93.9, 91.3, 97),
         ("H", 48, 52.2, 44.5, 41.8, 34)]  # fmt: skip


@pytest.mark.parametrize(("size", "steps", "full", "whole_head", "released", "equal"), SHEET)
def test_flops_of_the_published_scripts(size: str, steps: int, full: float, whole_head: float, released: float, equal: int) -> None:
    """Within 2 %, by an independent count."""
    shape = layout(steps, size)
    counted = [image_flops(method, shape) / 1e12 for method in (Full(), ReCAP(head_fraction=1.0), ReCAP())]
    assert counted == pytest.approx([full, whole_head, released], rel=0.02)
    assert share(FewerSteps(equal), shape) <= share(ReCAP(), shape) < share(FewerSteps(equal + 1), shape)
