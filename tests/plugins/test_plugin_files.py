"""A plug-in's own imports are part of its digest and are imported anew when edited."""

import hashlib
import sys
import time
from pathlib import Path

import pytest
import torch

import cachemark as cm
from cachemark.cache.codecs import CODECS
from cachemark.core.errors import BadPlugin
from cachemark.methods.base.annealed import SCHEDULES
from cachemark.methods.registry import METHODS
from cachemark.plugins import loading as plugins

Patch = pytest.MonkeyPatch
METHOD = """
from dataclasses import dataclass
import cachemark as cm
from cachemark.methods.window import Window
{line}

@cm.method("split")
@dataclass
class Split(Window):
    name = "split"
    share: float = {value}
"""
FILES = {"helper.py": "SHARE = 0.5\n", "lib/__init__.py": "from .deep import SHARE\n", "lib/deep.py": "SHARE = 0.5\n",
         "lib/other.py": "SHARE = 0.5\n", "unused.py": "SHARE = 0.5\n"}  # fmt: skip
CODEC = """
import torch
from cachemark.cache.codecs import CODECS, Codec

def encode(x):
    return (x.bfloat16(),)

CODECS["half"] = Codec("half", lambda head_dim, dtype: ((head_dim, torch.bfloat16),), encode, lambda parts, dtype: parts[0].to(dtype))
"""
SCHEDULE = """
import cachemark as cm
from cachemark.methods.base.annealed import SCHEDULES
from cachemark.methods.disa import DiSA

SCHEDULES["quadratic"] = lambda s, e, span: (1 - s / max(e, 1)) ** 2 * span

@cm.method("quadratic")
class Quadratic(DiSA):
    annealing: str = "quadratic"
"""


def split(folder: Path, line: str, value: str) -> Path:
    """A plug-in ``split.py`` with that line and that default of its parameter, beside the files."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "split.py").write_text(METHOD.format(line=line, value=value))
    return folder / "split.py"


def share(file: Path) -> tuple[float, tuple[str, ...]]:
    assert plugins.load(file) == ["split"]
    cls = METHODS.get("split")
    return cls().share, plugins.needs(cls)


@pytest.mark.parametrize(("line", "value", "edited"), [
    ("import helper", "helper.SHARE", "helper.py"), ("from helper import SHARE", "SHARE", "helper.py"),
    ("def late():\n    import helper\n    return helper.SHARE", "late()", "helper.py"), ("import lib", "lib.SHARE", "lib/__init__.py"),
    ("import lib", "lib.SHARE", "lib/deep.py"), ("import lib.other", "lib.other.SHARE", "lib/other.py"),
    ("from lib import other", "other.SHARE", "lib/other.py"), ("from lib.other import *", "SHARE", "lib/other.py"),
    ("import sys, os; sys.path.insert(0, os.path.dirname(__file__)); import helper", "helper.SHARE", "helper.py")])
def test_an_edited_file_of_its_own_is_another_plug_in(line: str, value: str, edited: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Also where it was edited in the same second to the same length; edited back it is what it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = split(tmp_path, line, value)
    modules = []
    for text in (0.5, 0.7, 0.5):
        (tmp_path / edited).write_text(f"SHARE = {text}\n")
        modules.append(share(file))
        assert plugins.read(file).digest in modules[-1][1]
    assert [names for names, _ in modules] == [0.5, 0.7, 0.5]
    assert modules[0][1] == modules[2][1] != modules[1][1]


def test_only_what_it_imports_counts_and_one_file_alone_has_its_contents_digest(tmp_path: Path) -> None:
    file = split(tmp_path, "import helper, json, torch", "helper.SHARE")
    before = plugins.read(file).digest
    (file.parent / "unused.py").write_text("SHARE = 0.9\n")
    (file.parent / "json.py").write_text("raise ValueError('a module of Python is not looked for here')\n")
    assert plugins.read(file).digest == before
    assert plugins.load(file) == ["split"]
    (file := tmp_path / "alone.py").write_text(METHOD.format(line="", value=0.5))
    assert plugins.read(file).digest == hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def test_prints_of_an_import_are_no_output_of_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talks.py").write_text("import os, sys\nprint('one')\nos.write(1, b'two')\nsys.stdout.close()\n"
                                       + METHOD.format(line="", value=0.5))
    plugins.load(tmp_path / "talks.py")
    print("three")
    assert capfd.readouterr() == ("three\n", "one\ntwo")


def test_two_plug_ins_may_each_have_a_helper_and_an_edited_one_takes_the_place_of_the_older(tmp_path: Path) -> None:
    for name, value in (("one", 0.3), ("two", 0.6)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"SHARE = {value}\n")
        text = METHOD.format(line="import helper", value="helper.SHARE").replace('"split"', f'"{name}"')
        (tmp_path / name / f"{name}.py").write_text(text)
        assert plugins.load(tmp_path / name / f"{name}.py") == [name]
    assert ([METHODS.get(name)().share for name in ("one", "two")], "helper" in sys.modules) == ([0.3, 0.6], False)
    file, text = tmp_path / "split.py", METHOD.format(line="", value=0.5)
    file.write_text(text)
    assert plugins.load(file) == plugins.load(file) == ["split"]
    file.write_text(text.replace('"split"', '"other"'))
    assert plugins.load(file) == ["other"]
    assert "split" not in METHODS
    file.write_text("raise ValueError")
    with pytest.raises(BadPlugin):
        plugins.load(file)
    assert "other" in METHODS


@pytest.mark.parametrize("line", ["from .inner import helper", "from pack.inner import helper", "import pack.inner.helper as helper"])
def test_a_file_in_a_package_is_imported_as_part_of_it(line: str, tmp_path: Path) -> None:
    inner = tmp_path / "pack" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("TOP = 1\n")
    (inner / "__init__.py").write_text("from .. import TOP\n")
    (inner / "helper.py").write_text("SHARE = 0.5\n")
    file = inner.parent / "split.py"
    file.write_text(METHOD.format(line=line, value="helper.SHARE"))
    first = share(file)
    for edited, text in ((inner / "helper.py", "SHARE = 0.7\n"), (inner / "__init__.py", "from .. import TOP\nTOP\n"),
                         (inner.parent / "__init__.py", "TOP = 2\n")):
        before, old = plugins.read(file).digest, edited.read_text()
        edited.write_text(text)
        assert plugins.read(file).digest != before, edited
        assert share(file)[0] == (0.7 if edited.name == "helper.py" else 0.5)
        edited.write_text(old)
    assert share(file) == first
    assert not [name for name in sys.modules if name.partition(".")[0] == "pack"]


def test_an_error_in_a_helper_and_an_abstract_class_are_refused(tmp_path: Path) -> None:
    file = split(tmp_path, "import helper", "helper.SHARE")
    (file.parent / "helper.py").write_text("SHARE = 0.5\n1 / 0\n")
    with pytest.raises(BadPlugin, match=r"fails at .*helper\.py:2: ZeroDivisionError"):
        plugins.load(file)
    assert not [name for name in sys.modules if name.startswith(f"{plugins.MODULE}") and name.endswith("helper")]
    text = METHOD.replace("cachemark.methods.window", "cachemark.methods.base.partial").replace("Window", "Selecting")
    (tmp_path / "old.py").write_text(text.format(line="", value=0.5))
    with pytest.raises(BadPlugin, match="method 'split' does not define check, choose, fit, keep, refreshes, selects_at, spans"):
        plugins.load(tmp_path / "old.py")


@pytest.mark.parametrize(("end", "error", "message"), [
    ("raise KeyboardInterrupt", KeyboardInterrupt, None), ("raise ImportError('mine')", BadPlugin, r"split\.py:13: ImportError: mine"),
    ("import nowhere_at_all", BadPlugin, r"split\.py:13"),
    ("Split.__init__.__defaults__ = (0, True, float('nan'))", BadPlugin, "share = nan is not finite"),
    ("def", BadPlugin, r"split\.py:13: SyntaxError")])
def test_a_refused_plug_in_leaves_nothing_behind(end: str, error: type[BaseException], message: str | None, tmp_path: Path) -> None:
    file, text = tmp_path / "split.py", METHOD.format(line="", value=0.5) + "\n"
    for _ in range(2):
        file.write_text(text + end)
        with pytest.raises(error, match=message):
            plugins.load(file)
        assert "split" not in METHODS
    file.write_text(text)
    assert plugins.load(file) == ["split"]


@pytest.mark.parametrize("caught", ["", "try: time.sleep(60)\nexcept Exception: pass\n"], ids=["hangs", "and catches errors"])
def test_a_plugin_that_does_not_return_is_refused(caught: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "PATIENCE", 0.2)
    (tmp_path / "slow.py").write_text(f"import time\n{caught}time.sleep(60)\n")
    with pytest.raises(BadPlugin, match=r"slow\.py:\d: Its import does not return within 0\.2 s"):
        plugins.load(tmp_path / "slow.py")
    with pytest.raises(BadPlugin, match="does not return"), plugins.answering():
        time.sleep(60)


def test_a_codec_and_a_schedule_of_the_head_are_one_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table, name in ((CODECS, "half"), (SCHEDULES, "quadratic")):
        monkeypatch.setitem(table, name, None)  # removed again after the test
    for file, text, model, options in (("codec", CODEC, "tiny-var", {"codec": "half"}),
                                       ("schedule", SCHEDULE, "tiny-mar", {"method": "quadratic", "sampling": {"steps": 3}})):  # fmt: skip
        (tmp_path / f"{file}.py").write_text(text)
        plugins.load(tmp_path / f"{file}.py")
        loaded = cm.load(model)
        planned = loaded.prepared(seeds=1, **options)[0]
        assert planned.needs == (plugins.read(tmp_path / f"{file}.py").digest,), "the process of its case imports the file"
        full = loaded.generate(seeds=1, sampling=options.get("sampling", "paper"))
        assert not torch.equal(loaded.generate(seeds=1, **options).tokens, full.tokens)
