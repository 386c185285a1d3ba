#!/usr/bin/env bash
# turboquant's TurboQuantCache keeps what crop removes, what reorder_cache replaces and what reset forgets.
#
# Guess: a subclass of transformers' DynamicCache that is meant as a drop-in replacement follows crop (after rejected drafts),
# reorder_cache (beams) and reset (the next image); each either works or raises.
# Seen with turboquant 0.2.0, torch 2.15.0, transformers 5.23.0, numpy 2.3.5 on a CPU: the inherited functions edit the decoded
# copy alone, and the next update builds that copy again from the codes. After crop(-212) of 512 tokens the next token is number
# 513 and attends to the 212 rejected ones; after reorder_cache([1, 1]) the two rows still differ; after reset the cache holds one
# token and says 513, so rotary positions of the next image start there. Nothing raises.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check turboquant==0.2.0 torch==2.15.0 transformers==5.23.0 numpy==2.3.5 \
    scipy==1.17.1
"$folder/env/bin/python" - <<'PYTHON'
import sys

import torch
from turboquant import TurboQuantCache

draws = torch.Generator().manual_seed(0)
keys, values = torch.randn(2, 2, 4, 513, 64, generator=draws)


def filled() -> TurboQuantCache:
    cache = TurboQuantCache(bits=4)
    cache.update(keys[:, :, :512], values[:, :, :512], 0)
    return cache


def next_keys(cache: TurboQuantCache) -> torch.Tensor:
    return cache.update(keys[:, :, 512:], values[:, :, 512:], 0)[0]


cropped, reordered, emptied = filled(), filled(), filled()
cropped.crop(-212)
reordered.reorder_cache(torch.tensor([1, 1]))
emptied.reset()
after_crop, after_reorder, after_reset = next_keys(cropped), next_keys(reordered), next_keys(emptied)
rows_equal = torch.equal(after_reorder[0, :, :512], after_reorder[1, :, :512])
print("tokens after crop(-212) and one more:", after_crop.shape[2])
print("rows equal after reorder_cache([1, 1]):", rows_equal)
print("after reset and one token: holds", after_reset.shape[2], "says", emptied.get_seq_length())
sys.exit((after_crop.shape[2], rows_equal, after_reset.shape[2], emptied.get_seq_length()) != (513, False, 1, 513))
PYTHON
