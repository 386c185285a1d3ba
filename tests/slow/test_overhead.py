"""Overhead of the harness relative to the measured time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support import examples
from support.stages import stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STUDY = "overhead"
SECONDS = 20  # that every case takes at least
DECODING = 2.0  # seconds of a batch: waited for, because what the harness costs does not depend on what the device does meanwhile
SAMPLES = SECONDS // 2 * examples.BATCH  # the case of fewest batches makes half as many as it takes seconds
SLOW = f'''
import time

_picture = picture


def picture(tokens):
    time.sleep({DECODING})
    return _picture(tokens)
'''


def test_a_twentieth_of_a_run_at_most_is_not_spent_on_its_cases(tmp_path: Path, study: ModuleType) -> None:
    variants = ", ".join(f'{{ name = "streaming", variant = "n{number}" }}' for number in range(4))
    at = stage(tmp_path / "stage", variants, examples.MODEL.replace("def identity", f"{SLOW}\n\ndef identity"), samples=SAMPLES)
    result = study.cost(at.plan, "--plugin", str(at.plugin), "--threads", "1")
    print(result)
    assert len(result.outcomes) == 3 + 4 + 1, "the full cache with its rows, the candidates, and the plug-in's own method"
    assert result.shortest >= SECONDS
    assert result.share <= 0.05
