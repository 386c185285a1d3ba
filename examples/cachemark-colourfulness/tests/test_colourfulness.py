"""Formula of the metric; and the checks of the kit."""

import pytest
import torch

from cachemark.metrics.base import ImageBatch
from cachemark.workflows.prove import prove_metric
from cachemark_colourfulness.metric import Colourfulness

RED, GREEN, GREY = (1, -1, -1), (-1, 1, -1), (0, 0, 0)


@pytest.mark.parametrize(("left", "right", "expected"), [
    (GREY, GREY, 0.0),
    (RED, GREEN, 255 + 0.3 * 127.5),  # rg is ±255, yb 127.5 on both sides
    (RED, RED, 0.3 * (255**2 + 127.5**2) ** 0.5),
])  # fmt: skip
def test_the_formula_is_that_of_the_paper(left: tuple[int, ...], right: tuple[int, ...], expected: float) -> None:
    image = torch.tensor([left, right], dtype=torch.float32).T[None, :, None].repeat(1, 1, 4, 2)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    figure = Colourfulness().measure(ImageBatch(image, image, tokens, tokens, [0], [0]))
    assert figure.tolist() == pytest.approx([expected])


def test_the_metric_passes_the_kit() -> None:
    (report,) = prove_metric("colourfulness")
    assert report.passed, [(check.name, finding) for check in report.checks for finding in check.findings]
