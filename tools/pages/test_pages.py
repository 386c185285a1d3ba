"""Generated pages: those in the repository are what their stored values make, and what is missing shows."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.tracked.benchmarks import Generations
from cachemark.analysis.answers import answer, numbers
from cachemark.analysis.quality_claims import standing
from cachemark.gate import anchors, baselines
from cachemark.machine.affinity import torch_threads
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.workflows.roofline import device_rates, roofline_times
from studies.papers.__main__ import papers, published_fids
from studies.papers.published_sizes import UNITS
from studies.papers.size_claims import size_claims
from tools.cards.models import released
from tools.site import hosts, links

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_answers_of_the_readme_are_those_of_the_accepted_demo() -> None:
    demo = baselines.load(ROOT / "baselines" / "accepted" / "amd-epyc-1-threads" / "demo.json")
    groups, claims = standing(demo.outcomes)
    expected = {}
    for group in groups:
        recommended = answer(group, claims)
        row = recommended.row or recommended.lean
        assert row
        printed = [number for _, value, ends in numbers(row, group) for number in re.findall(r"\d+\.\d+", f"{value} {ends}")]
        expected[group.model] = ([row.case.method], printed)
    table = README.split("| model | recommendation | speedup | savings | color consistency |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    shown = {}
    for line in table:
        model, method, *values = (cell.strip() for cell in line.strip("|").split("|"))
        shown[model.strip("`")] = (re.findall(r"`(\w+)`", method), [n for text in values for n in re.findall(r"\d+\.\d+", text)])
    assert shown == expected
    commit = re.search(r"commit ([0-9a-f]{10})", README)
    assert commit
    assert str(demo.code["commit"]).startswith(commit[1])


def test_published_values_are_of_models_and_methods_that_exist() -> None:
    for name in METHODS:
        assert set(METHODS.get(name).unstated) <= {field.name for field in dataclasses.fields(METHODS.get(name))}, name
    for claim in published_fids():
        assert MODELS.get(claim["model"]).paradigm in METHODS.get(claim["method"]).paradigms
    for model, anchor in anchors.shipped().items():
        own = [claim["fid"] for claim in published_fids()
               if (claim["model"], claim["method"]) == (model, "full") and "README" in claim["paper"]]
        assert list(map(float, own)) == [anchor.expected]
    files = {model.name: {file.key for file in model.files} for model in released()}
    assert len(files) == 26
    assert {name for name, keys in files.items() if keys != {"weights", "decoder_weights"}} == {"glm-image"}


def test_links_that_leave_docs_lead_to_the_copy_and_others_stay() -> None:
    text = ("[a](../../ci/n.sh) [b](gate.md#how) [c](../errors.md) [d](#x) [e](https://x.org/a.md) ![f](../../reports/d.html#t)\n"
            "```python\nrun[0](../../ci/n.sh)\n```\n")
    assert links.rewritten(text, "docs/how-to/nightly.md") == text.replace("(../../ci/n.sh) [b", "(../repository/ci/n.sh.md) [b").replace(
        "(../../reports/d.html#t", "(../repository/reports/d.html#t")


@pytest.mark.parametrize("text", [
    '<script src="https://x.org/a.js"></script>', '<img src="//x.org/a.png">', '<link rel="stylesheet" href="http://x.org/a.css">',
    '<p style="background: url(https://x.org/a.png)">', "<style>@import 'https://x.org/a.css'</style>", '<iframe src="HTTPS://x.org"></iframe>',
])
def test_what_a_page_loads_from_another_host_is_found(text: str) -> None:
    assert len(hosts.loads(text)) == 1


FOLLOWING = [  # paper, table, printed, images, tokens that are kept: one row of each table of Infinity-8B
    ("ScaleKV", "Table 1", "17062", 8, 1300), ("ScaleKV", "Table 3", "10.5", 1, 6425), ("HeatKV", "Figure 1", "42", 4, 6425),
    ("HACK++", "main text", "1.69", 1, 1052),
]


def test_published_sizes_follow_from_tokens_layers_width_two_rows_and_six_bytes() -> None:
    claims = {(claim.paper, claim.table, claim.printed): claim for claim in size_claims(MODELS.get("infinity-8b"), torch.float16)}
    for paper, table, printed, images, tokens in FOLLOWING:
        claim, size = claims[paper, table, printed], tokens * 40 * 3584 * 2 * 6 * images
        by = "" if claim.batch else f" by {images} image{'s' if images > 1 else ''}"
        assert claim.finding.startswith(
            f"reproduced{by}: {size:,} bytes, {size / UNITS[claim.means]:.3f} in {claim.means}, with K in fp32, V in 16 bit")
        assert claim.allocated.images == images


def test_a_published_speedup_stands_beside_what_its_gpu_and_the_asked_one_allow() -> None:
    asked = ["llamagen-xl", "--gpu", "h200", "--method", "linear", "--budget", "1/4", "--batch", "256"]
    result = CliRunner().invoke(papers, ["speeds", *asked, "--json"], catch_exceptions=False)
    row = next(row for row in json.loads(result.stdout)["published"] if row["row"] == "LlamaGen-XL, LineAR 1/4")
    assert (row["batch_stated"], row["gpu"], row["measured"]) == (True, "A800 80 GB", None)
    assert row["speedup"] == pytest.approx(5.18, abs=0.005)
    for place, gpu in (("here", "h200"), ("there", "a800")):
        least = roofline_times("llamagen-xl", device_rates(gpu, "bfloat16"), methods=["linear"], budgets=["1/4"], batches=[256])[1]
        bounds = row[f"roofline_{place}"], row[f"speedup_bound_{place}"]
        assert bounds == pytest.approx((least.seconds / 256, least.speedup), rel=1e-3)


def test_a_generation_is_tracked() -> None:
    generations, nbytes = Generations(), list[int]()
    with torch_threads(1):
        for method in Generations.params[1]:
            generations.setup("tiny-var", method)
            nbytes.append(generations.track_kv_bytes("tiny-var", method))
    full, tracked = nbytes
    assert 0 < tracked <= full
