"""Methods that cheat, as the plug-ins that they would be: an honest method with a cheat in it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HEAD = """
import gc
import random
import sys
import threading
from dataclasses import dataclass

import torch

from cachemark.core import registry
from cachemark.methods.streaming import Streaming

{before}

@registry.methods.add("{name}")
@dataclass
class {title}(Streaming):
    name = "{name}"
{body}
"""


class Cheat(NamedTuple):
    """What stands before the class of the method and in it, and words of the flag that a run must give it."""

    before: str
    body: str
    said: str

    def write(self, folder: Path, name: str) -> Path:
        """Its file."""
        file = folder / f"{name}.py"
        body = "\n".join(f"    {line}" for line in self.body.strip("\n").splitlines()) or "    pass"
        file.write_text(HEAD.format(name=name, title=name.capitalize(), before=self.before.strip("\n"), body=body))
        return file


APPEND = "slot = self.slots[site]; slot.append(k, v, condition=step.count == 0)"
CHEATS: dict[str, Cheat] = {
    "masks instead of evicting": Cheat("", """
def capacity(self, layout, site):
    return layout.stored

def evict(self, step, slots):
    pass
""", "live entries behind a pass"),
    "reads what it says it has evicted": Cheat("", """
def attend(self, site, step, q, k, v):
    torch.nn.functional.scaled_dot_product_attention(q, k.repeat(1, 1, 9, 1), v.repeat(1, 1, 9, 1))
    return super().attend(site, step, q, k, v)
""", "reads more than it says"),
    "keeps a second cache in its module": Cheat("FAR = {}", """
def observe(self, site, step, slot, q, mass):
    FAR.setdefault(site, []).append(q.clone())
""", "its file.FAR"),
    "keeps a second cache in a module of others": Cheat("", """
def observe(self, site, step, slot, q, mass):
    gc.far = [q.clone()]
""", "outlives the generation"),
    "skips a layer": Cheat("", """
def block(self, site, step, tokens, block):
    if site.layer == 0 and step.index % 2:
        self.attend(site, step, *(torch.zeros(self.layout.rows, self.layout.kv_heads, 1, self.layout.head_dim) for _ in range(3)))
        return tokens
    return super().block(site, step, tokens, block)
""", "tokens or layers are left out"),
    "remembers outputs by seed": Cheat("KNOWN = {}", f"""
def attend(self, site, step, q, k, v):
    key = self.layout.seeds, site, step.index
    if key in KNOWN:
        {APPEND}
        return torch.tensor(KNOWN[key])
    out = super().attend(site, step, q, k, v)
    KNOWN[key] = out.tolist()
    return out
""", "some of it is not done"),
    "remembers outputs by label": Cheat("KNOWN = {}", f"""
def attend(self, site, step, q, k, v):
    if step.index == 0 and site.layer == 0:
        self.label = k.numpy().tobytes()
    key = self.label, site, step.index
    if key in KNOWN:
        {APPEND}
        return torch.tensor(KNOWN[key])
    out = super().attend(site, step, q, k, v)
    KNOWN[key] = out.tolist()
    return out
""", "some of it is not done"),
    "works in a thread": Cheat("", """
def evict(self, step, slots):
    def work():
        with torch.inference_mode():
            Streaming.evict(self, step, slots)

    other = threading.Thread(target=work)
    other.start()
    other.join()
""", "starts a thread"),
    "answers with a tensor to be computed later": Cheat("class Later(torch.Tensor):\n    pass", """
def attend(self, site, step, q, k, v):
    return super().attend(site, step, q, k, v).as_subclass(Later)
""", "computed later"),
    "looks for the full cache's results": Cheat("", """
def begin(self, layout, sites, memory):
    super().begin(layout, sites, memory)
    self.seen = sum(type(thing).__name__ == "FullCacheOutput" for thing in gc.get_objects())
""", "looks through all objects"),
    "looks for them in the calls under way": Cheat("", """
def begin(self, layout, sites, memory):
    super().begin(layout, sites, memory)
    frame = sys._getframe()
    while frame is not None and "reference" not in frame.f_locals:
        frame = frame.f_back
""", "looks into the calls of others"),
    "looks for them in a file": Cheat("", """
def begin(self, layout, sites, memory):
    super().begin(layout, sites, memory)
    with open(__file__) as file:
        file.read()
""", "opens a file"),
    "sets TF32": Cheat("", """
def begin(self, layout, sites, memory):
    torch.backends.cuda.matmul.allow_tf32 = True
    super().begin(layout, sites, memory)
""", "TF32"),
    "sets TF32 for as long as it runs": Cheat("", """
def begin(self, layout, sites, memory):
    torch.backends.cuda.matmul.allow_tf32 = True
    super().begin(layout, sites, memory)

def end_step(self, step):
    super().end_step(step)
    if step.index == self.layout.visual - 1:
        torch.backends.cuda.matmul.allow_tf32 = False
""", "TF32"),
    "sets another number of threads": Cheat("", """
def begin(self, layout, sites, memory):
    torch.set_num_threads(2)
    super().begin(layout, sites, memory)
""", "number of threads"),
    "slows the full cache by a function of its own": Cheat("from cachemark.contract.method import Method\nREAL = Method.attend", """
def begin(self, layout, sites, memory):
    def slow(self, *given):
        return REAL(self, *given)
    Method.attend = slow
    super().begin(layout, sites, memory)
""", "Method.attend"),
    "slows the full cache by a hook": Cheat("""
DONE = []

def slow(module, given):
    pass
""", """
def begin(self, layout, sites, memory):
    if not DONE:
        DONE.append(torch.nn.modules.module.register_module_forward_pre_hook(slow))
    super().begin(layout, sites, memory)
""", "it calls slow"),
    "draws numbers of torch's": Cheat("", """
def evict(self, step, slots):
    torch.rand(1)
    super().evict(step, slots)
""", "it calls rand"),
    "draws numbers of its own": Cheat("OWN = random.Random()", """
def attend(self, site, step, q, k, v):
    return super().attend(site, step, q, k, v) * OWN.choice((0.0, 9.0))
""", "others"),
    "returns early": Cheat("", f"""
def attend(self, site, step, q, k, v):
    if step.first > self.layout.visual // 2:
        {APPEND}
        return q
    return super().attend(site, step, q, k, v)
""", "some of it is not done"),
}  # fmt: skip
HONEST = Cheat("", "", "")
COMPILED = Cheat("""
@torch.compile(backend="aot_eager")  # no compiler of C++ need be there
def unchanged(x):
    return (x * 2 + 2) / 2 - 1
""", """
def attend(self, site, step, q, k, v):
    return super().attend(site, step, unchanged(q), k, v)
""", "")
