"""The quality pass of a case: which images are seen, in which parts, and what is said of them."""

import hashlib
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.core import seeds, units
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import QUALITY_PASS
from cachemark.methods.full import Full
from cachemark.metrics.base import known
from cachemark.metrics.compute import presets
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.presets import Preset
from cachemark.metrics.compute.quality_intervals import difference, intervals
from cachemark.plans.planned import Prepared
from cachemark.trial.child import quality
from cachemark.trial.child.bench import Bench
from support import examples, measuring
from support.measuring import fill, run_case, see_side
from trial.test_measure import recorded

IMAGES, PART, BATCH = 24, 10, 4
QUALITY = f'[quality]\nseeds = "s256"\nsamples = {IMAGES}\nbatch = {BATCH}\npreset = "eyes"\n'
OPTIONS = {"kid_subset_size": 8, "kid_subsets": 4, "isc_splits": 2}
FIGURES = {f"{base}_eyes_{IMAGES}" for base in ("fid", "kid", "isc", "precision", "recall")}


@pytest.fixture(scope="module")
def preset(folder: Path) -> Preset:
    (folder / "eyes.py").write_text(examples.EYES)
    return runpy.run_path(str(folder / "eyes.py"))["seen"]()


@pytest.fixture(autouse=True)
def _preset(dot: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "PART", PART)
    monkeypatch.setattr(presets, "preset", lambda name, **_: preset)
    monkeypatch.setattr(presets, "identity_of", lambda name, *_: preset.identity)


def planned(folder: Path, table: str = QUALITY, **more: Any) -> list[Prepared]:
    return measuring.planned(folder, '"streaming"', **{"top": table, **more})


def of_role(cases: list[Prepared], role: str) -> Prepared:
    return next(p for p in cases if p.case.role == role)


def pass_of(case: Prepared, bench: Bench) -> Outcome:
    return run_case(case, bench)[0]


def test_sides_and_the_full_cache_are_compared_with_real_images_and_reference_rows_are_not(folder: Path, preset: Preset) -> None:
    cases = planned(folder)
    for p in cases:
        assert (QUALITY_PASS in p.case.evaluation) == (p.case.role in ("candidate", "baseline")), p.case.label
    stated = of_role(cases, "candidate").case.evaluation[QUALITY_PASS]
    assert stated == {"seeds": "s256", "samples": IMAGES, "batch": BATCH, **preset.identity}


def test_the_full_cache_is_made_once_for_a_cell_and_its_reference_rows(folder: Path) -> None:
    """They differ from their cell by the quality pass."""
    cases = [replace(p, case=replace(p.case, repeats=3, warmup=1)) for p in planned(folder)]
    bench, counter = recorded(cases[:1])
    made = {}
    for role in ("baseline", "other_seeds", "other_batch"):
        counter.calls.clear()
        pass_of(of_role(cases, role), bench)
        made[role] = len(counter.seeds)
    samples = cases[0].case.samples
    assert len(bench.references) == 1
    assert made["other_seeds"] == samples, "its own images"
    assert made["other_batch"] == 2 * samples, "its own images, and along the full cache's tokens"


def test_figures_are_those_of_all_images_at_once(folder: Path, preset: Preset) -> None:
    cases = planned(folder)
    bench = Bench.load(cases[0])
    full, side = (pass_of(of_role(cases, role), bench) for role in ("baseline", "candidate"))
    whole = seeds.subset("s256", 10).first(IMAGES)
    tokens = bench.loaded.generator.generate(torch.tensor(whole.labels), whole.seeds, Full(), full.case.sampling, Memory())
    seen = ImageFeatures.of(bench.loaded.decode(tokens), preset.extractor)
    whole_set = intervals(seen, preset.reference, **preset.options)
    expected = {units.quality_name(name, preset.name, IMAGES): ends for name, ends in whole_set.items()}
    assert expected.keys() == FIGURES
    assert {name: full.samples[name] for name in FIGURES} == {name: [ends.value] for name, ends in expected.items()}
    assert full.facts.intervals == {name: known(ends.low, ends.high) for name, ends in expected.items()}
    assert full.facts.bias == {"fid_eyes_24": expected["fid_eyes_24"].bias}
    right = seen.logits.argmax(1) == torch.tensor(whole.labels)
    assert full.samples["class_accuracy"] == right.double().tolist()
    assert full.facts.to_full is None
    assert side.samples["fid_eyes_24"] != full.samples["fid_eyes_24"]
    (change,) = side.facts.to_full.values()
    assert change[0] == pytest.approx(side.samples["fid_eyes_24"][0] - full.samples["fid_eyes_24"][0])
    assert change[1] <= change[0] <= change[2]
    assert difference(seen, seen, preset.reference).value == 0


def test_a_side_of_a_later_trial_finds_the_full_cache_on_its_shelf(folder: Path, tmp_path: Path) -> None:
    cases = planned(folder)
    full, side = (of_role(cases, role) for role in ("baseline", "candidate"))
    bench = Bench.load(full)
    pass_of(replace(full, feature_cache=tmp_path / "full"), bench)
    together = pass_of(side, bench)
    alone = replace(side, full_features=tmp_path / "full")
    assert pass_of(alone, Bench.load(side)).facts.to_full == together.facts.to_full
    (tmp_path / "full" / "00002.safetensors").unlink()
    assert pass_of(alone, Bench.load(side)).facts.to_full is None


def test_a_part_that_cannot_be_read_is_made_again(folder: Path, tmp_path: Path) -> None:
    case = replace(of_role(planned(folder), "baseline"), feature_cache=tmp_path / "shelf")
    first = pass_of(case, Bench.load(case))
    (tmp_path / "shelf" / "00001.safetensors").write_bytes(b"\x00" * 40)
    bench, counter = recorded([case])
    again = pass_of(case, bench)
    assert set(counter.seeds) - set(range(examples.SAMPLES)) == set(range(PART, 2 * PART))
    assert again.samples["fid_eyes_24"] == first.samples["fid_eyes_24"]


def test_shares_together_make_every_part_once(folder: Path, tmp_path: Path) -> None:
    case = replace(of_role(planned(folder), "baseline"), feature_cache=tmp_path / "shelf")
    made: list[int] = []
    for index in range(2):
        bench, counter = recorded([case])
        outcome, artifacts = fill(case, bench, (index, 2))
        assert (outcome.status, artifacts) == (Status.NOT_REACHED, {})
        assert f"Share {index + 1} of 2" in outcome.log
        made += counter.seeds
    assert sorted(made) == list(range(IMAGES))
    bench, counter = recorded([case])
    assert pass_of(case, bench).ok
    assert set(counter.seeds) == set(range(examples.SAMPLES))


def test_whatever_is_judged_has_the_hash_of_its_images(folder: Path) -> None:
    cases = [p for p in planned(folder, "") if p.case.role in ("baseline", "other_seeds", "candidate")]
    bench = Bench.load(cases[0])
    by_role = {p.case.role: run_case(p, bench) for p in cases}
    for role, (outcome, files) in by_role.items():
        pictures = bench.loaded.decode(load(files["tokens.safetensors"])["tokens"].long())
        levels = ((pictures.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        assert outcome.facts.images_hash == hashlib.sha256(levels.numpy().tobytes()).hexdigest(), role
    assert len({outcome.facts.images_hash for outcome, _ in by_role.values()}) == 3
    side = of_role(cases, "candidate")
    assert see_side(side, Bench.load(side))[0].facts.images_hash == by_role["candidate"][0].facts.images_hash


def test_an_image_that_is_not_finite_ends_the_case(folder: Path) -> None:
    case = of_role(planned(folder), "baseline")
    bench = Bench.load(case)
    decode = bench.loaded.decode

    def spoilt(tokens: Tensor) -> Tensor:
        images = decode(tokens).clone()
        if len(tokens) == BATCH:  # not the fidelity pass, whose batch is another
            images[0, 0, 0, 0] = torch.nan
        return images

    bench.loaded = replace(bench.loaded, decode=spoilt)
    for outcome in (pass_of(case, bench), fill(case, bench, (0, 2))[0]):
        assert (outcome.status, outcome.samples) == (Status.NAN_OUTPUT, {})


def test_what_is_missing_is_said_and_nothing_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "identity_of", lambda name, *_: {"preset": "adm", "missing": "not measured: needs eyes"})
    case = of_role(planned(folder), "baseline")
    bench, counter = recorded([case])
    outcome = pass_of(case, bench)
    assert outcome.ok
    assert not set(outcome.samples) & FIGURES
    assert outcome.case.evaluation[QUALITY_PASS]["missing"] == "not measured: needs eyes"
    assert set(counter.seeds) == set(range(examples.SAMPLES))
    assert not case.case.measures(QUALITY_PASS)


def test_the_images_of_a_pass_are_written_as_a_sample_batch(folder: Path, tmp_path: Path) -> None:
    """All of them, though features are cached; they have the features of the pass, and a failure leaves no file."""
    file = tmp_path / "out" / "samples.npz"
    case = replace(of_role(planned(folder), "baseline"), feature_cache=tmp_path / "shelf", sample_batch=("mine", str(file)))
    bench = Bench.load(case)
    for _ in range(2):
        outcome = pass_of(case, bench)
        with np.load(file) as written:
            images, manifest = torch.from_numpy(written["arr_0"]).permute(0, 3, 1, 2), json.loads(written["manifest.json"])
            assert written["arr_1"].tolist() == manifest["labels"]
        file.unlink()
    assert (len(images), manifest["plan"], manifest["seeds"]) == (IMAGES, "mine", list(range(IMAGES)))
    assert manifest["case"] == outcome.case.to_json()
    seen = distribution(bench.preset(case.case).extract(images), bench.preset(case.case).reference, **OPTIONS)
    assert seen["fid"] == pytest.approx(outcome.samples[f"fid_eyes_{IMAGES}"][0], rel=1e-3)
    bench.loaded = replace(bench.loaded, decode=lambda tokens: torch.full((len(tokens), 3, 16, 16), torch.nan))
    assert pass_of(case, bench).status == Status.NAN_OUTPUT
    assert not list(file.parent.iterdir())
