"""Tiny random models of transformers: their weights, and a record of their forward passes."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save as packed
from torch import Tensor, nn

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 2, "pb": 2}]  # numbers of 4 bytes
SPREAD = 0.25  # of weights: the library's own initial weights are so small that attention would not matter


def randomize(model: nn.Module, seed: int) -> None:
    """Draw every weight as a bf16 number, weights of norms around 1, other vectors around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point() or name.endswith("inv_freq"):
            continue
        drawn = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1:
            drawn = drawn * (SPREAD if tensor.dim() == 2 else tensor[0].numel() ** -0.5)
        elif name.endswith("running_var"):
            drawn = 1 + 0.3 * drawn.abs()
        else:
            drawn = 0.2 * drawn + (name.endswith("weight") and "norm" in name)
        tensor.data.copy_(drawn.to(torch.bfloat16))


@dataclass
class Recorder:
    """Logits of every forward pass (calls, vocab), and the cache of the last, by the branch of guidance.

    ``branches``: names in the order of a step's calls.
    """

    branches: tuple[str, ...]
    logits: dict[str, list[Tensor]] = field(default_factory=dict)
    caches: dict[str, Any] = field(default_factory=dict)
    calls: int = 0

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> None:
        """Record a pass, as a forward hook of the model."""
        branch = self.branches[self.calls % len(self.branches)]
        self.calls += 1
        self.logits.setdefault(branch, []).append(output.logits[0, -1].float())
        self.caches[branch] = output.past_key_values

    def tensors(self, layers: tuple[int, ...]) -> dict[str, Tensor]:
        """Return logits (calls, vocab), and keys and values (heads, entries, head_dim) of some layers."""
        named = {f"logits_{branch}": torch.stack(rows) for branch, rows in self.logits.items()}
        for branch, cache in self.caches.items():
            for layer in layers:
                named[f"{branch}_k_layer{layer}"] = cache.layers[layer].keys[0]
                named[f"{branch}_v_layer{layer}"] = cache.layers[layer].values[0]
        return named


def margin(logits: Tensor) -> float:
    """Return the least distance between the two largest finite numbers of any row (calls, vocab)."""
    first, second = logits.topk(2).values.unbind(-1)
    distances = first - second
    return float(distances[distances.isfinite()].min())


def weights_of(model: nn.Module, *parts: str) -> dict[str, Tensor]:
    """Return the weights below ``parts`` in bf16, as vectors name them."""
    return {f"weights/{name}": tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            for name, tensor in model.state_dict().items() if name.startswith(parts)}


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> list[Path]:
    """Write a vector and its facts; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.safetensors.xz", folder / f"{name}.json"]
    content = packed({key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()})
    files[0].write_bytes(lzma.compress(content, filters=FILTERS))
    about = {"transformers": transformers.__version__, "torch": torch.__version__.partition("+")[0], **facts}
    files[1].write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return files


def save_manifest(path: Path, model: nn.Module, facts: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> Path:
    """Write names and shapes of a published file; ``model`` is on the meta device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    total = sum(parameter.numel() for parameter in model.parameters())
    content = {"about": f"Names and shapes by transformers {transformers.__version__}, on the meta device", **facts,
               "n_params": total, "shapes": dict(shapes)}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    return path
