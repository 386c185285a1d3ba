"""VAR beyond its vectors: caching of modulations, published files, and rejected ones."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.core.spec import Sampling
from cachemark.methods.base.paper_baseline import ConcatFull
from cachemark.methods.full import Full
from cachemark.models import var
from cachemark.models.catalogue import next_scale
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer
from support.tiny_models import VAR_SIZES

SAMPLING = Sampling(cfg_scale=1.5, cfg_schedule="linear")


def model(config: VARConfig = VAR_SIZES, **options: bool) -> VAR:
    quantizer = MultiScaleQuantizer(config.sides, config.vocab, config.width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in quantizer.parameters():
            parameter.data.normal_()
    return VAR(config, quantizer.requires_grad_(False), **options).initialise(0).eval().requires_grad_(False)


def generate(var_model: VAR, method: Full | ConcatFull, seeds: list[int], **options: object) -> torch.Tensor:
    return var_model.generate(torch.tensor(seeds) % 10, seeds, method, SAMPLING, Memory(), **options)  # type: ignore[arg-type]


def test_the_condition_is_projected_once_in_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    modulations = VAR.modulations
    monkeypatch.setattr(VAR, "modulations", lambda self, cond: calls.append(1) or modulations(self, cond))
    once = generate(model(), Full(), [0, 1])
    assert len(calls) == 1
    often = generate(model(recompute=True), Full(), [0, 1])
    assert len(calls) == 1 + len(VAR_SIZES.sides)
    assert torch.equal(once, often)


def test_the_reference_cache_gives_the_same_tokens_and_more_bytes() -> None:
    var_model, plain, published = model(), Full(), ConcatFull()
    assert torch.equal(generate(var_model, plain, [0, 1, 2]), generate(var_model, published, [0, 1, 2]))
    shape = 2 * 3 * VAR_SIZES.depth * VAR_SIZES.dim  # rows with guidance, layers, channels
    assert plain.logical_bytes == shape * (1 + 4 + 9) * 2 * 4
    assert published.logical_bytes == shape * 30 * (4 + 4)


def test_another_guidance_schedule_is_refused() -> None:
    with pytest.raises(Unsupported, match="linear"):
        model().generate(torch.tensor([0]), [0], Full(), Sampling(cfg_scale=1.5), Memory())


# -- published files --------------------------------------------------------------------------------------------------
def published_file(config: VARConfig, path: Path, dtype: torch.dtype = torch.float32, spread: float = 0.0) -> Path:
    """Write a file of the official layout, buffers included: zeros, or normal numbers of this deviation."""
    draws = torch.Generator().manual_seed(0)
    state = {name: torch.zeros(t.shape, dtype=dtype) for name, t in meta(config).state_dict().items()}
    state = {name: tensor.normal_(0, spread, generator=draws) if spread else tensor for name, tensor in state.items()}
    scale = torch.repeat_interleave(torch.arange(len(config.sides)), torch.tensor([side**2 for side in config.sides]))
    mask = torch.zeros(config.tokens, config.tokens).masked_fill(scale[:, None] < scale, -math.inf)
    state |= {"lvl_1L": scale[None], "attn_bias_for_masking": mask[None, None]}
    state |= {f"blocks.{i}.attn.zero_k_bias": torch.zeros(config.dim, dtype=dtype) for i in range(config.depth)}
    torch.save(state, path)
    return path


def meta(config: VARConfig) -> VAR:
    with torch.device("meta"):
        return next_scale.build(config)


def test_other_patch_nums_are_named(tmp_path: Path) -> None:
    path = published_file(VAR_SIZES, tmp_path / "var_d3.pth")
    with pytest.raises(BadCheckpoint, match="patch_nums 1 2 3 4; this model has 1 2 5"):
        var.check_sides(replace(VAR_SIZES, sides=(1, 2, 5)), path)
