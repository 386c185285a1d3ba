#!/usr/bin/env bash
# cache-dit pairs the images of two folders by their place in a sorted list, so one missing image drops all pairs after it.
#
# Guess: with images 0 to 9 in one folder and all but 1 in the other, compute_psnr compares the nine pairs of equal names, or says
# that the folders differ.
# Seen with cache-dit 1.5.3, opencv-python-headless 5.0.0.93, numpy 2.3.5: files are sorted by number, zipped, and kept where both
# names are equal. Here only image 0 is left: the mean is that of one pair, without a warning. With image 0 missing as well none is left,
# and the result is (None, None).
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check cache-dit==1.5.3 torch==2.15.0 diffusers==0.42.1 numpy==2.3.5 \
    opencv-python-headless==5.0.0.93 scikit-image==0.26.0
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import pathlib
import sys

import cv2
import numpy as np
from cache_dit.metrics.metrics import compute_psnr

draws = np.random.default_rng(0)
full, cached = pathlib.Path("full"), pathlib.Path("cached")
full.mkdir()
cached.mkdir()
for number in range(10):
    image = draws.integers(20, 200, (64, 64, 3)).astype(np.uint8)
    cv2.imwrite(str(full / f"{number}.png"), image)
    # Image 0 is 2 levels off, the others 10, so the mean shows which pairs were compared.
    cv2.imwrite(str(cached / f"{number}.png"), image + np.uint8(2 if number == 0 else 10))
whole = compute_psnr("full", "cached")
(cached / "1.png").unlink()
without_second = compute_psnr("full", "cached")
(cached / "0.png").unlink()
without_first = compute_psnr("full", "cached")
print("all ten pairs:", whole)
print("image 1 missing:", without_second)
print("images 0 and 1 missing:", without_first)
counts = whole[1], without_second[1], without_first[1]
sys.exit(counts != (10, 1, None) or not float(without_second[0]) > 42)
PYTHON
