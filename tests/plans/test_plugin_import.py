"""A plug-in is tried in a process of its own before it is imported here: in a copy of this one, or in an interpreter. Both say the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachemark.core import registry
from cachemark.core.errors import BadPlugin, CachemarkError
from cachemark.plans import attempt
from cachemark.plans.plugin_import import VARIABLE, imported

GOOD = """
import os
from cachemark.core import registry
from cachemark.methods.window import Window

with open(__file__ + ".by", "a") as file:
    file.write(f"{os.getpid()}\\n")

@registry.methods.add("tried")
class Tried(Window):
    pass

"""


@pytest.fixture(params=["copy", "interpreter"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(attempt, "possible", lambda: request.param == "copy")
    return str(request.param)


@pytest.fixture
def plugin(tmp_path: Path, way: str) -> Callable[[str], Path]:
    def written(more: str) -> Path:
        (tmp_path / "tried.py").write_text(GOOD + more)
        return tmp_path / "tried.py"

    return written


def test_a_good_one_is_tried_elsewhere_and_then_imported_here_once(plugin: Callable[[str], Path]) -> None:
    file = plugin("")
    assert imported(file) == imported(file) == ["tried"]
    first, second = map(int, Path(f"{file}.by").read_text().split())
    assert first != second == os.getpid()


@pytest.mark.parametrize(("more", "message"), [
    ("os._exit(3)", "ends its process with exit code 3"), ("os.kill(os.getpid(), 9)", "by signal 9"),
    ("raise KeyboardInterrupt", "raises KeyboardInterrupt"), ("raise ValueError('no')", r"tried\.py:13: ValueError: no"),
    ("while True: pass", "does not come to its end within 1 s"),
    ("import subprocess; subprocess.Popen(['sleep', '1000'])", "leaves processes running when it is imported: 1"),
])  # fmt: skip
def test_a_bad_one_is_never_imported_here(
    more: str, message: str, plugin: Callable[[str], Path], way: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "1" if "while" in more else "60")
    if way == "interpreter" and "while" in more:
        pytest.skip("how long an interpreter takes to start depends on the machine")
    file = plugin(more)
    with pytest.raises(BadPlugin, match=message):
        imported(file)
    assert str(os.getpid()) not in Path(f"{file}.by").read_text().split()
    assert "tried" not in registry.methods


def test_an_import_changes_nothing_here(plugin: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    imported(plugin("os.chdir('/')\nos.environ['OF_A_PLUG_IN'] = '1'\nimport torch\ntorch.set_default_dtype(torch.float64)\n"))
    assert Path.cwd() == tmp_path
    assert "OF_A_PLUG_IN" not in os.environ
    assert torch.get_default_dtype() is torch.float32


def test_a_process_with_threads_is_not_copied() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        assert not attempt.possible()
    finally:
        over.set()
        other.join()


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried.py").write_text(GOOD)
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(CachemarkError, match=VARIABLE):
        imported(tmp_path / "tried.py")
