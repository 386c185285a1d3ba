"""Allocated bytes of keys and values of every model, against published sizes."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site
from cachemark.contract.method import Method
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS

BATCH, BYTES = 3, 2  # samples, with guidance twice as many rows; bytes of a number in bf16
TOKENS = {  # layers, heads of keys and values, channels of a head, visual tokens
    "emu3-gen": (32, 8, 128, 90 * 91), "glm-image": (40, 2, 128, 16**2 + 32**2),
    "janus-pro-1b": (24, 16, 128, 576), "janus-pro-7b": (30, 32, 128, 576),
    "llamagen-b": (12, 12, 64, 256), "llamagen-l": (24, 16, 64, 576),
    "llamagen-xl": (36, 20, 64, 576), "llamagen-xxl": (48, 24, 64, 576), "llamagen-3b": (24, 32, 100, 576),
    "llamagen-t2i-256": (36, 20, 64, 256), "llamagen-t2i-512": (36, 20, 64, 1024), "lumina-mgpt-7b-768": (32, 32, 128, 48 * 49),
    "lumina-mgpt-7b-1024": (32, 32, 128, 64 * 65), "tiny-llamagen": (6, 5, 32, 256), "tiny-t2i": (6, 5, 32, 256),
}  # fmt: skip
QUARTERS = {"emu3-gen": 22 * 91}  # budgets are whole lines, and 90 lines have no quarter
UNGUIDED = ("glm-image",)
VAR_256, VAR_512 = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16), (1, 2, 3, 4, 6, 9, 13, 18, 24, 32)
SIDES_2B_1M = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
SCALES = {  # layers, heads, channels of a head, sides of the scales
    "var-d16": (16, 16, 64, VAR_256), "var-d20": (20, 20, 64, VAR_256), "var-d24": (24, 24, 64, VAR_256), "var-d30": (30, 30, 64, VAR_256),
    "var-d36-512": (36, 36, 64, VAR_512), "infinity-2b-256": (32, 16, 128, (1, 2, 4, 6, 8, 12, 16)),
    "infinity-2b-512": (32, 16, 128, (1, 2, 4, 6, 8, 12, 16, 20, 24, 32)), "infinity-2b": (32, 16, 128, SIDES_2B_1M),
    "infinity-8b-512": (40, 28, 128, (1, 2, 4, 6, 8, 12, 16, 20, 24, 32)), "infinity-8b": (40, 28, 128, SIDES_2B_1M),
    "tiny-var": (6, 4, 32, (1, 2, 3, 4, 6, 8, 12, 16)), "tiny-var-d2": (2, 3, 16, (1, 2, 3, 4, 6, 8, 12, 16)),
}  # fmt: skip
BY_TOKEN, BY_LINE = ("window", "streaming", "random", "h2o"), ("linear", "rkv")  # the former hold the entry just written above B
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
CASES = [("full", Fraction(1)), *((name, budget) for name in (*BY_TOKEN, *BY_LINE) for budget in (HALF, QUARTER))]


def allocated(model: str, method: str, budget: Fraction) -> tuple[int, int, int]:
    """Return bytes of slots, rows, and the longest condition."""
    entry: ModelEntry = MODELS.get(model)
    shape = replace(entry.shape(entry.presets["paper"], BATCH), dtype=torch.bfloat16, device="meta")
    cls: type[Method] = METHODS.get(method)
    memory = Memory("meta")
    cls.build({} if method == "full" else cls.parameters_for(budget, shape)).begin(
        shape, [Site("decoder", layer) for layer in range(shape.layers)], memory)
    return memory.nbytes("slots"), shape.rows, shape.longest_condition


def test_every_model_is_here() -> None:
    masked = {name for name in MODELS if MODELS.get(name).paradigm == "masked" or "+" in name}  # composite ones: test_relay.py
    assert {*TOKENS, *SCALES} | masked == set(MODELS)


@pytest.mark.parametrize("model", TOKENS)
def test_a_next_token_model(model: str) -> None:
    """The condition plus all tokens but the last, or a fraction, in every row, layer and head, K and V."""
    layers, heads, channels, tokens = TOKENS[model]
    for method, budget in CASES:
        nbytes, rows, condition = allocated(model, method, budget)
        kept = QUARTERS.get(model, int(budget * tokens)) if budget == QUARTER else int(budget * tokens)
        entries = tokens - 1 if method == "full" else kept + (method in BY_TOKEN)
        expected = BATCH if model in UNGUIDED else 2 * BATCH
        assert (rows, nbytes) == (expected, rows * layers * heads * channels * 2 * BYTES * (condition + entries)), (method, budget)


@pytest.mark.parametrize("model", SCALES)
def test_a_next_scale_model(model: str) -> None:
    """All maps but the last, which is never read, or a fraction of them."""
    layers, heads, channels, sides = SCALES[model]
    for method, budget in [case for case in CASES if case[0] not in BY_LINE]:
        nbytes, rows, _ = allocated(model, method, budget)
        entries = int(budget * sum(side**2 for side in sides[:-1]))
        assert (rows, nbytes) == (2 * BATCH, rows * layers * heads * channels * 2 * BYTES * entries), (method, budget)


@pytest.mark.parametrize("model", ["mar-b", "mar-l", "mar-h", "tiny-mar"])
def test_a_masked_model_stores_nothing_unless_a_method_does(model: str) -> None:
    assert allocated(model, "full", Fraction(1))[0] == 0
