"""Parameter sweep for LineAR's default ``anchor``, since the paper states neither it nor ``recent_lines``.

Teacher-forced KL to the full cache on the bundled model over the tuning seeds ``tune64``, which no evaluation uses, for
anchors of up to two lines and one to three recent lines at a half and a quarter of the cache.

    python -m studies.linear_defaults [--threads 2]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from scipy.stats import bootstrap

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout
from cachemark.core import seeds
from cachemark.core.errors import BadBudget
from cachemark.machine.environment import environment
from cachemark.methods.base.evicting import visual_budget
from cachemark.methods.full import Full
from cachemark.methods.linear import Linear
from cachemark.models.catalogue import next_token
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans.reuse import code_identity
from cachemark.trial.child.bench import FullCacheOutput, Job
from cachemark.trial.child.judge import divergence


def main() -> None:
    """Print one line per budget and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    entry = MODELS.get(next_token.TINY_NAME)
    loaded, sampling = entry.load(Request()), entry.presets["paper"]
    subset = seeds.subset("tune64", entry.classes)
    full = Job(loaded, Full, Memory(), sampling, subset, 64, "cpu")
    reference, layout = FullCacheOutput(full), entry.shape(sampling, 64)
    print(f"commit {code_identity()['commit'][:10]}, {environment('cpu', threads).machine_class}, {subset.name}, {len(subset)} samples")
    for budget in (Fraction(1, 2), Fraction(1, 4)):
        size = visual_budget(budget, layout)
        for recent in (1, 2, 3):
            for anchor in (0, 4, 8, 16, 32):
                parameters = {"B": size, "anchor": anchor, "recent_lines": recent}
                if fits(parameters, layout):
                    kl = divergence(replace(full, method=partial(Linear.build, parameters), memory=Memory()), reference).numpy()
                    low, high = bootstrap((kl,), np.mean, rng=0).confidence_interval
                    setting = f"B = {size:3d}  recent_lines = {recent}  anchor = {anchor:2d}"
                    print(f"{setting}  KL {kl.mean():.4f}  [{low:.4f}, {high:.4f}]", flush=True)


def fits(parameters: dict[str, int], layout: Layout) -> bool:
    """Return whether the budget leaves a line to evict in addition to anchor and recent lines."""
    try:
        Linear.build(parameters).resolve(layout)
    except BadBudget:
        return False
    return True


if __name__ == "__main__":
    main()
