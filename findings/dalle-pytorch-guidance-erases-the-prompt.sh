#!/usr/bin/env bash
# dalle-pytorch's guided generation sets the caller's prompt to zero after the first token, so the rest is generated without it.
#
# Guess: generate_images(text, cond_scale=3) leaves `text` as it is, and the prompt guides each token.
# Seen with dalle-pytorch 1.6.6, torch 2.15.0 on a CPU: the pass without a prompt multiplies a view of `text` by zero in place. The
# caller's tensor is all zeros afterwards, and from the second token on both passes see an empty prompt: an image of 64 tokens
# generated with the prompt in the first step alone is equal, bit for bit. With cond_scale=1 the tensor stays.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
# youtokentome, a dependency that no function used here needs, does not build any more; so each dependency is named.
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 torchvision==0.29.2 einops==0.8.2 omegaconf==2.3.0 \
    pytorch-lightning==1.9.5 setuptools==77.0.3 requests regex ftfy axial_positional_embedding==0.3.12 rotary-embedding-torch==0.9.1
"$folder/env/bin/pip" install --quiet --disable-pip-version-check --no-deps dalle-pytorch==1.6.6 taming-transformers-rom1504==0.0.6 \
    g-mlp-pytorch==0.1.5
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from dalle_pytorch import DALLE, DiscreteVAE

torch.manual_seed(0)
decoder = DiscreteVAE(image_size=32, num_layers=2, num_tokens=64, codebook_dim=32, hidden_dim=16)
model = DALLE(dim=64, vae=decoder, num_text_tokens=50, text_seq_len=8, depth=2, heads=2, dim_head=32).eval()
for weight in model.transformer.parameters():
    if weight.ndim >= 2:
        torch.nn.init.normal_(weight, std=0.2)
prompt = torch.randint(1, 50, (1, 8))


def generated(text: torch.Tensor, scale: float) -> torch.Tensor:
    torch.manual_seed(5)
    return model.generate_images(text, cond_scale=scale, filter_thres=0.99)


plain, guided = prompt.clone(), prompt.clone()
generated(plain, 1.0)
image = generated(guided, 3.0)
print("prompt:", prompt.tolist()[0])
print("after cond_scale=1:", plain.tolist()[0])
print("after cond_scale=3:", guided.tolist()[0])

# The same, with the prompt taken away explicitly after the first of the 64 steps.
steps, forward = 0, model.forward_with_cond_scale


def first_step_only(text: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
    global steps
    steps += 1
    return forward(text.clone() if steps == 1 else torch.zeros_like(text), *rest, **options)


model.forward_with_cond_scale = first_step_only
explicit = prompt.clone()
image_without_prompt = generated(explicit, 3.0)
equal = torch.equal(image, image_without_prompt)
print("steps:", steps, "equal to a prompt in the first step alone:", equal)
sys.exit(not (torch.equal(plain, prompt) and not guided.any() and torch.equal(explicit, prompt) and equal))
PYTHON
