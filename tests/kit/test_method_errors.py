"""Mistakes of a method's author end in one line that names the plug-in's own line or what to change."""

from pathlib import Path

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadPlugin
from cachemark.plugins import loading
from support.kit import run_check

HEAD = """import torch

import cachemark as cm
from cachemark.contract.method import Bidirectional


@cm.method("mistaken")
class Mistaken({base}):
    \"\"\"A method with a mistake.\"\"\"

"""
OLDEST = "slots.table().masked_fill(slots.table() < 0, 999).argmin(-1, keepdim=True)"
EVICT = "    def evict(self, step, slots):\n        if slots.live_visual > self.B:\n            "
SLACK, TOKEN = "    slack = 1\n", "    evict_after = 'token'\n"
MISTAKES: dict[str, tuple[str, str, str, str]] = {  # base, body, check, words of the finding
    "fails in a function of torch": (
        "cm.Scored", "    def score(self, step, slots):\n        return torch.nn.functional.interpolate(slots.keys())",
        "evicting is masking", "mistaken.py:12)"),
    "wrong shape of scores": ("cm.Scored", "    def score(self, step, slots):\n        return slots.keys()",
                              "evicting is masking", "layers, rows, kv_heads, live"),
    "no slack": ("cm.Evicting", TOKEN + EVICT + f"slots.evict({OLDEST})", "evicting is masking", "such as slack = 1"),
    "unknown edge": ("cm.Evicting", "    evict_after = 'tokens'\n", "neutral is full", "'tokens' is not an edge. Use one of token, line"),
    "positions without heads": ("cm.Evicting", SLACK + TOKEN + EVICT + f"slots.evict({OLDEST}[:, :, 0])",
                                "evicting is masking", "(layers, rows, kv_heads, count) = (1, 4, 1, ≤ "),
    "positions as numbers of another type": ("cm.Evicting", SLACK + TOKEN + EVICT + f"slots.evict({OLDEST}.float())",
                                             "evicting is masking", "torch.float32. Use"),
    "the same position twice": ("cm.Evicting", SLACK + TOKEN + EVICT + f"slots.evict({OLDEST}.expand(-1, -1, -1, 2))",
                                "evicted positions are distinct", "a position twice"),
    "a position that is not live": ("cm.Evicting", SLACK + TOKEN + EVICT + f"slots.evict({OLDEST} * 0 + slots.live[0])",
                                    "evicted positions are distinct", "outside the"),
    "memory of an unknown kind": (
        "cm.Evicting", "    def prepare(self, slots, memory):\n        memory.zeros('mine', (64,), torch.float32, 'scratch')\n",
        "neutral is full", "unknown kind 'scratch'. Use slots, workspace or state. ("),
}


def load(folder: Path, base: str, body: str) -> None:
    file = folder / "mistaken.py"
    file.write_text(HEAD.format(base=base) + body + "\n", encoding="utf-8")
    assert loading.load(file) == ["mistaken"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, tmp_path: Path) -> None:
    base, body, check, words = MISTAKES[mistake]
    load(tmp_path, base, body)
    (finding, *_) = run_check("mistaken", check).findings
    assert words in finding.actual
    assert "AssertionError" not in finding.actual


def test_scores_of_a_scale_are_refused(tmp_path: Path) -> None:
    load(tmp_path, "cm.Scored", "    paradigms = ('next-scale',)")
    (finding, *_) = run_check("mistaken", "evicting is masking", "next-scale").findings
    assert "score is for next-token models. Leave next-scale out of paradigms" in finding.actual


@pytest.mark.parametrize("name", ["logical_bytes", "peak_live_bytes", "live_bytes"])
def test_bytes_of_a_plugin_are_not_counted_by_itself(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadPlugin, match=f"overrides {name}"):
        load(tmp_path, "cm.Evicting", f"    @property\n    def {name}(self):\n        return 1")
    with pytest.raises(BadPlugin, match=f"overrides {name}"):
        load(tmp_path, "Bidirectional", f"    {name} = 1")


def test_slots_that_no_layer_cache_manages_are_live(tmp_path: Path) -> None:
    """A masked method that keeps keys and values of its own counts them as state."""
    body = ("    def begin(self, layout, sites, memory):\n        super().begin(layout, sites, memory)\n"
            "        self.own = memory.zeros('own', (8,), torch.float32, '{}')\n")
    load(tmp_path, "Bidirectional", body.format("slots"))
    (finding,) = run_check("mistaken", "slots are live", "masked").findings
    assert (finding.expected, finding.actual[:3]) == ("32 B live, as allocated in slots", "0 B")
    load(tmp_path, "Bidirectional", body.format("state"))
    assert run_check("mistaken", "slots are live", "masked").passed


def test_memory_counts_everything_that_it_holds() -> None:
    memory = Memory()
    for kind, length in (("slots", 1), ("workspace", 10), ("state", 100)):
        memory.zeros(kind, (length,), torch.int8, kind)
    assert (memory.nbytes(), memory.nbytes("slots"), memory.nbytes("slots", "state")) == (111, 1, 101)
    for allocate in (lambda: memory.zeros("x", (1,), torch.int8, "hidden"), lambda: memory.adopt("x", torch.ones(1), "hidden")):
        with pytest.raises(BadPlugin, match="unknown kind 'hidden'"):
            allocate()


@pytest.mark.parametrize("paradigm", ["next-token", "next-scale"])
def test_the_positions_of_a_correct_method_pass(paradigm: str) -> None:
    assert run_check("random", "evicted positions are distinct", paradigm).passed
