#!/usr/bin/env bash
# vector-quantize-pytorch's FSQ with its defaults assigns most of its own codebook vectors to other codes.
#
# Guess: quantizing a vector of the codebook returns that vector's index, as with VectorQuantize, LFQ and SimVQ; so tokens of an
# image survive decoding to codes and quantizing again.
# Seen with vector-quantize-pytorch 1.32.0, torch 2.15.0 on a CPU: inputs pass a tanh first, so a codebook vector is moved toward
# the middle. With an even number of levels, or 7, some land in the next cell: of levels [4, 4] 9 of 16 codes stay, of
# [8, 8, 8, 6, 5] 1,280 of 15,360. With bound_hard_clamp=True, which is off by default, all stay.
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
from vector_quantize_pytorch import FSQ


def kept(levels: list[int], **options: bool) -> tuple[int, int]:
    """Return how many codebook vectors are assigned to their own index, and the size of the codebook."""
    quantizer = FSQ(levels, **options).eval()
    codebook = quantizer.implicit_codebook
    again = quantizer(codebook[None])[1][0]
    return int((again == torch.arange(len(codebook))).sum()), len(codebook)


odd, even, image = kept([5, 5, 5]), kept([4, 4]), kept([8, 8, 8, 6, 5])
clamped = kept([8, 8, 8, 6, 5], bound_hard_clamp=True)
print("levels 5 5 5:", odd, "4 4:", even, "8 8 8 6 5:", image, "with bound_hard_clamp:", clamped)
sys.exit((odd, even, image, clamped) != ((125, 125), (9, 16), (1280, 15360), (15360, 15360)))
PYTHON
