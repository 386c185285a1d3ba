"""Plans that say what their text-to-image models are asked for."""

from pathlib import Path

import pytest

from cachemark.core import seeds
from cachemark.core.errors import BadPlan, CachemarkError, Unsupported
from cachemark.core.spec import digest
from cachemark.models.catalogue.text_to_image import TINY_TEXTS as TEXTS
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.plans import schema
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned
from cachemark.trial.child.bench import Bench, case_job

PUBLISHED = ("janus-pro-1b", "janus-pro-7b", "lumina-mgpt-7b-768", "lumina-mgpt-7b-1024", "infinity-2b", "infinity-8b", "llamagen-t2i-256",
             "llamagen-t2i-512", "emu3-gen", "glm-image")
MINE = ("two red stars above blue stripes", "a disc", "three green crosses")


def planned(folder: Path, prompts: str, model: str = "tiny-t2i") -> list[Planned]:
    (folder / "plan.toml").write_text(f"""name = "asked"
[fidelity]
samples = 4
prompts = "{prompts}"
[[cells]]
model = "{model}"
methods = ["window"]
batch = 4
""")
    return expand(schema.load(str(folder / "plan.toml")))


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.txt").write_text("\n".join(MINE))
    return str(tmp_path / "mine.txt")


def test_every_model_that_reads_texts_reads_another_list() -> None:
    readers = {name for name in MODELS if MODELS.get(name).prompts}
    assert {*PUBLISHED, "tiny-t2i"} <= readers
    for name in readers:
        entry: ModelEntry = MODELS.get(name)
        other = entry.for_request(Request(prompts="captions256"))
        assert (other.prompts, other.classes, other.name, other.presets) == (TEXTS, 256, name, entry.presets)
        assert entry.for_request(Request()) is entry
        assert other is entry.for_request(Request(prompts="captions256")), "what follows from a list is computed once"
        assert other.shape(entry.presets["paper"], 3).rows == entry.shape(entry.presets["paper"], 3).rows


def test_the_list_is_a_part_of_what_a_case_is_and_a_trial_is_asked_for_it(tmp_path: Path, mine: str) -> None:
    own, other, named = (planned(tmp_path, prompts)[0].case for prompts in ("", mine, "captions256"))
    assert named.key == own.key, "its own list by name is the same case"
    assert other.key != own.key
    assert other.conditions == f"3 prompts {digest(MINE)}, balanced"
    cases = planned(tmp_path, mine)
    bench = Bench.load(cases[0])
    job = case_job(cases[0].case, bench)
    assert bench.entry.prompts == MINE
    assert job.subset.labels == seeds.subset("s64", 3).labels[:4]
    assert job.layout.condition == bench.entry.shape(job.sampling, 4).condition
    Path(mine).write_text("a star\n")
    with pytest.raises(Unsupported, match="have changed since the plan was read"):
        Bench.load(cases[0])


@pytest.mark.parametrize(("model", "text", "error", "says"), [
    ("tiny-t2i", "two red sters", BadPlan, r"reads only captions of its own procedural scenes\. Unknown word of a caption 'sters'"),
    ("tiny-t2i", "stars red two", BadPlan, "'stars red two' is not a caption"),
    ("janus-pro-1b", "a star\n  \na disc", BadPlan, r"mine.txt:2 is an empty prompt\. Remove it"),
    *((model, f"a star\n{'very ' * (reads + 1)}red" if reads < 600 else f"a star\n{'.' * (reads - 1)}red", Unsupported,
       rf"The prompt .* has [0-9]* tokens; this model reads {reads}\.") for model, reads in (
        ("llamagen-t2i-256", 120), ("infinity-2b", 512), ("janus-pro-1b", 3520))),
])  # fmt: skip
def test_a_prompt_that_a_model_cannot_read_is_named_with_the_plan_s_line(
    model: str, text: str, error: type[CachemarkError], says: str, tmp_path: Path, mine: str,
) -> None:
    Path(mine).write_text(text)
    with pytest.raises(error, match=f"plan.toml:4: .*{says}"):
        planned(tmp_path, mine, model)


def test_models_of_classes_pass_a_list_over_unless_they_are_alone(tmp_path: Path, mine: str) -> None:
    with pytest.raises(BadPlan, match=r"plan.toml:4: no model of this plan is given prompts"):
        planned(tmp_path, mine, "tiny-llamagen")
    plan = schema.load(str(tmp_path / "plan.toml"))
    both = plan.model_copy(update={"cells": [*plan.cells, plan.cells[0].model_copy(update={"model": "tiny-t2i"})]})
    conditions = {planned.case.model: planned.case.conditions for planned in expand(both)}
    assert conditions == {"tiny-llamagen": "10 classes, balanced", "tiny-t2i": f"3 prompts {digest(MINE)}, balanced"}
