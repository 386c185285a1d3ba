"""The kit: each way to be wrong is found by the check that it belongs to, at the smallest example, and what is in order passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.kit.findings import Checked
from cachemark.kit.method_kit import FAMILIES, made_of
from cachemark.methods.registry import METHODS
from cachemark.workflows.prove import names_of, prove_method
from support.stages import call

HEAD = """
from dataclasses import dataclass, field
import torch
import cachemark as cm
from cachemark.methods.streaming import Streaming
from cachemark.methods.window import Window

FAR = {{}}

@cm.method("{name}")
@dataclass
class Given(Streaming):
    name = "{name}"
{body}
"""
BROKEN: dict[str, tuple[str, str, str]] = {  # by the words of the check: the body, and what is found
    "neutral is full": ("    def attend(self, site, step, q, k, v):\n        return super().attend(site, step, q, k, v) * 1.0001",
                        "layer 0, head 0"),
    "evicting is masking": ("    def attend(self, site, step, q, k, v):\n        return super().attend(site, step, q, k, "
                            "v if step.index < 5 else v * 2)", "step 5, layer 0, head 0"),
    "budget is kept": ("    slack = 2\n    def evict(self, step, slots):\n        if slots.live_visual > self.B + 1:\n"
                       "            super().evict(step, slots)", "in it"),
    "memory is the arenas": ("    def observe(self, site, step, slot, q, mass):\n        FAR[site] = q.clone()", "FAR"),
    "nothing is read on the host": ("    def observe(self, site, step, slot, q, mass):\n        float(q.sum())",
                                    "reads a tensor on the host"),
    "graph is eager": ("    asked: int = 0\n    def observe(self, site, step, slot, q, mass):\n        self.asked += 1", "changes asked"),
    "samples are the same in any batch": ("    def observe(self, site, step, slot, q, mass):\n        if step.count:\n"
                                          "            v = slot.v[0][:, :, :slot.live[0]]\n            v += 0.01 * v.mean(0, True)",
                                          "logits differ"),
    "dead is never read": ("    def attend(self, site, step, q, k, v):\n        out = super().attend(site, step, q, k, v)\n"
                           "        return out + 0 * self.slots[site].v[0][:, :, -1:].mean()", "nan"),
    "settings are left alone": ("    def begin(self, *given):\n        torch.backends.cuda.matmul.allow_tf32 = True\n"
                              "        super().begin(*given)", "matmul precision (TF32)"),
    "work is declared": ("    def attend(self, site, step, q, k, v):\n        (q @ k.mT @ v) if step.count else None\n"
                               "        return super().attend(site, step, q, k, v)", "reads more than it declares"),
    "knobs are refused": ("    @classmethod\n    def build(cls, knobs):\n"
                          "        return cls(**{k: v for k, v in knobs.items() if k == 'B'})", "it is taken"),
}  # fmt: skip
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, body: str) -> Path:
        (tmp_path / f"{name}.py").write_text(HEAD.format(name=name, body=body))
        return tmp_path / f"{name}.py"

    return written


def checked(file: Path, words: str) -> Checked:
    """One check of the method of a file."""
    (name,) = names_of("methods", file)
    check = next(c for c in FAMILIES["next-token"].checks if c.__name__.replace("_", " ") == words)
    return made_of(check, METHODS.get(name), "next-token")


@pytest.mark.parametrize("words", BROKEN)
def test_what_is_wrong_is_found_at_the_smallest_example(words: str, write: Write) -> None:
    body, said = BROKEN[words]
    found = checked(write("given", body), words)
    assert found.findings, found
    first = found.findings[0]
    assert said in f"{first.place} {first.found}"
    assert first.expected != first.found
    if words not in ("samples are the same in any batch",):
        assert first.place.startswith("1 layer of 1 head, 4×4 tokens, codec native"), first.place


def test_a_fault_that_small_models_do_not_show_is_shown_where_it_is(write: Write) -> None:
    body = ("    def attend(self, site, step, q, k, v):\n"
            "        return super().attend(site, step, q, k, v) * (1.1 if site.layer == 1 else 1)")
    (first, *_) = checked(write("given", body), "neutral is full").findings
    assert (first.layer, first.head, first.step) == (1, 0, 0)
    assert first.place.startswith("2 layers of 2 heads, 5×5 tokens")


@pytest.mark.parametrize("words", ["neutral is full", "evicting is masking", "knobs are refused", "memory is the arenas"])
def test_the_unbroken_method_passes_them(words: str, write: Write) -> None:
    assert checked(write("given", "    pass"), words).passed


@pytest.mark.parametrize("words", ["neutral is full", "neutral is no short cut", "second generation repeats", "graph is eager"])
def test_a_method_that_decides_on_the_host_and_says_so_passes(words: str, write: Write) -> None:
    body = ("    capturable = False\n\n    def observe(self, site, step, slot, q, mass):\n"
            "        if q.sum().item() > 0 or q[q > 0].tolist():\n            pass")
    found = checked(write("given", body), words)
    assert (found.findings, bool(found.left_out)) == ((), words == "graph is eager")


def test_a_method_without_a_budget_here_is_left_out_and_not_passed(write: Write) -> None:
    body = ("    @classmethod\n    def knobs_for(cls, budget, layout):\n        from cachemark.core.errors import BadBudget\n"
            "        raise BadBudget('never')")
    (proof,) = prove_method(write("given", body))
    assert not proof.complete
    assert not [check for check in proof.checks if check.passed or check.findings]


@pytest.mark.parametrize("sign", ["", "-"])
def test_near_ties_of_a_scored_method_are_excused(sign: str, tmp_path: Path) -> None:
    """Both signs of one score: the last bits of norms that nearly tie differ between batches."""
    file = tmp_path / "norm.py"
    file.write_text(f"""import cachemark as cm

@cm.method("norm")
class Norm(cm.Scored):
    \"\"\"Keep entries by their key norm.\"\"\"

    def score(self, step, slots):
        return {sign}slots.keys().float().norm(dim=-1)
""")
    (name,) = names_of("methods", file)
    check = next(c for c in FAMILIES["next-token"].checks if c.__name__ == "samples_are_the_same_in_any_batch")
    assert made_of(check, METHODS.get(name), "next-token").findings == ()


def test_knobs_make_a_method_provable_that_has_no_defaults() -> None:
    (proof,) = prove_method("ams_kv", knobs={"demanding": [1], "c_min": 20, "c_max": 30})
    assert [check.name for check in proof.checks if check.passed]


@pytest.mark.parametrize("name", ["heatkv", "ams_kv"])
def test_methods_that_need_a_measurement_are_proved_without_one(name: str) -> None:
    (proof,) = prove_method(name)
    assert [check.name for check in proof.checks if not check.passed] == []
    assert len(proof.checks) == 14


PER_HEAD = """
from dataclasses import dataclass
from fractions import Fraction

from cachemark.contract.heads import PerHead
import cachemark as cm


@cm.method("few_and_many")
@dataclass
class FewAndMany(PerHead):
    \"\"\"Head 0 keeps ``most`` of the newest entries, the others half of them.\"\"\"

    name = "few_and_many"
    most: int = 0

    def fit(self, budget, layout):
        return {{"most": layout.cacheable if budget == 1 else int(budget * layout.cacheable), "all": budget == 1}}

    all: bool = False

    def held(self, head, total):
        return min(total, self.most if head == 0 or self.all else self.most // 2)

    def entries(self, layout, site):
        return sum(self.held(head, layout.cacheable) for head in range(layout.kv_heads)){more}

    def attended_by_heads(self, layout, site, step):
        return sum(self.held(head, step.first) + step.count for head in range(layout.kv_heads))

    def kept(self, site, step, slot, stage, q):
        {body}
        return [[range(n + step.count - self.held(head, n + step.count), n + step.count)] for head, n in enumerate(slot.lengths)]
"""


@pytest.mark.parametrize(("more", "body", "words"), [
    ("", "pass", ""), (" + 1", "pass", "declared is used"), ("", "float(q.sum())", "nothing is read on the host"),
    ("", "stage.v.mul_(2)", "evicting is masking"),
])  # fmt: skip
def test_a_method_whose_heads_differ_is_held_to_the_checks(more: str, body: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "few_and_many.py"
    file.write_text(PER_HEAD.format(more=more, body=body))
    (proof,) = prove_method(str(file))
    found = [check.name for check in proof.checks if check.findings]
    assert f"next-scale: {words}" in found if words else not found
    assert len(proof.checks) == 14
    assert all(check.examples for check in proof.checks), "none is left out"


def test_the_command_prints_the_example_and_leaves_with_its_code(write: Write) -> None:
    good = call("test", "method", "fewer_steps")
    assert good.exit_code == 0, good.output
    assert re.search(r"^8 checks: 8 passed, 0 found something, 0 left out\.$", good.output, re.M)
    bad = call("test", "method", "lazymar", "--knob", "nothing=1")
    assert bad.exit_code == 2
    unknown = call("test", "method", "lazymat")
    assert unknown.exit_code == 2
    assert "lazymar" in unknown.output + str(unknown.stderr)


def test_pytest_makes_each_check_a_test(write: Write, tmp_path: Path) -> None:
    file = write("given", "    def attend(self, site, step, q, k, v):\n        float(q.sum())\n"
                 "        return super().attend(site, step, q, k, v)")
    text = file.read_text().replace("class Given(Streaming):", "class Given(FewerSteps):").replace(
        "from cachemark.methods.window import Window", "from cachemark.methods.fewer_steps import FewerSteps")
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path),
         "--cachemark-method", str(file), str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 7 passed" in done.stdout
    assert "expected no read on the host, or capturable = False; found" in done.stdout
