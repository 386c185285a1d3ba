"""MAR: names and shapes of the published files, and negative controls of its checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.cache import masked_layout as masked
from cachemark.cache.layout import Layout
from cachemark.cache.masked_layout import MaskedStep
from cachemark.core.spec import Sampling
from cachemark.models import diffusion, mar
from cachemark.models.catalogue.masked_models import AVERAGED
from cachemark.models.checkpoints import load
from cachemark.models.diffusion import DiffusionHead, FinalLayer, Process, TimeEmbed
from cachemark.models.mar import MAR, SIZES
from cachemark.models.vision.kl import KL

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES
from .readers.mar import Replayed, Subject, config_of, subject

GOLDEN = DEFAULT / "mar" / "golden_small.safetensors"
MANIFESTS = Path(__file__).parent / "mar"
PARAMETERS = {"B": 207_924_768, "L": 478_326_304, "H": 942_403_104}  # as the authors' classes count them
Break = Callable[[Vector, pytest.MonkeyPatch], Any]


def manifest(name: str) -> dict[str, Any]:
    return json.loads((MANIFESTS / f"manifest_{name}.json").read_text())


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_file(size: str) -> None:
    with torch.device("meta"):
        model = MAR(SIZES[size])
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest(size)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[size]


def test_names_and_shapes_of_the_autoencoder() -> None:
    with torch.device("meta"):
        model = KL()
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest("vae_kl16")


def test_every_published_size_is_known() -> None:
    assert {path.stem.removeprefix("manifest_") for path in MANIFESTS.glob("manifest_*.json")} == SIZES.keys() | {"vae_kl16"}


def test_a_model_from_a_checkpoint_computes_what_the_vectors_say(tmp_path: Path) -> None:
    """The averaged weights are taken, whichever comes first in the file."""
    vector = Vector.load(GOLDEN)
    weights = vector.weights()
    torch.save({"model": {name: torch.zeros_like(t) for name, t in weights.items()}, "model_ema": weights}, tmp_path / "tiny.pth")
    given = subject(vector)
    given.models["10"] = load(lambda: Replayed(config_of(vector.facts, "10")), tmp_path / "tiny.pth", wrappers=AVERAGED)
    checks = {check.name: check for check in FAMILIES["mar"]["small"].checks_of(vector.names)}
    with torch.no_grad():
        assert not "".join(checks[name].fault(given, vector) for name in ("told", "head"))


def test_the_eager_head_passes_every_check() -> None:
    vector = Vector.load(GOLDEN)
    given = subject(vector, eager_head=True)
    with torch.no_grad():
        assert not "".join(check.fault(given, vector) for check in FAMILIES["mar"]["small"].checks_of(vector.names))


# -- negative controls of encoder and decoder -------------------------------------------------------------------------
def gelu_by_tanh(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    exact = F.gelu
    patch.setattr(F, "gelu", lambda x, approximate: exact(x, approximate="tanh"))
    return subject(vector)


def buffer_is_not_normalised(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(MAR, "prefix", lambda self, cond: cond[:, None] + self.encoder_pos_embed_learned[:, : self.config.buffer])
    return subject(vector)


def last_position_before_the_norm(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def conditions(self: MAR, hidden: Tensor, places: Tensor) -> Tensor:
        found = mar.take(hidden[:, self.config.buffer :], places) + F.embedding(places, self.diffusion_pos_embed_learned[0])
        return self.decoder_norm(found)

    patch.setattr(MAR, "conditions", conditions)
    return subject(vector)


def heads_before_parts(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The rows of the joint projection read as head by head: q, k, v of each."""

    def forward(self: mar.MARAttention, x: Tensor, site: Any, step: Any, method: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        return self.proj(method.attend(site, step, q, k, v).transpose(1, 2).flatten(2))

    patch.setattr(mar.MARAttention, "forward", forward)
    return subject(vector)


# -- of the head ------------------------------------------------------------------------------------------------------
def sines_first(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    waves = TimeEmbed.waves
    patch.setattr(TimeEmbed, "waves", lambda self, t: waves(self, t).roll(128, -1))
    return subject(vector)


def condition_without_bias(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for model in given.models.values():
        model.diffloss.net.cond_embed.bias.zero_()
    return given


def gate_before_shift(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    parts = diffusion._parts
    patch.setattr(diffusion, "_parts", lambda tokens: (parts(tokens)[2], *parts(tokens)[:2]))
    return subject(vector)


def scale_is_not_about_one(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def forward(self: FinalLayer, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation[1](cond).chunk(2, -1)
        return self.linear(torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), scale))

    patch.setattr(FinalLayer, "forward", forward)
    return subject(vector)


def norm_eps_of_the_head(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for model in given.models.values():
        for module in model.diffloss.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-3
    return given


def variance_is_guided_too(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    right = diffusion.guided

    def wrong(out: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
        if scale is None:
            return right(out, scale)
        c, u = out.chunk(2)
        eps, v = torch.lerp(u, c, scale).chunk(2, -1)
        return eps, v

    patch.setattr(diffusion, "guided", wrong)
    return subject(vector)


def respaced_numbers_as_timesteps(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    schedule = DiffusionHead.schedule

    def wrong(self: DiffusionHead, sections: tuple[int, ...], temperature: float) -> diffusion.DenoisingSchedule:
        right = schedule(self, sections, temperature)
        return replace(right, times=self.net.time_embed(torch.arange(len(right.times)).flip(0)))

    patch.setattr(DiffusionHead, "schedule", wrong)
    return subject(vector)


def first_noise_has_a_temperature(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    sample = DiffusionHead.sample

    def wrong(self: DiffusionHead, z: Tensor, noise: Tensor, guidance: float | None, schedule: Any, *rest: Any) -> Tensor:
        return sample(self, z, torch.cat((noise[:1] * schedule.temperature, noise[1:])), guidance, schedule, *rest)

    patch.setattr(DiffusionHead, "sample", wrong)
    return subject(vector)


def noise_without_temperature(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    schedule = DiffusionHead.schedule
    patch.setattr(DiffusionHead, "schedule", lambda self, sections, temperature: schedule(self, sections, 1.0))
    return subject(vector)


def noise_in_the_last_step(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    back = DiffusionHead.back

    def wrong(self: DiffusionHead, x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: Process) -> Tensor:
        found = back(self, x, eps, v, noise, index, process)
        return found + 0.01 * noise if index == 0 else found

    patch.setattr(DiffusionHead, "back", wrong)
    return subject(vector)


def _with_own_process(vector: Vector, patch: pytest.MonkeyPatch, change: Callable[[Process], None] = lambda made: None) -> Subject:
    """Processes whose tables are changed; the numbers of :attr:`Process.backs` with them."""

    def process(sections: tuple[int, ...]) -> Process:
        made = Process(sections)
        change(made)
        made.backs = [made._back(i) for i in range(len(made))]
        return made

    patch.setattr(diffusion, "process", process)
    return subject(vector)


def linear_betas(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(diffusion, "_signal", lambda: numpy.cumprod(1 - numpy.linspace(1e-4, 0.02, 1000)))
    return _with_own_process(vector, patch)


def first_variance_is_its_own(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    """The least variance of step 0 taken as tiny, not as that of step 1."""

    def change(made: Process) -> None:
        made.tables["least"][0] = math.log(1e-20)

    return _with_own_process(vector, patch, change)


def steps_rounded_up(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def respaced(sections: tuple[int, ...]) -> tuple[int, ...]:
        count = sections[0]
        return tuple(math.ceil(i * (1000 // len(sections) - 1) / (count - 1)) for i in range(count))

    patch.setattr(diffusion, "respaced", respaced)
    return _with_own_process(vector, patch)


def summed_over_channels(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    terms = DiffusionHead.terms

    def wrong(self: DiffusionHead, *args: Tensor) -> tuple[Tensor, Tensor]:
        squared, bound = terms(self, *args)
        return 16 * squared, bound

    patch.setattr(DiffusionHead, "terms", wrong)
    return subject(vector)


def divergence_in_the_first_step_too(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    patch.setattr(diffusion, "_likelihood", lambda x, mean, log_deviation: torch.zeros_like(x))
    return subject(vector)


def divergence_the_other_way(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    divergence = diffusion._divergence
    patch.setattr(diffusion, "_divergence", lambda a, b, c, d: divergence(c, d, a, b))
    return subject(vector)


# -- of whole generations ---------------------------------------------------------------------------------------------
def flip_orders(patch: pytest.MonkeyPatch) -> None:
    placed = masked.placed
    patch.setattr(mar, "placed", lambda steps, order: placed(steps, order.flip(1)))


def head_of_the_order_first(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    flip_orders(patch)
    return subject(vector)


def in_the_order_of_the_draw(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def placed(steps: list[MaskedStep], order: Tensor) -> list[MaskedStep]:
        ends = [order.size(1) - step.first for step in steps]
        parts = zip(masked.placed(steps, order), ends, strict=True)
        return [replace(step, generating=order[:, end - step.count : end]) for step, end in parts]

    patch.setattr(mar, "placed", placed)
    return subject(vector)


def mask_rounded_up(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    def steps(layout: Layout, total: int) -> list[MaskedStep]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(masked.math, "floor", math.ceil)
            return masked.masked_steps(layout, total)

    patch.setattr(mar, "masked_steps", steps)
    return subject(vector)


def guide_by_the_mask_before(patch: pytest.MonkeyPatch) -> None:
    guidance = mar.guidance

    def wrong(sampling: Sampling, step: MaskedStep, tokens: int) -> float | None:
        return guidance(sampling, replace(step, left=tokens - step.first), tokens)

    patch.setattr(mar, "guidance", wrong)


def guided_by_the_mask_before(vector: Vector, patch: pytest.MonkeyPatch) -> Subject:
    guide_by_the_mask_before(patch)
    return subject(vector)


def class_for_the_unconditional(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    for model in given.models.values():
        model.fake_latent.zero_()
    return given


def by_columns(vector: Vector, _: pytest.MonkeyPatch) -> Subject:
    given = subject(vector)
    return replace(given, grid=lambda tokens: given.grid(tokens).mT, flat=lambda grid: given.flat(grid.mT))


CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "small": {
        gelu_by_tanh: ("encoder", "told", "encoder_block", "decoder_block"),
        buffer_is_not_normalised: ("encoder", "encoder_block", "told"),
        last_position_before_the_norm: ("told", "conditions", "last_conditions"),
        heads_before_parts: ("encoder", "told", "encoder_block", "decoder_block"),
        sines_first: ("waves", "time_embed", "head"),
        condition_without_bias: ("cond_embed", "head"),
        gate_before_shift: ("head", "head_guided"),
        scale_is_not_about_one: ("head", "head_guided", "mean", "log_variance", "start", "sampled_cfg1"),
        norm_eps_of_the_head: ("head", "head_guided"),
        variance_is_guided_too: ("head_guided", "sampled_cfg3", "sampled_cfg3s", "latents"),
        respaced_numbers_as_timesteps: ("sampled_cfg1", "sampled_cfg3", "sampled_cfg3s", "latents"),
        first_noise_has_a_temperature: ("sampled_cfg3", "sampled_cfg3s", "latents"),
        noise_without_temperature: ("sampled_cfg3s", "latents"),
        noise_in_the_last_step: ("sampled_cfg3s", "latents"),
        linear_betas: ("mean", "log_variance", "start", "loss_mse", "loss_vb", "loss_loss", "sampled_cfg1"),
        first_variance_is_its_own: ("log_variance",),
        steps_rounded_up: ("timesteps", "sampled_cfg3s"),
        summed_over_channels: ("loss_mse", "loss_loss"),
        divergence_in_the_first_step_too: ("loss_vb", "loss_loss"),
        divergence_the_other_way: ("loss_vb", "loss_loss"),
        head_of_the_order_first: ("masks", "conditions", "latents"),
        in_the_order_of_the_draw: ("conditions", "latents"),
        mask_rounded_up: ("counts", "masks"),
        guided_by_the_mask_before: ("guidance", "latents"),
        class_for_the_unconditional: ("encoder", "told", "conditions", "last_conditions", "latents"),
        by_columns: ("flattened", "latents"),
    },
}
NIGHTLY = (gelu_by_tanh, buffer_is_not_normalised, gate_before_shift, norm_eps_of_the_head, respaced_numbers_as_timesteps,
           first_noise_has_a_temperature, noise_without_temperature, first_variance_is_its_own, summed_over_channels,
           divergence_in_the_first_step_too, in_the_order_of_the_draw)
