#!/usr/bin/env bash
# kvpress's PyramidKVPress gives each layer the same budget as SnapKVPress when it keeps less than half of 576 tokens.
#
# Guess: at each compression ratio the first layers keep more than the last, with the stated ratio as the mean.
# Seen with kvpress 0.5.5, transformers 5.2.0, torch 2.15.0 on a CPU, 576 tokens, a 24 × 24 image, with its defaults: at a ratio of
# 0.5 the layers keep 512, 288 and 64; at 0.6 each keeps 230, at 5/6 each keeps 96, and these are SnapKVPress's tokens (one more
# at 5/6, by rounding). A pyramid needs its smallest layer to hold the window of 64; with beta = 20 that is a twentieth of the mean,
# so all layers fall back to equal budgets unless about half or more is kept, or 1,280 tokens. A comparison of both methods
# at 1/3 to 1/8 of an image's tokens compares one method with itself.
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
from kvpress import PyramidKVPress, SnapKVPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                     num_attention_heads=8, num_key_value_heads=2)).eval()
tokens = torch.randint(0, 500, (1, 576))


def keys(press: SnapKVPress) -> list[torch.Tensor]:
    """Keys (1, heads, entries, channels) that each layer holds after the prompt."""
    cache = DynamicCache()
    with torch.no_grad(), press(model):
        model(tokens, past_key_values=cache)
    return [layer.keys for layer in cache.layers]


sizes, same = {}, []
for removed in (0.5, 0.6, 5 / 6):
    pyramid, snap = keys(PyramidKVPress(compression_ratio=removed)), keys(SnapKVPress(compression_ratio=removed))
    sizes[removed] = [layer.shape[2] for layer in pyramid]
    same.append(all(torch.equal(ours[:, :, : theirs.shape[2]], theirs) for ours, theirs in zip(pyramid, snap)))
    print(f"ratio {removed:.2f}: kept by layer {sizes[removed]}, SnapKVPress {[layer.shape[2] for layer in snap]}, same first keys: {same[-1]}")
sys.exit(not (list(sizes.values()) == [[512, 288, 64], [230] * 3, [96] * 3] and same == [False, True, True]))
PYTHON
