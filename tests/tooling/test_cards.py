"""Cards say what they are given, and what they are given is what the package knows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import report_sample as sample
import torch
from torch import nn

from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.core.units import quality_name
from cachemark.gate import anchors, baselines
from cachemark.methods.registry import METHODS
from cachemark.models import checkpoints
from cachemark.models.protocol import PublishedFile
from cachemark.models.registry import MODELS
from cachemark.models.weights import packaged
from cachemark.store.exchange import dump
from tools.cards import collected
from tools.cards.pages import (
    NEVER,
    UNSEEN,
    Claim,
    Drawn,
    Evidence,
    Size,
    Speed,
    Trained,
    Vectors,
    methods_page,
    models_page,
    module,
    reproduced,
    spread,
)

LOG = [{"step": step, "psnr": psnr} for step, psnr in ((100, 20.0), (200, 27.0), (300, 28.0), (400, 27.75), (500, 28.5))]
STAGE = {"steps": 500, "seconds": 120.0, "seed": 7, "data": "scene-v2", "device": "cpu", "threads": 1, "torch": "2.9", "log": LOG,
         "held_out": {"psnr": 28.5}, "sha256": "abc123", "parameters": 42, "config": {"width": 3, "sides": [1, 2]}}  # fmt: skip
TRAINED = Trained("tiny-thing", "A thing", {"tiny-thing.safetensors": 1234567}, [STAGE])


def module_list(name: str, *sizes: int) -> nn.Module:
    """A module with one list ``name`` of modules, each with one parameter ``w``."""
    holder = nn.Module()
    holder.add_module(name, nn.ModuleList(nn.ParameterDict({"w": torch.zeros(size)}) for size in sizes))
    return holder


@dataclass
class Trick(Method):
    """Does it. And more.

    Differs from the code: nothing.
    """

    name: ClassVar[str] = "trick"
    source: ClassVar[str] = "Some paper, §3"
    paradigms: ClassVar[tuple[str, ...]] = ("masked",)
    unstated: ClassVar[Mapping[str, str]] = {"way": "ours"}
    footnotes: ClassVar[tuple[str, ...]] = ("A note.",)

    B: int = 0
    size: int = 4
    way: str = "up"


CHECKPOINT = PublishedFile("weights", "thing.pt", "its authors", partial(module_list, "a", 50, 49), ("model_ema", "model"), ("*.k_cache",))
RELEASED = dataclasses.replace(MODELS.get("var-d16"), name="big-thing", family="things", summary="A big thing",
                               presets={"paper": Sampling(cfg_scale=1.5)}, files=(CHECKPOINT,))
CLAIM = Claim("Some paper", "Table 1", "big-thing", "trick", "size = 4", "2.50")
VECTORS = Vectors("things/golden", "things", "all of it", ("trick",), 5)


# ------------------------------------------------------------------------------------------------ pages

def test_a_family_says_what_papers_print_of_its_speed_and_size() -> None:
    speed = Speed("big-thing", "Table 4", "Big, full", "64", "A800", "2.86 s", "151 ms", "18.9×", "38.19 GB")
    size = Size("big-thing", "A paper, Table 3", "50", "full", "22.41 GB", "reproduced", "9.316 in 1000 MiB")
    page = models_page([], [RELEASED], Evidence(speeds=[speed, dataclasses.replace(speed, model="other", row="not here")], sizes=[size]))
    assert "| Table 4 | Big, full | 64 | A800 | 2.86 s | 151 ms | 18.9× | 38.19 GB |" in page
    assert "| `big-thing` | A paper, Table 3 | 50 | full | 22.41 GB | reproduced | 9.316 in 1000 MiB |" in page
    assert "not here" not in page
    assert "What papers print" not in models_page([], [RELEASED], Evidence())


def test_bytes_of_published_models_are_those_of_their_slots() -> None:
    """Of Janus-Pro-7B at batch 64: 30 layers of 32 heads of 128, K and V in 16 bit, 128 rows, 32 entries of the longest prompt."""
    kept_bytes = {(speed.model, speed.row): speed.kept for speed in collected.speeds()}
    entry = 30 * 32 * 128 * 2 * 2 * 128
    assert kept_bytes["janus-pro-7b", "Janus-Pro-7B, full"] == f"{entry * (32 + 575) / 1e9:.2f} GB"
    assert kept_bytes["janus-pro-7b", "Janus-Pro-7B, LineAR 1/4"] == f"{entry * (32 + 144) / 1e9:.2f} GB"
    assert {speed.kept for speed in collected.speeds() if speed.model.startswith("mar")} == {"–"}
    assert any(size.model == "infinity-2b" and "not reproduced" in size.finding for size in collected.sizes())


def test_a_model_card_says_what_it_was_given() -> None:
    page = models_page([TRAINED], [RELEASED], Evidence([VECTORS]))
    for words in ("### `tiny-thing`", "A thing.", "1\u00a0234\u00a0567 bytes", "`abc123`", "width 3, sides 1 2",
                  "500 steps in 2 minutes (120 s) on CPU with 1 thread, torch 2.9, seed 7",
                  "28.5 dB; ± 1, the largest change between two validations of steps 200 … 500 |",
                  "$ python -m tools.train tiny-thing",
                  "| `big-thing` | A big thing | cfg_scale 1.5 |", "| `big-thing` | `thing.pt` | 2 | 99 |", "`weights`, from its authors:",
                  "Looked for under `model_ema`, `model`, then at the top level. Ignored if present: `*.k_cache`.",
                  "Read (*N* counts from 0): `a.N.w`.", "- `things/golden`, 5 checks: all of it"):  # fmt: skip
        assert words in page, words


def test_the_card_of_a_model_that_draws_says_what_its_images_are_worth_or_that_nobody_looked() -> None:
    drawn = Drawn("of the full cache, seeds `s2k`", [("FID, 2000 images", "6.0 [4.9, 7.1]")])
    pages = [models_page([dataclasses.replace(TRAINED, **fields)], [], Evidence())
             for fields in ({}, {"draws": True}, {"draws": True, "drawn": drawn})]  # fmt: skip
    assert [UNSEEN in page for page in pages] == [False, True, False]
    assert "| its images | of the full cache, seeds `s2k` |\n| FID, 2000 images | 6.0 [4.9, 7.1] |" in pages[2]


def test_a_method_card_says_what_it_was_given() -> None:
    page = methods_page([Trick], Evidence([VECTORS], [CLAIM]))
    for words in ("## `trick`\n\nDoes it.\n", "| source | Some paper, §3 |", "| paradigms | masked |",
                  "| golden vectors | `things/golden`, 5 checks: all of it |",
                  "| `B` | from the budget | a plan gives it |", "| `size` | `4` | yes |", "| `way` | `up` | no; ours |",
                  "**Against its source.** Differs from the code: nothing.", "**Footnote.** A note.",
                  f"| 2.50 | `big-thing` | size = 4 | Some paper, Table 1 | {NEVER} |"):  # fmt: skip
        assert words in page, words


def test_vectors_and_figures_of_others_are_not_claimed() -> None:
    page = methods_page([Trick], Evidence([dataclasses.replace(VECTORS, methods=("full",))], [dataclasses.replace(CLAIM, method="full")]))
    assert "golden" in page
    assert "things/golden" not in page
    assert "2.50" not in page
    assert "None is known" in page


# ------------------------------------------------------------------------------------------------ their parts

@pytest.mark.parametrize(("log", "words"), [
    (LOG, "± 1, the largest change between two validations of steps 200 … 500"), (LOG[:1], "spread not known"), ([], "spread not known"),
    (LOG[:2], "± 7, the largest change between two validations of steps 100 … 200"), ([{"step": 1, "loss": 3.0}] * 5, "spread not known"),
])  # fmt: skip
def test_the_spread_is_of_the_last_validations(log: list[dict[str, float]], words: str) -> None:
    assert spread(log, "psnr") == words


def test_only_an_anchor_makes_a_figure_reproduced() -> None:
    reached = [anchors.ReachedAnchor(anchors.Anchor("big-thing", "fid", 2.5, 0.1, "a paper"), "weights", 2.514, {})]
    assert reproduced(CLAIM, []) == NEVER
    assert reproduced(dataclasses.replace(CLAIM, model="small-thing"), reached) == NEVER
    assert reproduced(CLAIM, reached) == "not yet; the full cache of this model is anchored"
    assert reproduced(dataclasses.replace(CLAIM, method="full"), reached) == "2.514"
    assert reproduced(dataclasses.replace(CLAIM, method="full", fid="2.60"), reached).startswith("not yet")


# ------------------------------------------------------------------------------------------------ what is collected

def test_every_packaged_model_has_a_card() -> None:
    cards = {model.name: model for model in collected.trained(Path("nowhere"))}
    assert set(cards) == {path.stem for path in packaged("x").parent.glob("*.safetensors")} - {"tiny-features.reference"} != set()
    for name, model in cards.items():
        assert model.stages[-1]["sha256"] == checkpoints.sha256(packaged(f"{name}.safetensors"))
        assert model.files[f"{name}.safetensors"] == packaged(f"{name}.safetensors").stat().st_size
        assert all(stage["log"][-1]["step"] == stage["steps"] for stage in model.stages)
    assert [len(cards[name].stages) for name in ("tiny-vq", "tiny-var")] == [2, 1]


@pytest.fixture
def worth(tmp_path: Path) -> Callable[..., Drawn | None]:
    """What the card of tiny-var says after runs of these outcomes, each saved as a baseline, the oldest first."""
    own = checkpoints.sha256(packaged("tiny-var.safetensors"))

    def drawn_after(*runs: tuple[float, int, dict[str, Any]]) -> Drawn | None:
        for number, (fid, count, fields) in enumerate(runs):
            name, evaluation = quality_name("fid", "scene", count), {"preset": "scene", "seeds": "s2k", "samples": count, "batch": 50}
            case_fields = {"model": "tiny-var", "weights": f"{own}/coder", "sampling": Sampling(cfg_scale=1.5),
                           "evaluation": {"quality": evaluation}}
            case = dataclasses.replace(sample.full().case, **{**case_fields, **fields})
            facts = {"intervals": {name: [fid - 0.5, fid + 0.5]}, "real": {name: [0.5, 0.25, 0.75]}}
            outcome = dataclasses.replace(sample.full(), case=case, samples={name: [fid], "class_accuracy": [1.0] * count}, facts=facts)
            text = dump([outcome], sample.RUN.environment, {"commit": f"{number}" * 40}, plan="p", saved=f"2026-01-0{number + 1}")
            baselines.write(baselines.path_of(tmp_path, "a machine", f"run{number}"), text, remedy="")
        return {model.name: model for model in collected.trained(tmp_path)}["tiny-var"].drawn

    return drawn_after


def test_what_images_are_worth_comes_from_a_baseline_of_the_same_weights(worth: Callable[..., Drawn | None]) -> None:
    drawn = worth((6.0, 2000, {}))
    assert drawn is not None
    assert "seeds `s2k`, cfg_scale 1.5" in drawn.made
    assert "commit 0000000000" in drawn.made
    assert dict(drawn.numbers) == {
        "Class accuracy, 2000 images": "100.0 % [99.8 %, 100.0 %]", "FID, scene, 2k images": "6.000 [5.500, 6.500]",
        "FID, scene, 2k images, of real ones": "0.500 [0.250, 0.750]",
    }  # fmt: skip


@pytest.mark.parametrize("fields", [{"weights": "0" * 64 + "/coder"}, {"model": "tiny-mar"}, {"role": "candidate"}, {"evaluation": {}}])
def test_images_of_others_say_nothing_about_a_model(worth: Callable[..., Drawn | None], fields: dict[str, Any]) -> None:
    assert worth((6.0, 2000, fields)) is None


def test_the_run_that_looked_at_the_most_images_counts_and_of_these_the_newest(worth: Callable[..., Drawn | None]) -> None:
    drawn = worth((4.0, 2000, {}), (5.0, 2000, {}), (6.0, 500, {}))
    assert drawn is not None
    assert ("FID, scene, 2k images", "5.000 [4.500, 5.500]") in drawn.numbers


def test_a_damaged_baseline_costs_no_card(worth: Callable[..., Drawn | None], tmp_path: Path) -> None:
    baselines.write(tmp_path / "a machine" / "broken.json", "{", remedy="")
    assert worth((6.0, 2000, {})) is not None


def test_every_published_model_says_where_each_of_its_weights_comes_from() -> None:
    cards = {model.name: model for model in collected.released()}
    sizes = {"llamagen": "b l xl xxl 3b", "var": "d16 d20 d24 d30 d36-512", "mar": "b l h", "janus-pro": "1b 7b",
             "lumina-mgpt": "7b-768 7b-1024", "infinity": "2b 2b-512 2b-256 8b 8b-512", "llamagen-t2i": "256 512"}
    assert set(cards) == {f"{family}-{size}" for family, names in sizes.items() for size in names.split()}
    assert all({file.key for file in model.files} == {"weights", "decoder_weights"} for model in cards.values())
    assert cards["llamagen-b"].files[0].name == "c2i_B_256.pt"
    assert sum(p.numel() for p in module(cards["mar-l"].files[0]).parameters()) == 478_326_304  # of the authors' code


def test_what_a_source_does_not_state_is_a_parameter_of_its_method() -> None:
    for name in METHODS:
        cls = METHODS.get(name)
        assert set(cls.unstated) <= set(cls().parameters()), name
        assert all(reason and not reason.endswith(".") for reason in cls.unstated.values()), name


def test_published_figures_are_of_models_and_methods_that_exist() -> None:
    claims = collected.evidence(packaged("x").parent / "nowhere").claims
    assert claims
    for claim in claims:
        assert claim.model in MODELS
        assert MODELS.get(claim.model).paradigm in METHODS.get(claim.method).paradigms
        assert f"{float(claim.fid):.2f}" == claim.fid
    assert len({json.dumps(dataclasses.astuple(claim)) for claim in claims}) == len(claims)


def test_anchors_expect_what_the_cards_print() -> None:
    claims = collected.evidence(packaged("x").parent / "nowhere").claims
    for model, anchor in anchors.shipped().items():
        own = [claim for claim in claims if (claim.model, claim.method) == (model, "full") and claim.paper.startswith("README")]
        assert [float(claim.fid) for claim in own] == [anchor.expected]
