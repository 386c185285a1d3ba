#!/usr/bin/env bash
# vector-quantize-pytorch's spherical ResidualLFQ (residual bits on a sphere) decodes its own indices to vectors sqrt(d) times too long.
#
# Guess: in eval mode get_output_from_indices(indices) returns the quantized vectors that forward returned with those indices, as the
# other quantizers of the package do, so that an image decoded from stored tokens is the image that was encoded.
# Seen with vector-quantize-pytorch 1.32.0, torch 2.15.0 on a CPU, 16 bits, 1 to 4 quantizers, inputs of length 1: without
# spherical=True both are equal. With it the decoded vectors are 4 = sqrt(16) times as long as forward's: codes are taken on the cube
# and not normalized. Relative error of 4 quantizers: 0.11 from forward, 2.85 from indices. Shapes agree, nothing raises.
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
from vector_quantize_pytorch import ResidualLFQ

ratios = {}
for spherical in (False, True):
    for quantizers in (1, 2, 3, 4):
        torch.manual_seed(0)
        quantizer = ResidualLFQ(dim=16, codebook_size=2**16, num_quantizers=quantizers, spherical=spherical).eval()
        vectors = torch.nn.functional.normalize(torch.randn(2, 64, 16), dim=-1)
        quantized, indices, *_ = quantizer(vectors)
        decoded = quantizer.get_output_from_indices(indices)
        errors = [round((vectors - each).norm(dim=-1).mean().item(), 2) for each in (quantized, decoded)]
        ratios[spherical, quantizers] = round((decoded / quantized).mean().item(), 3)
        print(f"spherical {spherical}, {quantizers} quantizers: decoded / forward {ratios[spherical, quantizers]}, errors {errors}")
sys.exit(any(ratio != (4 if spherical else 1) for (spherical, _), ratio in ratios.items()))
PYTHON
