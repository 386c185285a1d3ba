"""The view layer: numbers derived right, no HTML anywhere."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
import report_sample as sample
from PIL import Image

from cachemark.analysis import explanations
from cachemark.analysis.case_group import CaseGroup, case_groups
from cachemark.analysis.device_limits import OF_SPEED
from cachemark.analysis.report_row import ReportRow
from cachemark.analysis.report_view import ReportView, build
from cachemark.core.errors import BadStore
from cachemark.core.result import Environment, Outcome, Status
from cachemark.stats.intervals import PROCESS_BIAS
from cachemark.store.exchange import Exchange


def group(*outcomes: Outcome) -> CaseGroup:
    (groups_found,) = case_groups(outcomes or sample.outcomes())
    return groups_found


def row(row_held: CaseGroup, method: str, budget: str) -> ReportRow:
    return next(r for r in row_held.candidates if (r.case.method, r.case.budget) == (method, budget))


def timed(outcome: Outcome, latency: list[float], **samples: list[float]) -> Outcome:
    return replace(outcome, samples={**outcome.samples, "latency": latency, **samples})


def test_speedup_is_a_ratio_of_medians_with_its_interval() -> None:
    full, candidate = timed(sample.full(), [2.0, 2.1, 2.4]), timed(sample.candidate("linear", "1/4"), [1.0, 1.2, 1.1])
    speedup = row(group(full, candidate), "linear", "1/4").speedup
    assert speedup is not None
    assert (speedup.value, speedup.n) == (pytest.approx(2.1 / 1.1), 3)
    process_bias = math.exp(1.959964 * math.sqrt(2) * PROCESS_BIAS)
    assert (speedup.low, speedup.high) == (pytest.approx(2.0 / 1.2 / process_bias), pytest.approx(2.4 / 1.0 * process_bias))


def test_savings_are_shares_of_the_full_cache() -> None:
    full = timed(sample.full(), [2.0], kv_allocated=[1000.0], kv_logical=[900.0])
    candidate = timed(sample.candidate("linear", "1/4"), [1.0], kv_allocated=[300.0], kv_logical=[225.0])
    row_held = row(group(full, candidate), "linear", "1/4")
    assert row_held.saving == pytest.approx(0.7)
    assert row_held.saving_live == pytest.approx(0.75)


def test_without_a_full_cache_nothing_is_derived() -> None:
    broken = sample.failed(sample.full(), Status.OOM, "out of memory")
    for outcomes in ([sample.candidate("linear", "1/4")], [broken, sample.candidate("linear", "1/4")]):
        row_held = row(group(*outcomes), "linear", "1/4")
        assert row_held.speedup is None
        assert row_held.saving is None
        assert row_held.place is None
        assert "full cache" in row_held.no_speedup


def test_other_kernels_refuse_a_speed_up_and_name_the_difference() -> None:
    arm = sample.candidate("linear", "1/4")
    arm = replace(arm, facts={**arm.facts, "kernel": "math"})
    row_held = row(group(sample.full(), arm), "linear", "1/4")
    assert row_held.speedup is None
    assert "math here, sdpa in the full cache" in row_held.no_speedup
    assert "no speedup" in [mark.text for mark in row_held.marks]


def test_a_quality_only_method_has_no_speedup_and_no_place() -> None:
    row_held = row(group(), "h2o", "1/2")
    assert row_held.speedup is None
    assert row_held.place is None
    assert [mark.text for mark in row_held.marks] == ["not timed"]
    assert "not fused" in row_held.marks[0].reason


def test_what_was_reused_says_from_where() -> None:
    candidate = sample.candidate("linear", "1/4")
    marked = replace(candidate, facts={**candidate.facts, "reused": {"metrics": ["fid_scene_2k"], "from": "0123456789abcdef"}})
    (result,), (plain,) = (build(sample.RUN, [outcome]).entries for outcome in (marked, candidate))
    assert ("Reused", "fid_scene_2k: same tokens as 0123456789ab") in result.facts
    assert "Reused" not in dict(plain.facts)


def test_places_follow_speedup_within_a_budget() -> None:
    for budget in ("1/2", "1/4"):
        placed = [r for r in group().candidates_at(budget) if r.place is not None]
        assert [r.place for r in placed] == list(range(1, len(placed) + 1))
        speeds = [r.speedup.value for r in placed if r.speedup]
        assert speeds == sorted(speeds, reverse=True)
        assert len(placed) == 4


def test_a_method_no_better_than_other_seeds_is_not_ranked_however_fast() -> None:
    candidate = sample.candidate("linear", "1/4")
    worse = timed(candidate, [0.1] * 5, token_agreement=list(sample.other_seeds().samples["token_agreement"]))
    row_held = row(group(sample.full(), worse, sample.candidate("random", "1/4"), sample.other_seeds()), "linear", "1/4")
    assert row_held.speedup is not None
    assert row_held.place is None
    assert row_held.unranked
    assert "not ranked" in [mark.text for mark in row_held.marks]
    assert row(group(sample.full(), worse), "linear", "1/4").place == 1  # not distinguishable without the different-seed reference


@pytest.mark.parametrize(("agreement", "kl", "lossless"), [
    ([1.0] * 64, [1e-9] * 64, True), ([1.0] * 64, [1e-3] * 64, False), ([0.9] * 64, [1e-9] * 64, False)])
def test_lossless_means_within_the_noise_floor_in_tokens_and_kl(agreement: list[float], kl: list[float], lossless: bool) -> None:
    arm = timed(sample.candidate("linear", "1/2"), [2.0], token_agreement=agreement, kl=kl)
    row_held = row(group(sample.full(), arm, sample.other_batch()), "linear", "1/2")
    assert row_held.lossless is lossless
    assert ("lossless on this device" in [mark.text for mark in row_held.marks]) is lossless


@pytest.mark.parametrize(("full", "candidate", "flag"), [
    ((1000, 1000), {"kv_allocated": 1000, "kv_logical": 250}, "not freed"),
    ((1000, 1000), {"kv_allocated": 260, "kv_logical": 250}, ""),
    ((1400, 1000), {"kv_allocated": 650, "kv_logical": 250}, ""),  # a workspace that every case has
    ((1000, 1000), {"kv_allocated": 250, "kv_logical": 250, "kv_state": 750}, "overhead > savings"),
    ((1000, 1000), {"kv_allocated": 250, "kv_logical": 250, "kv_state": 749}, ""),
])  # fmt: skip
def test_savings_that_are_none_are_flagged(full: tuple[int, int], candidate: dict[str, int], flag: str) -> None:
    complete = timed(sample.full(), [2.0], kv_allocated=[float(full[0])], kv_logical=[float(full[1])])
    own = timed(sample.candidate("linear", "1/4"), [1.0], kv_state=[0.0])
    own = replace(own, samples={**own.samples, **{name: [float(value)] for name, value in candidate.items()}})
    flags = {mark.text for mark in row(group(complete, own), "linear", "1/4").marks} & {"not freed", "overhead > savings"}
    assert flags == ({flag} if flag else set())


def test_random_weights_show_no_fidelity_and_no_quality_even_where_samples_are() -> None:
    results = group(*sample.random_weights())
    assert results.random
    for r in results.rows:
        assert not r.fidelity
        assert not r.quality
        assert "random" in r.no_judgement
        assert r.place is None
    assert row(results, "linear", "1/2").speedup is not None


def test_reference_rows_join_the_cell_they_differ_least_from() -> None:
    def at(outcome: Outcome, batch: int) -> Outcome:
        return replace(outcome, case=replace(outcome.case, batch=batch))

    small = [at(o, 1) for o in (sample.full(), sample.candidate("linear", "1/4"), sample.other_seeds())]
    large = [at(o, 64) for o in (sample.full(), sample.candidate("linear", "1/4"), sample.other_seeds())]
    case_item, other = case_groups([*small, *large])
    for values, batch in ((case_item, 1), (other, 64)):
        other_seeds = values.reference("other_seeds")
        assert other_seeds is not None
        assert other_seeds.case.batch == batch


def test_header_facts_and_counts() -> None:
    view = build(sample.RUN, sample.mixed())
    assert view.when == "2026-03-05 09:14 UTC, 7 min"
    assert view.counts == (("ok", 13), ("oom", 1), ("unsupported", 1))
    assert view.dirty
    assert view.commands[1] == "cachemark run demo"
    assert view.conclusion is None
    facts = list(view.environment)
    assert ("Load before", "0.12") in facts
    assert [name for name, _ in facts].count("Device") == 1


def test_rates_of_a_machine_are_in_their_units_and_near_ones_are_equal() -> None:
    def machine(bandwidth: float, peak_flops: float) -> Environment:
        rates = {"float32": {"bandwidth": bandwidth, "peak_flops": peak_flops}}
        return replace(sample.ENVIRONMENT, facts={**sample.ENVIRONMENT.facts, "rates": rates, "cpus": 2, "tf32": None})

    then, now = machine(20.9e9, 0.5e12), machine(21.2e9, 0.2513e12)
    view = build(replace(sample.RUN, environment=now), sample.mixed(), baseline=Exchange((), then, {}, {}))
    facts = dict(view.environment)
    assert (facts["Rates float32 bandwidth"], facts["Rates float32 peak_flops"]) == ("21.2 GB/s", "0.251 TFLOP/s")
    assert (facts["CPUs"], facts["TF32"]) == ("2", "–")
    assert view.differences is not None
    assert list(view.differences) == [("Rates float32 peak_flops", "0.5 TFLOP/s", "0.251 TFLOP/s")]


def what_is_missing(view: ReportView) -> dict[str, str]:
    return {item.what: item.status for item in view.missing}


def test_what_was_not_measured_is_listed_with_reasons() -> None:
    distribution = {"tiny-llamagen: FID, precision and recall": "not measured"}
    missing = what_is_missing(build(sample.RUN, sample.mixed()))
    assert missing == {"tiny-llamagen: H2O 1/4": "unsupported", "tiny-llamagen: R-KV 1/4": "oom", **distribution}
    bare = what_is_missing(build(sample.RUN, [sample.candidate("linear", "1/4")]))
    assert set(bare) == {"tiny-llamagen: full cache",
                         "tiny-llamagen: different-seed reference", "tiny-llamagen: batch-size reference", *distribution}
    candidate = sample.candidate("linear", "1/4")
    without = replace(candidate, samples={k: v for k, v in candidate.samples.items() if k not in ("peak_memory", "ssim")})
    gaps = what_is_missing(build(sample.RUN, [sample.full(), without, sample.other_seeds(), sample.other_batch()]))
    assert gaps == {"tiny-llamagen: Peak memory": "not measured", "tiny-llamagen: SSIM": "not measured", **distribution}


def test_changes_put_regressions_first_and_keep_the_rest_in_order() -> None:
    view = build(sample.RUN, sample.mixed(), sample.comparison())
    assert [(c.entry.label, c.entry.verdict) for c in view.changes[:3]] == [
        ("linear 1/4", "regressed"), ("rkv 1/4", "regressed"), ("random 1/4", "changed")]
    assert view.conclusion is not None
    assert view.conclusion.tone == "bad"
    assert view.changes[0].texts == ("0.893 × full", "1.041 × full")
    assert view.changes[1].texts == ("–", "–")
    assert {c.entry.verdict for c in view.changes if not c.loud} == {"equivalent", "not_compared"}


def test_sprites_name_their_tiles_and_miss_with_a_reason() -> None:
    view = build(sample.RUN, sample.outcomes(), artifact=sample.artifact)
    album = view.chapters[0].albums[0]
    sprite = album.sprites[0]
    assert (sprite.tile, len(sprite.tiles), sprite.worst) == (64, 12, 8)
    assert (sprite.tiles[0].seed, sprite.tiles[0].label, sprite.tiles[0].worst) == ("41", "disc", True)
    assert not sprite.tiles[8].worst


def png(width: int, height: int) -> bytes:
    drawn = io.BytesIO()
    Image.new("RGB", (width, height)).save(drawn, format="PNG")
    return drawn.getvalue()


@pytest.mark.parametrize(("data", "said"), [
    (None, "missing: No artifact"), (b"<svg onload=alert(1)>", "not a PNG"), (png(64, 128)[:60], "damaged"), (png(100, 64), "100 × 64")])
def test_a_picture_that_cannot_be_shown_says_why(data: bytes | None, said: str) -> None:
    def artifact(name: str) -> bytes:
        if data is None:
            raise BadStore(f"No artifact {name!r}.")
        return data

    sprite = build(sample.RUN, sample.outcomes(), artifact=artifact).chapters[0].albums[0].sprites[0]
    assert said in sprite.missing
    assert sprite.png == b""


def test_a_short_list_of_seeds_cannot_misname_a_tile() -> None:
    candidate = sample.candidate("linear", "1/4")
    candidate = replace(candidate, facts={**candidate.facts, "grid_seeds": [9, 8], "grid_classes": "no list"})
    tiles = build(sample.RUN, [sample.full(), candidate], artifact=sample.artifact).chapters[0].albums[0].sprites[0].tiles
    assert [t.seed for t in tiles] == ["9", "8"] + [""] * 10
    assert {t.label for t in tiles} == {""}


def test_the_conclusion_says_how_much_was_judged_and_how_old_the_baseline_is() -> None:
    then = replace(sample.ENVIRONMENT, facts={**sample.ENVIRONMENT.facts, "torch": "2.8.0", "gone": 1})
    meta = {"name": "demo", "saved": "2026-03-01T09:00:00+00:00", "reason": "the first one"}
    view = build(sample.RUN, sample.mixed(), sample.comparison(), baseline=Exchange((), then, {}, meta))
    assert view.conclusion is not None
    assert (view.conclusion.judged_cases, view.conclusion.known_cases) == sample.comparison().cases
    assert view.conclusion.against == "Baseline demo, saved 2026-03-01 (4 days before this run): the first one."
    assert view.differences is not None
    assert list(view.differences) == [("Torch", "2.8.0", "2.9.0"), ("Gone", "1", "–")]
    assert build(sample.RUN, sample.mixed(), sample.comparison()).differences is None


def test_every_verdict_is_a_sentence_with_its_rule() -> None:
    view = build(sample.RUN, sample.mixed(), sample.comparison())
    text = {change.entry.case_key + change.entry.metric: change.sentence for change in view.changes}
    assert text["blatency"] == "LineAR 1/4: Latency regressed, from 0.893 × full to 1.041 × full, 16.6 % more."
    assert text["ckv_allocated"] == "StreamingLLM 1/2: KV allocated improved, from 2.00 MiB to 1.96 MiB, 2.3 % less."
    assert text["estatus"] == "R-KV 1/4: status regressed (ok then, oom now)."
    assert all(change.entry.verdict in explanations.VERDICTS for change in view.changes)
    assert all((change.entry.verdict in explanations.ADVICE) == change.loud for change in view.changes)


def test_the_ledger_holds_every_case_once_with_its_trial_and_raw_samples() -> None:
    from cachemark.analysis import raw_samples as ledger

    outcomes = sample.mixed()
    keys = [o.case.key for o in outcomes]
    entries = build(sample.RUN, outcomes, trials={keys[0]: "3 of run 7"}).entries
    assert [e.key for e in entries] == keys
    assert (entries[0].trial, entries[1].trial) == ("3 of run 7", "")
    latency = next(f for f in entries[0].metrics if f.title == "Latency")
    assert [float(v) for v in latency.raw.split()] == [float(f"{v:.6g}") for v in outcomes[0].samples["latency"]]
    assert (latency.as_, latency.n) == ("median", 5)
    failed = next(e for e in entries if e.status == "oom")
    assert failed.metrics == ()
    assert "MemoryError" in failed.log
    complete = sum(len(v) for o in outcomes for v in o.samples.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "MOST", complete - 1)
        assert not any(f.raw for e in build(sample.RUN, outcomes).entries for f in e.metrics)


def test_every_flag_has_a_rule() -> None:
    marks = {mark.text for part in (sample.mixed(), sample.outcomes()) for chapter in build(sample.RUN, part).chapters
             for row in chapter.group.rows for mark in row.marks}
    assert marks
    assert marks | {*OF_SPEED} <= explanations.FLAGS.keys()
