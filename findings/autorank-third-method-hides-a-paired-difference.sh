#!/usr/bin/env bash
# autorank finds a paired difference between two methods, and none between the same two when a third is in the table.
#
# Guess: rows are pairs, such as equal seeds, so a method that is lower by 0.1 on each of 64 seeds is separated from the baseline (p below
# 10⁻³⁰), with a third method in the table as well: only the correction for three comparisons is added.
# Seen with autorank 1.3.0, pandas 2.3.3, numpy 2.3.5, scipy 1.16.3, statsmodels 0.14.6: two methods get a paired t-test. Of three, with
# normal values of equal spread, the omnibus test is paired (repeated measures) and the test of each pair is not: Tukey's HSD with
# intervals of each mean, whose width is that of the spread between seeds. Baseline and method then fall into one group of
# no significant difference. With force_mode="nonparametric" (Friedman and Nemenyi, which rank within a row) they are separated.
#
# Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check autorank==1.3.0 pandas==2.3.3 numpy==2.3.5 scipy==1.16.3 \
    statsmodels==0.14.6
"$folder/env/bin/python" -W ignore - <<'PYTHON'
import contextlib
import io
import sys

import numpy as np
import pandas as pd
from autorank import autorank, create_report
from scipy.stats import ttest_rel

draws = np.random.default_rng(0)
seeds = draws.normal(size=64)
values = pd.DataFrame({"baseline": seeds, "method": seeds - 0.1 + draws.normal(size=64) * 0.02,
                       "worse": seeds - 0.3 + draws.normal(size=64) * 0.02})


def report(table: pd.DataFrame, **options: str) -> str:
    """Return the tests that were used, and the package's sentences on the result."""
    result, text = autorank(table, **options), io.StringIO()
    with contextlib.redirect_stdout(text):
        create_report(result)
    return f"{result.omnibus}, {result.posthoc}: {text.getvalue()}"


pair, three = report(values[["baseline", "method"]]), report(values)
ranks = report(values, force_mode="nonparametric")
print("paired t-test of baseline and method: p =", ttest_rel(values["baseline"], values["method"]).pvalue)
for name, text in ("two methods", pair), ("three methods", three), ("three methods by ranks", ranks):
    print(f"{name}: {text.split(':')[0]} … {text.strip().splitlines()[-1]}")
hidden = "no significant differences within the following groups: method and baseline" in three
sys.exit(not ("ttest" in pair and "significantly larger" in pair and hidden and "all differences between the populations are significant" in ranks))
PYTHON
