"""What the harness costs beside the cases of a run."""

from pathlib import Path

import pytest

from studies import overhead
from support import examples
from support.stages import stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_a_twentieth_of_a_run_at_most_is_not_spent_on_its_cases(tmp_path: Path) -> None:
    """Decoding is waited for, because what the harness costs does not depend on what the device does meanwhile."""
    seconds, decoding = 20, 2.0  # that every case takes at least, and of a batch
    slow = f"import time\n_picture = picture\n\n\ndef picture(tokens):\n    time.sleep({decoding})\n    return _picture(tokens)\n"
    variants = ", ".join(f'{{ name = "streaming", variant = "n{number}" }}' for number in range(4))
    at = stage(tmp_path / "stage", variants, examples.MODEL.replace("def identity", f"{slow}\n\ndef identity"),
               samples=seconds // 2 * examples.BATCH)  # the case of fewest batches makes half as many as it takes seconds
    result = overhead.cost(at.plan, "--plugin", str(at.plugin), "--threads", "1")
    assert len(result.outcomes) == 3 + 4 + 1, "the full cache with its rows, the candidates, and the plug-in's own method"
    assert result.shortest >= seconds
    assert result.share <= 0.05
