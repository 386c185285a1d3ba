#!/usr/bin/env bash
# kvpress's LagKVPress at 1/6 of 576 tokens keeps the same unscored tokens in every head, without its sinks and the latest tokens.
#
# Guess: of 576 tokens, a 24 × 24 image, it keeps the 4 sinks, the latest tokens, and by score the best of the others, which differ
# from head to head.
# Seen with kvpress 0.5.5, transformers 5.2.0, torch 2.15.0 on a CPU: sinks and the last partition with its remainder, 192 tokens
# here, all score exactly 1, more than any scored token. 95 are kept, so they are drawn from these ties by the order in which
# topk returns them: in every layer and head the same tokens, none of the 4 sinks and none of the last 64. At 1/2 the press does
# as its paper says. The ties are reached whenever fewer tokens are kept than the sinks and the tail hold, 132 to 259 by length.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check kvpress==0.5.5 torch==2.15.0 transformers==5.2.0 numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch
from kvpress import LagKVPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

TOKENS, SINKS = 576, range(4)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                     num_attention_heads=8, num_key_value_heads=2)).eval()
tokens = torch.randint(0, 500, (1, TOKENS))


def keys(press: LagKVPress | None) -> list[torch.Tensor]:
    """Keys (heads, entries, channels) of each layer after the prompt."""
    cache = DynamicCache()
    with torch.no_grad():
        if press is None:
            model(tokens, past_key_values=cache)
        else:
            with press(model):
                model(tokens, past_key_values=cache)
    return [layer.keys[0] for layer in cache.layers]


def kept(removed: float) -> list[set[int]]:
    """Positions kept in each head of each layer: the position of the equal key in the full cache."""
    return [set(torch.cdist(few, every).argmin(dim=1).tolist())
            for layer, full in zip(keys(LagKVPress(compression_ratio=removed)), keys(None)) for few, every in zip(layer, full)]


half, sixth = kept(1 / 2), kept(5 / 6)
for name, heads in ("1/2", half), ("1/6", sixth):
    print(f"at {name}:", len(heads[0]), "kept; different sets:", len({frozenset(head) for head in heads}), "of", len(heads),
          "heads; sinks kept:", [len(head & set(SINKS)) for head in heads],
          "of the last 64:", [len(head & set(range(TOKENS - 64, TOKENS))) for head in heads])
alike = all(head == sixth[0] for head in sixth) and not sixth[0] & set(SINKS)
as_meant = len({frozenset(head) for head in half}) == len(half) and all(set(SINKS) <= head for head in half)
sys.exit(not (alike and as_meant and len(sixth[0]) == 95))
PYTHON
