"""Decoders of published image tokenizers: edge cases, and the encoders in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.models.registry import MODELS
from cachemark.models.vision.bsq import BSQ, BSQConfig
from cachemark.models.vision.emu3_vq import Emu3VQ, Emu3VQConfig
from cachemark.models.vision.kl import KL, KLConfig, grid_of
from cachemark.models.vision.msvq import MSVQ, MSVQConfig
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.models.vision.vqgan import VQGAN

TINY = VQConfig(ch=32, ch_mult=(1, 2, 1), num_res_blocks=1, z_channels=8, codebook_size=24, codebook_dim=4)
BUILDS: dict[str, Callable[[], nn.Module]] = {  # small decoders by model
    "llamagen-b": lambda: VQ(TINY), "llamagen-t2i-256": lambda: VQ(TINY), "janus-pro-1b": lambda: VQ(TINY),
    "lumina-mgpt-7b-768": lambda: VQGAN(TINY), "mar-b": lambda: KL(KLConfig(32, (1, 2), 1, z=4)),
    "var-d16": lambda: MSVQ(MSVQConfig(32, (1, 1), 1, sides=(1, 2), z=4, codes=8)),
    "infinity-2b": lambda: BSQ(BSQConfig(32, (1, 1), 1, z=5)), "emu3-gen": lambda: Emu3VQ(Emu3VQConfig(32, (1, 1), 1, 4, 32, (1,), 4)),
}


def test_images_are_fp32_and_not_clamped() -> None:
    low = VQ(TINY).requires_grad_(False)
    low.decoder.conv_out.bias.fill_(3.0)
    image = low.bfloat16().decode(torch.zeros(1, 4, dtype=torch.int32), (2, 2))
    assert image.dtype == torch.float32
    assert image.max() > 1


def test_codes_that_do_not_fill_the_grid_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"\(1, 5\) do not fill a grid of 2×2"):
        VQ(TINY).decode(torch.zeros(1, 5, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(1, 15, 4), (1, 0, 4), (16, 4)])
def test_tokens_that_fill_no_square_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="no square"):
        grid_of(torch.zeros(shape))


@pytest.mark.parametrize("model", BUILDS)
def test_the_encoder_in_a_published_file_is_skipped(model: str, tmp_path: Path) -> None:
    """Other tensors must be those of the decoder."""
    file, path = replace(MODELS.get(model).files[1], build=BUILDS[model]), tmp_path / "images.pt"
    state = {**file.build().state_dict(), "encoder.conv_in.weight": torch.zeros(2, 3), "quant_conv.bias": torch.zeros(2)}
    torch.save(state, path)
    loaded = file.load(path).state_dict()
    assert state.keys() - loaded.keys() == {"encoder.conv_in.weight", "quant_conv.bias"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())
    del state["decoder.conv_in.weight"]
    torch.save({**state, "encoders.x": torch.zeros(1)}, path)
    with pytest.raises(BadCheckpoint, match=r"1 of \d+ tensors missing \(decoder\.conv_in\.weight\); 1 unexpected \(encoders\.x\)"):
        file.check(path)
