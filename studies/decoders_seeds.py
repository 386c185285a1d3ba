"""Class accuracy of `scd` with Gumbel coupling and of sequential decoding, at seeds outside the plan `decoders`.

    python -m studies.decoders_seeds [--first 2000] [--images 4000] [--threads 1]

This checks whether a difference found in a table of many values also occurs at fresh seeds, with one value and one interval, chosen
beforehand. The bundled tiny-llamagen runs in fp32 on the CPU, with the window, guidance and batch of the plan; the same network classifies.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from cachemark.cache.arena import Memory
from cachemark.contract.decoder import Decoder
from cachemark.core.seeds import Subset, subset
from cachemark.core.spec import Sampling
from cachemark.decoders.scd import SCD
from cachemark.methods.full import Full
from cachemark.metrics.compute.presets import SCENE, preset
from cachemark.models.protocol import Loaded, Request
from cachemark.models.registry import MODELS
from cachemark.stats.intervals import Interval, mean_over_seeds
from cachemark.trial.child.bench import Job
from tools.pages.writing import ends, rounded

from .origin import Origin

MODEL, SAMPLING, WINDOW, BATCH = "tiny-llamagen", Sampling(cfg_scale=1.5), 4, 25


def right(loaded: Loaded, part: Subset, decoder: Callable[[], Decoder] | None) -> list[float]:
    """Return 1 for each image of the requested class, else 0."""
    job = Job(loaded, Full, Memory(), SAMPLING, part, BATCH, "cpu", decoder=decoder)
    features = preset(SCENE).extract(job.decode(job.generate(chunk)) for chunk in job.chunks())
    return (features.logits.argmax(1) == torch.tensor(part.labels)).double().tolist()


def shown(interval: Interval) -> str:
    """Format a value with the ends of its interval."""
    return ends(rounded(interval), 4)


@torch.inference_mode()
def main() -> None:
    """Print both accuracies and their difference, paired by seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=2000, help="seeds from this one on")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(Origin(arguments.threads))
    loaded = MODELS.get(MODEL).load(Request("cpu", torch.float32))
    every = subset("s10k", 10)
    part = Subset("", *(values[arguments.first : arguments.first + arguments.images] for values in (every.seeds, every.labels)))
    full = right(loaded, part, None)
    print("full", shown(mean_over_seeds(full, (0, 1))), flush=True)
    scd = right(loaded, part, lambda: SCD(window=WINDOW))
    print("full + scd: gumbel", shown(mean_over_seeds(scd, (0, 1))))
    print("difference", shown(mean_over_seeds([b - a for a, b in zip(full, scd, strict=True)], (-1, 1))))


if __name__ == "__main__":
    main()
