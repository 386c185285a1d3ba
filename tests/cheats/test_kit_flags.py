"""Methods that cheat, each flagged by what it does and not by its name: the same cheat under another name is flagged by the same check, and
the honest method that it is made of is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.kit.findings import Checked
from cachemark.kit.method_kit import FAMILIES, made_of
from cachemark.methods.registry import METHODS
from cachemark.workflows.prove import names_of

HEAD = """
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from cachemark.contract.method import Method
import cachemark as cm
from cachemark.methods.streaming import Streaming

{before}

@cm.method("{name}")
@dataclass
class {title}(Streaming):
    name = "{name}"
{body}
"""
CHEATS: dict[str, tuple[str, str, str, str]] = {  # by what it does: before the class, its body, the check that flags it, and what it says
    "masks instead of evicting": (
        "", "    def capacity(self, layout, site):\n        return layout.stored\n    def evict(self, step, slots):\n        pass",
        "budget is kept", "behind it"),
    "a second cache in its module": (
        "FAR = {}", "    def observe(self, site, step, slot, q, mass):\n        FAR.setdefault(site, []).append(q.clone())",
        "memory is the arenas", "its file.FAR"),
    "a second cache in its class": (
        "", "    def observe(self, site, step, slot, q, mass):\n"
        "        for cls in type(self).__mro__:\n            if cls.__name__ == '{title}':\n                cls.hoard = slot.v[0].clone()",
        "memory is the arenas", "hoard"),
    "remembers outputs by seed": (
        "KNOWN = {}", "    def attend(self, site, step, q, k, v):\n        out = super().attend(site, step, q, k, v)\n"
        "        return KNOWN.setdefault((self.layout.seeds, site, step.index, out.shape), out.clone())",
        "memory is the arenas", "its file.KNOWN"),
    "becomes the full cache where nobody would see it": (
        "", "    def attend(self, site, step, q, k, v):\n        if self.B >= self.layout.visual:\n"
        "            slot = self.slots[site]\n            slot.append(k, v, condition=step.count == 0)\n"
        "            n = slot.live[0]\n            return F.scaled_dot_product_attention(q, *slot.read(slot.bank.runs[0], n), "
        "enable_gqa=True)\n        return super().attend(site, step, q, k * 1.0, v)",
        "neutral is no short cut", "others at the whole budget"),
    "sets TF32": (
        "", "    def begin(self, *given):\n        torch.backends.cuda.matmul.allow_tf32 = True\n        super().begin(*given)",
        "settings are left alone", "TF32"),
    "sets the default dtype": (
        "", "    def begin(self, *given):\n        super().begin(*given)\n        torch.set_default_dtype(torch.float64)",
        "settings are left alone", "default dtype"),
    "reads on the host to skip work": (
        "", "    def observe(self, site, step, slot, q, mass):\n        if q.abs().max() > 1e9:\n            return",
        "nothing is read on the host", "on the host"),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str, str], Path]:
    def written(name: str, before: str, body: str) -> Path:
        title = name.capitalize()
        text = HEAD.format(name=name, title=title, before=before, body=body.replace("{title}", title))
        (tmp_path / f"{name}.py").write_text(text)
        return tmp_path / f"{name}.py"

    return written


def checked(file: Path, words: str) -> Checked:
    (name,) = names_of("methods", file)
    check = next(c for c in FAMILIES["next-token"].checks if c.__name__.replace("_", " ") == words)
    return made_of(check, METHODS.get(name), "next-token")


@pytest.mark.parametrize("name", ["cheat", "honest"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_flagged_by_what_it_does(cheat: str, name: str, write: Callable[[str, str, str], Path]) -> None:
    before, body, words, said = CHEATS[cheat]
    found = checked(write(name, before, body), words)
    assert found.findings, found
    assert said in "; ".join(f"{one.expected} {one.found}" for one in found.findings)


@pytest.mark.parametrize("words", sorted({words for _, _, words, _ in CHEATS.values()}))
def test_the_method_that_they_are_made_of_is_not(words: str, write: Callable[[str, str, str], Path]) -> None:
    assert checked(write("cheat", "", "    pass"), words).passed
