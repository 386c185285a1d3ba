#!/usr/bin/env bash
# x-transformers caches keys and values for two options whose cached tokens differ, while the model says that it can be cached.
#
# Guess: AutoregressiveWrapper.generate at temperature 0 gives the same tokens with cache_kv=True (the default) and False wherever
# model.can_cache_kv is true; options that cannot be cached set it to false, as attn_selective does.
# Seen with x-transformers 2.31.10, torch 2.15.0 on a CPU: 28 options keep the tokens. shift_tokens=1 changes them from the second
# token on, since the shifted half of the previous token is not cached; attn_data_dependent_alibi=True from the sixth, since the
# forget gates of earlier tokens are not. Both report can_cache_kv = True and warn of nothing.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check x-transformers==2.31.10 torch==2.15.0 einops==0.8.2 numpy==2.3.5
"$folder/env/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
import sys

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

OPTIONS = {
    "none": {}, "rotary_pos_emb": {"rotary_pos_emb": True}, "alibi_pos_bias": {"alibi_pos_bias": True}, "attn_kv_heads": {"attn_kv_heads": 2},
    "attn_num_mem_kv": {"attn_num_mem_kv": 4}, "attn_qk_norm": {"attn_qk_norm": True}, "attn_selective": {"attn_selective": True},
    "shift_tokens": {"shift_tokens": 1}, "attn_data_dependent_alibi": {"attn_data_dependent_alibi": True},
}
verdicts = {}
for name, options in OPTIONS.items():
    torch.manual_seed(0)
    layers = Decoder(dim=64, depth=3, heads=4, attn_dim_head=16, **options)
    model = TransformerWrapper(num_tokens=64, max_seq_len=48, attn_layers=layers)
    for weight in model.parameters():
        if weight.ndim >= 2:
            torch.nn.init.normal_(weight, std=0.3)
    wrapper = AutoregressiveWrapper(model).eval()
    prompt = torch.randint(0, 64, (2, 5))
    cached, plain = (wrapper.generate(prompt, 30, temperature=0.0, cache_kv=cache) for cache in (True, False))
    differing = (cached != plain).any(0).nonzero().flatten().tolist()
    verdicts[name] = model.can_cache_kv, not differing
    print(f"{name}: can_cache_kv {model.can_cache_kv}, equal tokens {not differing}, first other token {differing[:1]}")
expected = dict.fromkeys(OPTIONS, (True, True)) | {
    "attn_selective": (False, True), "shift_tokens": (True, False), "attn_data_dependent_alibi": (True, False),
}
sys.exit(verdicts != expected)
PYTHON
