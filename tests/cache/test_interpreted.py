"""Triton's kernels are attention and plain operations in fp64, in its interpreter, and faults in copies of them are noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachemark.core.files import PACKAGE

pytest.importorskip("triton", reason="Triton is not installed")
# Keys too few and too many, another head's, values that are not written, ranges of another key, and queries that are padding.
DECODE = (
    ("live = key < length", "live = key < length - 1"), ("live = key < length", "live = key <= length"),
    ("q_at += row * q_row + head * GROUP * q_head", "q_at += row * q_row + head * q_head"), ("q_row + head * q_head", "q_row"),
    ("kv_head = head // GROUP", "kv_head = head % GROUP"), ("mask=key < longest)", "mask=key < length)"),
    ("for at in range(0, length, KEYS)", "for at in range(0, length - KEYS + 1, KEYS)"), ("arrival % GROUP_SIZE", "0 * arrival"),
    ("(weight * v_scale)", "weight"), ("stride if size > 1", "0 if size > 1"))  # fmt: skip
MASS = (
    ("live = key < keys", "live = key < keys - 1"), ("live = key < keys", "live = key <= keys"),
    ("k_at += row * k_row + head * k_head", "k_at += row * k_row"),
    ("tl.sum(weight, 0), mask=live)", "tl.sum(weight, 0), mask=key < keys - 1)"),
    ("asking[:, None] & live[None, :], tl.exp", "live[None, :], tl.exp"))  # fmt: skip
NORMS = (
    ("inside = place // tokens, place % tokens, channel < width", "inside = place // tokens, place % tokens, channel < width - 1"),
    ("row * gate_row", "0 * gate_row"), ("token * scale_token", "0 * scale_token"), ("tl.where(inside, total -", "tl.where(True, total -"),
    ("scale += 1", "scale += 0"), ("bias_at + channel", "weight_at + channel"), ("place * 3 + part", "place * 3"),
    ("minimum(steep", "maximum(steep"), ("token * PAIRS + pair", "pair"), ("inside = entry < count", "inside = entry < count - 1"),
    ("row * v_row", "row * k_row + 1"), ("out_at + 2 * count", "out_at"), ("copy * count", "0 * count"),
    ("total + branch", "total - branch"), ("width + eps", "width"), ("total, 0) / width,", "total, 0) / (width - 1),"),
    ("shift + normed * scale", "scale + normed * shift"), ("row * shift_row", "row * scale_row"),
    ("(shift + normed * scale).to(out_at.dtype.element_ty), mask=inside", "shift, mask=inside"), ("1e-12", "0.0"),
    ("tl.sum(wide * wide, 1)", "tl.sum(wide * wide, 1) + 1e-6"), ("scale * (eps - free)", "eps - free"))  # fmt: skip
SUMS = (  # no eps, another length, a residual left out, once before and once in the norm, the tail, gate and up in one place
    ("width + eps", "width"), ("total, 0) / width", "total, 0) / (width - 1)"),
    ("channel < width\n    place = row", "channel < width - 1\n    place = row"), ("(x + y)", "x"),
    ("total = total.to(tl.float32)\n    normed", "total = x\n    normed"), ("place + hidden", "place"),
    ("channel < hidden", "channel < hidden - 1"))  # fmt: skip
PRODUCTS = (  # rows and outputs that are not there, part of a product, another bias and activation, blocks in another order
    ("(row < rows)", "(row < rows - 1)"), ("mask=inside[None, :] < insides - at", "mask=inside[None, :] < insides - at - 1"),
    ("weight_at += K\n", "weight_at += 0\n"), ("column % outs).to(tl.float32)", "column % outs // 2).to(tl.float32)"),
    ("0.5 * (1 +", "(1 +"), ("tl.exp(-total)", "tl.exp(total)"), ("within // high * N", "within // RAISED * N"))  # fmt: skip
LINES = (  # a key too few and too many, another head's, lost sums, moves from and to elsewhere
    ("(visual < until)", "(visual <= until)"), ("head * GROUP * q_head", "head * q_head"), ("(first > 0)", "(first < 0)"),
    ("if ENDS == 2", "if ENDS == 3"), ("tl.store(visual_at + hole, numbers, mask=moves)", "pass"),
    ("rank + step - POOL // 2", "rank + step"), ("near < count", "near < count - 1"), ("cosine > similar", "cosine > 2"),
    ("one[:, None] == other[None, :]", "one[:, None] < other[None, :]"), ("newest[:, None] == visual", "newest[:, None] > visual"),
    ("(1 - mix) * tl", "mix * tl"), ("0.0) / count,", "0.0) / length,"), ("* scale_others[None, :]", ""),
    ("second_at + base + source", "first_at + base + source"), ("by_entry, mask=moves, other=0)", "by_entry + 1, mask=moves, other=0)"),
)  # fmt: skip
TURNS = (  # another partner and angle, a key that is not read or written, another head's, the k-th logit left out, a token too early
    ("channel ^ 1", "channel"), ("-away, away", "away, -away"), ("turns_at += row * turns_row\n", "turns_at += 0\n"),
    ("tl.where(key < live,", "tl.where(key < live - 1,"), ("k_at + live * HEAD_DIM", "k_at + (live + 1) * HEAD_DIM"),
    ("tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)\n    drawn", "tl.arange(0, BLOCK)\n    drawn"), ("places_at + row", "places_at"),
    ("lengths_at + row", "lengths_at"), ("row * 3 * heads + head", "row * 3 * heads"), ("scaled >= least", "scaled > least"),
    ("(place + 1) % line", "place % line"), ("HEAD_DIM + 1e-5", "HEAD_DIM"))  # fmt: skip
FAULTS = {  # by the kernels' file
    "decode_triton": DECODE, "mass_triton": MASS, "selection_triton": LINES, "fused_triton": (*TURNS, *SUMS), "fused_norms_triton": NORMS,
    "fused_products_triton": PRODUCTS}


def interpreted(*arguments: str) -> list[str]:
    """Triton itself must be interpreted, so the comparison has its own process, whose start takes long."""
    file = Path(__file__).with_name("interpreting.py")
    ran = subprocess.run([sys.executable, "-W", "ignore", str(file), *arguments], capture_output=True, text=True,
                         env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(file.parents[1])})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(("time", "every"), [("day", 16), pytest.param("night", 1, marks=pytest.mark.slow)])
def test_kernels_are_fp64_draw_the_same_tokens_and_their_faults_are_noticed(time: str, every: int, tmp_path: Path) -> None:
    """By day every sixteenth fault of a kernel's file, at night all."""
    copies: list[Path] = []
    for kernels, faults in FAULTS.items():
        source = (PACKAGE / f"cache/kernels/{kernels}.py").read_text()
        assert not [right for right, _ in faults if right not in source]
        for right, wrong in faults[::every]:
            copies.append(tmp_path / str(len(copies)) / f"{kernels}.py")
            copies[-1].parent.mkdir()
            copies[-1].write_text(source.replace(right, wrong))
    assert interpreted(time, *map(str, copies)) == [str(copy) for copy in copies]


@pytest.mark.slow
@pytest.mark.timeout(1200)  # on a busy machine the default is too short
def test_kernels_are_fp64_in_any_shape() -> None:
    assert not interpreted("any")
