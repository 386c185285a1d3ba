#!/usr/bin/env bash
# sewar's universal quality index of an image and its negative is +0.49; by its definition it is about −1.
#
# Guess: uqi multiplies correlation, luminance and contrast in windows of 8 × 8, as Wang and Bovik define it (2002), so an image
# against its negative, whose correlation is −1, is close to −1, and noise on an image without structure lowers it as SSIM.
# Seen with sewar 0.4.10, numpy 2.3.5, scipy 1.17.1: its moments are means over a window, which it puts into the formula for sums.
# A product of means is then weighted 1/64 of what the covariance needs, and the index measures mainly that both images are bright:
# +0.49 for the negative. sewar's ssim is −0.98 for the same pair, and the index from its definition is −0.99.
#
# Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check sewar==0.4.10 numpy==2.3.5 scipy==1.17.1 pillow==12.0.0
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
from sewar.full_ref import ssim, uqi

SIDE = 8


def defined(first: np.ndarray, second: np.ndarray) -> float:
    """Mean over all windows and channels of 4 cov · mean · mean / ((var + var)(mean² + mean²))."""
    windows = np.lib.stride_tricks.sliding_window_view
    x, y = (windows(image.astype(float), (SIDE, SIDE), axis=(0, 1)).reshape(-1, SIDE * SIDE) for image in (first, second))
    mean_x, mean_y = x.mean(1), y.mean(1)
    covariance = ((x - mean_x[:, None]) * (y - mean_y[:, None])).mean(1)
    quality = 4 * covariance * mean_x * mean_y / ((x.var(1) + y.var(1)) * (mean_x**2 + mean_y**2))
    return float(quality.mean())


image = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
results = {}
for name, other in ("itself", image), ("negative", 255 - image):
    results[name] = float(uqi(image, other)), defined(image, other), float(ssim(image, other)[0])
    print(f"an image and {name}: uqi {results[name][0]:.3f}, by its definition {results[name][1]:.3f}, ssim {results[name][2]:.3f}")
same, negative = results["itself"], results["negative"]
described = min(same) > 0.99 and negative[0] > 0.4 and max(negative[1:]) < -0.9
sys.exit(not described)
PYTHON
