#!/usr/bin/env bash
# autorank's table begins with the worst method by default, and its effect sizes are against that one.
#
# Guess: the first row is the best method, of mean rank 1, and effect_size says how far each other is behind it; order="ascending", for
# which lower values are better, begins at the other end.
# Seen with autorank 1.3.0, pandas 2.3.3, numpy 2.3.5, scipy 1.16.3, statsmodels 0.14.6: the rows have the same order either way, from the
# smallest values to the largest. With the default, "descending", the first row has mean rank 3 of 3, and the best method
# is last with a negative effect size. Only with "ascending" is the first row the best.
#
# Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check autorank==1.3.0 pandas==2.3.3 numpy==2.3.5 scipy==1.16.3 \
    statsmodels==0.14.6
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import sys

import numpy as np
import pandas as pd
from autorank import autorank

draws = np.random.default_rng(0)
seeds = draws.normal(size=64)
values = pd.DataFrame({name: seeds + shift + draws.normal(size=64) * 0.1 for name, shift in (("good", 2), ("fair", 1), ("bad", 0))})
tables = {order: autorank(values, order=order).rankdf for order in ("descending", "ascending")}
for order, table in tables.items():
    print(order, [f"{name}: mean rank {row.meanrank:.0f}, effect size {row.effect_size:.2f}" for name, row in table.iterrows()])
rows = [list(table.index) for table in tables.values()]
default = tables["descending"]
sys.exit(not (rows == [["bad", "fair", "good"]] * 2 and list(default.meanrank) == [3, 2, 1] and default.effect_size["good"] < -1))
PYTHON
