"""One spelling per unit."""

from __future__ import annotations

import pytest

from cachemark.analysis import formatting as fmt


@pytest.mark.parametrize(("value", "name", "text"), [
    (0.84, "latency", "840 ms"), (0.00084, "latency", "0.84 ms"), (1.234, "latency", "1.23 s"), (123.4, "latency", "123 s"),
    (512.0, "kv_logical", "512 B"), (1_048_576.0, "kv_logical", "1.00 MiB"), (963_000.0, "kv_logical", "940 KiB"),
    (0.5, "token_agreement", "50.0 %"), (0.41, "kl", "0.410 nat/token"), (1.7e-8, "kl", "1.7e−8 nat/token"), (0.0, "kl", "0.000 nat/token"),
    (13.74, "psnr", "13.7 dB"),
    (-0.254, "ssim", "−0.254"), (-20.0, "psnr", "−20.0 dB"), (0.724, "ssim", "0.724"),
    (1930.0, "tokens_per_s_first", "1930 token/s"),
])
def test_a_figure_is_written_with_its_unit(value: float, name: str, text: str) -> None:
    assert fmt.with_unit(value, name) == text


def test_a_negative_share_has_a_minus_sign() -> None:
    assert fmt.percent(-0.032) == "−3.2 %"


def test_a_foreign_name_cannot_turn_the_text_after_it() -> None:
    assert fmt.name("linear") == "linear"
    assert fmt.name("\u202eevil") == "\u2068\u202eevil\u2069"
