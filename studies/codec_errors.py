"""Relative squared error of codecs on keys and values of the bundled models, by bytes of a vector.

    python -m studies.codec_errors --images 4 --json FILE

Errors are means over layers, one for each of three rotations for the codecs that rotate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cachemark.cache import rotated
from cachemark.cache.arena import Memory
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Site, Step
from cachemark.methods.full import Full
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS

from .origin import Origin

MODEL_NAMES = ("tiny-llamagen", "tiny-var")
NAMES = ("int8", "int4", "rot4", "turbo4", "turbo3", "turbo2")
SEEDS = (rotated.SEED, 1, 2)


@dataclass
class Recording(Full):
    """The full cache, which keeps a copy of all keys and values by layer."""

    def begin(self, *arguments: object) -> None:
        super().begin(*arguments)  # type: ignore[arg-type]
        self.vectors: dict[tuple[str, int], list[Tensor]] = {}

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for name, x in (("keys", k), ("values", v)):
            self.vectors.setdefault((name, site.layer), []).append(x.reshape(-1, x.size(-1)).clone())
        return super().attend(site, step, q, k, v)


def errors(vectors: dict[tuple[str, int], list[Tensor]], name: str, part: str) -> float:
    """Return the mean over layers of Σ‖x − x̃‖² / Σ‖x‖²."""
    codec = CODECS[name]
    by_layer = [torch.cat(recorded) for (kind, _), recorded in vectors.items() if kind == part]
    return float(np.mean([float((codec.decode(codec.encode(x), torch.float32) - x).square().sum() / x.square().sum()) for x in by_layer]))


@torch.inference_mode()
def measured(images: int) -> Iterator[dict[str, object]]:
    """Yield a row for each model, part and codec."""
    for model_name in MODEL_NAMES:
        entry, method = MODELS.get(model_name), Recording()
        model = entry.load(Request()).generator
        model.generate(torch.arange(images), list(range(images)), method, entry.presets["paper"], Memory())
        width = method.layout.head_dim
        for part in ("keys", "values"):
            for name in NAMES:
                by_seed = []
                for seed in SEEDS if name.startswith(("rot", "turbo")) else SEEDS[:1]:
                    rotated.SEED = seed
                    rotated._tables.clear()
                    by_seed.append(round(errors(method.vectors, name, part), 5))
                size = CODECS[name].entry_bytes(width, torch.float32)
                yield {"model": model_name, "part": part, "codec": name, "bytes": size, "error": by_seed}
        rotated.SEED = SEEDS[0]
        rotated._tables.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--json")
    options = parser.parse_args()
    origin, rows = Origin(torch.get_num_threads()), []
    print(origin, flush=True)
    for row in measured(options.images):
        rows.append(row)
        print(row, flush=True)
    origin.write(options.json, rows=rows)


if __name__ == "__main__":
    main()
