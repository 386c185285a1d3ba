#!/usr/bin/env bash
# kvpress's CompactorPress keeps other tokens of a prompt when another prompt shares its batch.
#
# Guess: which tokens of a row are kept depends on that row alone, as with KnormPress, SnapKVPress and KeyDiffPress; so a result does
# not depend on the batch size.
# Seen with kvpress 0.5.5, transformers 5.2.0, torch 2.15.0 on a CPU: its leverage scores are standardized by mean and standard
# deviation over all rows and heads of the batch before the attention scores are added, so the second prompt changes which tokens of the
# first are kept in most heads. Equal seeds are set before each run, and with one prompt the same tokens are kept each time.
# LeverageScorePress, which ranks by these scores alone, keeps the same tokens either way.
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
from kvpress import CompactorPress, KeyDiffPress, KnormPress, LeverageScorePress, ScorerPress, SnapKVPress
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
                                     num_attention_heads=8, num_key_value_heads=2)).eval()
tokens = torch.randint(0, 500, (2, 300))


def keys(press: ScorerPress | None, rows: int) -> list[torch.Tensor]:
    """Keys (heads, entries, channels) of the first prompt in each layer, of a batch of ``rows`` prompts."""
    cache = DynamicCache()
    torch.manual_seed(1)  # for the Gaussian sketch, which has more dimensions than a head, so that leverage scores hardly depend on it
    with torch.no_grad():
        if press is None:
            model(tokens[:rows], past_key_values=cache)
        else:
            with press(model):
                model(tokens[:rows], past_key_values=cache)
    return [layer.keys[0] for layer in cache.layers]


def kept(press: ScorerPress, rows: int) -> list[set[int]]:
    """Positions kept in each head of each layer."""
    return [set(torch.cdist(few, every).argmin(dim=1).tolist())
            for layer, full in zip(keys(press, rows), keys(None, rows)) for few, every in zip(layer, full)]


changed = {}
for cls in (KnormPress, SnapKVPress, KeyDiffPress, LeverageScorePress, CompactorPress):
    alone, again, beside = (kept(cls(compression_ratio=0.5), rows) for rows in (1, 1, 2))
    changed[cls.__name__] = sum(a != b for a, b in zip(alone, beside))
    print(cls.__name__, "heads that keep other tokens with a second prompt:", changed[cls.__name__], "of", len(alone),
          "repeats alone:", alone == again)
compactor = changed.pop("CompactorPress")
sys.exit(not (compactor >= 3 and not any(changed.values())))
PYTHON
