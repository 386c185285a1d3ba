#!/usr/bin/env bash
# cache-dit's PSNR of 8-bit images squares differences modulo 256, so images that differ by 16 levels everywhere are "identical".
#
# Guess: compute_psnr of an image and the same image 16 levels brighter is 20 log10(255 / 16) = 24.05 dB, and noise of 60 levels
# gives a lower PSNR than noise of 20.
# Seen with cache-dit 1.5.3, opencv-python-headless 5.0.0.93, numpy 2.3.5: differences are taken and squared as unsigned bytes. 16
# levels give inf, 40 levels 30.07 dB (right: 16.09) as 8 levels do. Noise of 20 and 60 levels gives 28.6 and 28.1 dB (right: 22.1
# and 13.0), so a cache that ruins images still scores about 28 dB. compute_mse of the same files is right.
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
import sys

import cv2
import numpy as np
from cache_dit.metrics.metrics import compute_mse, compute_psnr

gray = np.full((64, 64, 3), 100, np.uint8)
cv2.imwrite("full.png", gray)


def scores(image: np.ndarray) -> tuple[float, float, float]:
    """Return the printed PSNR, that of exact arithmetic, and the printed mean squared error."""
    cv2.imwrite("cached.png", image)
    squared = float(np.mean((gray.astype(float) - image) ** 2))
    printed, error = (float(score("full.png", "cached.png")[0]) for score in (compute_psnr, compute_mse))
    return round(printed, 2), round(10 * float(np.log10(255**2 / squared)), 2), round(error, 1)


draws = np.random.default_rng(0)
noisy = [np.clip(gray + draws.normal(0, level, gray.shape), 0, 255).astype(np.uint8) for level in (20, 60)]
brighter = {levels: scores(gray + np.uint8(levels)) for levels in (8, 16, 40)}
print("levels brighter -> (printed, exact PSNR, printed MSE):", brighter)
noise = [scores(image) for image in noisy]
print("noise of 20 and 60 levels:", noise)
as_described = (
    brighter[8][0] == brighter[8][1] and brighter[16][0] == float("inf") and brighter[40][0] == brighter[8][0]
    and brighter[40][2] == 1600 and noise[0][0] - noise[0][1] > 5 and noise[1][0] - noise[1][1] > 10
)
sys.exit(not as_described)
PYTHON
