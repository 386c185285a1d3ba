"""The kit: each fault, cheat and mistake is found by its check, with the smallest example and the line; a correct method passes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from cachemark.cache.arena import Memory
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
from cachemark.contract.method import Bidirectional
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
OLDEST = "slots.table().masked_fill(slots.table() < 0, 999).argmin(-1, keepdim=True)"
TOKEN = "    slack = 1\n    evict_after = 'token'\n"
EVICT = "    def evict(self, step, slots):\n        if slots.live_visual > self.B:\n            "
SCORE = "    def score(self, step, slots):\n        return "


class Fault(NamedTuple):
    """The body of the class, the check that finds it, words of the finding, the base class, and whether a size shows it."""

    body: str
    check: str
    words: str
    base: str = "Streaming"
    by_size: bool = True
    paradigm: str = "next-token"


FAULTS = {
    "answers differ": Fault(ATTEND + "return super().attend(site, step, q, k, v) * 1.0001", "neutral is full", "layer 0, head 0"),
    "answers differ where smaller models have no layer": Fault(
        ATTEND + "return super().attend(site, step, q, k, v) * (1.1 if site.layer == 1 else 1)", "neutral is full",
        "2 layers of 2 heads, 5×5 tokens, codec native, seeds 0, 1, step 0, layer 1, head 0", by_size=False),
    "values differ in the last bits": Fault(
        OBSERVE + "slot.v[0].mul_(1 + 1e-6 * (step.count == 0))", "neutral is full", "the full cache's attention"),
    "values differ later": Fault(ATTEND + "return super().attend(site, step, q, k, v if step.index < 5 else v * 2)",
                                 "evicting is masking", "step 5, layer 0, head 0"),
    "evicts late": Fault("    slack = 2\n" + EVICT + "super().evict(step, slots) if slots.live_visual > self.B + 1 else None",
                         "budget is kept", "in it"),
    "masks instead of evicting": Fault(
        "    def capacity(self, layout, site):\n        return layout.stored\n" + EVICT + "pass", "budget is kept", "after it"),
    "a second cache in its module": Fault(OBSERVE + "FAR.setdefault(site, []).append(q.clone())", "all memory is counted", "its file.FAR"),
    "a second cache in its class": Fault(
        OBSERVE + "for c in type(self).__mro__:\n            if c.__name__ == 'Subject':\n                c.hoard = slot.v[0].clone()",
        "all memory is counted", "hoard"),
    "remembers outputs by seed": Fault(
        ATTEND + "out = super().attend(site, step, q, k, v)\n"
        "        return FAR.setdefault((self.layout.seeds, site, step.index, out.shape), out.clone())",
        "all memory is counted", "its file.FAR"),
    "mixes samples": Fault(
        OBSERVE + "v = slot.v[0][:, :, :slot.live[0]]\n        v += 0.01 * (step.count > 0) * v.mean(0, True)",
        "samples are the same in any batch", "logits differ", by_size=False),
    "breaks ties by rounding": Fault(
        EVICT + "slots.evict(slots.keys().norm(dim=-1).masked_fill(slots.table() < 0, -1).topk(1).indices)",
        "equal tokens tie", "others", by_size=False),  # rounding is the processor's
    "sets TF32": Fault(BEGIN + "torch.backends.cuda.matmul.allow_tf32 = True", "settings are unchanged", "matmul precision (TF32)"),
    "changes the folder": Fault(BEGIN + "__import__('os').chdir('/')", "settings are unchanged", "the folder (/"),
    "changes the umask": Fault(BEGIN + "__import__('os').umask(0o111)", "settings are unchanged", "→ 111)"),
    "sets the default dtype": Fault(BEGIN + "torch.set_default_dtype(torch.float64)", "settings are unchanged", "default dtype"),
    "sets deterministic mode for a pass": Fault(
        ATTEND + "torch.use_deterministic_algorithms(True, warn_only=True)\n        return super().attend(site, step, q, k, v)\n\n"
        "    def end_step(self, step):\n        super().end_step(step)\n        torch.use_deterministic_algorithms(False)",
        "settings are unchanged", "deterministic flag"),
    "multiplies what cannot be counted": Fault(
        OBSERVE + "torch.nn.functional.bilinear(q, q, q.new_zeros(1, q.size(-1), q.size(-1)))", "work is declared", "_trilinear"),
    "multiplies matrices by vectors": Fault(
        OBSERVE + "[k.mv(k[0]) for k in slot.k[0].flatten(0, 1)]", "work is declared", "more than declared"),
    "computes more than it declares": Fault(
        ATTEND + "(q @ k.mT @ v) if step.count else None\n        return super().attend(site, step, q, k, v)",
        "work is declared", "computes more than declared"),
    "accepts any parameter": Fault("    @classmethod\n    def build(cls, parameters):\n        return cls(B=parameters.get('B', 0))",
                                   "wrong parameters are refused", "accepted"),
    "exits": Fault(BEGIN + "sys.exit(0)", "settings are unchanged", "SystemExit: 0 ("),
    "fails in a function of torch": Fault(
        SCORE + "torch.nn.functional.interpolate(slots.keys())", "evicting is masking", "subject.py:@)", "cm.Scored", by_size=False),
    "wrong shape of scores": Fault(SCORE + "slots.keys()", "evicting is masking", "layers, rows, kv_heads, live", "cm.Scored"),
    "scores of a scale": Fault("    paradigms = ('next-scale',)", "evicting is masking", "score is for next-token models. Leave next-scale "
                               "out of paradigms", "cm.Scored", by_size=False, paradigm="next-scale"),
    "no slack": Fault(
        "    evict_after = 'token'\n" + EVICT + f"slots.evict({OLDEST})", "evicting is masking", "such as slack = 1", "cm.Evicting"),
    "unknown edge": Fault(
        "    evict_after = 'tokens'\n", "neutral is full", "'tokens' is not an edge. Use one of token, line", "cm.Evicting", by_size=False),
    "positions without heads": Fault(TOKEN + EVICT + f"slots.evict({OLDEST}[:, :, 0])", "evicting is masking",
                                     "(layers, rows, kv_heads, count) = (1, ", "cm.Evicting"),
    "positions as numbers of another type": Fault(
        TOKEN + EVICT + f"slots.evict({OLDEST}.float())", "evicting is masking", "torch.float32. Use", "cm.Evicting"),
    "the same position twice": Fault(TOKEN + EVICT + f"slots.evict({OLDEST}.expand(-1, -1, -1, 2))",
                                     "evicted positions are distinct", "a position twice", "cm.Evicting"),
    "a position that is not live": Fault(TOKEN + EVICT + f"slots.evict({OLDEST} * 0 + slots.live[0])",
                                         "evicted positions are distinct", "outside the", "cm.Evicting"),
    "memory of an unknown kind": Fault(
        "    def prepare(self, slots, memory):\n        memory.zeros('mine', (64,), torch.float32, 'scratch')\n",
        "neutral is full", "unknown kind 'scratch'. Use slots, workspace or state. (", "cm.Evicting", by_size=False),
}  # fmt: skip
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
    body, check, words, base, by_size, paradigm = FAULTS[fault]
    file = write(body, base)
    words = words.replace("@", str(len(file.read_text().rstrip().splitlines())))  # the last line
    finding, *more = run_check("subject", check, paradigm).findings
    assert any(words in f"{each.location} {each.expected} {each.actual}" for each in (finding, *more))
    assert finding.expected != finding.actual
    assert "AssertionError" not in finding.actual
    if by_size:
        assert finding.location.startswith("1 layer of 1 head, 4×4 tokens, codec native"), finding.location


def test_a_setting_that_an_earlier_check_would_leave_is_found(write: Write) -> None:
    write(BEGIN + "torch.backends.cuda.matmul.allow_tf32 = True; torch.use_deterministic_algorithms(True, warn_only=True)")
    assert run_check("subject", "neutral is full").passed
    (finding, *_) = run_check("subject", "settings are unchanged").findings
    assert "TF32" in finding.actual
    assert "deterministic flag (False → True)" in finding.actual


@pytest.mark.parametrize(("base", "load", "check", "paradigm", "least", "most"), [
    ("FewerSteps", "load._replace(keys=load.keys // 2) if site == ('decoder', 0) else load", "work is declared", "masked", 0.98, 1),
    ("FastVAR", "load", "flops are the declared ones", "next-scale", 1, 9)])
def test_a_method_declares_its_attention_and_the_tokens_that_it_skips(
    base: str, load: str, check: str, paradigm: str, least: float, most: float, write: Write,
) -> None:
    """Half of the keys in one block of six is little of all FLOPs."""
    write(f"    def computes(self, site, step, load):\n        return {load}", base)
    (finding,) = run_check("subject", check, paradigm).findings
    declared, counted = (int(words.split()[0].replace(",", "")) for words in (finding.expected, finding.actual))
    assert least < declared / counted < most


def test_a_method_that_declares_its_host_reads_passes_and_one_that_supports_no_budget_does_not(write: Write) -> None:
    write("    capturable = False\n\n" + OBSERVE + "if q.sum().item() > 0 or q[q > 0].tolist():\n            pass")
    for check in ("neutral is full", "neutral is no special case", "second generation repeats"):
        assert run_check("subject", check).passed, check
    graph = run_check("subject", "graph is eager")
    assert (graph.findings, bool(graph.skipped)) == ((), True)
    (report,) = prove_method(write(
        "    @classmethod\n    def parameters_for(cls, budget, layout):\n        from cachemark.core.errors import BadBudget\n"
        "        raise BadBudget('never')"))
    assert not report.passed
    assert not [check for check in report.checks if check.passed or check.findings]


@pytest.mark.parametrize("sign", ["", "-"])
def test_near_ties_of_a_scored_method_are_excused(sign: str, write: Write) -> None:
    """The last bits of norms that nearly tie differ between batches, for both signs of the score."""
    write(SCORE + f"{sign}slots.keys().float().norm(dim=-1)", "cm.Scored")
    assert run_check("subject", "samples are the same in any batch").findings == ()


def test_slots_that_no_layer_cache_manages_are_live_and_memory_counts_everything_that_it_holds(write: Write) -> None:
    """A masked method that keeps keys and values of its own counts them as state; bytes of a plug-in are not counted by itself."""
    for name in ("logical_bytes", "peak_live_bytes", "live_bytes"):
        for base, own in (("cm.Evicting", f"    @property\n    def {name}(self):\n        return 1"), ("Bidirectional", f"    {name} = 1")):
            with pytest.raises(BadPlugin, match=f"overrides {name}"):
                write(own, base)
    body = BEGIN + "self.own = arguments[2].zeros('own', (8,), torch.float32, '{}')"
    write(body.format("slots"), "Bidirectional")
    (finding,) = run_check("subject", "slots are live", "masked").findings
    assert (finding.expected, finding.actual[:3]) == ("32 B live, as allocated in slots", "0 B")
    write(body.format("state"), "Bidirectional")
    assert run_check("subject", "slots are live", "masked").passed
    memory = Memory()
    for kind, length in (("slots", 1), ("workspace", 10), ("state", 100)):
        memory.zeros(kind, (length,), torch.int8, kind)
    assert (memory.nbytes(), memory.nbytes("slots"), memory.nbytes("slots", "state")) == (111, 1, 101)
    with pytest.raises(BadPlugin, match="unknown kind 'hidden'"):
        memory.adopt("x", torch.ones(1), "hidden")


def test_methods_that_need_a_measurement_are_checked_without_one_and_wrong_names_are_refused(write: Write, tmp_path: Path) -> None:
    results: list[tuple[str, str]] = []
    (report,) = prove_method("ams_kv", on_check=lambda method, result: results.append((method, result.name)))
    assert results == [("ams_kv", check.name) for check in report.checks]
    assert all(check.passed for check in report.checks)
    with pytest.raises(UnknownName, match="no_such_parameter"):
        prove_method(write("    pass"), parameters={"no_such_parameter": 1})
    (tmp_path / "empty.py").touch()
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
