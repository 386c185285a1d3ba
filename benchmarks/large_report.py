"""How long the page of a large run takes: made from a store of five thousand cases and a million samples, and shown by a browser.

``python benchmarks/large_report.py`` builds the store (a minute), makes the page and opens it in Chromium where that and Playwright are
here. It exits with 1 where the page took more than ten seconds to make or its first paint more than two. Values are invented.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.store.db import Store
from cachemark.workflows.report import report

MADE, PAINTED = 10.0, 2.0  # seconds allowed
SEEDS = 64


def outcome(model: int, method: int, budget: int, budgets: int) -> Outcome:
    """Two hundred invented samples of a case; method −1 is the full cache."""
    stream = random.Random(model * 10_000 + method * 100 + budget)
    full = method < 0
    case = Case(f"model-{model}", "9c2e5b71d0aa44f3", (16, 16), "classes-10", Sampling(), "full" if full else f"method_{method}",
                budget="1" if full else f"{budget}/{budgets + 1}", role="baseline" if full else "candidate")
    speed = {name: [stream.uniform(1, 2) for _ in range(2)] for name in ("latency", "latency_tokens")}
    held = {name: [1e6 * budget] for name in ("kv_logical", "kv_allocated", "kv_stage", "kv_state")}
    judged = {name: [stream.random() for _ in range(SEEDS)] for name in ("token_agreement", "kl", "legend")}
    return Outcome(case, Status.OK, {**speed, **held, **judged}, facts={"kernel": "sdpa"})


def fill(path: Path, models: int = 20, methods: int = 25, budgets: int = 10) -> int:
    """Write a store with one run, and return how many cases it has."""
    with Store.open(path) as store:
        run = store.begin_run("large", {}, Environment("Example CPU", "cpu-example", "5f1c"), {"commit": "", "dirty": False})
        for model in range(models):
            store.save(run, outcome(model, -1, budgets, budgets), trial=f"t{model}")
            for method in range(methods):
                for budget in range(1, budgets + 1):
                    store.save(run, outcome(model, method, budget, budgets), trial=f"t{model}")
        store.finish_run(run, "finished")
    return models * (methods * budgets + 1)


def made(path: Path, page: Path) -> tuple[float, float]:
    """Seconds from the store to the page, by the clock and of the processor: apart where others use the machine."""
    with Store.open(path, create=False) as store:
        start = time.perf_counter(), time.process_time()
        report(store, page)
        return time.perf_counter() - start[0], time.process_time() - start[1]


def shown(page: Path) -> tuple[float, float] | None:
    """Seconds to the first paint, and for a tab and a filter; None without Chromium or Playwright."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        opened.goto(page.as_uri(), timeout=120_000)
        paint = opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        start = time.perf_counter()
        opened.click("#tab-leaderboard", timeout=120_000)
        opened.fill("#leaderboard .filter input >> nth=0", "method_1 -1/11")
        opened.wait_for_function("document.querySelector('#leaderboard output').textContent.includes(' of ')")
        used = time.perf_counter() - start
        browser.close()
        return paint / 1000, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store that this script has made before")
    parser.add_argument("--keep", type=Path, help="folder for the store and the page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = given.keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        store, page = given.store or place / "large.sqlite", place / "large.html"
        if given.store is None:
            print(f"{fill(store)} cases in {store}")
        seconds, busy = made(store, page)
        print(f"made in {seconds:.1f} s ({busy:.1f} s of the processor), {page.stat().st_size / 2**20:.1f} MiB")
        seen = shown(page)
        print(f"first paint after {seen[0]:.2f} s, a tab and a filter take {seen[1]:.1f} s" if seen else "not shown: no browser here")
    sys.exit(seconds > MADE or (seen is not None and seen[0] > PAINTED))


if __name__ == "__main__":
    main()
