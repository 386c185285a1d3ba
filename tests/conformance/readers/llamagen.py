"""LlamaGen: the transformer (kind ``small``) and its image decoder (kind ``small_vq``)."""

from __future__ import annotations

import math
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

from ..checks import LOGITS, RARE, Check, Kind, Vector, apart, compare, differing, differing_bytes, filled, slot_apart

PROBABILITIES = 1e-6


# -- the transformer --------------------------------------------------------------------------------------------------
def sampling_of(vector: Vector, run: str) -> Sampling:
    """Return the sampling of a greedy group of the file."""
    scale = 1.0 if run == "greedy_nocfg" else vector.facts["cfg_scale"]
    interval = next((value for name, value in vector.facts.items() if name.startswith("cfg_interval")), -1)
    return Sampling(cfg_scale=scale, cfg_interval=interval if run == "greedy_cfg_interval" else -1, temperature=0.0)


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


def transformer(vector: Vector) -> LlamaGen:
    return filled(LlamaGen(config_of(vector.facts)), vector.weights())


def generated(
    model: LlamaGen, labels: Tensor, sampling: Sampling, forced: Tensor | None = None,
) -> tuple[Tensor, Tensor, Method]:
    """Return tokens (B, N), guided logits (B, N, vocab) and method of a generation with the full cache."""
    method, seen = METHODS.get("full")(), []
    seeds = range(len(labels))
    tokens = model.generate(labels, seeds, method, sampling, Memory(), forced=forced, see=lambda _, logits: seen.append(logits))
    return tokens, torch.cat(seen, 1), method


def cached_logits(model: LlamaGen, labels: Tensor, tokens: Tensor) -> Tensor:
    """Return cached logits; the last token is never fed, so the uncached pass predicts the last entry."""
    logits = generated(model, labels, Sampling(), tokens)[1]
    return torch.cat((logits, model.prefix_logits(labels, tokens)[:, -1:]), 1)


def teacher_logits(model: LlamaGen, vector: Vector) -> Tensor:
    return model.teacher(vector["input/class_ids"], vector["input/tokens"])


def hidden_states(model: LlamaGen, vector: Vector) -> list[Tensor]:
    """Return hidden states (B, 1 + N, dim) after each block, before the final norm."""
    method = Watched()
    x = torch.cat((model.cls_embedding(vector["input/class_ids"][:, None]), model.tok_embeddings(vector["input/tokens"])), 1)
    model(Tokens(x, model.rope), Step(0, 1), method)
    return method.hidden


def slot(name: str, part: int, need: str) -> Check:
    """Check layer 0: the class and the N − 1 tokens that a generation feeds."""

    def measure(model: LlamaGen, vector: Vector) -> float:
        tokens = vector["input/tokens"]
        method = generated(model, vector["input/class_ids"], Sampling(), tokens)[2]
        return slot_apart(method.slots[model.sites[0]], part, vector[need][:, :, : tokens.shape[1]])

    return Check(name, LOGITS, measure, (need,))


def greedy(run: str) -> Check:
    """Check every token exactly."""
    return compare(run, f"{run}/tokens", lambda model, vector: generated(
        model, vector["input/class_ids"], sampling_of(vector, run))[0], 0.0, by=differing)


def filters(model: LlamaGen, vector: Vector) -> float:
    """Compare probabilities under each of the file's settings of temperature, top-k and top-p."""
    logits, settings = vector["filter/logits_in"][:, -1], vector.facts["filters"]
    assert settings
    probabilities = {name: filter_logits(logits, Sampling(**setting)).softmax(-1) for name, setting in settings.items()}
    return max(apart(probabilities[name], vector[f"filter/{name}"]) for name in settings)


# -- the tokenizer's decoder ------------------------------------------------------------------------------------------
def to_uint8(images: Tensor) -> Tensor:
    """Convert images in [−1, 1] to bytes as published: 127.5·x + 128, clamped, truncated."""
    return images.mul(127.5).add(128.0).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def tokenizer(vector: Vector) -> VQ:
    c = vector.facts["config"]
    config = VQConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"], c["codebook_size"], c["codebook_embed_dim"])
    return filled(VQ(config), vector.weights())


def image_of(model: VQ, vector: Vector) -> Tensor:
    return model.decode(vector["input/codes"], tuple(vector.facts["config"]["grid"]))


def resized(model: VQ, vector: Vector) -> Tensor:
    """Resize images bicubically without antialiasing."""
    height, width = vector["image_bicubic_two_thirds"].shape[2:]
    return F.interpolate(image_of(model, vector), size=(height, width), mode="bicubic", align_corners=False, antialias=False)


KINDS = {
    "small": Kind(transformer, (
        compare("rope", "freqs_cis", lambda model, vector: torch.view_as_real(model.rope), 1e-6),
        compare("logits_cached", "teacher/logits_kv", lambda model, vector: cached_logits(
            model, vector["input/class_ids"], vector["input/tokens"])),
        compare("logits_null", "teacher/logits_kv_null", lambda model, vector: cached_logits(
            model, torch.full_like(vector["input/class_ids"], vector.facts["null_class_id"]), vector["input/tokens"])),
        compare("logits_full", "teacher/logits_full_eval", lambda model, vector: model.prefix_logits(
            vector["input/class_ids"], vector["input/tokens"])),
        compare("logits_train", "teacher/logits_train_forward", teacher_logits),
        compare("train_loss", "teacher/train_loss", lambda model, vector: F.cross_entropy(
            teacher_logits(model, vector).flatten(0, 1), vector["input/tokens"].flatten()).view(1), 1e-5),
        compare("hidden_first", "debug/hidden_after_layer0", lambda model, vector: hidden_states(model, vector)[0]),
        compare("hidden_last", "debug/hidden_after_last_layer", lambda model, vector: hidden_states(model, vector)[-1]),
        slot("slot_keys", 0, "debug/k_cache_layer0"),
        slot("slot_values", 1, "debug/v_cache_layer0"),
        greedy("greedy_cfg"),
        greedy("greedy_cfg_interval"),
        greedy("greedy_nocfg"),
        compare("guided_logits", "greedy_cfg/logits", lambda model, vector: generated(
            model, vector["input/class_ids"], sampling_of(vector, "greedy_cfg"))[1]),
        Check("filters", PROBABILITIES, filters, ("filter/logits_in",)),
    ), "the LlamaGen transformer, with and without a cache, and its sampling", ("full",)),
    "small_vq": Kind(tokenizer, (
        compare("code_vectors", "quant", lambda model, vector: model.quantize(
            vector["input/codes"], tuple(vector.facts["config"]["grid"])), 1e-6),
        compare("image", "image", image_of),
        compare("image_bytes", "image_u8_hwc", lambda *arguments: to_uint8(image_of(*arguments)), RARE, by=differing_bytes),
        compare("bicubic", "image_bicubic_two_thirds", resized),
        compare("bicubic_bytes", "image_bicubic_u8_hwc", lambda *arguments: to_uint8(resized(*arguments)), RARE,
                needs=("image_bicubic_two_thirds",), by=differing_bytes),
    ), "LlamaGen's image tokenizer, decoding"),
}
