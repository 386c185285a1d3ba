"""A store after a year of nights: how large it is. Values are printed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.store.db import Store
from store.store_examples import CODE, ENVIRONMENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
NIGHTS, CONFIGS, SAMPLED = 365, 300, 10
LIMIT = 10e9  # bytes
VALUES = random.Random(0)
METRICS = {
    **dict.fromkeys(("latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last"), 8),
    **dict.fromkeys(("kv_logical", "kv_allocated", "kv_workspace", "kv_state", "peak_memory"), 1),
    **dict.fromkeys(("token_agreement", "kl", "psnr", "ssim", "color_consistency"), 64),
}
FACTS = {
    "kernel": "sdpa", "source": "a paper", "footnotes": ["a note of a line or two " * 4] * 2, "true_ratio": 0.25, "paradigm": "next-token",
    "result_parts": dict.fromkeys(("case", "method", "models", "measuring", "metrics", "numerics"), "0123456789abcdef"),
    "device": {"uuid": "GPU-" + "0" * 36, "sm_mhz": [1, 2, 3], "celsius": [1, 2, 3], "watts": [1, 2, 3], "joules": 1.0, "readings": 9},
}  # fmt: skip


def outcome(config: int, night: int) -> Outcome:
    """As large as those of a real run, which have 14 metrics, most of 64 samples."""
    case = Case("llamagen-xl", "ab" * 32, (24, 24), "1000 classes, balanced", Sampling(), "linear", {"configuration": config, "B": 144},
                budget="1/4")
    samples = {name: [VALUES.random() for _ in range(count)] for name, count in METRICS.items()}
    return Outcome(case, Status.OK, samples, result_key=f"{config} {night}", output_hash="0" * 64, seconds=9.0, facts=FACTS)


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())


def test_a_year_of_nights_fits_into_ten_gigabytes(tmp_path: Path) -> None:
    """Some nights are saved really and the rest counted from them; token ids, which are kept once for as long as they do not change, are
    counted as if they changed every week."""
    path = tmp_path / "year.sqlite"
    with Store.open(path) as store:
        for night in range(SAMPLED):
            run = store.begin_run("nightly", {}, ENVIRONMENT, CODE)
            for config in range(CONFIGS):
                store.save(run, outcome(config, night))
    rows = size(path) / SAMPLED * NIGHTS
    artifacts = NIGHTS / 7 * CONFIGS * (64 * 576 * 2 + 200_000)  # tokens of 64 samples in 16 bits, and a grid of pictures
    print(f"a year: rows {rows / 1e9:.2f} GB, artifacts {artifacts / 1e9:.2f} GB")
    assert rows + artifacts <= LIMIT
