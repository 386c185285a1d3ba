"""Benchmarks for asv: hot functions, generation of one image, its KV bytes, and peak memory of a process."""

from __future__ import annotations

import torch

import cachemark as cm

from . import pieces

METHODS = {"tiny-llamagen": "linear", "tiny-var": "ams_kv", "tiny-mar": "lazymar"}  # the method tracked next to the baseline
BUDGETS = {"linear": "1/2"}  # the others have a size of their own


class _OneThread:
    """Setup with one thread, so that graphs of machines with different core counts stay comparable."""

    timeout = 300.0

    def setup(self, *_: str) -> None:
        torch.set_num_threads(1)


class Pieces(_OneThread):
    """Time of one call of each hot piece."""

    params = (list(pieces.PIECES),)
    param_names = ("piece",)
    number, warmup_time = 1, 0.1

    def setup(self, piece: str) -> None:
        super().setup()
        self.call = pieces.PIECES[piece]()

    def time_piece(self, piece: str) -> None:
        self.call()


class Generations(_OneThread):
    """Generation of one image, decoding included."""

    params = (list(METHODS), ["full", "tracked method"])
    param_names = ("model", "method")
    number, repeat, rounds, warmup_time = 1, (2, 5, 20.0), 1, 0.0

    def setup(self, model: str, method: str) -> None:
        super().setup()
        self.model, self.method = cm.load(model), METHODS[model] if method != "full" else "full"

    def time_generation(self, model: str, method: str) -> None:
        self.model.generate(method=self.method, budget=BUDGETS.get(self.method))

    def peakmem_generation(self, model: str, method: str) -> None:
        self.time_generation(model, method)

    def track_kv_bytes(self, model: str, method: str) -> int:
        """Live keys and values at the fullest step, 0 for a masked model's baseline, which keeps none."""
        return self.model.generate(method=self.method, budget=BUDGETS.get(self.method)).kv_bytes or 0

    track_kv_bytes.unit = "bytes"  # type: ignore[attr-defined]
