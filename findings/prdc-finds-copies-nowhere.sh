#!/usr/bin/env bash
# prdc (precision, recall, density, coverage of features) gives a set with copies 0 against itself in all four.
#
# Guess: a set compared with itself has precision, recall and coverage 1, whatever is in it: each point lies on itself. Copies, as greedy
# decoding or a collapsed sampler makes them, raise density at most.
# Seen with prdc 0.2, scikit-learn 1.8.0, numpy 2.3.5: without copies precision, recall and coverage are 1. With each feature vector k + 1 times and nearest_k = k,
# the distance to the k-th neighbor is 0, and no distance is below 0: precision, recall, density and coverage are 0. One copy
# less, and all but density are 1. Features are whole numbers here; rounding in others makes the result anything between 0 and 1.
#
# Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check prdc==0.2 scikit-learn==1.8.0 numpy==2.3.5
"$folder/env/bin/python" - <<'PYTHON'
import sys

import numpy as np
from prdc import compute_prdc

features = np.random.default_rng(0).integers(-9, 10, size=(60, 16)).astype(float)
seen = {}
for copies in (1, 5, 6):
    repeated = np.repeat(features, copies, axis=0)
    seen[copies] = {name: float(value) for name, value in compute_prdc(repeated, repeated, nearest_k=5).items()}
    print(copies, seen[copies])
others = ("precision", "recall", "coverage")
sys.exit(not (all(seen[copies][name] == 1 for copies in (1, 5) for name in others) and not any(seen[6].values())))
PYTHON
