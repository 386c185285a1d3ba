#!/usr/bin/env bash
# vector-quantize-pytorch's quantizers with kmeans_init=True replace their codebook in eval mode, so an image's tokens depend on its batch.
#
# Guess: in eval mode a quantizer writes none of its buffers, as BatchNorm and the quantizers' own moving averages do; a codebook that no
# training has set is used as it is, or refused.
# Seen with vector-quantize-pytorch 1.32.0, torch 2.15.0 on a CPU: the first call in eval mode, under no_grad too, runs k-means on that
# batch and keeps the result: codebook, cluster sizes and averages change, in VectorQuantize, ResidualVQ and HierarchicalVQ (where it is the
# default). Two copies of one quantizer give the same image other tokens if the batches around it differ. Nothing warns.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check vector-quantize-pytorch==1.32.0 torch==2.15.0 einops==0.8.2 einx==0.4.3 \
    numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import copy
import sys

import torch
from vector_quantize_pytorch import HierarchicalVQ, ResidualVQ, VectorQuantize

torch.manual_seed(0)
maps = torch.randn(64, 8, 4, 4)
made = {
    "VectorQuantize": VectorQuantize(dim=8, codebook_size=16, kmeans_init=True, accept_image_fmap=True),
    "ResidualVQ": ResidualVQ(dim=8, codebook_size=16, num_quantizers=2, kmeans_init=True),
    "HierarchicalVQ": HierarchicalVQ(dim=8, codebook_size=16, scales=[1, 2, 4], accept_image_fmap=True),
}
changed, moved = {}, {}
for name, quantizer in made.items():
    inputs = maps.flatten(2).mT if name == "ResidualVQ" else maps
    tokens = []
    for batch in (inputs[:33], torch.cat((inputs[:1], inputs[33:]))):
        copied = copy.deepcopy(quantizer).eval()
        before = {key: value.clone() for key, value in copied.state_dict().items()}
        torch.manual_seed(1)
        with torch.no_grad():
            indices = copied(batch)[1]
        tokens.append(torch.cat([part[0].flatten() for part in (indices if isinstance(indices, (list, tuple)) else [indices])]))
        changed[name] = [key for key, value in copied.state_dict().items() if not torch.equal(value, before[key])]
    moved[name] = int((tokens[0] != tokens[1]).sum())
    print(f"{name}: {len(changed[name])} buffers changed; {moved[name]} of {len(tokens[0])} tokens of one image differ by batch")
sys.exit(not all(any(key.endswith("embed") for key in changed[name]) and moved[name] for name in made))
PYTHON
