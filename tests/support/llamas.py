"""A small Llama that draws images, in the folder as the transformers library publishes it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from cachemark.models.llama import LlamaConfig
from cachemark.models.llama_like import LlamaLike, LlamaLikeConfig
from cachemark.models.prompts import Prompts

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "tie_word_embeddings": False}  # fmt: skip
FACTS = ("--first-code", "40", "--codes", "24", "--grid", "4", "--begin", "<s>", "--image", "<image>", "--cfg-scale", "3")
TOKENIZER = {  # words, as the tokenizers library writes them
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "red": 1, "star": 2}, "unk_token": "<unk>"},
    "added_tokens": [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                      "special": True} for number, token in ((3, "<s>"), (4, "<image>"))],
}  # fmt: skip


def describe_to(folder: Path) -> Path:
    """Write what lies beside the weights: the configuration and the tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def publish(folder: Path) -> Path:
    """Write the whole folder, its weights in two shards with their index."""
    config = LlamaLikeConfig(LlamaConfig(2, 4, 32, 48, 64, 2), 40, 24, 4, ())
    torch.manual_seed(0)
    tensors = {name: torch.randn_like(value) / 6 for name, value in LlamaLike(config, Prompts()).state_dict().items()}
    describe_to(folder)
    of = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for shard in set(of.values()):
        save_file({name: tensors[name] for name in tensors if of[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": of}))
    return folder
