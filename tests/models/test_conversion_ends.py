"""Interrupted and concurrent conversions, and their memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_conversion import net

from cachemark.core.errors import CachemarkError
from cachemark.models import checkpoints, conversion, text_features
from cachemark.models.conversion import INDEX
from support import fork_server

CONVERT = """
import sys
from pathlib import Path
from torch import nn
from cachemark.models.conversion import convert
from cachemark.models.protocol import PublishedFile

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def file(layers, dim):
    return PublishedFile("weights", "x", "x", lambda: nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(layers))),
                         rename=lambda name: name.removeprefix("layers."))

small, source, to, shard = sys.argv[1:]
convert(file(2, 4), small, Path(to + ".small"))  # whatever the first use loads is not what is measured
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
convert(file(24, 1024), source, Path(to), shard=int(shard), note=lambda *told: print(*told, flush=True))
print("peak", status("VmHWM") - before)
"""
fork_server.CODE.add(CONVERT)
SHARD = 32 << 20  # eight layers of 4 MiB


def command(folder: Path, name: str, write: Callable[..., None] = torch.save, shard: int = SHARD) -> list[str]:
    small, source = folder / f"small.{name}", folder / name
    if not source.exists():
        write({f"layers.{i}.weight": torch.zeros(4, 4) for i in range(2)}, small)
        write({f"layers.{i}.weight": torch.full((1024, 1024), float(i)) for i in range(24)}, source)
    return [sys.executable, "-c", CONVERT, str(small), str(source), str(folder / "made"), str(shard)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("name", ["net.pt", pytest.param("net.safetensors", marks=pytest.mark.slow)])
def test_the_peak_is_one_shard(tmp_path: Path, name: str) -> None:
    write = torch.save if name.endswith("pt") else save_file
    done = subprocess.run(command(tmp_path, name, write), capture_output=True, text=True, check=True)
    *shards, (_, peak) = (line.split() for line in done.stdout.splitlines())
    assert shards == [[str(i), "3", "False"] for i in (1, 2, 3)]
    largest = max(file.stat().st_size for file in (tmp_path / "made").glob("*.safetensors"))
    assert 0.5 * largest < int(peak) <= 1.2 * largest
    assert all(t[0, 0] == int(n.partition(".")[0]) for n, t in checkpoints.read(tmp_path / "made").items())


def test_a_killed_conversion_leaves_nothing_half_and_goes_on(tmp_path: Path) -> None:
    line = command(tmp_path, "net.pt", shard=4 << 20)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["1", "24", "False"]
        assert process.stdout.readline().split() == ["2", "24", "False"]
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "made").exists()
    shards = sorted((tmp_path / ".made.converting").glob("*.safetensors"))
    assert 2 <= len(shards) < 24
    for file in shards:
        with safe_open(file, framework="pt") as tensors:
            assert len(list(tensors.keys())) == 1, "a shard that is there is whole"
    times = [file.stat().st_mtime_ns for file in shards]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    reused = [row.split()[2] for row in done.stdout.splitlines()[:-1]]
    assert reused == ["True"] * len(shards) + ["False"] * (24 - len(shards))
    made = tmp_path / "made"
    assert [(made / file.name).stat().st_mtime_ns for file in shards] == times
    assert sorted(entry.name for entry in made.iterdir()) == sorted(
        [INDEX, *(f"model-{i:05}-of-00024.safetensors" for i in range(1, 25))])
    assert not (tmp_path / ".made.converting").exists()
    assert all(torch.equal(t, torch.full((1024, 1024), float(n.partition(".")[0]))) for n, t in checkpoints.read(made).items())
    again = subprocess.run(line, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("peak"), "what is done is not done again"


def test_another_source_begins_anew(tmp_path: Path) -> None:
    file, source = net(tmp_path, name="c2i_B_256.pt")
    (work := tmp_path / ".made.converting").mkdir()
    (work / "model-00001-of-00001.safetensors").write_bytes(b"of another source")
    conversion.convert(file, source, tmp_path / "made")
    assert conversion.contents(file, tmp_path / "made").tensors == 6


def test_two_at_the_same_folder_are_refused(tmp_path: Path) -> None:
    file, source = net(tmp_path, name="c2i_B_256.pt")
    with conversion._work(tmp_path / "made"), pytest.raises(CachemarkError, match="Another process is converting"):
        conversion.convert(file, source, tmp_path / "made")


def test_a_link_in_the_place_where_a_conversion_grows_is_refused(tmp_path: Path) -> None:
    """The target of the link would be emptied."""
    file, source = net(tmp_path, name="c2i_B_256.pt")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    (tmp_path / ".made.converting").symlink_to("thesis")
    with pytest.raises(CachemarkError, match="is a link"):
        conversion.convert(file, source, tmp_path / "made")
    assert (tmp_path / "thesis" / "chapter").exists()


def test_what_reads_texts_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "SMALL", 100)
    (home := tmp_path / "published" / text_features.ENCODER).mkdir(parents=True)
    (home / "config.json").write_text("{}")
    (home / "model.safetensors").write_bytes(bytes(1000))
    file, source = net(tmp_path / "published", name="c2i_B_256.pt")
    conversion.convert(file, source, tmp_path / "made")
    made = tmp_path / "made" / text_features.ENCODER
    assert (made / "config.json").read_text() == "{}"
    assert (made / "model.safetensors").samefile(home / "model.safetensors"), "gigabytes are not copied on one disk"
