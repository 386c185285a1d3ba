#!/usr/bin/env bash
# vector-quantize-pytorch's ResidualVQ raises for every feature map of more than one place, with the argument that is made for them.
#
# Guess: with accept_image_fmap=True, ResidualVQ takes maps (batch, channels, height, width) and returns one of that shape, as
# VectorQuantize does with the same argument; a residual tokenizer of images needs it.
# Seen with vector-quantize-pytorch 1.32.0, torch 2.15.0 on a CPU: the call raises RuntimeError (sizes of tensors must match), in eval
# and in training mode, with any number of quantizers. Residuals are collected in a tensor of the map's shape, though they are
# sequences by then. VectorQuantize takes the same map.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check vector-quantize-pytorch==1.32.0 torch==2.15.0 einops==0.8.2 einx==0.4.3 \
    numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch
from vector_quantize_pytorch import ResidualVQ, VectorQuantize

torch.manual_seed(0)
maps = torch.randn(2, 32, 4, 4)
single, *_ = VectorQuantize(dim=32, codebook_size=64, accept_image_fmap=True).eval()(maps)
print("VectorQuantize", tuple(single.shape))
raised = []
for training in (False, True):
    for quantizers in (1, 2, 4):
        quantizer = ResidualVQ(dim=32, codebook_size=64, num_quantizers=quantizers, accept_image_fmap=True).train(training)
        try:
            quantizer(maps)
        except RuntimeError as error:
            raised.append(str(error))
            print("ResidualVQ", "training" if training else "eval", quantizers, "RuntimeError:", error)
sys.exit(not (single.shape == maps.shape and len(raised) == 6))
PYTHON
