"""Images as one npz file: what numpy reads back is what was given, and no more than a batch was in memory."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cachemark.core.errors import Unsupported
from cachemark.export.npz import write


def batches(*sizes: int, side: int = 6) -> Iterator[np.ndarray]:
    draws = np.random.default_rng(0)
    for size in sizes:
        yield draws.integers(0, 256, (size, side, side + 1, 3), dtype=np.uint8)


@pytest.mark.parametrize("compressed", [False, True])
def test_numpy_reads_what_was_given(compressed: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "images.npz", batches(4, 1, 3), 8, compressed=compressed)
    with np.load(path) as file:
        assert file.files == ["arr_0"]
        assert np.array_equal(file["arr_0"], np.concatenate(list(batches(4, 1, 3))))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert (archive.infolist()[0].compress_type == zipfile.ZIP_DEFLATED) == compressed
    assert [p.name for p in path.parent.iterdir()] == ["images.npz"]


def test_tensors_and_turned_arrays_are_written_as_they_look(tmp_path: Path) -> None:
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    path = write(tmp_path / "t.npz", [images.permute(0, 2, 3, 1)], 2)
    assert np.array_equal(np.load(path)["arr_0"], images.permute(0, 2, 3, 1).numpy())


def peak_of(images: Callable[[], Iterable[np.ndarray]], path: Path, count: int) -> int:
    tracemalloc.start()
    write(path, images(), count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_batches_are_not_kept(tmp_path: Path) -> None:
    """64 batches of 192 KB."""
    ones, size = [1] * 64, next(batches(1, side=255)).nbytes
    assert peak_of(lambda: batches(*ones, side=255), tmp_path / "a.npz", 64) < 8 * size
    assert peak_of(lambda: list(batches(*ones, side=255)), tmp_path / "b.npz", 64) >= 64 * size, "the count sees them all at once"
    assert (tmp_path / "a.npz").read_bytes()[50:] == (tmp_path / "b.npz").read_bytes()[50:]


@pytest.mark.parametrize(("images", "count", "words"), [
    (lambda: batches(3, 2), 6, "5 images were given for a file of 6"),
    (lambda: batches(3, 2), 4, "more than 4 images were given for a file of 4"),
    (lambda: batches(), 1, "0 images were given for a file of 1"),
    (lambda: batches(), 0, "0 images were given for a file of 0"),
    (lambda: [np.zeros((1, 4, 4, 3), np.float32)], 1, r"got float32 of shape \(1, 4, 4, 3\)"),
    (lambda: [torch.zeros(1, 3, 4, 4, dtype=torch.uint8)], 1, r"got uint8 of shape \(1, 3, 4, 4\)"),
    (lambda: [*batches(2), *batches(1, side=8)], 3, r"Image 2 has the shape \(8, 9, 3\), those before it \(6, 7, 3\)"),
])  # fmt: skip
def test_what_does_not_fit_leaves_no_file(images: Callable[[], Any], count: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "old.npz").write_bytes(b"before")
    with pytest.raises(Unsupported, match=words):
        write(tmp_path / "old.npz", images(), count)
    assert [p.name for p in tmp_path.iterdir()] == ["old.npz"]
    assert (tmp_path / "old.npz").read_bytes() == b"before"


def test_the_entry_may_pass_four_gigabytes(tmp_path: Path) -> None:
    """Its sizes stand in the 64-bit form, which has to be chosen before the first byte is written."""
    path = write(tmp_path / "a.npz", batches(1), 1)
    assert b"\x01\x00" in path.read_bytes()[30:70], "the extra field of zip64"
    with zipfile.ZipFile(path) as archive:
        assert archive.infolist()[0].extract_version >= 45
