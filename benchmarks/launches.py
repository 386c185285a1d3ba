"""Count the operator calls and bytes of a pass, by model and method, without a GPU and without weights.

``python benchmarks/launches.py`` generates on torch's meta device, which computes nothing, at the sizes of the published models: once with
plain operations, as without a GPU, and once with the fused passes. Views and allocations are no calls; attention is one call per layer on
both sides. *Small* operations are all but matrix products and attention; their bytes are inputs and outputs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from cachemark.cache.arena import Memory
from cachemark.cache.engines import Engine
from cachemark.cache.kernels import table
from cachemark.cache.kernels.fused import Turn, fusing, launches
from cachemark.cache.kernels.record import Entries, Kernel
from cachemark.core.spec import Sampling
from cachemark.methods.registry import METHODS
from cachemark.models import janus, llamagen, mar, var
from cachemark.models.prompts import Prompts
from cachemark.models.vision.msvq import MultiScaleQuantizer
from cachemark.roofline.flops import UncompiledMode

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation", "product"}
NO_CALL = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "detach", "lift_fresh", "_unsafe_view"}


@dataclass
class Calls(UncompiledMode):
    """Counts calls, and the bytes of small ones, until the next :meth:`lap`."""

    names: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)  # bytes of the small ones
    laps: list[tuple[int, int, Counter[str], Counter[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, returned = func.overloadpacket.__name__, func._schema.returns
        if name in NO_CALL or any(each.alias_info is not None and not each.alias_info.is_write for each in returned):
            return out
        read = args[1:] if name == "copy_" else args  # what it writes to is not read
        self.add(name, read, {key: value for key, value in (kwargs or {}).items() if key != "out"}, out)
        return out

    def add(self, name: str, *values: Any) -> None:
        """Count one call that reads and writes the tensors of ``values``."""
        self.names[name] += 1
        if name not in PRODUCTS and name != "attention":
            self.sizes[name] += sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, Tensor))

    def lap(self) -> None:
        """End a pass."""
        self.laps.append((sum(self.names.values()), sum(self.sizes.values()), self.names, self.sizes))
        self.clear()

    def clear(self) -> None:
        """Forget the calls since the last lap."""
        self.names, self.sizes = Counter(), Counter()


class Pass(NamedTuple):
    """Calls and bytes of small operations, in all and by name."""

    calls: float
    small: float
    names: Counter[str]
    sizes: Counter[str]


@contextmanager
def counting(*, fused: bool) -> Iterator[Calls]:
    """Count what runs within, with plain operations or fused passes."""
    calls = Calls()

    def attention(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> tuple[Tensor, Tensor | None]:
        calls.names["attention"] += 1
        keys = max(part.k.size(2) for part in entries.parts())
        return torch.empty_like(q), torch.empty(q.size(0), entries.kv_heads, keys, device=q.device) if mass else None

    def turned(qkv: Tensor, turn: Turn, k: Tensor, v: Tensor, live: int, asked: bool, lengths: Any) -> tuple[Tensor, Tensor | None]:
        calls.names["attention"] += 1
        out = qkv.new_empty(qkv.size(0), turn.heads, 1, qkv.size(-1))
        return out, torch.empty_like(out) if asked else None

    once = Kernel("one call", lambda query: "", attention, turned=turned)
    with ExitStack() as stack:
        stack.enter_context(patch.object(table, "TABLE", (once,)))
        stack.enter_context(patch.object(Tensor, "tolist", lambda self: [0] * len(self)))
        stack.enter_context(fusing(fused))
        stack.enter_context(launches(lambda name, *tensors: calls.add(name, tensors)))
        yield calls


class Sparing(Engine):
    """Runs MAR's head, the longest part of a pass, only in the passes that are counted."""

    counts = False

    def run(self, key: Any, work: Any, inputs: tuple[Any, ...], state: Any) -> tuple[Tensor, ...]:
        if key[0] == "head" and not self.counts:
            return (torch.empty(*inputs[1].shape, mar.SIZES["L"].channels, device="meta"),)
        return super().run(key, work, inputs, state)


def llamagen_pass(method: str, budget: Fraction, *, fused: bool, batch: int = 256) -> Pass:
    """Return the mean of a pass of LlamaGen-XL, over the sixth line."""
    with torch.device("meta"):
        model = llamagen.LlamaGen(llamagen.SIZES["XL"]).to(torch.bfloat16).eval()
    return _passes(model, method, budget, Sampling(cfg_scale=1.75), batch, fused, slice(5 * 24, 6 * 24))


def janus_pass(method: str, budget: Fraction, *, fused: bool, batch: int = 128) -> Pass:
    """Return what a pass of Janus-Pro-7B takes, over the first line; the other models on transformers' Llama run the same blocks."""
    with torch.device("meta"):
        model = janus.Janus(janus.SIZES["7B"], Prompts(((0,) * 24,), ((0,) * 24,))).to(torch.bfloat16).eval()
    return _passes(model, method, budget, Sampling(cfg_scale=janus.PAPER_CFG), batch, fused, slice(2, 3))


def var_pass(method: str, budget: Fraction, *, fused: bool, batch: int = 64) -> Pass:
    """Return the counts of the seventh of VAR-d30's ten scales."""
    config = var.SIZES["d30"]
    with torch.device("meta"):
        model = var.VAR(config, MultiScaleQuantizer(config.sides, codes=config.vocab, width=config.width)).to(torch.bfloat16).eval()
    return _passes(model, method, budget, Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96), batch, fused, slice(6, 7))


def mar_pass(method: str, budget: Fraction, *, fused: bool, batch: int = 64) -> Pass:
    """Return the counts of one of MAR-L's 64 passes, all steps of the head included."""
    with torch.device("meta"):
        model = mar.MAR(mar.SIZES["L"]).to(torch.bfloat16).eval()
    return _passes(model, method, budget, Sampling(cfg_scale=3.0, cfg_schedule="linear"), batch, fused, slice(32, 33))


def _passes(
    model: Any, method: str, budget: Fraction, sampling: Sampling, batch: int, fused: bool, which: slice,
) -> Pass:
    seeds = list(range(batch))
    cls = METHODS.get(method)
    layout = model.layout(seeds, sampling, *([[0] * batch] if model.paradigm == "next-token" else []))
    chosen = cls.build(cls.build({}).fit(budget, layout) if budget < 1 else {})
    engine, ran = Sparing(), 0
    with counting(fused=fused) as calls, ExitStack() as stack, suppress(StopIteration):
        def lap(_index: int) -> None:
            nonlocal ran
            ran += 1
            if engine.counts:
                calls.lap()
            elif ran == which.start:
                engine.counts = True
                calls.clear()
                stack.enter_context(calls)
            if ran == which.stop:
                raise StopIteration

        model.generate(torch.zeros(batch, dtype=torch.int64, device="meta"), seeds, chosen, sampling, Memory("meta", engine=engine),
                       mark=lap)
    laps = calls.laps
    names, sizes = (sum((lap[which] for lap in laps), Counter[str]()) for which in (2, 3))
    return Pass(sum(lap[0] for lap in laps) / len(laps), sum(lap[1] for lap in laps) / len(laps), names, sizes)


PASSES: dict[str, tuple[Callable[..., Pass], str, Fraction]] = {
    "LlamaGen-XL, full": (llamagen_pass, "full", Fraction(1)), "LlamaGen-XL, LineAR 1/6": (llamagen_pass, "linear", Fraction(1, 6)),
    "LlamaGen-XL, SnapKV 1/6": (llamagen_pass, "snapkv", Fraction(1, 6)), "LlamaGen-XL, R-KV 1/6": (llamagen_pass, "rkv", Fraction(1, 6)),
    "Janus-Pro-7B, full": (janus_pass, "full", Fraction(1)),
    "VAR-d30, scale 7": (var_pass, "full", Fraction(1)), "MAR-L, a pass": (mar_pass, "full", Fraction(1)),
}


def main() -> None:
    chosen = sys.argv[1:]
    print("| pass | calls, plain | calls, fused | ratio | MB of small operations, plain | fused | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, (run, method, budget) in PASSES.items():
        if chosen and not any(word in name for word in chosen):
            continue
        plain, fused = (run(method, budget, fused=on) for on in (False, True))
        print(f"| {name} | {plain.calls:.0f} | {fused.calls:.0f} | {fused.calls / plain.calls:.2f} | {plain.small / 1e6:.0f} | "
              f"{fused.small / 1e6:.0f} | {fused.small / plain.small:.2f} |", flush=True)
        for label, counts in (("plain", plain), ("fused", fused)):
            listed = (f"{op} {count} ({counts.sizes[op] / 1e6:.0f} MB)" for op, count in counts.names.most_common(24))
            print(f"{label}: {', '.join(listed)}", file=sys.stderr)


if __name__ == "__main__":
    main()
