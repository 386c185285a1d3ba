"""What asv measures at each commit: time of the pieces, bytes and token speed of generations, peak memory of a process."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from cachemark.cache.arena import Memory
from cachemark.models.protocol import Request

from . import pieces

MODELS = {"tiny-llamagen": "linear", "tiny-var": "ams_kv", "tiny-mar": "lazymar"}  # with the method that is tracked beside the full cache
BUDGETS = {"linear": "1/2"}  # the others have a size of their own


class _One:
    """One process does not use the threads of another."""

    timeout = 300.0

    def _quiet(self) -> None:
        torch.set_num_threads(1)


class Pieces(_One):
    """Seconds of one call of each hot piece."""

    params = (list(pieces.PIECES),)
    param_names = ("piece",)
    number, warmup_time = 1, 0.1

    def setup(self, piece: str) -> None:
        self._quiet()
        self.call = pieces.PIECES[piece]()

    def time_piece(self, piece: str) -> None:
        self.call()


class Generations(_One):
    """Whole generations of one image."""

    params = (list(MODELS), ["full", "tracked method"])
    param_names = ("model", "method")
    number, repeat, rounds, warmup_time = 1, (2, 5, 20.0), 1, 0.0
    run: Callable[[], torch.Tensor]

    def setup(self, model: str, method: str) -> None:
        self._quiet()
        name = MODELS[model] if method != "full" else "full"
        self.method = lambda: pieces.built(model, name, BUDGETS.get(name))
        self.run = pieces.generation(model, self.method)

    def time_generation(self, model: str, method: str) -> None:
        self.run()

    def track_seconds_per_token(self, model: str, method: str) -> float:
        """Of the loop alone, without the decoding of images: the lesser of two."""
        held, entry, memory = pieces.entry(model).load(Request()), pieces.entry(model), Memory()
        sampling, labels, spent = entry.presets["paper"], torch.tensor(pieces.SEEDS), []
        layout = entry.shape(sampling, len(pieces.SEEDS))
        for _ in range(2):
            start = time.perf_counter()
            with torch.inference_mode():
                held.generator.generate(labels, pieces.SEEDS, self.method(), sampling, memory)
            spent.append(time.perf_counter() - start)
        return min(spent) / (layout.visual * len(pieces.SEEDS))

    track_seconds_per_token.unit = "s"  # type: ignore[attr-defined]

    def track_bytes_held(self, model: str, method: str) -> int:
        """Keys, values, workspace and the method's own state."""
        held, entry, memory = pieces.entry(model).load(Request()), pieces.entry(model), Memory()
        with torch.inference_mode():
            held.generator.generate(torch.tensor(pieces.SEEDS), pieces.SEEDS, self.method(), entry.presets["paper"], memory)
        return sum(memory.nbytes(kind) for kind in ("slots", "workspace", "state"))

    track_bytes_held.unit = "bytes"  # type: ignore[attr-defined]

    def peakmem_generation(self, model: str, method: str) -> None:
        self.run()
