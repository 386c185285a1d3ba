#!/usr/bin/env bash
# parti-pytorch's generate ignores cond_scale: each image is made with a guidance of 3.
#
# Guess: cond_scale=1 samples without guidance, in one pass per token, and 10 with strong guidance, so equal seeds give other images.
# Seen with parti-pytorch 0.2.0, torch 2.15.0 on a CPU: at equal seeds the images at 1, 3 and 10 are the same, and each token takes two
# passes. The argument is accepted and not passed on; forward_with_cond_scale, which has it, uses its own default of 3. Called
# directly, its logits do depend on the scale. A sweep over guidance with this package compares a model with itself.
# The text embeddings are random here, instead of T5's, which need a download.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check parti-pytorch==0.2.0 torch==2.15.0 torchvision==0.29.2 numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import sys

import parti_pytorch.parti_pytorch as package
import torch
from parti_pytorch import Parti, VitVQGanVAE

package.get_encoded_dim = lambda name: 32  # the width of T5, which it would look up online
torch.manual_seed(0)
tokenizer = VitVQGanVAE(dim=32, image_size=32, layers=3, codebook_size=64, use_vgg_and_gan=False)
model = Parti(dim=64, depth=2, dim_head=16, heads=4, vae=tokenizer).eval()
embeddings, mask = torch.randn(1, 6, 32), torch.ones(1, 6, dtype=torch.bool)
model.encode_texts = lambda texts, output_device=None: (embeddings, mask)
forward, passes = model.forward, []
model.forward = lambda *given, **options: (passes.append(1), forward(*given, **options))[1]
images, taken = {}, {}
for scale in (1.0, 3.0, 10.0):
    torch.manual_seed(1)
    passes.clear()
    images[scale] = model.generate(["a text"], cond_scale=scale)
    taken[scale] = len(passes) / model.image_encoded_dim**2
given = dict(text_token_embeds=embeddings, text_mask=mask, image_token_ids=torch.zeros(1, 0, dtype=torch.long))
with torch.no_grad():
    direct = [model.forward_with_cond_scale(cond_scale=scale, **given) for scale in (1.0, 10.0)]
moved = (direct[0] - direct[1]).abs().max().item()
same = [torch.equal(image, images[3.0]) for image in images.values()]
print("the image is that of 3 at 1, 3, 10:", same, "passes per token:", list(taken.values()))
print("largest change of the logits from 1 to 10, called directly:", round(moved, 3))
sys.exit(not (all(same) and set(taken.values()) == {2.0} and moved > 0.1))
PYTHON
