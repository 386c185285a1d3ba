"""Vectors of GLM-Image's autoregressive stage: two greedy generations of a preview and an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from .recording import Recorder, margin, randomize, save, save_manifest, weights_of

CODES, START, END, OUTPUTS = 24, 24, 25, 32  # the head has further outputs
PREVIEW, GRID = 2, 4
PROMPTS = {"A": (40, 41, 42, 50, 52, 51, START), "B": (43, 44, 45, 40, 46, 47, 50, 52, 51, START)}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}


def tiny() -> Any:
    """Build a model of 3 layers whose heads are rotated in half, as in the published one."""
    text = hf.GlmImageTextConfig(
        vocab_size=64, vision_vocab_size=OUTPUTS, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, eos_token_id=END, rope_parameters=ROPE)
    vision = hf.GlmImageVisionConfig(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, image_size=32)
    vq = hf.GlmImageVQVAEConfig(embed_dim=8, num_embeddings=CODES, latent_channels=16)
    model = hf.GlmImageForConditionalGeneration(hf.GlmImageConfig(
        text_config=text, vision_config=vision, vq_config=vq, image_token_id=60, image_start_token_id=START, image_end_token_id=END)).eval()
    randomize(model, 0)
    return model


def generate(model: Any, prompt: tuple[int, ...]) -> dict[str, Tensor]:
    """Generate the codes of one image greedily; return the tensors of the run."""
    recorder = Recorder(("cond",))
    hook = model.register_forward_hook(recorder)
    out = model.generate(
        input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), do_sample=False,
        image_grid_thw=torch.tensor([[1, GRID, GRID], [1, PREVIEW, PREVIEW]]), images_per_sample=torch.tensor([2]),
        max_new_tokens=PREVIEW**2 + GRID**2, prefix_allowed_tokens_fn=lambda row, ids: list(range(CODES)))
    hook.remove()
    return {"prompt_ids": torch.tensor(prompt), "new_tokens": out[0, len(prompt) :], **recorder.tensors((0, 2))}


def write(tests: Path) -> list[Path]:
    """Write the vector and the manifest below the folder of the conformance tests."""
    model = tiny()
    text = model.config.text_config
    with torch.no_grad():
        runs = {name: generate(model, prompt) for name, prompt in PROMPTS.items()}
    facts = {
        "config": {key: getattr(text, key) for key in ("vocab_size", "vision_vocab_size", "hidden_size", "num_hidden_layers",
                                                       "num_attention_heads", "num_key_value_heads", "intermediate_size", "rms_norm_eps")},
        "rope": dict(ROPE), "codes": CODES, "grid": GRID, "preview": PREVIEW,
        "margin": min(margin(run["logits_cond"][:, :CODES]) for run in runs.values()),
    }
    tensors = {f"run_{name}/{key}": tensor for name, run in runs.items() for key, tensor in run.items()}
    weights = weights_of(model, "model.language_model.", "lm_head.")
    paths = save(tests / "vectors" / "glm_image", "golden_small", {**weights, **tensors}, facts)
    return [*paths, manifest(tests / "glm_image" / "manifest_AR.json")]


def manifest(path: Path) -> Path:
    """Write the names in the folder vision_language_encoder of zai-org/GLM-Image."""
    with torch.device("meta"):
        model = hf.GlmImageForConditionalGeneration(hf.GlmImageConfig())
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return save_manifest(path, model, {"file": "zai-org/GLM-Image/vision_language_encoder"}, shapes)
