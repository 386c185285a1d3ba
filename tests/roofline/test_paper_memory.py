"""Computed device memory against loaded weights and a filled arena."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.codec import INT8, NATIVE, Codec
from cachemark.cache.layout import Layout, Site
from cachemark.contract.method import Method
from cachemark.methods.full import Full
from cachemark.methods.registry import METHODS
from cachemark.methods.window import Window
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.roofline.memory import allocated, weight_bytes


def entry_and_layout(model: str) -> tuple[ModelEntry, Layout]:
    entry: ModelEntry = MODELS.get(model)
    return entry, replace(entry.shape(entry.presets["paper"], 2), dtype=torch.float32)


@pytest.mark.parametrize("model", ["tiny-llamagen", "tiny-var", "tiny-mar", "tiny-t2i"])
def test_weights_are_those_of_the_network_but_for_tables_norms_and_biases(model: str) -> None:
    entry, layout = entry_and_layout(model)
    counts = entry.parameter_counts()
    assert counts is not None
    loaded = sum(parameter.nbytes for parameter in entry.load(Request("cpu", torch.float32)).generator.parameters())
    assert 0.94 * loaded < weight_bytes(layout, counts) < loaded


@pytest.mark.parametrize("codec", [NATIVE, INT8])
@pytest.mark.parametrize("method", [Full(), Window(B=64)])
def test_a_method_is_counted_as_the_arena_counts_it(method: Method, codec: Codec) -> None:
    _, layout = entry_and_layout("tiny-llamagen")
    memory = Memory("cpu", codec)
    method.begin(layout, [Site("decoder", layer) for layer in range(layout.layers)], memory)
    assert allocated(method, layout, codec) == sum(tensor.nbytes for _, tensor in memory.tensors.values()) > 0


def test_the_full_form_of_a_masked_model_keeps_nothing() -> None:
    _, layout = entry_and_layout("tiny-mar")
    assert allocated(METHODS.get("full")(), layout) == 0
    assert allocated(METHODS.get("marche")(), layout) > 0


@dataclass
class Looking(Window):
    """Looks at a value when it begins."""

    def prepare(self, slots: object, memory: Memory) -> None:
        memory.zeros("looked at", (1,), torch.float32).item()


def test_a_method_that_looks_at_values_is_counted_as_far_as_it_comes() -> None:
    _, layout = entry_and_layout("tiny-llamagen")
    assert allocated(Looking(B=64), layout) >= allocated(Window(B=64), layout) // 2
