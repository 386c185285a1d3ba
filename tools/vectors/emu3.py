"""Vectors of Emu3: two greedy generations with guidance, and the image tokenizer's decoder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from .recording import Recorder, margin, randomize, save, save_manifest, weights_of

CODES, FIRST, LINE_END, CLOSING = 24, 30, 60, (61, 62, 63)  # the last three follow the last line
VOCABULARY = {**{f"<|visual token {code:06d}|>": FIRST + code for code in range(CODES)}, "<|extra_200|>": LINE_END, "<image>": 29}
SCALE, TOP_K = 3.0, 8
RUNS = {  # by name: prompt, negative prompt, lines and codes of a line
    "A": ((1, 7, 8, 9, 11, 5, 20, 6), (1, 10, 12, 5, 20, 6), (4, 6)),
    "B": ((1, 12, 7, 13, 9, 9, 15, 14, 5, 21, 6), (1, 10, 12, 5, 21, 6), (5, 3)),
}
DECODED = {"A": (4, 6), "B": (3, 3)}


def tiny() -> Any:
    """Build a model of 3 layers whose image tokenizer has all parts of the published one."""
    text = hf.Emu3TextConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, attention_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=CLOSING[-1])
    vq = hf.Emu3VQVAEConfig(
        codebook_size=CODES, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=[1, 2], num_res_blocks=1,
        attn_resolutions=[1], hidden_size=64, temporal_downsample_factor=4)
    model = hf.Emu3ForConditionalGeneration(hf.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=VOCABULARY)).eval()
    randomize(model, 0)
    return model


def allowed(start: int, lines: int, line: int) -> Callable[[int, Tensor], list[int]]:
    """Return transformers' documented rule: codes, the end of each line, then the tokens that close the image."""

    def tokens(_: int, ids: Tensor) -> list[int]:
        place = len(ids) - start
        if place >= lines * (line + 1):
            return [CLOSING[place - lines * (line + 1)]]
        return [LINE_END] if (place + 1) % (line + 1) == 0 else list(range(FIRST, FIRST + CODES))

    return tokens


def generate(model: Any, prompt: tuple[int, ...], negative: tuple[int, ...], grid: tuple[int, int]) -> dict[str, Tensor]:
    """Generate one image greedily; return the tensors of the run."""
    recorder = Recorder(("cond", "uncond"))
    hook = model.register_forward_hook(recorder)
    out = model.generate(
        input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), do_sample=False,
        max_new_tokens=grid[0] * (grid[1] + 1) + 3, guidance_scale=SCALE, negative_prompt_ids=torch.tensor([negative]),
        negative_prompt_attention_mask=torch.ones(1, len(negative), dtype=torch.int64), output_scores=True, return_dict_in_generate=True,
        prefix_allowed_tokens_fn=allowed(len(prompt), *grid))
    hook.remove()
    scores = torch.cat(out.scores)
    return {
        "prompt_ids": torch.tensor(prompt), "negative_ids": torch.tensor(negative), "new_tokens": out.sequences[0, len(prompt) :],
        "scores": scores, "kept": hf.TopKLogitsWarper(TOP_K)(None, scores).isfinite(), **recorder.tensors((0, 2)),
    }


def write(tests: Path) -> list[Path]:
    """Write both vectors and the manifest below the folder of the conformance tests."""
    model, folder = tiny(), tests / "vectors" / "emu3"
    text, vq = model.config.text_config, model.config.vq_config
    with torch.no_grad():
        runs = {name: generate(model, *run) for name, run in RUNS.items()}
        images = {name: decoded(model, grid, seed) for seed, (name, grid) in enumerate(DECODED.items())}
    facts = {
        "config": {key: getattr(text, key) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim",
                                                       "num_key_value_heads", "intermediate_size", "rms_norm_eps") if hasattr(text, key)},
        "rope_theta": text.rope_parameters["rope_theta"], "first": FIRST, "codes": CODES, "line_end": LINE_END,
        "cfg_scale": SCALE, "top_k": TOP_K, "margin": min(margin(run["scores"]) for run in runs.values()),
        **{f"run_{name}": {"lines": run[2][0], "line": run[2][1]} for name, run in RUNS.items()},
    }
    tensors = {f"run_{name}/{key}": tensor for name, run in runs.items() for key, tensor in run.items()}
    paths = save(folder, "golden_small", {**weights_of(model, "model.text_model.", "lm_head."), **tensors}, facts)
    needed = tuple(f"model.vqmodel.{part}." for part in ("decoder", "quantize", "post_quant_conv"))
    shape = {key: getattr(vq, key) for key in ("base_channels", "channel_multiplier", "num_res_blocks", "embed_dim", "codebook_size",
                                               "attn_resolutions", "temporal_downsample_factor")}
    pictures = {f"run_{name}/{key}": tensor for name, run in images.items() for key, tensor in run.items()}
    paths += save(folder, "golden_small_vq", {**weights_of(model, *needed), **pictures}, {"config": shape})
    return [*paths, manifest(tests / "emu3" / "manifest_Gen.json")]


def decoded(model: Any, grid: tuple[int, int], seed: int) -> dict[str, Tensor]:
    """Decode random codes with the line ends and closing tokens of a generation."""
    codes = torch.randint(CODES, grid, generator=torch.Generator().manual_seed(seed))
    lines = torch.cat((codes + FIRST, torch.full((grid[0], 1), LINE_END)), 1).flatten()
    image = model.decode_image_tokens(image_tokens=torch.cat((lines, torch.tensor(CLOSING)))[None], height=grid[0], width=grid[1])
    return {"codes": codes, "decoded": image}


def manifest(path: Path) -> Path:
    """Write the parameter names of BAAI/Emu3-Gen-hf, as in transformers before version 5."""
    with torch.device("meta"):
        model = hf.Emu3ForConditionalGeneration(hf.Emu3Config(vocabulary_map=VOCABULARY))
    renames = (r"^lm_head\.", "text_model.lm_head."), (r"^model\.text_model\.", "text_model.model."), (r"^model\.vqmodel\.", "vqmodel.")
    shapes = {}
    for name, tensor in model.state_dict().items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        shapes[name] = list(tensor.shape)
    return save_manifest(path, model, {"file": "BAAI/Emu3-Gen-hf"}, shapes)
