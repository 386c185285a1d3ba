"""CPU time and memory of ``cachemark score`` and of torch-fidelity's ``fidelity`` on the same images and weights.

    python benchmarks/score.py --images 10000 --folder /tmp/score

Images are noise of 256×256 pixels as PNG files; the reference is another folder. The weights are random, of torch-fidelity's layout,
because the published ones are a download and do not change the work. Both commands compute FID, KID, Inception score, precision and
recall by the same features; cachemark also sFID and intervals. CPU seconds are of the process and its children, memory is the peak of
the sum of their proportional set sizes. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from cachemark.plans.reuse import code_identity

TICK = 0.5  # seconds between two looks at the memory


class Cost(NamedTuple):
    """CPU seconds, wall seconds and peak bytes of a command."""

    cpu: float
    wall: float
    peak: int


class Unfilled(FeatureExtractorInceptionV3):
    """torch-fidelity's network as it is built, before weights are read."""

    def load_state_dict(self, *_: Any, **__: Any) -> None:  # type: ignore[override]
        return None


def write_weights(path: Path) -> None:
    """Write random weights in the layout of the published file."""
    nothing = io.BytesIO()
    torch.save({}, nothing)
    nothing.seek(0)
    draws = torch.Generator().manual_seed(0)
    state = Unfilled("unfilled", ["2048"], feature_extractor_weights_path=nothing).state_dict()
    for tensor in state.values():
        if tensor.dim() > 1:
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=draws)
    torch.save(state, path)


def write_images(folder: Path, count: int, seed: int, prefix: str = "") -> None:
    """Write smooth images with noise, unless the folder has as many."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(seed)
    for number in range(len(list(folder.iterdir())), count):
        coarse = Image.fromarray(draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((256, 256), Image.Resampling.BICUBIC)
        noisy = np.asarray(coarse) + draws.normal(0, 4, (256, 256, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{prefix}{number:06d}.png", compress_level=1)


def measured(command: list[str], cache: Path, threads: int) -> Cost:
    """Run a command, and return its cost. Raises CalledProcessError."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "XDG_CACHE_HOME": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    began, before = time.monotonic(), os.times()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _bytes(process.pid))
        time.sleep(TICK)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(cpu, time.monotonic() - began, peak)


def _bytes(pid: int) -> int:
    """Return the proportional set size of a process and its descendants; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return 0
    own = next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
    return own + sum(_bytes(int(child)) for child in children)


def main() -> None:
    """Measure both commands, the second score of the same folder, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--real", type=int, default=2_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    weights, fake, real, cache = (given.folder / name for name in ("inception.pth", f"fake{given.images}", f"real{given.real}", "cache"))
    write_images(fake, given.images, 1)
    write_images(real, given.real, 2, "real")  # other names: sets, not pairs
    write_weights(weights)
    bin_ = Path(sys.executable).parent
    subset = str(min(1000, given.real, given.images))
    commands = {
        "fidelity": [str(bin_ / "fidelity"), "--fid", "--kid", "--isc", "--prc", "--kid-subset-size", subset,
                     "--feature-extractor", "inception-v3-compat", "--feature-extractor-weights-path", str(weights), "--silent",
                     "--no-cache", "--input1", str(fake), "--input2", str(real)],
        "score": [str(bin_ / "cachemark"), "score", str(fake), str(real), "--weights", str(weights)],
    }
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0] if names else "unknown CPU"
    print(f"{given.images} images against {given.real}, {given.threads} threads, {cpu}, commit {code_identity()['commit'][:8]}\n")
    print("| command | CPU s | wall s | peak MiB | CPU ratio | memory ratio |\n|---|---|---|---|---|---|", flush=True)
    costs = dict[str, Cost]()
    for name, command in (*commands.items(), ("score again", commands["score"])):
        costs[name] = cost = measured(command, cache, given.threads)
        base = costs["fidelity"]
        ratios = f"{cost.cpu / base.cpu:.3f} | {cost.peak / base.peak:.2f}"
        print(f"| {name} | {cost.cpu:.0f} | {cost.wall:.0f} | {cost.peak / 2**20:.0f} | {ratios} |", flush=True)
    print(f"\nscore again / score: {costs['score again'].cpu / costs['score'].cpu:.3f} of the CPU time")
    for name, command in commands.items():
        print(f"{name}: {' '.join(command)}")


if __name__ == "__main__":
    main()
