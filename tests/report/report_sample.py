"""An invented run, shaped like the demo plan: the full cache, six methods at two budgets, two reference rows."""

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from PIL import Image

from cachemark.analysis import report_view
from cachemark.analysis.case_group import CaseGroup, case_groups
from cachemark.core.facts import Facts
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.gate.baseline_check import Comparison
from cachemark.gate.judgement import RunJudgement
from cachemark.report.page import render
from cachemark.store.rows import RunRecord, Verdict

METHODS = ("window", "streaming", "random", "h2o", "rkv", "linear")
BUDGETS = ("1/2", "1/4")
CLASSES = ("disc", "square", "triangle", "diamond", "ring", "plus", "flower", "hourglass", "gear", "tower")
FULL_BYTES = 3_948_544
SEEDS = 256
FID = "fid_scene_2k"
TRACE = 'Traceback (most recent call last):\n  File "trial.py", line 88, in run\nMemoryError: 4.1 GiB wanted'
SCRIPTS = "<script>alert(1)</script>"
BREAKERS = "\"'><img src=x onerror=alert(2)></style></svg></details><!-- ]]> {{ 7 * 7 }} {% raw %} &lt;b&gt; \\ `"
# speed, tokens kept, KL, PSNR, SSIM, legend: of 1/2 and of 1/4
FIGURES = {
    "window": ((1.04, 0.64, 0.41, 14.2, 0.72, 0.22), (1.11, 0.39, 0.94, 11.7, 0.52, 0.18)),
    "streaming": ((1.02, 0.82, 0.10, 23.2, 0.89, 0.86), (1.09, 0.44, 1.23, 12.4, 0.53, 0.31)),
    "random": ((0.99, 0.82, 0.06, 24.9, 0.89, 0.99), (1.05, 0.45, 0.57, 14.0, 0.57, 0.66)),
    "h2o": ((0.71, 0.78, 0.14, 21.0, 0.85, 0.90), (0.78, 0.47, 0.71, 13.9, 0.58, 0.52)),
    "rkv": ((0.69, 0.80, 0.12, 21.8, 0.86, 0.91), (0.74, 0.49, 0.66, 14.1, 0.60, 0.55)),
    "linear": ((1.03, 0.86, 0.05, 26.4, 0.92, 0.98), (1.12, 0.58, 0.38, 16.0, 0.66, 0.81)),
}
ENVIRONMENT = Environment("Example CPU, 8 threads", "cpu-example-8", "5f1c0a7be2d94410", {
    "python": "3.12.4", "torch": "2.9.0", "threads": 8, "device": "Example CPU, 8 threads",
    "load": {"before": 0.12, "after": 0.31}, "governor": "performance"})
RUN = RunRecord(
    7, "demo", {"name": "demo", "models": ["tiny-llamagen"], "methods": list(METHODS), "budgets": list(BUDGETS)},
    "2026-03-05T09:14:22.104233+00:00", "2026-03-05T09:21:48.500000+00:00", "finished", ENVIRONMENT,
    {"commit": "3f9a61c0d2b7e845c1a0", "dirty": True, "hash": "b1946ac92492d234", "version": "0.1.0"})


def case(**changes: Any) -> Case:
    values: dict[str, Any] = {"model": "tiny-llamagen", "weights": "9c2e5b71d0aa44f3", "grid": (16, 16), "conditions": "classes-10",
                              "sampling": Sampling(cfg_scale=1.5, top_k=0, temperature=1.0), "method": "full", "batch": 16, "repeats": 5}
    return Case(**{**values, **changes})


def _spread(stream: random.Random, middle: float, share: float, count: int, low: float = 0.0, high: float = 1e12) -> list[float]:
    return [min(high, max(low, middle * (1 + share * stream.gauss(0, 1)))) for _ in range(count)]


def _speed(stream: random.Random, factor: float) -> dict[str, list[float]]:
    return {"latency": _spread(stream, 2.31 / factor, 0.012, 5), "latency_tokens": _spread(stream, 2.18 / factor, 0.012, 5),
            "tokens_per_s_first": _spread(stream, 1930.0 * min(factor, 1.02), 0.01, 5),
            "tokens_per_s_last": _spread(stream, 1790.0 * factor, 0.01, 5)}


def _bytes(ratio: float, state: float) -> dict[str, list[float]]:
    live, workspace = FULL_BYTES * ratio, 15_424.0
    slack = 0.0 if ratio == 1 else 61_696.0
    return {"kv_logical": [live], "kv_allocated": [live + slack + workspace], "kv_workspace": [workspace], "kv_state": [state],
            "peak_memory": [live + slack + workspace + state + 9_400_000.0]}


def _held(ratio: float) -> dict[str, Any]:
    """A line of 16 tokens after the other, until there is room for no more."""
    tokens = list(range(16, 257, 16))
    return {"live_bytes": {"tokens": tokens, "live": [FULL_BYTES * min(n / 256, ratio) for n in tokens]}}


def _fidelity(stream: random.Random, retained: float, kl: float, psnr: float, ssim: float) -> dict[str, list[float]]:
    return {"token_agreement": _spread(stream, retained, 0.22, SEEDS, 0, 1), "kl": _spread(stream, kl, 0.45, SEEDS),
            "psnr": _spread(stream, psnr, 0.2, SEEDS, 5, 60), "ssim": _spread(stream, ssim, 0.12, SEEDS, 0, 1)}


def legend(stream: random.Random, score: float) -> dict[str, list[float]]:
    return {"color_consistency": [sum(stream.random() < score for _ in range(4)) / 4 for _ in range(SEEDS)]}


def candidate(method: str, budget: str, **changes: Any) -> Outcome:
    stream = random.Random(f"{method} {budget}")
    factor, *fidelity, score = FIGURES[method][BUDGETS.index(budget)]
    ratio = 0.5 if budget == "1/2" else 0.25
    facts: dict[str, Any] = {
        "kernel": "sdpa", "true_ratio": ratio, "source": "An invented paper, §3", "grid_seeds": [41, 7, 22, 58, 13, 3, 60, 35, 0, 1, 2, 3],
        "grid_classes": [CLASSES[k % 10] for k in range(12)], **_held(ratio)}
    if method in ("h2o", "rkv"):
        facts |= {"kernel": "math with mass", "quality_only": "It needs attention mass, and the kernel that gives it is not fused."}
    if method == "rkv":
        facts["footnotes"] = ["Similarity is computed per line, not per token as in the authors' code."]
    samples = {**_speed(stream, factor), **_bytes(ratio, 8192.0 if method in ("h2o", "rkv", "linear") else 0.0),
               **_fidelity(stream, *fidelity), **legend(stream, score)}
    values = Outcome(case(method=method, budget=budget, parameters={"sinks": 1, "recent": 0.5} if method != "random" else {"seed": 0}),
                   Status.OK, samples, seconds=31.0, facts=Facts.from_json(facts), artifacts={"grid.png": f"{method}-{budget}"})
    return replace(values, **changes)


def full(**changes: Any) -> Outcome:
    stream = random.Random("full")
    samples = {**_speed(stream, 1.0), **_bytes(1.0, 0.0), **legend(stream, 0.99)}
    facts = Facts.from_json({"kernel": "sdpa", **_held(1.0)})
    return replace(Outcome(case(role="baseline"), Status.OK, samples, seconds=33.0, facts=facts), **changes)


def other_seeds() -> Outcome:
    return Outcome(case(role="other_seeds", seeds="t64"), Status.OK, _fidelity(random.Random("other seeds"), 0.03, 2.9, 9.9, 0.40))


def other_batch() -> Outcome:
    nearly = {"token_agreement": (1.0, 0.9375), "psnr": (60.0, 31.0), "ssim": (1.0, 0.99)}
    samples = {"kl": [1.7e-8] * SEEDS, **{name: [most] * (SEEDS - 1) + [item] for name, (most, item) in nearly.items()}}
    return Outcome(case(role="other_batch", batch=5), Status.OK, samples)


def measured(outcome: Outcome, **samples: Sequence[float]) -> Outcome:
    """The same outcome with other values of some metrics."""
    return replace(outcome, samples={**outcome.samples, **samples})


def with_fid(outcome: Outcome, fid: float, reach: float | None = 0.1, to_full: Sequence[float | None] = ()) -> Outcome:
    """The same outcome with a quality pass: its FID with an interval, and its difference from the full cache's FID."""
    evaluation = {"quality": {"preset": "scene", "seeds": "s2k", "samples": 2000, "batch": 50}}
    facts = {**outcome.facts.to_json(), "intervals": {FID: [None, None] if reach is None else [fid - reach, fid + reach]},
             **({"to_full": {FID: to_full}} if to_full else {})}
    return measured(replace(outcome, case=replace(outcome.case, evaluation=evaluation), facts=Facts.from_json(facts)), **{FID: [fid]})


def failed(outcome: Outcome, status: Status, log: str) -> Outcome:
    return Outcome(outcome.case, status, log=log, seconds=4.0)


def candidates() -> dict[tuple[str, str], Outcome]:
    return {(method, budget): candidate(method, budget) for budget in BUDGETS for method in METHODS}


def outcomes() -> list[Outcome]:
    """All fifteen cases, each with values."""
    return [full(), *candidates().values(), other_seeds(), other_batch()]


def mixed() -> list[Outcome]:
    """The fifteen cases of a run in which much happened: failures, a lossless method, one no better than other seeds."""
    values = candidates()
    stream = random.Random("mixed")
    values["rkv", "1/4"] = failed(values["rkv", "1/4"], Status.OOM, TRACE)
    values["h2o", "1/4"] = failed(values["h2o", "1/4"], Status.UNSUPPORTED, "Budget 1/4 leaves 4 lines, h2o needs 5 at recent = 5.")
    values["window", "1/4"] = measured(values["window", "1/4"], **_fidelity(stream, 0.031, 2.6, 9.8, 0.41))
    exact = {"token_agreement": [1.0] * SEEDS, "kl": [1.2e-8] * SEEDS, "psnr": [60.0] * SEEDS, "ssim": [1.0] * SEEDS}
    values["linear", "1/2"] = measured(values["linear", "1/2"], **exact)
    return [full(), *values.values(), other_seeds(), other_batch()]


def random_weights() -> list[Outcome]:
    """The same run on random weights: fidelity samples are there, and must not be shown."""
    return [replace(o, case=replace(o.case, weights="random:0"), unjudged="Weights are random: images are noise.") for o in outcomes()]


def group(*results: Outcome) -> CaseGroup:
    """The only group of these outcomes, or of all fifteen."""
    (only,) = case_groups(results or outcomes())
    return only


def compared(*rows: Verdict, min_coverage: float = 0.95) -> RunJudgement:
    """What the gate gives for these rows."""
    return RunJudgement(Comparison(rows, 0.15, min_coverage))


def comparison() -> RunJudgement:
    """One value of each verdict, regressions not first."""
    return compared(
        Verdict("a", "window 1/4", "latency", "equivalent", "", 0.914, 0.917, 1.003),
        Verdict("b", "linear 1/4", "latency", "regressed", "", 0.893, 1.041, 1.166),
        Verdict("c", "streaming 1/2", "kv_allocated", "improved", "must be equal", 2_100_000.0, 2_051_392.0, 0.9769),
        Verdict("d", "random 1/4", "output_hash", "changed", "1f0c then, 77ab now"),
        Verdict("d", "random 1/4", "color_consistency", "not_compared", "quality varies from sample to sample and needs a paired test"),
        Verdict("e", "rkv 1/4", "status", "regressed", "ok then, oom now"))


@cache
def sprite(name: str, columns: int = 12, tile: int = 64) -> bytes:
    """A PNG of two rows of noise: the upper one is that of the full cache for every name."""
    count = 3 * columns * tile * tile
    pixels = random.Random("full").randbytes(count) + random.Random(name).randbytes(count)
    drawn = io.BytesIO()
    Image.frombytes("RGB", (columns * tile, 2 * tile), pixels).save(drawn, format="PNG")
    return drawn.getvalue()


def poison(evil: str) -> tuple[RunRecord, list[Outcome], RunJudgement]:
    """A run, its outcomes and its comparison, in which everything that a user can write is ``evil``."""
    shared = {"model": evil, "conditions": evil, "seeds": evil}
    hostile = case(method=evil, budget="1/4", parameters={evil or "k": evil, "n": [evil]}, codec=evil, **shared)
    good = candidate("linear", "1/4")
    facts = {**good.facts.to_json(), "footnotes": [evil], "grid_prompts": [evil] * 12, "source": evil, "layout": evil}
    bad = Outcome(replace(hostile, budget="1/2"), Status.ERROR, log=f"{evil}\nlast {evil}")
    results = [replace(o, case=replace(o.case, **shared)) for o in (full(), other_batch())]
    results += [replace(good, case=hostile, facts=Facts.from_json(facts)), bad]
    environment = Environment(evil, evil, evil, {evil or "k": {evil or "k": evil}, "list": [evil]})
    code = {"commit": evil, evil: evil}
    run = replace(RUN, plan=evil, plan_json={evil: evil}, started=evil, state=evil, environment=environment, code=code)
    return run, results, compared(Verdict(evil, evil, evil, evil, evil, 1.0, 2.0, 2.0))


def poisoned(evil: str) -> str:
    return render.render(report_view.build(*poison(evil), sprite))
