"""Sound methods of unusual kinds pass every check, and a fault in one of them is found."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cachemark.plugins import loading
from support.kit import faults_on_small_models, run_check
from support.stages import call
from support.wheels import ROOT
from test_docs import blocks

PARTS = 8
SOUND = sorted((Path(__file__).parent / "sound").glob("*.py"))
ATTENDED = "    def attended(self, layout, site, step):\n        "
MERGE = "slots.merge(places, newest, torch.full((*newest.shape, 1), 1 / self.receivers, device=newest.device))"
FAULTS: Mapping[str, tuple[str, str, str, str]] = {  # name, the text that is replaced, its replacement, and a check that finds it
    "attention of another scale": ("own_attention", "** -0.5", "** -0.52", "neutral_is_full"),
    "attention without causality": ("own_attention", "if step.causal:", "if False:", "long_conditions_are_causal"),
    "attention that fades": ("own_attention", "@ values)", "@ values * (1 - 0.01 * bool(step.count)))", "evicting_is_masking"),
    "heads that share a budget and a half": (
        "mixed_heads", '{"B": visual_budget(budget, layout)}', '{"B": min(layout.visual, visual_budget(budget, layout) * 3 // 2)}',
        "budgets_are_the_requested_ones"),
    "layers with a budget and a half": (
        "layer_budgets", "extra * ((layer", "(self.B // 2) * bool(extra) + extra * ((layer", "budget_is_kept"),
    "layers with a mean above the budget": (
        "layer_budgets", "- (layer >= (layout.layers + 1) // 2))", ")", "budgets_are_the_requested_ones"),
    "scores that cost nothing": ("query_scores", "products += ", "products += 0 * ", "work_is_declared"),
    "scores that cost twice": ("query_scores", "products += ", "products += 2 * ", "work_is_declared"),
    "attention that reads half": (
        "query_scores", "    def overhead", f"{ATTENDED}return step.first // 2\n\n    def overhead", "work_is_declared"),
    "attention that reads twice": (
        "query_scores", "    def overhead", f"{ATTENDED}return 2 * super().attended(layout, site, step)\n\n    def overhead",
        "work_is_declared"),
    "padding in the scores": (
        "query_scores", "slots.keys().float()",
        "slots.k[0][..., : max(slots.live), :].float()\n        keys = keys - keys.mean(-2, keepdim=True)", "padding_is_never_read"),
    "merging by hand": (
        "value_merging", MERGE, "slots.v[0][..., -1, :] *= 1.01", "evicting_is_masking"),
    "merging without a declaration": ("value_merging", "merges = True", "merges = False", "merged_entries_are_evicted"),
    "a declaration without merging": ("value_merging", MERGE, "pass", "merged_entries_are_evicted"),
    "merging what stays": ("value_merging", "slots.evict(places)", "slots.evict(newest[..., -1:])", "merged_entries_are_evicted"),
    "merging twice into one": (
        "value_merging", "slots.merge(places, newest,", "slots.merge(places, newest[..., :1].expand_as(newest),",
        "evicted_positions_are_distinct"),
    "merging into itself": (
        "value_merging", "slots.merge(places, newest,", "slots.merge(newest[..., :1], newest,", "evicted_positions_are_distinct"),
    "a selection of everything": ("page_selection", "return min(live, self.B)", "return live", "evicting_is_masking"),
    "a selection above the budget": (
        "page_selection", '{"B": visual_budget(budget, layout)}', '{"B": min(layout.visual, visual_budget(budget, layout) * 3 // 2)}',
        "budgets_are_the_requested_ones"),
    "a selection of one entry many times": ("page_selection", "self.count(live), dim=-1).indices", "self.count(live), dim=-1).indices * 0",
                                            "evicting_is_masking"),
    "a selection that declares less": (
        "page_selection", "self.count(step.first + step.count)", "self.count(step.first + step.count) // 2", "work_is_declared"),
    "a selection beyond the entries": ("page_selection", "self.count(live), dim=-1).indices", "self.count(live), dim=-1).values",
                                       "evicting_is_masking"),
    "layers that leave half of the budget": (
        "layer_budgets", "return self.B + extra * ((layer < layout.layers // 2) -", "return self.B + extra * (-", "budget_is_used"),
}


@pytest.mark.parametrize(("file", "part"), [
    pytest.param(file, part, id=f"{file.stem}-{part}", marks=[] if part == number % PARTS else pytest.mark.slow)
    for number, file in enumerate(SOUND) for part in range(PARTS)
])  # fmt: skip
def test_a_sound_method_passes_every_check(file: Path, part: int) -> None:
    """By day one of so many checks, of which successive methods take turns."""
    assert loading.load(file) == [file.stem]
    assert faults_on_small_models(file.stem, slice(part, None, PARTS)) == {}


def load_variant(name: str, folder: Path, *changes: tuple[str, str]) -> None:
    source = (Path(__file__).parent / "sound" / f"{name}.py").read_text()
    for sound, changed in changes:
        assert source.count(sound) == 1
        source = source.replace(sound, changed)
    (folder / f"{name}.py").write_text(source)
    assert loading.load(folder / f"{name}.py") == [name]


def test_the_product_of_merging_need_not_be_declared(tmp_path: Path) -> None:
    load_variant("value_merging", tmp_path, ("receivers: int = 2", "receivers: int = 8"), ("+= self.receivers * layout", "+= 0 * layout"))
    assert run_check("value_merging", "work is declared").passed


def written(page: str, name: str, folder: Path) -> Path:
    """Write a file of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (folder / name).write_text(next(block.text for block in blocks(text) if block.file == name), encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(("page", "name", "part"), [
    pytest.param(page, name, part, id=f"{name}-{part}", marks=[pytest.mark.slow] if part else [])
    for part in range(PARTS)
    for page, name in (("how-to/write-a-method.md", "recent_queries"), ("reference/method-interface.md", "pyramid"))
])  # fmt: skip
def test_a_method_of_a_page_passes_every_check(page: str, name: str, part: int, tmp_path: Path) -> None:
    assert loading.load(written(page, f"{name}.py", tmp_path)) == [name]
    assert faults_on_small_models(name, slice(part, None, PARTS)) == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)  # on a busy machine the default is too short
def test_fastvar_with_a_score_of_the_reference_passes_every_check(tmp_path: Path) -> None:
    checked = call("test", "method", written("reference/methods.md", "norm_pruning.py", tmp_path))
    assert checked.exit_code == 0, checked.output
    assert " 0 failed, 0 skipped" in checked.output


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_it_is_found(fault: str, tmp_path: Path) -> None:
    name, sound, faulty, check = FAULTS[fault]
    load_variant(name, tmp_path, (sound, faulty))
    (finding, *_) = run_check(name, check.replace("_", " ")).findings
    assert finding.expected != "a generation" or "selection returns positions" in finding.actual, finding


@pytest.mark.parametrize("check", ["evicting is masking", "long conditions are causal", "rows equal single rows", "padding is never read"])
def test_keys_may_be_merged_too_with_weights_of_their_own(check: str, tmp_path: Path) -> None:
    """As in D2O."""
    load_variant("value_merging", tmp_path, (MERGE, "slots.merge(places, newest, (0.1 - 0.05 * newest[..., None] / (newest[..., None] + 1))"
                                             ".float(), own=0.9 + 0.05 * newest / (newest + 1), keys=True)"))
    result = run_check("value_merging", check)
    assert (result.findings, result.passed) == ((), True)
