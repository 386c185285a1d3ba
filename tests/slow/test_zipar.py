"""ZipAR on the trained model of the package: its distance from sequential decoding, by window."""

from __future__ import annotations

import statistics
from functools import partial

import pytest
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.decoders.zipar import ZipAR
from cachemark.methods.full import Full
from cachemark.models.sampling import guide
from decoders.test_distribution import BOUND
from slow.test_decoders import SAMPLINGS, generate, model, sequential, surprise, twice

pytestmark = pytest.mark.slow
SEEDS, LINE = 64, 16
# KL(ZipAR ‖ sequential) in nats per image and its standard error over 32 images, of a prototype that shares no code with this one.
DISTANCES = {2: (94.0, 9.0), 4: (85.0, 5.0), 6: (43.0, 4.0), 8: (16.6, 1.7), 12: (8.2, 1.1), 15: (4.5, 0.8)}


@pytest.mark.parametrize("name", ["guided", "free top-k", "interval", "guided greedy"])
def test_64_images_with_a_window_as_wide_as_a_line_are_those_of_sequential_decoding(name: str) -> None:
    assert torch.equal(generate(list(range(SEEDS)), SAMPLINGS[name], ZipAR(window=LINE)), sequential(name))


@torch.inference_mode()
def distances(window: int, images: int = SEEDS) -> list[float]:
    """Return an estimate of KL(ZipAR ‖ sequential) from each image, in nats: log q − log p of its tokens."""
    seeds, sampling, drawn_from = list(range(images)), SAMPLINGS["guided"], dict[int, Tensor]()
    labels = torch.tensor([seed % 10 for seed in seeds])
    tokens = model().generate(labels, seeds, Full(), sampling, Memory(), decoder=ZipAR(window=window),
                              see=lambda place, logits: drawn_from.update({place: logits[:, 0].double().log_softmax(-1)}))
    q = torch.stack([drawn_from[place] for place in range(tokens.size(1))], 1)
    p = guide(model().teacher(*twice(seeds, tokens)), sampling, 0).double().log_softmax(-1)
    each = tokens[..., None]
    values: list[float] = (q.gather(-1, each) - p.gather(-1, each)).sum((1, 2)).tolist()
    return values


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("window", DISTANCES)
def test_the_distance_is_the_prototype_s(window: int) -> None:
    expected, its_error = DISTANCES[window]
    values = distances(window)
    mean, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
    print(f"window {window}: {mean:.1f} ± {error:.1f} nats per image")
    assert mean > BOUND * error, "it measurably differs"
    assert abs(mean - expected) < BOUND * (error**2 + its_error**2) ** 0.5


@torch.inference_mode()
def test_the_distance_of_a_window_as_wide_as_a_line_is_rounding() -> None:
    assert max(map(abs, distances(LINE, images=16))) < 1e-2


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("window", [4, 8, 12])
@torch.inference_mode()
def test_what_is_drawn_surprises_more_than_its_law_says(window: int) -> None:
    result = surprise(partial(ZipAR, window=window))
    print(f"zipar {window}: {result:.1f} σ over 100 images")
    assert result > BOUND
