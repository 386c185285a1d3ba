"""Fused passes, and selection at a line's end, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from cachemark.cache.kernels import check, fused, fused_products
from cachemark.core.files import PACKAGE
from cachemark.workflows import doctor

NORMS = (
    ("inside = place // tokens, place % tokens, channel < width", "inside = place // tokens, place % tokens, channel < width - 1"),
    ("row * gate_row", "0 * gate_row"), ("token * scale_token", "0 * scale_token"), ("tl.where(inside, total -", "tl.where(True, total -"),
    ("scale += 1", "scale += 0"),
    ("bias_at + channel", "weight_at + channel"),
    ("place * 3 + part", "place * 3"), ("minimum(steep", "maximum(steep"), ("token * PAIRS + pair", "pair"),
    ("inside = entry < count", "inside = entry < count - 1"), ("row * v_row", "row * k_row + 1"), ("out_at + 2 * count", "out_at"),
    ("copy * count", "0 * count"), ("total + branch", "total - branch"),
    ("width + eps", "width"), ("total, 0) / width,", "total, 0) / (width - 1),"), ("shift + normed * scale", "scale + normed * shift"),
    ("row * shift_row", "row * scale_row"), ("(shift + normed * scale).to(out_at.dtype.element_ty), mask=inside", "shift, mask=inside"),
    ("1e-12", "0.0"), ("tl.sum(wide * wide, 1)", "tl.sum(wide * wide, 1) + 1e-6"), ("scale * (eps - free)", "eps - free"),
)  # fmt: skip
SUMS = (  # no eps, another length, a residual left out, once before and once in the norm, the tail, gate and up in one place
    ("width + eps", "width"), ("total, 0) / width", "total, 0) / (width - 1)"),
    ("channel < width\n    place = row", "channel < width - 1\n    place = row"), ("(x + y)", "x"),
    ("total = total.to(tl.float32)\n    normed", "total = x\n    normed"), ("place + hidden", "place"),
    ("channel < hidden", "channel < hidden - 1"),
)  # fmt: skip
PRODUCTS = (  # rows and outputs that are not there, part of a product, another bias and activation, blocks in another order
    ("(row < rows)", "(row < rows - 1)"), ("mask=inside[None, :] < insides - at", "mask=inside[None, :] < insides - at - 1"),
    ("weight_at += K\n", "weight_at += 0\n"), ("column % outs).to(tl.float32)", "column % outs // 2).to(tl.float32)"),
    ("0.5 * (1 +", "(1 +"), ("tl.exp(-total)", "tl.exp(total)"), ("within // high * N", "within // RAISED * N"),
)  # fmt: skip
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
    ("lengths_at + row", "lengths_at"),
    ("row * 3 * heads + head", "row * 3 * heads"), ("scaled >= least", "scaled > least"), ("(place + 1) % line", "place % line"),
    ("HEAD_DIM + 1e-5", "HEAD_DIM"),
)  # fmt: skip


def interpreted(script: str, *arguments: str) -> list[str]:
    pytest.importorskip("triton", reason="Triton is not installed")
    file = Path(__file__).with_name(f"interpreted_{script}.py")
    ran = subprocess.run([sys.executable, "-W", "ignore", str(file), *arguments], capture_output=True, text=True,
                         env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(file.parents[1])})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


FAULTS = {  # by script and the kernels' file
    "norms": {"fused_norms_triton": NORMS, "fused_triton": SUMS}, "products": {"fused_products_triton": PRODUCTS},
    "lines": {"selection_triton": LINES, "fused_triton": TURNS},
}


@pytest.mark.parametrize("script", [*FAULTS, pytest.param("families", marks=pytest.mark.slow)])
def test_fused_passes_are_plain_operations_in_fp64_draw_the_same_tokens_and_their_faults_are_noticed(script: str, tmp_path: Path) -> None:
    """In one process, whose start takes longest. Faults: other rows, tokens, copies and channels, norms over what is masked, and values
    that are not written."""
    copies: list[Path] = []
    for kernels, faults in FAULTS.get(script, {}).items():
        source = (PACKAGE / f"cache/kernels/{kernels}.py").read_text()
        for right, wrong in faults:
            assert right in source, right
            copies.append(tmp_path / str(len(copies)) / f"{kernels}.py")
            copies[-1].parent.mkdir()
            copies[-1].write_text(source.replace(right, wrong))
    assert interpreted(script, *map(str, copies)) == [str(copy) for copy in copies]


@pytest.mark.slow
@pytest.mark.parametrize("script", FAULTS)
def test_fused_kernels_are_plain_operations_in_fp64_in_any_shape(script: str) -> None:
    assert not interpreted(script, "any")


def test_passes_that_deviate_or_are_slower_are_not_used_and_the_case_and_doctor_give_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The meta device stands in for a GPU, and plain operations for a kernel of products."""
    device, ones = torch.device("meta"), torch.ones(2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cached in (check._known, fused._faults, fused_products._faults):
        cached.cache_clear()
    found = {"good": [fused.off(ones, ones)], "wrong": [0.0, fused.off(1.5 * ones, ones)],
             "lost": [fused.off(torch.tensor([3, 4]), torch.tensor([3, 5]), exact=True)]}
    monkeypatch.setitem(fused.CHECKS, fused.PASSES, {name: lambda *_, some=some: some for name, some in found.items()})
    monkeypatch.setattr(fused_products, "_drawn", lambda shape, *_: [ones[None], torch.eye(2), ones])
    monkeypatch.setattr(fused_products, "product", lambda *given: fused_products.ACTIVATIONS[given[-1]](F.linear(*given[:-1])))
    monkeypatch.setattr(fused_products, "_microseconds", lambda work, device: 61.4 if work.func is fused_products.product else 57.0)
    with check.noting() as notes:
        assert fused.faults(device, torch.bfloat16)
        assert fused_products.faults(device, torch.bfloat16)
    assert notes == {
        "fused passes are not used: they deviate from plain operations on this device, wrong by 0.5, lost by 0.5.",
        "products with activation are not used: gelu takes 61 µs on this device, the library's product and torch's gelu 57 µs.",
    }
    kernels = doctor._kernels("meta", quick=True)
    assert kernels["fused passes"] == "not used for bfloat16: they deviate from plain operations on this device, wrong by 0.5, lost by 0.5"
    monkeypatch.setattr(fused_products, "product", lambda *given: fused_products.ACTIVATIONS[given[-1]](F.linear(*given[:-1])) + 0.25)
    assert fused_products.compare(device, torch.float32, [(1, 2, 2)]) == "silu deviates from plain operations by 0.25 on this device"
