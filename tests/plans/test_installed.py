"""Installed packages: what their entry points name can be asked for by name, and goes the way of a plug-in."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlugin
from cachemark.methods.registry import METHODS
from cachemark.plans import schema
from cachemark.plans.expand import expand
from cachemark.plugins import loading as plugins
from cachemark.workflows.list import listing
from support import examples

METHOD = """
from dataclasses import dataclass
import cachemark as cm
from cachemark.methods.window import Window
from .helper import KEEP

@cm.method("{name}")
@dataclass
class Mine(Window):
    '''A window of another package.'''
    name = "{name}"
"""
PLAN = 'name = "study"\ndescription = "Of another package"\n[[cells]]\nmodel = "mine-dot"\nmethods = ["mine"]\n'
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lay a package with a method out as an installer does, and return its folder."""

    def laid_out(package: str = "mine", name: str = "mine", points: str = "", text: str = METHOD) -> Path:
        site = tmp_path / "site-packages"
        inner = site / package
        inner.mkdir(parents=True)
        (inner / "__init__.py").write_text("")
        (inner / "helper.py").write_text("KEEP = 1\n")
        (inner / "window.py").write_text(text.format(name=name))
        about = site / f"{package}-2.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.5\n")
        (about / "entry_points.txt").write_text(points or f"[cachemark.methods]\n{name} = {package}.window\n")
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        return inner

    return laid_out


def row(kind: str, name: str) -> dict[str, object]:
    return next(each for each in listing(kind) if each["name"] == name)


def test_a_method_is_there_to_be_named(install: Install) -> None:
    inner = install()
    assert {"origin": "mine", "version": "2.5"}.items() <= row("methods", "mine").items()
    plan, files = schema.prepare("demo", methods=["mine"])
    assert files == (str(inner / "window.py"),)
    before = {planned.needs for planned in expand(plan.only(methods=["mine"])) if planned.case.method == "mine"}
    assert before == {(plugins.read(inner / "window.py").digest,)}
    (inner / "helper.py").write_text("KEEP = 2\n")
    assert plugins.read(inner / "window.py").digest not in {each for needs in before for each in needs}, "an edited helper makes another"
    assert not [name for name in sys.modules if name.partition(".")[0] == "mine"]


def test_a_model_and_a_plan_are_found(install: Install) -> None:
    points = "[cachemark.methods]\nmine=mine.window\n[cachemark.models]\nmine-dot=mine.model\n[cachemark.plans]\nstudy=mine\n"
    inner = install(points=points)
    (inner / "model.py").write_text(examples.MODEL.split("@cm.method")[0].replace('"dot"', '"mine-dot"'))
    (inner / "study.toml").write_text(PLAN)
    assert {"origin": "mine", "version": "2.5", "summary": "Of another package"}.items() <= row("plans", "study").items()
    plan, files = schema.prepare("study")
    assert [Path(file).name for file in files] == ["model.py", "window.py"]
    assert [each.case.label for each in expand(plan)][-1] == "mine 1/2"
    assert row("models", "mine-dot")["origin"] == "mine"


def test_the_name_of_a_built_in_is_refused_and_nothing_else_is(install: Install) -> None:
    install(name="linear")
    refused = [each for each in listing("methods") if each.get("refused")]
    assert [(each["name"], each["origin"], each["refused"]) for each in refused] == [
        ("linear", "mine", "cachemark itself has a method of that name")]
    _, files = schema.prepare("demo", methods=["linear"])
    assert files == ()
    assert METHODS.get("linear").__module__ == "cachemark.methods.linear"


def test_two_packages_with_one_name_are_told_apart_by_nobody(install: Install) -> None:
    install()
    install(package="other")
    with pytest.raises(BadPlugin, match=r"'mine' is brought by mine 2\.5 and by other 2\.5"):
        schema.prepare("demo", methods=["mine"])


@pytest.mark.parametrize(("point", "text", "words"), [
    ("mine = mine.nowhere", METHOD, "there is no such file"), ("mine = nowhere", METHOD, "there is no such file"),
    ("mine = mine.window", METHOD.replace("{name}", "other"), "and it does not"),
    ("mine = mine.window", "1 / 0", "ZeroDivisionError"),
    ("mine = mine.window", METHOD.replace('method("{name}")', 'method("linear")'), "already registered by cachemark.methods.linear"),
])  # fmt: skip
def test_a_broken_package_breaks_only_what_asks_for_it(install: Install, point: str, text: str, words: str) -> None:
    install(points=f"[cachemark.methods]\n{point}\n", text=text)
    assert words in str(row("methods", "mine")["refused"])
    assert row("methods", "linear")["origin"] == "cachemark"
    schema.prepare("demo")
    with pytest.raises(BadPlugin, match=words):
        schema.prepare("demo", methods=["mine"])
