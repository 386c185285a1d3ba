"""Parameter sweep for the defaults of SSD heads.

The paper states neither its threshold nor whether semantic heads keep the latest tokens. This prints the teacher-forced KL to the full
cache on the bundled model over the tuning seeds ``tune64``, which no evaluation uses, for thresholds from a window (``tau`` = 0) to H2O
(1), for numbers of spared tokens, and with a buffer, at a half and a quarter of the cache.

    python -m studies.ssd_heads_defaults [--threads 2] [--samples 64]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import bootstrap

from cachemark.cache.arena import Memory
from cachemark.core import seeds
from cachemark.core.spec import Budget
from cachemark.machine.environment import environment
from cachemark.methods.full import Full
from cachemark.methods.ssd_heads import SSDHeads
from cachemark.models.catalogue import next_token
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import resolve
from cachemark.plans.reuse import code_identity
from cachemark.trial.child.bench import FullCacheOutput, Job
from cachemark.trial.child.judge import divergence

SETTINGS: list[dict[str, Any]] = [
    *({"tau": tau} for tau in (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)),
    *({"recent": recent} for recent in (1, 16)),
    {"buffer": "line"},
]


def main() -> None:
    """Print one line per budget and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    entry = MODELS.get(next_token.TINY_NAME)
    loaded, sampling = entry.load(Request()), entry.presets["paper"]
    subset = seeds.subset("tune64", entry.classes).first(asked.samples)
    full = Job(loaded, Full, Memory(), sampling, subset, len(subset), "cpu")
    reference, layout = FullCacheOutput(full), entry.shape(sampling, len(subset))
    machine = environment("cpu", asked.threads).machine_class
    print(f"commit {code_identity()['commit'][:10]}, {machine}, {subset.name}, {len(subset)} samples")
    for budget in ("1/4", "1/2"):
        for setting in SETTINGS:
            parameters = resolve(SSDHeads, Budget.parse(budget), layout, setting, loaded.weights)
            method = SSDHeads.build(parameters)
            method.resolve(layout)
            kl = divergence(replace(full, method=partial(SSDHeads.build, parameters), memory=Memory()), reference).numpy()
            low, high = bootstrap((kl,), np.mean, rng=0).confidence_interval
            shown = "  ".join(f"{parameter} = {parameters[parameter]}" for parameter in ("B", "tau", "recent", "buffer"))
            spatial = f"{sum(map(sum, method.spatial)):2d} of {layout.layers * layout.kv_heads} heads spatial"
            print(f"{shown}  {spatial}  KL {kl.mean():.4f}  [{low:.4f}, {high:.4f}]", flush=True)


if __name__ == "__main__":
    main()
