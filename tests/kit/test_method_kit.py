"""The kit: every fault and cheat is found by its check, with the smallest example that shows it; a correct method passes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin, UnknownName
from cachemark.workflows.prove import names_of, prove_method
from support.kit import run_check
from support.stages import call

HEAD = """
from dataclasses import dataclass
import sys
import torch
import torch.nn.functional as F
import cachemark as cm
from cachemark.methods.fastvar import FastVAR
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.streaming import Streaming

FAR = {{}}

@cm.method("subject")
@dataclass
class Subject({base}):
    name = "subject"
{body}
"""
ATTEND = "    def attend(self, site, step, q, k, v):\n        "
OBSERVE = "    def observe(self, site, step, slot, q, mass):\n        "
BEGIN = "    def begin(self, *arguments):\n        super().begin(*arguments)\n        "
FAULTS: dict[str, tuple[str, str, str]] = {  # the body of the class, the check that finds it, and words of the finding
    "answers differ": (ATTEND + "return super().attend(site, step, q, k, v) * 1.0001", "neutral is full", "layer 0, head 0"),
    "values differ in the last bits": (OBSERVE + "slot.v[0].mul_(1 + 1e-6 * (step.count == 0))",
                                       "neutral is full", "the full cache's attention"),
    "values differ later": (ATTEND + "return super().attend(site, step, q, k, v if step.index < 5 else v * 2)",
                            "evicting is masking", "step 5, layer 0, head 0"),
    "evicts late": ("    slack = 2\n    def evict(self, step, slots):\n        if slots.live_visual > self.B + 1:\n"
                    "            super().evict(step, slots)", "budget is kept", "in it"),
    "masks instead of evicting": ("    def capacity(self, layout, site):\n        return layout.stored\n"
                                  "    def evict(self, step, slots):\n        pass", "budget is kept", "after it"),
    "a second cache in its module": (OBSERVE + "FAR.setdefault(site, []).append(q.clone())", "all memory is counted", "its file.FAR"),
    "a second cache in its class": (
        OBSERVE + "for c in type(self).__mro__:\n            if c.__name__ == 'Subject':\n                c.hoard = slot.v[0].clone()",
        "all memory is counted", "hoard"),
    "remembers outputs by seed": (
        ATTEND + "out = super().attend(site, step, q, k, v)\n"
        "        return FAR.setdefault((self.layout.seeds, site, step.index, out.shape), out.clone())",
        "all memory is counted", "its file.FAR"),
    "reads on the host": (OBSERVE + "float(q.sum())", "nothing is read on the host", "reads a tensor on the host"),
    "counts in Python": ("    calls: int = 0\n" + OBSERVE + "self.calls += 1", "graph is eager", "changes calls"),
    "mixes samples": (OBSERVE + "if step.count:\n            v = slot.v[0][:, :, :slot.live[0]]\n            v += 0.01 * v.mean(0, True)",
                      "samples are the same in any batch", "logits differ"),
    "breaks ties by rounding": (
        "    def evict(self, step, slots):\n        if slots.live_visual > self.B:\n"
        "            slots.evict(slots.keys().norm(dim=-1).masked_fill(slots.table() < 0, -1).topk(1).indices)",
        "equal tokens tie", "others"),
    "sets TF32": (BEGIN + "torch.backends.cuda.matmul.allow_tf32 = True", "settings are unchanged", "matmul precision (TF32)"),
    "sets the default dtype": (BEGIN + "torch.set_default_dtype(torch.float64)", "settings are unchanged", "default dtype"),
    "sets deterministic mode for a pass": (
        ATTEND + "torch.use_deterministic_algorithms(True, warn_only=True)\n        return super().attend(site, step, q, k, v)\n\n"
        "    def end_step(self, step):\n        super().end_step(step)\n        torch.use_deterministic_algorithms(False)",
        "settings are unchanged", "deterministic flag"),
    "multiplies what cannot be counted": (
        OBSERVE + "torch.nn.functional.bilinear(q, q, q.new_zeros(1, q.size(-1), q.size(-1)))", "work is declared", "_trilinear"),
    "multiplies matrices by vectors": (OBSERVE + "[k.mv(k[0]) for k in slot.k[0].flatten(0, 1)]", "work is declared", "more than declared"),
    "computes more than it declares": (
        ATTEND + "(q @ k.mT @ v) if step.count else None\n        return super().attend(site, step, q, k, v)",
        "work is declared", "computes more than declared"),
    "accepts any parameter": ("    @classmethod\n    def build(cls, parameters):\n"
                              "        return cls(**{k: v for k, v in parameters.items() if k == 'B'})",
                              "wrong parameters are refused", "accepted"),
    "exits": (BEGIN + "sys.exit(0)", "settings are unchanged", "SystemExit: 0 ("),
}  # fmt: skip
AT_THE_SMALLEST = sorted(FAULTS.keys() - {"mixes samples", "breaks ties by rounding"})  # rounding is the processor's
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(body: str, base: str = "Streaming") -> Path:
        (tmp_path / "subject.py").write_text(HEAD.format(body=body, base=base))
        names_of("methods", tmp_path / "subject.py")
        return tmp_path / "subject.py"

    return write


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, write: Write) -> None:
    body, check, words = FAULTS[fault]
    write(body)
    finding, *more = run_check("subject", check).findings
    assert any(words in f"{each.location} {each.expected} {each.actual}" for each in (finding, *more))
    assert finding.expected != finding.actual
    if fault in AT_THE_SMALLEST:
        assert finding.location.startswith("1 layer of 1 head, 4×4 tokens, codec native"), finding.location


def test_a_setting_that_an_earlier_check_would_leave_is_found(write: Write) -> None:
    write(BEGIN + "torch.backends.cuda.matmul.allow_tf32 = True; torch.use_deterministic_algorithms(True, warn_only=True)")
    assert run_check("subject", "neutral is full").passed
    (finding, *_) = run_check("subject", "settings are unchanged").findings
    assert "TF32" in finding.actual
    assert "deterministic flag (False → True)" in finding.actual


def test_a_fault_that_smaller_models_hide_is_located(write: Write) -> None:
    write(ATTEND + "return super().attend(site, step, q, k, v) * (1.1 if site.layer == 1 else 1)")
    (finding, *_) = run_check("subject", "neutral is full").findings
    assert (finding.layer, finding.head, finding.step) == (1, 0, 0)
    assert finding.location.startswith("2 layers of 2 heads, 5×5 tokens")


def test_a_masked_method_declares_its_attention(write: Write) -> None:
    """Half of the keys in one block of six is little of all FLOPs."""
    write("    def computes(self, site, step, load):\n"
          "        return load._replace(keys=load.keys // 2) if site == ('decoder', 0) else load", "FewerSteps")
    (finding,) = run_check("subject", "work is declared", "masked").findings
    declared, counted = (int(words.split()[0].replace(",", "")) for words in (finding.expected, finding.actual))
    assert 0.98 * counted < declared < counted


def test_a_next_scale_method_declares_the_tokens_that_it_skips(write: Write) -> None:
    write("    def computes(self, site, step, load):\n        return load", "FastVAR")
    (finding,) = run_check("subject", "flops are the declared ones", "next-scale").findings
    declared, counted = (int(words.split()[0].replace(",", "")) for words in (finding.expected, finding.actual))
    assert declared > counted


def test_a_correct_method_passes_these_checks(write: Write) -> None:
    write("    pass")
    for check in sorted({check for _, check, _ in FAULTS.values()}):
        assert run_check("subject", check).passed, check


def test_a_method_that_declares_its_host_reads_passes(write: Write) -> None:
    write("    capturable = False\n\n" + OBSERVE + "if q.sum().item() > 0 or q[q > 0].tolist():\n            pass")
    for check in ("neutral is full", "neutral is no special case", "second generation repeats"):
        assert run_check("subject", check).passed, check
    graph = run_check("subject", "graph is eager")
    assert (graph.findings, bool(graph.skipped)) == ((), True)


def test_a_method_that_supports_no_budget_does_not_pass(write: Write) -> None:
    (report,) = prove_method(write(
        "    @classmethod\n    def parameters_for(cls, budget, layout):\n        from cachemark.core.errors import BadBudget\n"
        "        raise BadBudget('never')"))
    assert not report.passed
    assert not [check for check in report.checks if check.passed or check.findings]


@pytest.mark.parametrize("sign", ["", "-"])
def test_near_ties_of_a_scored_method_are_excused(sign: str, tmp_path: Path) -> None:
    """The last bits of norms that nearly tie differ between batches, for both signs of the score."""
    file = tmp_path / "norm.py"
    file.write_text(f"""import cachemark as cm

@cm.method("norm")
class Norm(cm.Scored):
    \"\"\"Keep entries by their key norm.\"\"\"

    def score(self, step, slots):
        return {sign}slots.keys().float().norm(dim=-1)
""")
    names_of("methods", file)
    assert run_check("norm", "samples are the same in any batch").findings == ()


@pytest.mark.parametrize(("name", "parameters"), [
    ("ams_kv", {}), pytest.param("ams_kv", {"demanding": [1], "c_min": 20, "c_max": 30}, marks=pytest.mark.slow)])
def test_methods_that_need_a_measurement_are_checked_without_one(name: str, parameters: dict[str, object]) -> None:
    results: list[tuple[str, str]] = []
    (report,) = prove_method(name, parameters=parameters, on_check=lambda method, result: results.append((method, result.name)))
    assert results == [(name, check.name) for check in report.checks]
    assert [check.name for check in report.checks[1:] if not check.passed] == (
        ["next-scale: budgets are the requested ones"] if parameters else [])
    assert not any(check.findings for check in report.checks[1:])
    assert report.checks[0].passed is not bool(parameters), "c_min = 20 is no full budget"


def test_wrong_names_and_parameters_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no_such_parameter"):
        prove_method(write("    pass"), parameters={"no_such_parameter": 1})
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(BadPlugin, match="registers no method"):
        prove_method(tmp_path / "empty.py")


def test_the_command_prints_results_and_exits_with_their_code(write: Write) -> None:
    good = call("test", "method", "fewer_steps")
    assert good.exit_code == 0, good.output
    assert re.search(r"^method fewer_steps: 10 passed, 0 failed, 0 skipped$", good.output, re.M)
    assert "  passed   masked: neutral is full\n" in good.output
    assert call("test", "method", "lazymar", "--parameter", "nothing=1").exit_code == 2
    unknown = call("test", "method", "lazymat")
    assert unknown.exit_code == 2
    assert "lazymar" in unknown.output + str(unknown.stderr)
    forged = "print('method subject: 10 passed, 0 failed, 0 skipped' + '\\n::error::' * 9_999); "
    bad = call("test", "method", write(BEGIN + forged + "sys.exit(0)", "FewerSteps"))
    assert bad.exit_code == 1
    (summary,) = re.findall("^method subject: .*", bad.output, re.M)
    assert re.search(" [1-9][0-9]* failed", summary)
    assert "  | method subject: 10 passed" in str(bad.stderr)
    assert len(str(bad.stderr)) < 5_000
    assert re.search(r"^ +expected a generation; got SystemExit: 0 \(.*subject\.py:\d+\)$", bad.output, re.M)
