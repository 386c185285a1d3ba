#!/usr/bin/env bash
# piq's srsim gives a pair of images another score when other pairs are in the batch.
#
# Guess: with reduction="none" each pair is scored by itself, as with piq's ssim, fsim and vsi, so a loader's batch size does not matter.
# Seen with piq 0.8.0, torch 2.15.0 on a CPU: three pairs, scored together and one by one, differ by up to 0.35 on a scale that ends at 1;
# ssim, fsim and vsi differ by less than 10⁻⁶. Its saliency maps are scaled to 0 … 1 by the least and largest value of the whole
# batch, not of each image, and one image of little contrast lowers the others.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check piq==0.8.0 torch==2.15.0 torchvision==0.29.2 numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import sys

import piq
import torch

torch.manual_seed(0)
images = torch.nn.functional.avg_pool2d(torch.rand(3, 3, 384, 384), 4)
images = (images - images.amin()) / (images.amax() - images.amin())
images[2] = images[2] * 0.1 + 0.45  # of little contrast
noisy = (images + torch.randn_like(images) * 0.05).clamp(0, 1)
apart = {}
for metric in (piq.ssim, piq.fsim, piq.vsi, piq.srsim):
    together = metric(images, noisy, reduction="none").flatten()
    alone = torch.cat([metric(one, other, reduction="none").flatten() for one, other in zip(images.split(1), noisy.split(1))])
    apart[metric.__name__] = (together - alone).abs().max().item()
    print(metric.__name__, "together", [round(score, 3) for score in together.tolist()], "one by one", [round(score, 3) for score in alone.tolist()])
srsim = apart.pop("srsim")
sys.exit(not (srsim > 0.02 and max(apart.values()) < 1e-5))
PYTHON
