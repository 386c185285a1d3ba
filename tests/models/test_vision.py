"""Published image tokenizers: VQ's encoder against a second implementation, KL's distributions, and edge cases of both."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.core.errors import Unsupported
from cachemark.models.vision.kl import KL, SCALE, KLConfig, grid_of, tokens_of
from cachemark.models.vision.vq import VQ, VQConfig

TINY = VQConfig(ch=32, ch_mult=(1, 2, 1), num_res_blocks=1, z_channels=8, codebook_size=24, codebook_dim=4)
SMALL = KLConfig(ch=32, ch_mult=(1, 2), num_res_blocks=1, z=4)


@pytest.fixture(scope="module")
def vq() -> VQ:
    torch.manual_seed(3)
    model = VQ(TINY)
    for name, weight in model.named_parameters():  # norms start as the identity, which would hide a swapped scale and shift
        if "norm" in name:
            torch.nn.init.normal_(weight, mean=float(name.endswith("weight")), std=0.3)
    return model.requires_grad_(False)


def test_images_are_fp32_and_not_clamped(vq: VQ) -> None:
    low = VQ(TINY)
    low.load_state_dict(vq.state_dict())
    low.decoder.conv_out.bias.data.fill_(3.0)
    image = low.bfloat16().decode(torch.zeros(1, 4, dtype=torch.int32), (2, 2))
    assert image.dtype == torch.float32
    assert image.max() > 1


@pytest.mark.parametrize("shape", [(1, 3, 10, 8), (1, 3, 8, 10), (1, 1, 8, 8), (3, 8, 8)])
def test_images_that_cannot_be_encoded_are_refused(vq: VQ, shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="multiples of 4"):
        vq.encode(torch.zeros(shape))


# -- codes ------------------------------------------------------------------------------------------------------------
def test_nearest_is_the_greatest_cosine(vq: VQ) -> None:
    vectors = torch.randn(50, TINY.codebook_dim, generator=torch.Generator().manual_seed(1))
    cosine = F.cosine_similarity(vectors[:, None], vq.quantize.embedding.weight[None], dim=-1)
    assert torch.equal(vq.quantize.nearest(vectors), cosine.argmax(1))


def test_the_first_of_equal_codes_is_taken(vq: VQ) -> None:
    twin = VQ(TINY)
    table = vq.quantize.embedding.weight.clone()
    table[20] = table[5]
    twin.load_state_dict(vq.state_dict() | {"quantize.embedding.weight": table})
    assert twin.quantize.nearest(table[[20, 5]]).tolist() == [5, 5]


# -- the encoder, read a second time from its description: plain functions over the state dict ---------------------------
def conv(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight = w[f"{name}.weight"]
    return F.conv2d(x, weight, w[f"{name}.bias"], padding=weight.shape[-1] // 2)


def group_norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    grouped = x.reshape(x.shape[0], 32, -1)
    mean, variance = grouped.mean(-1, keepdim=True), grouped.var(-1, unbiased=False, keepdim=True)
    plain = ((grouped - mean) / (variance + 1e-6).sqrt()).view_as(x)
    return plain * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


def swish(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def residual(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    h = conv(w, f"{name}.conv1", swish(group_norm(w, f"{name}.norm1", x)))
    h = conv(w, f"{name}.conv2", swish(group_norm(w, f"{name}.norm2", h)))
    return h + (conv(w, f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in w else x)


def attend(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    h = group_norm(w, f"{name}.norm", x)
    q, k, v = (conv(w, f"{name}.{part}", h).flatten(2) for part in "qkv")
    weights = (torch.einsum("bci,bcj->bij", q, k) * x.shape[1] ** -0.5).softmax(-1)
    return x + conv(w, f"{name}.proj_out", torch.einsum("bij,bcj->bci", weights, v).view_as(x))


def described_latents(w: dict[str, Tensor], levels: int, depth: int, x: Tensor) -> Tensor:
    x = conv(w, "encoder.conv_in", x)
    for level in range(levels):
        block = f"encoder.conv_blocks.{level}"
        for i in range(depth):
            x = residual(w, f"{block}.res.{i}", x)
            if level == levels - 1:
                x = attend(w, f"{block}.attn.{i}", x)
        if level < levels - 1:
            padded = F.pad(x, (0, 1, 0, 1))
            x = F.conv2d(padded, w[f"{block}.downsample.conv.weight"], w[f"{block}.downsample.conv.bias"], stride=2)
    x = residual(w, "encoder.mid.2", attend(w, "encoder.mid.1", residual(w, "encoder.mid.0", x)))
    x = conv(w, "encoder.conv_out", swish(group_norm(w, "encoder.norm_out", x)))
    return conv(w, "quant_conv", x)


def test_the_encoder_computes_what_its_description_says(vq: VQ) -> None:
    images = torch.rand(2, 3, 12, 8, generator=torch.Generator().manual_seed(4)) * 2 - 1
    expected = described_latents(vq.state_dict(), len(TINY.ch_mult), TINY.num_res_blocks, images)
    assert (vq.quant_conv(vq.encoder(images)) - expected).abs().max() < 1e-5
    rows = F.normalize(expected.flatten(2).transpose(1, 2), dim=-1)
    cosine = rows @ F.normalize(vq.quantize.embedding.weight, dim=-1).T
    assert torch.equal(vq.encode(images), cosine.argmax(-1))


# -- the KL autoencoder ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def kl() -> KL:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return KL(SMALL).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("shape", [(1, 15, 4), (1, 0, 4), (16, 4)])
def test_tokens_that_fill_no_square_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Unsupported, match="no square"):
        grid_of(torch.zeros(shape))


def test_drawn_tokens_have_the_posterior_deviation(kl: KL, images: Tensor) -> None:
    mean, deviation = kl.moments(images)
    generator = torch.Generator().manual_seed(0)
    offsets = torch.stack([kl.encode(images, generator) - tokens_of(mean) * SCALE for _ in range(64)]) / (tokens_of(deviation) * SCALE)
    assert abs(float(offsets.mean())) < 0.02
    assert abs(float(offsets.std()) - 1) < 0.02


def test_variances_are_clamped(kl: KL, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = kl.quant_conv.forward
    monkeypatch.setattr(kl.quant_conv, "forward", lambda x: forward(x) + 1e4)
    assert float(kl.moments(images)[1].max()) == pytest.approx(torch.tensor(10.0).exp().item())
