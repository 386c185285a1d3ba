"""The view layer: numbers derived right, no HTML anywhere."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import report_sample as sample
from PIL import Image

from cachemark.analysis import explanations
from cachemark.analysis.baseline_comparison import alarms
from cachemark.analysis.case_group import OTHER_SEEDS, CaseGroup, case_groups
from cachemark.analysis.columns import paired_speed_note
from cachemark.analysis.device_limits import OF_SPEED
from cachemark.analysis.facts import conditions
from cachemark.analysis.report_row import ReportRow
from cachemark.analysis.report_view import build
from cachemark.analysis.summary_sentences import sentences
from cachemark.core.errors import BadStore
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Sampling
from cachemark.core.units import TIME
from cachemark.export.tables import tables
from cachemark.gate.comparison import AA
from cachemark.gate.nights import Night, standing
from cachemark.report.page.render import render
from cachemark.stats.intervals import PROCESS_BIAS
from cachemark.store.rows import Verdict


def row(row_held: CaseGroup, method: str, budget: str) -> ReportRow:
    return next(r for r in row_held.candidates if (r.case.method, r.case.budget) == (method, budget))


@pytest.mark.parametrize(("shown", "deviation", "words"), [
    ({"deviation": 0.04, "pairs": 32}, 0.04, "this machine's process-to-process variation of 4.0 % (32 A/A pairs)"),
    (None, PROCESS_BIAS, "an assumed 2.0 % process-to-process variation"),
    ({"deviation": 1.5, "pairs": 9}, PROCESS_BIAS, "an assumed 2.0 % process-to-process variation")])
def test_a_speedup_of_medians_is_widened_by_what_pairs_of_equal_code_have_shown(shown: object, deviation: float, words: str) -> None:
    full = sample.measured(sample.full(), latency=[2.0, 2.1, 2.4], kv_allocated=[1000.0], kv_logical=[900.0])
    own = sample.measured(sample.candidate("linear", "1/4"), latency=[1.0, 1.2, 1.1], kv_allocated=[300.0], kv_logical=[225.0])
    full, own = (replace(o, facts=o.facts | Facts.from_json({"process_bias": shown})) for o in (full, own))
    result, bias = row(sample.group(full, own), "linear", "1/4"), math.exp(1.959964 * math.sqrt(2) * deviation)
    assert (result.speedup.value, result.speedup.low, result.speedup.high) == pytest.approx((2.1 / 1.1, 2.0 / 1.2 / bias, 2.4 / 1.0 * bias))
    assert (result.saving, result.saving_live) == pytest.approx((0.7, 0.75))
    assert build(sample.RUN, [full, own]).chapters[0].process_bias == words


def test_without_a_full_cache_or_with_another_kernel_there_is_no_speedup() -> None:
    broken = sample.failed(sample.full(), Status.OOM, "out of memory")
    for outcomes in ([sample.candidate("linear", "1/4")], [broken, sample.candidate("linear", "1/4")]):
        derived = row(sample.group(*outcomes), "linear", "1/4")
        assert (derived.speedup, derived.saving, derived.place) == (None, None, None)
        assert "full cache" in derived.no_speedup
    derived = row(sample.group(sample.full(), sample.candidate("linear", "1/4", facts=Facts(kernel="math"))), "linear", "1/4")
    assert (derived.speedup, "math here, sdpa in the full cache" in derived.no_speedup) == (None, True)


def test_lossless_is_within_noise_in_all_tokens_and_told_from_other_seeds() -> None:
    """``generated``: part of the tokens, where a method skips scales."""
    for agreement, kl, generated, lossless in (
        (1.0, 1e-9, None, True), (1.0, 1e-3, None, False), (0.9, 1e-9, None, False), (1.0, 1e-9, 0.5, False)):
        arm = sample.measured(sample.candidate("linear", "1/2"), latency=[2.0], token_agreement=[agreement] * 64, kl=[kl] * 64)
        arm = replace(arm, facts=arm.facts | Facts(generated=generated))
        derived = row(sample.group(sample.full(), arm, sample.other_batch()), "linear", "1/2")
        assert ("lossless on this device" in [mark.text for mark in derived.marks]) is lossless
    candidate = sample.candidate("linear", "1/4")
    worse = sample.measured(candidate, latency=[0.1] * 5, token_agreement=list(sample.other_seeds().samples["token_agreement"]))
    derived = row(sample.group(sample.full(), worse, sample.candidate("random", "1/4"), sample.other_seeds()), "linear", "1/4")
    assert (derived.speedup is None, derived.place, derived.unranked) == (False, None, OTHER_SEEDS)
    assert row(sample.group(sample.full(), worse), "linear", "1/4").place == 1  # not distinguishable without the different-seed reference

    def few(outcome: Outcome, seeds: int) -> Outcome:
        return sample.measured(outcome, **{name: outcome.samples[name][:seeds] for name in ("token_agreement", "kl", "psnr", "ssim")})

    exact = {"token_agreement": [1.0] * 64, "kl": [1e-9] * 64}
    candidate = sample.measured(sample.candidate("linear", "1/2"), latency=[2.0], **exact)
    for seeds, lossless in ((2, False), (64, True)):
        derived = row(sample.group(*(few(o, seeds) if o.case.role != "baseline" else o
                           for o in (sample.full(), candidate, sample.other_seeds(), sample.other_batch()))), "linear", "1/2")
        assert derived.unranked.startswith("Cannot be told from unrelated images: 2 seeds") is not lossless
        assert ("lossless on this device" in [mark.text for mark in derived.marks]) is lossless


@pytest.mark.parametrize(("full", "candidate", "flag"), [
    ((1000, 1000), {"kv_allocated": 1000, "kv_logical": 250}, "not freed"),
    ((1000, 1000), {"kv_allocated": 260, "kv_logical": 250}, ""),
    ((1400, 1000), {"kv_allocated": 650, "kv_logical": 250}, ""),  # a workspace that every case has
    ((1000, 1000), {"kv_allocated": 250, "kv_logical": 250, "kv_state": 750}, "overhead > savings"),
    ((1000, 1000), {"kv_allocated": 250, "kv_logical": 250, "kv_state": 749}, ""),
])  # fmt: skip
def test_savings_that_are_none_are_flagged(full: tuple[int, int], candidate: dict[str, int], flag: str) -> None:
    complete = sample.measured(sample.full(), latency=[2.0], kv_allocated=[float(full[0])], kv_logical=[float(full[1])])
    bytes_held = {name: [float(number)] for name, number in {"kv_state": 0, **candidate}.items()}
    own = sample.measured(sample.candidate("linear", "1/4"), latency=[1.0], **bytes_held)
    flags = {mark.text for mark in row(sample.group(complete, own), "linear", "1/4").marks} & {"not freed", "overhead > savings"}
    assert flags == ({flag} if flag else set())


@pytest.mark.parametrize(("facts", "agreement", "flags"), [
    ({"idle": "It saves nothing."}, 0.9, {"not idle"}), ({"idle": "It saves nothing."}, 1.0, set()), ({}, 0.9, set()),
    ({"idle": "It saves nothing.", "different_kernel": "It attends otherwise."}, 0.9, set()), ({"other_load": 0.25}, 0.9, set()),
    ({"other_load": 1.37}, 0.9, {"busy machine"})])
def test_an_idle_method_with_other_tokens_and_a_busy_machine_are_flagged(facts: dict[str, Any], agreement: float, flags: set[str]) -> None:
    distances = [1 - agreement] + [0.0] * 63
    for paradigm, tokens in (("next-token", {"token_agreement": [1 - d for d in distances]}), ("masked", {"token_distance": distances})):
        own = sample.measured(sample.candidate("linear", "1/4"), latency=[1.0], **tokens)
        own = replace(own, facts=own.facts | Facts.from_json({**facts, "paradigm": paradigm}))
        pair = sample.group(sample.measured(sample.full(), latency=[2.0]), own)
        marks = {mark.text: mark.reason for mark in row(pair, "linear", "1/4").marks}
        assert marks.keys() & {"not idle", "busy machine"} == flags
        assert marks.get("busy machine") in (None, "Other processes kept 1.4 processors busy while it was timed.")


def test_reference_rows_join_their_cell_and_cells_are_named_by_the_setting_they_differ_in() -> None:
    def at(outcome: Outcome, batch: int) -> Outcome:
        return replace(outcome, case=replace(outcome.case, batch=batch))

    outcomes = sample.full(), sample.candidate("linear", "1/4"), sample.other_seeds()
    small, large = case_groups([at(outcome, batch) for batch in (1, 64) for outcome in outcomes])
    assert [row.case.batch for part in (small, large) for row in part.references] == [1, 64]
    hot = [replace(o, case=replace(o.case, sampling=Sampling(cfg_scale=1.5, top_k=0, temperature=0.7))) for o in sample.outcomes()]
    searched = Outcome(sample.case(role="baseline", evaluation={"max_batch": {"limit": 0}}), Status.OK,
                       {"max_batch": [64.0], "throughput_max": [3.5]}, "timed only")
    view = build(sample.RUN, [*sample.outcomes(), *hot, searched])
    assert [chapter.heading for chapter in view.chapters] == [
        "tiny-llamagen, temperature 1.0", "tiny-llamagen, temperature 0.7", "tiny-llamagen, temperature 1.0, largest batch"]
    stated = dict(conditions(replace(hot[0].case, sampling=Sampling(cfg_scale=1.5, top_k=7, cfg_interval=3))))
    assert {name: stated[name] for name in [*stated][9:]} == {
        "CFG scale": "1.5", "CFG interval": "3", "Temperature": "1.0", "Top k": "7"}, "what changes nothing is left out"


def what_is_missing(outcomes: list[Outcome]) -> dict[str, str]:
    return {item.what.removeprefix("tiny-llamagen: "): item.status for item in build(sample.RUN, outcomes).missing}


def test_what_was_not_measured_is_listed_with_the_line_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Pillow warns up to twice as many
    distribution = {"FID, precision and recall": "not measured"}
    assert what_is_missing(sample.mixed()) == {"H2O 1/4": "unsupported", "R-KV 1/4": "oom", **distribution}
    candidate = sample.candidate("linear", "1/4")
    assert set(what_is_missing([candidate])) == {"full cache", "different-seed reference", "batch-size reference", *distribution}
    without = replace(candidate, samples={k: v for k, v in candidate.samples.items() if k not in ("peak_memory", "ssim")})
    gaps = what_is_missing([sample.full(), without, sample.candidate("window", "1/4"), sample.other_seeds(), sample.other_batch()])
    assert gaps == {"Peak memory": "not measured", "SSIM": "not measured", **distribution}
    for data, said in (
        (None, "missing: No artifact"), (b"<svg onload=alert(1)>", "not a PNG"), (png(64, 128)[:60], "damaged"), (png(100, 64), "100 × 64"),
        (png(128, 128), "more than 10,000 pixels"), (png(256, 128), "more than 10,000 pixels")):
        def artifact(name: str, data: bytes | None = data) -> bytes:
            if data is None:
                raise BadStore(f"No artifact {name!r}.")
            return data

        sprite = build(sample.RUN, sample.outcomes(), artifact=artifact).chapters[0].albums["LineAR"][0]
        assert (said in sprite.missing, sprite.png) == (True, b"")
    late, killed = "No outcome within 600 s; the process was ended.", "The process ended by signal SIGKILL."
    for log, reason in ((sample.TRACE, "MemoryError: 4.1 GiB wanted"), (f"{late}\nwarning: unused\n{sample.TRACE}", late),
                        (f"{killed}\n", killed), ("\n", "")):
        failed = sample.failed(sample.candidate("linear", "1/2"), Status.ERROR, log)
        assert failed.reason == reason
        assert render(build(sample.RUN, [sample.full(), failed])).count(reason) >= 3, "in the verdict, among what is missing, with its case"


def png(width: int, height: int) -> bytes:
    drawn = io.BytesIO()
    Image.new("RGB", (width, height)).save(drawn, format="PNG")
    return drawn.getvalue()


def test_every_flag_and_verdict_has_a_rule() -> None:
    marks = {mark.text for part in (sample.mixed(), sample.outcomes()) for chapter in build(sample.RUN, part).chapters
             for row in chapter.group.rows for mark in row.marks}
    assert marks
    assert marks | {*OF_SPEED} <= explanations.FLAGS.keys()
    for change in build(sample.RUN, sample.mixed(), sample.comparison()).changes:
        assert change.entry.verdict in explanations.VERDICTS
        assert (change.entry.verdict in explanations.ADVICE) == (change.tone != "calm")


def test_a_speedup_that_the_latencies_of_the_table_contradict_says_why() -> None:
    """Below the table, once, with the case that is furthest off; not where rounding alone differs."""
    def beside(method: str, other: float) -> Outcome:
        candidate = sample.measured(sample.candidate(method, "1/4"), latency=[1.0] * 5)
        return replace(candidate, facts=candidate.facts | Facts(full_beside=[other] * 5))

    full = sample.measured(sample.full(), latency=[2.0] * 5)
    text = paired_speed_note(sample.group(full, beside("linear", 2.5), beside("window", 2.2)))
    assert "LineAR 1/4 would be at 2.00×" in text
    view = build(sample.RUN, [full, beside("linear", 2.5)])
    assert render(view).count(text) == tables(view)[0].notes.count(text) == 1
    for results in (beside("linear", 2.02), sample.measured(sample.candidate("linear", "1/4"), latency=[1.0] * 5)):
        assert paired_speed_note(sample.group(full, results)) == ""
        assert "timed in turns with each method" not in render(build(sample.RUN, [full, results]))


def at(latency: list[float], method: str = "linear", **samples: list[float]) -> Outcome:
    return sample.measured(sample.candidate(method, "1/4"), latency=latency, **samples)


@pytest.mark.parametrize(("arms", "sentence"), [
    ([at([1.0] * 3)], "Fastest: LineAR, 2.00× (1.89–2.11, n = 3)."),
    ([at([2.06] * 3), at([2.5] * 3, "random")], "No measurable speedup. Fastest: LineAR, 0.97× (0.92–1.03, n = 3)."),
    ([at([1.9, 2.0, 1.95])], "No measurable speedup. Fastest: LineAR, 1.03× (0.95–1.11, n = 3)."),
    ([at([1.0, 1.1, 2.6], "random"), at([1.4] * 3)], "Fastest: LineAR, 1.43× (1.35–1.51, n = 3)."),
    ([at([1.0] * 3), sample.candidate("h2o", "1/4")], "Fastest: LineAR, 2.00× (1.89–2.11, n = 3)."),
    ([at([2.2] * 3), at([0.5] * 3, "window", token_agreement=[0.03] * 64), sample.other_seeds()],
     "No ranked method has a measurable speedup. Fastest ranked method: LineAR, 0.91× (0.86–0.96, n = 3)."),
    ([at([1.0] * 3), at([0.5] * 3, "window", token_agreement=[0.03] * 64), sample.other_seeds()],
     "Fastest ranked method: LineAR, 2.00× (1.89–2.11, n = 3)."),
], ids=["faster", "slower", "interval reaches 1", "interval above 1 beats a larger value", "untimed", "unranked is faster",
        "both are faster"])  # fmt: skip
def test_the_fastest_ranked_method_of_a_budget(arms: list[Outcome], sentence: str) -> None:
    text = sentences(sample.group(sample.measured(sample.full(), latency=[2.0] * 3), *arms))["Budget 1/4"]
    assert text.endswith(sentence)
    assert ("speedup" in text) == ("speedup" in sentence)


@pytest.mark.parametrize(("false", "true", "tone", "said"), [
    (0, 20, "good", "false-alarm rate of 0 % (0 % to 17 %)."), (1, 19, "calm", "false-alarm rate of 5 % (0.13 % to 25 %)."),
    (3, 7, "bad", "verdicts on times are advisory.")])  # the ends are Clopper and Pearson's, as any table of theirs has them
def test_the_rate_has_its_exact_interval(false: int, true: int, tone: str, said: str) -> None:
    assert alarms(None) is alarms(standing([])) is None
    texts = alarms(standing([Night(sample.RUN, (Verdict("k", f"{AA} full", TIME, verdict),))
                             for verdict in ["regressed"] * false + ["equivalent"] * true]))
    assert (texts.tone, texts.lines[0].endswith(said)) == (tone, True)
