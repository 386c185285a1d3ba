"""LlamaGen: the transformer (kind ``small``) and its image decoder (kind ``small_vq``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.contract.method import Block, Method, Uncached
from cachemark.core.spec import Sampling
from cachemark.methods import full  # noqa: F401 - registers the method
from cachemark.methods.registry import METHODS
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.vq import VQ, VQConfig

from ..checks import Check, Kind, Vector, apart, differing, differing_bytes

LOGITS = 1e-4
PROBABILITIES = 1e-6
RARE = 1e-3  # share of bytes that rounding may move by one


# -- the transformer --------------------------------------------------------------------------------------------------
def sampling_of(vector: Vector, run: str) -> Sampling:
    """Return the sampling of a greedy group of the file."""
    scale = 1.0 if run == "greedy_nocfg" else vector.facts["cfg_scale"]
    interval = next((value for name, value in vector.facts.items() if name.startswith("cfg_interval")), -1)
    return Sampling(cfg_scale=scale, cfg_interval=interval if run == "greedy_cfg_interval" else -1, temperature=0.0)


@dataclass(frozen=True)
class Transformer:
    """The subject of the checks."""

    model: LlamaGen
    sampling: Callable[[Vector, str], Sampling] = sampling_of
    filter_logits: Callable[[Tensor, Sampling], Tensor] = filter_logits


@dataclass
class Watched(Uncached):
    """The uncached pass that records hidden states after each block."""

    hidden: list[Tensor] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.hidden.append(tokens.x)
        return tokens


def config_of(facts: dict[str, Any]) -> LlamaGenConfig:
    c = facts["config"]
    config = LlamaGenConfig(
        layers=c["n_layer"], heads=c["n_head"], dim=c["dim"], vocab=c["vocab_size"], classes=c["num_classes"],
        grid=math.isqrt(c["block_size"]), kv_heads=c.get("n_kv_head"), norm_eps=c["norm_eps"], rope_base=float(c["rope_base"]),
    )
    assert (config.head_dim, config.hidden, config.grid**2) == (c["head_dim"], c["ffn_hidden"], c["block_size"])
    return config


def transformer(vector: Vector, model: type[LlamaGen] = LlamaGen) -> Transformer:
    built = model(config_of(vector.facts))
    built.load_state_dict(vector.weights())
    return Transformer(built.eval())


def generated(
    subject: Transformer, labels: Tensor, sampling: Sampling, forced: Tensor | None = None,
) -> tuple[Tensor, Tensor, Method]:
    """Return tokens (B, N), guided logits (B, N, vocab) and method of a generation with the full cache."""
    method, seen = METHODS.get("full")(), []
    seeds = range(len(labels))
    tokens = subject.model.generate(labels, seeds, method, sampling, Memory(), forced=forced, see=lambda _, logits: seen.append(logits))
    return tokens, torch.cat(seen, 1), method


def rope(subject: Transformer, vector: Vector) -> float:
    return apart(torch.view_as_real(subject.model.rope), vector["freqs_cis"])


def logits_cached(subject: Transformer, vector: Vector) -> float:
    return _cached(subject, vector["input/class_ids"], vector["input/tokens"], vector["teacher/logits_kv"])


def logits_null(subject: Transformer, vector: Vector) -> float:
    null = torch.full_like(vector["input/class_ids"], vector.facts["null_class_id"])
    return _cached(subject, null, vector["input/tokens"], vector["teacher/logits_kv_null"])


def _cached(subject: Transformer, labels: Tensor, tokens: Tensor, expected: Tensor) -> float:
    """Compare cached logits; the last token is never fed, so the uncached pass predicts the last entry."""
    logits = generated(subject, labels, Sampling(), tokens)[1]
    last = subject.model.prefix_logits(labels, tokens)[:, -1:]
    return apart(torch.cat((logits, last), 1), expected)


def logits_full(subject: Transformer, vector: Vector) -> float:
    return apart(subject.model.prefix_logits(vector["input/class_ids"], vector["input/tokens"]), vector["teacher/logits_full_eval"])


def logits_train(subject: Transformer, vector: Vector) -> float:
    return apart(subject.model.teacher(vector["input/class_ids"], vector["input/tokens"]), vector["teacher/logits_train_forward"])


def train_loss(subject: Transformer, vector: Vector) -> float:
    logits = subject.model.teacher(vector["input/class_ids"], vector["input/tokens"])
    return apart(F.cross_entropy(logits.flatten(0, 1), vector["input/tokens"].flatten()).view(1), vector["teacher/train_loss"])


def hidden_first(subject: Transformer, vector: Vector) -> float:
    return apart(_hidden(subject, vector)[0], vector["debug/hidden_after_layer0"])


def hidden_last(subject: Transformer, vector: Vector) -> float:
    return apart(_hidden(subject, vector)[-1], vector["debug/hidden_after_last_layer"])


def _hidden(subject: Transformer, vector: Vector) -> list[Tensor]:
    """Return hidden states (B, 1 + N, dim) after each block, before the final norm."""
    model, method = subject.model, Watched()
    x = torch.cat((model.cls_embedding(vector["input/class_ids"]), model.tok_embeddings(vector["input/tokens"])), 1)
    model(Tokens(x, model.rope), Step(0, 1), method)
    return method.hidden


def slot_keys(subject: Transformer, vector: Vector) -> float:
    return _slot(subject, vector, 0, vector["debug/k_cache_layer0"])


def slot_values(subject: Transformer, vector: Vector) -> float:
    return _slot(subject, vector, 1, vector["debug/v_cache_layer0"])


def _slot(subject: Transformer, vector: Vector, part: int, expected: Tensor) -> float:
    """Compare layer 0: the class and the N − 1 tokens that a generation feeds."""
    tokens = vector["input/tokens"]
    method = generated(subject, vector["input/class_ids"], Sampling(), tokens)[2]
    slot, live = method.slots[subject.model.sites[0]], tokens.shape[1]
    if slot.live != [live]:
        return float("inf")
    return apart(slot.read(slot.bank.runs[0], live)[part], expected[:, :, :live])


def greedy(run: str) -> Check:
    """Check every token exactly."""

    def measure(subject: Transformer, vector: Vector) -> float:
        tokens, _, _ = generated(subject, vector["input/class_ids"], subject.sampling(vector, run))
        return differing(tokens, vector[f"{run}/tokens"])

    return Check(run, 0.0, measure, (f"{run}/tokens",))


def guided_logits(subject: Transformer, vector: Vector) -> float:
    _, logits, _ = generated(subject, vector["input/class_ids"], subject.sampling(vector, "greedy_cfg"))
    return apart(logits, vector["greedy_cfg/logits"])


def filters(subject: Transformer, vector: Vector) -> float:
    """Compare probabilities under each of the file's settings of temperature, top-k and top-p."""
    logits, settings = vector["filter/logits_in"][:, -1], vector.facts["filters"]
    assert settings
    probabilities = {name: subject.filter_logits(logits, Sampling(**setting)).softmax(-1) for name, setting in settings.items()}
    return max(apart(probabilities[name], vector[f"filter/{name}"]) for name in settings)


# -- the tokenizer's decoder ------------------------------------------------------------------------------------------
def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (B, 3, H, W) bicubically without antialiasing."""
    return F.interpolate(images, size=size, mode="bicubic", align_corners=False, antialias=False)


def to_uint8(images: Tensor) -> Tensor:
    """Convert images in [−1, 1] to bytes as published: 127.5·x + 128, clamped, truncated."""
    return images.mul(127.5).add(128.0).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


@dataclass(frozen=True)
class Tokenizer:
    """The subject of the checks."""

    model: VQ
    resize: Callable[[Tensor, tuple[int, int]], Tensor] = resize
    to_uint8: Callable[[Tensor], Tensor] = to_uint8


def tokenizer(vector: Vector) -> Tokenizer:
    c = vector.facts["config"]
    sizes = (c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"], c["codebook_size"], c["codebook_embed_dim"])
    model = VQ(VQConfig(*sizes))
    missing, unexpected = model.load_state_dict(vector.weights(), strict=False)
    assert not unexpected
    assert all(name.startswith(("encoder.", "quant_conv.", "quantize.codebook_used")) for name in missing), missing
    return Tokenizer(model.eval())


def image_of(subject: Tokenizer, vector: Vector) -> Tensor:
    return subject.model.decode(vector["input/codes"], tuple(vector.facts["config"]["grid"]))


def resized(subject: Tokenizer, vector: Vector) -> Tensor:
    height, width = vector["image_bicubic_two_thirds"].shape[2:]
    return subject.resize(image_of(subject, vector), (height, width))


def code_vectors(subject: Tokenizer, vector: Vector) -> float:
    return apart(subject.model.vectors(vector["input/codes"], tuple(vector.facts["config"]["grid"])), vector["quant"])


def image(subject: Tokenizer, vector: Vector) -> float:
    return apart(image_of(subject, vector), vector["image"])


def image_bytes(subject: Tokenizer, vector: Vector) -> float:
    return differing_bytes(subject.to_uint8(image_of(subject, vector)), vector["image_u8_hwc"])


def bicubic(subject: Tokenizer, vector: Vector) -> float:
    return apart(resized(subject, vector), vector["image_bicubic_two_thirds"])


def bicubic_bytes(subject: Tokenizer, vector: Vector) -> float:
    return differing_bytes(subject.to_uint8(resized(subject, vector)), vector["image_bicubic_u8_hwc"])


KINDS = {
    "small": Kind(transformer, (
        Check("rope", 1e-6, rope, ("freqs_cis",)),
        Check("logits_cached", LOGITS, logits_cached, ("teacher/logits_kv",)),
        Check("logits_null", LOGITS, logits_null, ("teacher/logits_kv_null",)),
        Check("logits_full", LOGITS, logits_full, ("teacher/logits_full_eval",)),
        Check("logits_train", LOGITS, logits_train, ("teacher/logits_train_forward",)),
        Check("train_loss", 1e-5, train_loss, ("teacher/train_loss",)),
        Check("hidden_first", LOGITS, hidden_first, ("debug/hidden_after_layer0",)),
        Check("hidden_last", LOGITS, hidden_last, ("debug/hidden_after_last_layer",)),
        Check("slot_keys", LOGITS, slot_keys, ("debug/k_cache_layer0",)),
        Check("slot_values", LOGITS, slot_values, ("debug/v_cache_layer0",)),
        greedy("greedy_cfg"),
        greedy("greedy_cfg_interval"),
        greedy("greedy_nocfg"),
        Check("guided_logits", LOGITS, guided_logits, ("greedy_cfg/logits",)),
        Check("filters", PROBABILITIES, filters, ("filter/logits_in",)),
    ), "the LlamaGen transformer, with and without a cache, and its sampling", ("full",)),
    "small_vq": Kind(tokenizer, (
        Check("code_vectors", 1e-6, code_vectors, ("quant",)),
        Check("image", LOGITS, image, ("image",)),
        Check("image_bytes", RARE, image_bytes, ("image_u8_hwc",)),
        Check("bicubic", LOGITS, bicubic, ("image_bicubic_two_thirds",)),
        Check("bicubic_bytes", RARE, bicubic_bytes, ("image_bicubic_two_thirds", "image_bicubic_u8_hwc")),
    ), "LlamaGen's image tokenizer, decoding"),
}
