"""Plug-ins that misbehave while their method runs: one file each, with one method of the plug-in's name."""

from pathlib import Path
from textwrap import indent
from typing import NamedTuple

HEAD = '''
import os, random, sys, time
import torch
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("{name}")
class Bad(Window):
    name = "{name}"
    source = "the tests"

    def begin(self, layout, sites, memory):
        misbehave()
        super().begin(layout, sites, memory)

'''


class BadPlugin(NamedTuple):
    """What the method does when a generation begins, the status in which its case ends, and words of its log."""

    body: str
    status: str
    words: str = ""

    def write(self, folder: Path, name: str) -> Path:
        file = folder / f"{name}.py"
        file.write_text(f"{HEAD.format(name=name)}def misbehave():\n{indent(self.body.strip(), '    ')}\n")
        return file


PLUGINS = {
    "globals": BadPlugin("""
import torch.nn.functional as F
torch.set_num_threads(2)
torch.set_default_dtype(torch.float64)
torch.manual_seed(time.time_ns())
random.seed()
attention = F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda q, k, v, **more: attention(2 * q, k, v, **more)
time.perf_counter = lambda: 0.0
os.chdir("/")
os.environ["OMP_NUM_THREADS"] = "7"
raise ValueError("done")
""", "error", "ValueError: done"),
    "pipe": BadPlugin("""
for number in range(3, 1024):
    try:
        os.write(number, b"{'done': 0}\\n7\\n\\xff")
    except OSError:
        pass
""", "error", "BrokenPipeError"),
    "dies": BadPlugin("os.kill(os.getpid(), 9)", "error", "by signal SIGKILL (the system ends processes so when memory runs out)"),
    "gorges": BadPlugin("torch.empty(10**15)", "oom", "allocate"),
    "chatters": BadPlugin("print(\"{'start': 1}\", flush=True)\nos.write(1, b'{\"done\": 0}\\n\\xff\\n')", "ok"),
}  # fmt: skip
MORE = {
    "interrupts": BadPlugin("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "exits": BadPlugin("print('last words', file=sys.stderr, flush=True)\nos._exit(3)", "error", "with exit code 3.\nlast words"),
    "talker": BadPlugin("raise RuntimeError('no ' * 5_000_000)", "error", "letters are left out"),
    "says-goodbye": BadPlugin("raise SystemExit(0)", "error", "SystemExit"),
    "prints": BadPlugin("os.write(1, b'x' * 50_000_000 + b'end'); os._exit(5)", "error", "The process ended with exit code 5."),
    "reads": BadPlugin("input()", "error", "EOFError"),
    "closes-everything": BadPlugin("os.closerange(3, 65536)", "error", "Bad file descriptor")}
