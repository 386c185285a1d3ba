"""What the inspection of a run finds, without the run: each cheat under its own name and under another, and nothing in what is honest."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cachemark.cache.layout import raster_steps
from cachemark.core import registry
from cachemark.kit.findings import Flaw
from cachemark.kit.inspection import Inspected, inspect
from cachemark.workflows.proving_things import names_of
from cachemark.workflows.starting import start
from support.stages import forgetting

from .cheating import CHEATS, HONEST, Cheat
from .inspected import cases, of_a_token_model, rounded

METHODS = sorted(registry.methods)
LASTING = ("sets TF32", "sets another number of threads", "slows the full cache by a function of its own")  # told by the trial itself
OWN_MODEL = """
class Own:
    def __init__(self, generator):
        self.generator = generator

    def layout(self, *given):
        return self.generator.layout(*given)

    def generate(self, *given):
        return self.generator.generate(*given)
"""


def inspected(case: Inspected) -> list[Flaw]:
    """The findings behind a generation like those of a trial."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    try:
        with torch.inference_mode():
            case.generate(case.method(), case.memory(), case.seeds)
        return inspect(case)
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        hooks.clear()


def of_plugin(cheat: Cheat, folder: Path, name: str) -> list[Flaw]:
    with forgetting():
        names_of("methods", cheat.write(folder, name))
        return inspected(of_a_token_model(registry.methods.get(name)))


def says(found: list[Flaw], words: str) -> bool:
    return any(words in f"{flaw.expected}; {flaw.found}" for flaw in found)


@pytest.mark.parametrize("what", [
    pytest.param(what, marks=pytest.mark.slow if number % 8 else ()) for number, what in enumerate(CHEATS) if what not in LASTING])
def test_a_cheat_is_flagged_by_what_it_does(what: str, tmp_path: Path) -> None:
    found = of_plugin(CHEATS[what], tmp_path, "cheat")
    assert says(found, CHEATS[what].said), found


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in CHEATS if what not in LASTING])
def test_and_under_another_name(what: str, tmp_path: Path) -> None:
    assert says(of_plugin(CHEATS[what], tmp_path, "streaming_honest"), CHEATS[what].said)


def test_the_method_that_they_are_made_of_is_not_flagged(tmp_path: Path) -> None:
    assert not of_plugin(HONEST, tmp_path, "cheat")


def test_what_a_package_begins_with_is_not_flagged(tmp_path: Path) -> None:
    file = next(file for file in start("method", "my_own", tmp_path) if file.name == "method.py")
    with forgetting():
        (name,) = names_of("methods", file)
        case = of_a_token_model(registry.methods.get(name))
        assert not inspected(case)
        assert not inspected(rounded(case))


def test_a_method_and_a_model_of_one_plug_in_are_not_flagged(tmp_path: Path) -> None:
    with forgetting():
        names_of("methods", Cheat(OWN_MODEL, "", "").write(tmp_path, "cheat"))
        method = registry.methods.get("cheat")
        case = of_a_token_model(method)
        own = sys.modules[method.__module__].Own(case.loaded.generator)
        assert not inspected(replace(case, loaded=replace(case.loaded, generator=own), shared=True))


def test_who_waits_hears_of_every_pass() -> None:
    case, told = of_a_token_model(registry.methods.get("streaming")), list[int]()
    passes = len(raster_steps(case.layout(case.seeds)))
    assert not inspect(replace(case, alive=told.append))
    assert len(told) >= 4 * passes
    assert not any(told)


def test_on_a_cpu_nothing_is_asked_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*given: object) -> None:
        raise AssertionError("CUDA is asked for something")

    for name in ("is_available", "current_stream", "get_rng_state"):
        monkeypatch.setattr(torch.cuda, name, asked)
    assert not inspect(of_a_token_model(registry.methods.get("streaming")))


@pytest.mark.parametrize("name", ["hack"])
def test_what_is_built_in_is_not_flagged(name: str) -> None:
    for _, case in cases(registry.methods.get(name)):
        assert not inspected(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_nothing_that_is_built_in_is_flagged_in_any_family(name: str) -> None:
    for family, case in cases(registry.methods.get(name)):
        assert not inspected(case), family
        assert not inspected(rounded(case)), family
