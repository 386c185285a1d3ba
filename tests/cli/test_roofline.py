"""``cachemark roofline``: roofline times by method, budget and batch."""

from typing import Any

import pytest

from cachemark.core.limits import GPUS, MEMORY, SINGLE
from cachemark.machine import rates as measured
from support.stages import call, data, good


def table(*arguments: str, of: str = "roofline_times") -> list[dict[str, Any]]:
    return list(data(call("roofline", *arguments, "--json"))[of])


def test_a_raster_model_under_its_family_s_method() -> None:
    rows = table("llamagen-b", "--batch", "1", "--batch", "64")
    assert [(r["method"], r["budget"], r["batch"]) for r in rows] == [
        (m, b, n) for n in (1, 64) for m, b in (("full", "1"), ("linear", "1/4"), ("linear", "1/6"), ("linear", "1/8"))]
    gains = {(r["batch"], r["budget"]): r["speedup"] for r in rows}
    assert gains[1, "1"] == gains[64, "1"] == 1
    assert 1 < gains[1, "1/8"] < gains[64, "1/8"]
    for row in rows:
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"])


def test_times_have_one_unit_and_what_a_method_cannot_and_one_without_sizes_of_its_own_are_said() -> None:
    head, *lines = good(call("roofline", "mar-l", "--card", "custom", "--bandwidth", "1TB/s", "--flops", "40TFLOP/s",
                           "--method", "disa", "--steps", "64")).splitlines()[1:]
    full, disa = (float(line.split("×")[0].split()[-3]) for line in lines[:2])
    assert head.split()[1] == "ms/image"
    assert full > 1000 > disa, "a second and less"
    assert " 0.829 " in lines[1], "the FLOPs of DiSA's published code, without image decoding"
    assert table("llamagen-b", "--card", "H100") == table("llamagen-b", "--card", "h100")
    text = good(call("roofline", "mar-b", "--method", "linear", "--method", "fewer_steps", "--budget", "3/4", "--steps", "16"))
    assert "linear does not run on masked models" in text
    assert any(line.startswith("fewer_steps 3/4") and "×" in line for line in text.splitlines())
    assert "linear has no sizes of its own" in call("roofline", "llamagen-b", "--budget", "own").stdout
    rows = table("llamagen-b", "--method", "full", "--method", "linear", "--budget", "1/2")
    assert [(row["method"], row["budget"]) for row in rows] == [("full", "1"), ("linear", "1/2")]


def test_a_card_that_is_not_listed_and_this_machine_have_rates_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = table("llamagen-b", "--card", "custom", "--bandwidth", "3.35TB/s", "--flops", "989TFLOP/s")
    assert own == table("llamagen-b", "--card", "h100") != table("llamagen-b", "--card", "4090")
    assert GPUS.keys() == MEMORY.keys() == SINGLE.keys()
    asked: list[tuple[Any, ...]] = []

    def rates(*arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return {"float32": GPUS["3090"]}

    monkeypatch.setattr(measured, "rates", rates)
    assert "940 GB/s, 71 TFLOP/s" in good(call("roofline", "tiny-llamagen", "--here", "--dtype", "float32")).splitlines()[0]
    assert asked[0][2] == ["float32"]
    monkeypatch.setattr(measured, "rates", lambda *arguments: {})
    assert call("roofline", "tiny-llamagen", "--here").exit_code == 5


def test_windows_cost_little_at_a_small_batch_and_much_where_an_evicting_cache_wins() -> None:
    batches = [option for batch in (1, 16, 256) for option in ("--batch", str(batch))]
    rows = table("llamagen-xl", "--card", "h100", "--decoder", "jacobi=16", "--tokens-per-pass", "3", "--method", "linear",
                 "--budget", "1/6", *batches, of="passes")
    cost, gain = ({(row["method"], row["batch"]): row[of] for row in rows} for of in ("cost", "speedup"))
    assert 1 < cost["full", 1] < 1.1 < cost["full", 16] < 2 < cost["full", 256] < cost["linear", 256] < 16
    assert gain["full", 1] == pytest.approx(3 / cost["full", 1])
    assert gain["full", 1] > 2.5 > 1.5 > gain["full", 256] > 1
    alone = {row["batch"]: row["speedup"] for row in table("llamagen-xl", "--card", "h100", "--budget", "1/6", *batches)
             if row["method"] == "linear"}
    assert gain["full", 1] > alone[1]
    assert gain["full", 256] < alone[256], "there eviction wins"


def test_infinity_has_the_published_bounds() -> None:
    """Speedups without image decoding at batches of 1, 8 and 64, in bf16, computed independently; further ones: tests/roofline."""
    asked = "--card", "h100", "--method", "fewer_scales", "--budget", "1/2", "--batch", "1", "--batch", "8", "--batch", "64"
    rows = [row for row in table("infinity-2b", *asked) if row["method"] == "fewer_scales"]
    assert [row["token_speedup"] for row in rows] == pytest.approx([2.81, 3.10, 3.12], rel=0.01)
    assert all(1 < row["speedup"] < row["token_speedup"] for row in rows)
