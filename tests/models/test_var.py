"""VAR beside its vectors: what is computed once, how published files load, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
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
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.var import SIZES, VAR, VARConfig
from cachemark.models.vision.msvq import MSVQ, MSVQConfig, MultiScaleQuantizer, nearest_phi
from support import fork_server

SIDES = (1, 2, 3, 4)
CONFIG = VARConfig(depth=3, heads=2, dim=32, sides=SIDES, vocab=32, classes=10, width=8)
SAMPLING = Sampling(cfg_scale=1.5, cfg_schedule="linear")


def model(config: VARConfig = CONFIG, **options: bool) -> VAR:
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
    assert len(calls) == 1 + len(SIDES)
    assert torch.equal(once, often)


def test_the_reference_cache_gives_the_same_tokens_and_more_bytes() -> None:
    var_model, plain, published = model(), Full(), ConcatFull()
    assert torch.equal(generate(var_model, plain, [0, 1, 2]), generate(var_model, published, [0, 1, 2]))
    shape = 2 * 3 * CONFIG.depth * CONFIG.dim  # rows with guidance, layers, channels
    assert plain.logical_bytes == shape * (1 + 4 + 9) * 2 * 4
    assert published.logical_bytes == shape * 30 * (4 + 4)


def test_published_k_is_kept_in_fp32_and_ours_in_the_models_dtype() -> None:
    half, published, plain = model().to(torch.bfloat16), ConcatFull(), Full()
    generate(half, published, [0])
    generate(half, plain, [0])
    shape = 2 * CONFIG.depth * CONFIG.dim
    assert published.logical_bytes == shape * 30 * (4 + 2)
    assert plain.logical_bytes == shape * 14 * (2 + 2)


def test_a_scale_is_seen_whole_and_marked_at_its_end() -> None:
    shown: list[tuple[int, tuple[int, ...]]] = []
    marks: list[int] = []
    generate(model(), Full(), [0, 1], see=lambda first, logits: shown.append((first, tuple(logits.shape))), mark=marks.append)
    assert shown == [(0, (2, 1, 32)), (1, (2, 4, 32)), (5, (2, 9, 32)), (14, (2, 16, 32))]
    assert marks == [0, 4, 13, 29]


def test_without_guidance_there_are_no_unconditional_rows() -> None:
    assert model().layout([0, 1], replace(SAMPLING, cfg_scale=0.0)).rows == 2
    assert model().layout([0, 1], SAMPLING).branches == (0, 0, 1, 1)


def test_another_guidance_schedule_is_refused() -> None:
    with pytest.raises(Unsupported, match="linear"):
        model().generate(torch.tensor([0]), [0], Full(), Sampling(cfg_scale=1.5), Memory())


@pytest.mark.parametrize(("scales", "expected"), [(10, [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]), (5, [0, 1, 2, 2, 3]), (4, [0, 1, 2, 3])])
def test_phi_of_each_scale_with_its_ties(scales: int, expected: list[int]) -> None:
    assert [nearest_phi(i, scales, 4) for i in range(scales)] == expected


# -- published files --------------------------------------------------------------------------------------------------
def published_file(config: VARConfig, path: Path, dtype: torch.dtype = torch.float32, spread: float = 0.0) -> Path:
    """A file of the official layout, buffers included, with weights of no meaning: zeros, or normal numbers of this deviation."""
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
    path = published_file(CONFIG, tmp_path / "var_d3.pth")
    with pytest.raises(BadCheckpoint, match="patch_nums 1 2 3 4; this model has 1 2 5"):
        var.check_sides(replace(CONFIG, sides=(1, 2, 5)), path)


def test_a_tokenizer_of_another_width_is_named(tmp_path: Path) -> None:
    small = MSVQConfig(sides=var.SIDES_256, ch=32, ch_mult=(1, 1), num_res_blocks=1, z=16, codes=4096)
    torch.save(MSVQ(small).state_dict(), tmp_path / "vae.pth")
    entry = MODELS.get("var-d16")
    with pytest.raises(BadCheckpoint, match="of another shape"):
        entry.identity(Request(decoder_weights=str(tmp_path / "vae.pth")))


LOADER = """
import resource, sys
from cachemark.models import checkpoints, var; from cachemark.models.catalogue import next_scale
from dataclasses import replace
config = var.SIZES[sys.argv[2]]
config = replace(config, depth=int(sys.argv[3])) if len(sys.argv) > 3 else config
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = checkpoints.load(lambda: next_scale.build(config), sys.argv[1], ignore=var.BUFFERS)
total = sum(float(p.sum()) for p in model.parameters())  # touches every page
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, total)
"""
fork_server.CODE.add(LOADER)


def peak_share(path: Path, *arguments: str) -> float:
    """Peak memory that loading takes in a process of its own, as a share of the file."""
    done = subprocess.run([sys.executable, "-c", LOADER, str(path), *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0]) * 1024 / path.stat().st_size


def test_loading_takes_little_more_than_the_file(tmp_path: Path) -> None:
    """The d30 layout with one block of thirty; the whole sizes are tested among the slow ones."""
    config = replace(SIZES["d30"], depth=1)
    path = published_file(config, tmp_path / "var_d30.pth")
    assert path.stat().st_size > 2**28
    assert peak_share(path, "d30", "1") < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("size", ["d30", "d36-512"])
def test_a_whole_published_size_loads_in_little_more_than_its_file(size: str, tmp_path: Path) -> None:
    path = published_file(SIZES[size], tmp_path / "var.pth", torch.float16)
    try:
        assert peak_share(path, size) < 1.2
    finally:
        path.unlink()
