"""Tiny random models of transformers, and ours with the same weights."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from cachemark.cache import random_streams as streams
from cachemark.models import emu3, janus
from cachemark.models.lined import ImageIds
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts

CACHE = "cache" if "cache" in inspect.signature(hf.LlamaModel.forward).parameters else "past_key_values"  # argument of a pass
BEGIN, PAD, IMAGE = 1, 0, 5
SIDE = 8  # of the grid of Janus
PROMPTS = ((BEGIN, 7, 8, 9, 11, IMAGE), (BEGIN, 12, 7, IMAGE), (BEGIN, 9, 13, 10, 8, IMAGE))
LAYERS, HEADS, DIM, HIDDEN, CODES = 2, 4, 32, 64, 24
SHAPE: dict[str, Any] = {
    "hidden_size": DIM, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "attention_dropout": 0.0}


def randomized(model: torch.nn.Module, seed: int) -> None:
    """Draw weights at which attention matters: the libraries' own initial weights are too small."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.25, generator=generator)


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return ids and mask (prompts, longest), padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def their_janus() -> Any:
    """Build Janus of transformers for images of 8×8 tokens."""
    config = hf.JanusConfig(
        text_config=hf.LlamaConfig(**SHAPE, num_key_value_heads=HEADS, vocab_size=64, max_position_embeddings=128),
        vision_config=hf.JanusVisionConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=SIDE * 16, mlp_ratio=1.0,
                                        projection_dim=DIM, num_image_tokens=SIDE**2),
        vq_config=hf.JanusVQVAEConfig(embed_dim=8, num_embeddings=CODES, latent_channels=8, base_channels=32, channel_multiplier=[1, 1],
                                   num_res_blocks=1, projection_dim=DIM, image_token_embed_dim=DIM),
        image_token_id=60)
    model = hf.JanusForConditionalGeneration(config).eval()
    randomized(model, 0)
    settings = model.generation_config
    settings.pad_token_id, settings.bos_token_id, settings.generation_kwargs = PAD, BEGIN, {"boi_token_id": IMAGE}
    return model


def our_janus(theirs: Any) -> janus.Janus:
    config = janus.JanusConfig(LlamaConfig(LAYERS, HEADS, DIM, HIDDEN, 64), codes=CODES, code_dim=8, grid=SIDE)
    ours = janus.Janus(config, Prompts(PROMPTS, tuple(janus.unconditional(prompt, PAD) for prompt in PROMPTS))).eval()
    copied(theirs, ours, janus.official)
    return ours


def copied(theirs: Any, ours: torch.nn.Module, name_of: Callable[[str], str]) -> None:
    weights = {name_of(name): tensor for name, tensor in theirs.state_dict().items()}
    ours.load_state_dict({name: weights[name] for name in ours.state_dict()})


GRID = (12, 4)
FIRST, LINE_END, FRAME_END, IMAGE_END, END = 30, 60, 61, 62, 63
NEGATIVE = (BEGIN, 10, IMAGE)


def their_emu3() -> Any:
    words = {f"<|visual token {code:06d}|>": FIRST + code for code in range(CODES)}
    text = hf.Emu3TextConfig(
        **SHAPE, num_key_value_heads=2, vocab_size=64, max_position_embeddings=128, pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END)
    vq = hf.Emu3VQVAEConfig(
        codebook_size=CODES, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1,
        attn_resolutions=[], hidden_size=32, temporal_downsample_factor=1)
    model = hf.Emu3ForConditionalGeneration(hf.Emu3Config(
        text_config=text, vq_config=vq, vocabulary_map={**words, "<|extra_200|>": LINE_END, "<image>": 29})).eval()
    randomized(model, 1)
    return model


def our_emu3(theirs: Any) -> emu3.Emu3:
    """Build our model with the same weights, for ``PROMPTS`` and ``NEGATIVE``."""
    shape = LlamaConfig(LAYERS, HEADS, DIM, HIDDEN, 64, kv_heads=2, norm_eps=1e-5, rope_base=1e6)
    config = emu3.Emu3Config(shape, *GRID, ImageIds(FIRST, CODES, LINE_END))
    ours = emu3.Emu3(config, Prompts(PROMPTS, (NEGATIVE,) * len(PROMPTS))).eval()
    copied(theirs, ours, emu3.official)
    return ours


def emu3_settings(rows: int, guidance: float) -> dict[str, Any]:
    """Return the arguments of ``generate`` that make an image of ``GRID``, as the documentation of transformers has them."""
    height, width = GRID

    def allowed(row: int, ids: Tensor) -> list[int]:
        made = ids.size(0) - longest
        if made < height * (width + 1):
            return [LINE_END] if (made + 1) % (width + 1) == 0 else list(range(FIRST, FIRST + CODES))
        return [(FRAME_END, IMAGE_END, END)[made - height * (width + 1)]]

    longest = max(map(len, PROMPTS[:rows]))
    negative = padded([NEGATIVE] * rows)
    settings = {"max_new_tokens": 500, "prefix_allowed_tokens_fn": allowed, "guidance_scale": guidance}
    if guidance > 1:
        settings |= {"negative_prompt_ids": negative["input_ids"], "negative_prompt_attention_mask": negative["attention_mask"]}
    return settings


def keyed_multinomial(seeds: Sequence[int]) -> Callable[..., Tensor]:
    """Return a replacement of ``torch.multinomial`` that draws as our models do, by Gumbel-max keyed by seed and position."""
    positions = iter(range(10**6))

    def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
        key = streams.keys(torch.tensor(seeds), "token", next(positions))
        return (probabilities.log() + streams.gumbel(key, probabilities.size(-1))).argmax(-1, keepdim=True)

    return multinomial


class Interrupt(hf.LogitsProcessor):
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return scores
