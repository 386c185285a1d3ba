"""Lists of prompts in every format, one error for each broken one, and captions of the bundled text-to-image model."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from cachemark.core.errors import BadPlan, UnknownName
from cachemark.models import janus
from cachemark.models.catalogue.text_to_image import CAPTIONED, TINY_T2I, TINY_TEXTS
from cachemark.models.prompt_lists import MOST, PACKAGED, PromptList, Question, packaged, prompt_list
from cachemark.models.tiny.captions import AXES, CAPTION, SPECIAL, VOCABULARY, Asked, WordTokenizer, parsed

Write = Callable[[str, str], PromptList]
BENCH = {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"}
BESIDE = {"tag": "position", "prompt": "a photo of a dog right of a bench", "include": [
    {"class": "bench", "count": 1}, {"class": "dog", "count": 1, "position": ["right of", 0]}]}
HEAD = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language"
ROWS = [{"Prompt": "a red bird, on a branch", "Category": "Animals", "id": "b7"}, {"Prompt": "two  cups", "Category": "Food", "id": "c"}]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> PromptList:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return prompt_list(str(tmp_path / name.partition("/")[0]))

    return write


def lines(*tasks: dict[str, object]) -> str:
    return "\n".join(map(json.dumps, tasks)) + "\n"


def captions(*notes: tuple[int, int, str]) -> str:
    return json.dumps({"images": [], "annotations": [{"image_id": image, "id": i, "caption": text} for image, i, text in notes]})


def test_each_kind_of_list_has_its_prompts_a_table_in_a_column(write: Write) -> None:
    """Of COCO the first caption of each image counts; GenEval brings its tasks."""
    assert prompt_list("own64").texts == packaged("own64")
    assert {file.stem for file in PACKAGED.glob("*.txt")} == {"own64", "captions256"}
    for name, text, kind, texts in (
        ("mine", "a red star\n  two blue discs \n", "text", ("a red star", "two blue discs")),
        ("mine", "a star, read again", "text", ("a star, read again",)),
        ("evaluation_metadata.jsonl", lines(BENCH, BESIDE), "geneval", ("a photo of a bench", "a photo of a dog right of a bench")),
        ("captions_val2014.json", captions((7, 31, "A dog\nruns."), (3, 40, "A man."), (7, 30, "A dog."), (3, 41, "Nobody.")),
         "coco", ("A man.", "A dog."))):
        listed = write(name, text)
        assert (listed.kind, listed.texts, listed.questions) == (kind, texts, ())
        assert [task["include"] for task in listed.tasks] == ([BENCH["include"], BESIDE["include"]] if kind == "geneval" else [])
    for name, text in (
        ("p.tsv", separated("\t")), ("p.csv", separated(",")), ("half.csv", separated(";")), ("p.jsonl", lines(*ROWS)),
        ("p.json", json.dumps(ROWS)),
        ("meta_data.json", json.dumps({row["id"]: {"category": row["Category"], "prompt": row["Prompt"]} for row in ROWS}))):
        listed = write(name, text)
        assert (listed.kind, listed.texts) == ("table", ("a red bird, on a branch", "two cups"))
        assert (listed.files, listed.categories) == (("b7", "c"), ("Animals", "Food"))


def separated(mark: str) -> str:
    rows = [list(ROWS[0]), *(list(row.values()) for row in ROWS)]
    return "\n".join(mark.join(f'"{cell}"' if mark in cell else cell for cell in row) for row in rows) + "\n"


def test_parquet_needs_its_library(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    installed = find_spec("pyarrow") is not None
    with pytest.raises(BadPlan, match="is not a parquet file" if installed else r"cannot be read without pyarrow\. Install it"):
        prompt_list(str(tmp_path / "bad.parquet"))
    if installed:
        pytest.importorskip("pandas").DataFrame(ROWS).to_parquet(tmp_path / "p.parquet")
        assert prompt_list(str(tmp_path / "p.parquet")).texts == ("a red bird, on a branch", "two cups")


@pytest.mark.parametrize("inner", ["", "prompts"])
def test_dpg_has_a_prompt_in_each_file_and_its_questions_beside_them(tmp_path: Path, inner: str) -> None:
    """The first row is skipped, as in the authors' script; dependents on it depend on nothing."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name in ("10", "2", "partiprompts3"):
        (folder / f"{name}.txt").write_text(f"prompt\n{name}")
    rows = ['2,t,k,1,0,entity,whole,"entity - whole (dog)",Is there a dog?',
            '2,t,k,2,"1,0",attribute,color,"attribute - color (dog, red)",Is it red?', "10,t,k,1,0,global,,global - (photo),Is it a photo?",
            "10,t,k,2,1,other,,other - text (x),Is there text?", "partiprompts3,t,k,1,0,entity,whole,entity - whole (cat),Is there a cat?"]
    (tmp_path / "dpg_bench.csv").write_text("\n".join([HEAD, *rows]))
    listed = prompt_list(str(tmp_path / "" if inner else folder))
    assert (listed.kind, listed.texts) == ("dpg", ("prompt 2", "prompt 10", "prompt partiprompts3"))
    assert listed.questions == ((Question(2, "Is it red?", (1,)),),
                               (Question(1, "Is it a photo?", ()), Question(2, "Is there text?", (1,))),
                               (Question(1, "Is there a cat?", ()),))
    (tmp_path / "dpg_bench.csv").unlink()
    assert prompt_list(str(folder)).questions == () or inner == ""


BROKEN = [
    ("mine", "", "has 0 prompts"), ("mine", "a star\n\na disc", "mine:2 is an empty prompt"),
    ("mine", "x" * 5000, "mine:1 has 5000 characters"), ("mine", "a star\n" * (MOST + 1), f"1 to {MOST} are expected"),
    ("m.jsonl", '{"tag": "colors", ', "m.jsonl:1 cannot be read"), ("m.jsonl", "3", "m.jsonl:1 cannot be read"),
    ("m.jsonl", lines({**BENCH, "include": []}), "m.jsonl:1 has include = .*at least 1 item"),
    ("m.jsonl", lines(BENCH, {**BENCH, "tag": "smell"}), "m.jsonl:2 has tag = 'smell': .*single_object"),
    ("m.jsonl", lines({**BENCH, "include": [{"class": "cow", "count": 1, "color": "puce"}]}), "include.0.color = 'puce'"),
    ("m.jsonl", lines({**BESIDE, "include": [{"class": "cow", "count": 1, "position": ["above", 0]}]}), "not before it"),
    ("m.jsonl", lines({**BESIDE, "include": [{"class": "cow", "count": 1, "position": "above"}]}), "include.0.position"),
    ("m.json", "{}", "m.json lacks annotations"), ("m.json", "[]", "m.json cannot be read"),
    ("m.json", '{"annotations": [{"id": 1, "caption": "x"}]}', "lacks annotations.0.image_id"),
    ("m.json", captions((7, 1, " ")), "the caption of image 7 is an empty prompt"), ("prompts/notes.md", "x", "has 0 prompts"),
    ("prompts/1.txt", "\n", "1.txt is an empty prompt"),
    ("p.csv", "a red bird\na blue bird\n", r"the columns \['a red bird'\], none of them prompt, caption, text"), ("p.tsv", "", "no rows"),
    ("p.csv", "id,prompt\n1\n", "row 1 has no prompt"), ("p.jsonl", '{"prompt": 3}\n', "row 1 has no prompt"),
    ("p.json", '[{"x": 1}, 1]', "no rows with named columns"), ("p.json", "[{", "is not JSON"),
    ("p.txt", separated("\t"), "is a table, by its first line"), ("prompts/dpg_bench.csv", "a,b\n1,2", "has no column 'dependency'"),
    ("prompts/dpg_bench.csv", f"{HEAD}\n1,2\n1,2", "has fewer columns"),
    ("prompts/dpg_bench.csv", f"{HEAD}\n1,t,k,1,0,a,b,e (c),Q?\n1,t,k,one,0,a,b,e (c),Q?", "'one' that depends on '0'"),
    ("prompts/dpg_bench.csv", f"{HEAD}\n1,t,k,1,0,a,b,e (c),Q?\n2,t,k,1,0,a,b,e (c),Q?", "no question about the prompt '1'")]


def test_a_broken_list_is_one_sentence(write: Write, tmp_path: Path) -> None:
    for name, text, says in BROKEN:
        for file in [file for file in tmp_path.rglob("*") if file.is_file()]:
            file.unlink()
        if name.endswith("dpg_bench.csv"):
            write("prompts/1.txt", "a star")
        with pytest.raises(BadPlan, match=says) as caught:
            write(name, text)
        assert "\n" not in str(caught.value)
        assert caught.value.remedy


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"Unknown list of prompts 'own65'\. Did you mean 'own64'\?"):
        prompt_list("own65")
    for path in (str(tmp_path / "mine"), "mine.txt", "x" * 5000 + "/y", "a\0/b"):
        with pytest.raises(BadPlan, match="There are no prompts at"):
            prompt_list(path)
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(BadPlan, match="is not text"):
        prompt_list(str(tmp_path / "noise"))


def test_captions_are_read_as_meant_and_other_words_and_orders_are_none() -> None:
    choices = [range(len(AXES["object"])), range(len(AXES["count"])), (None, 0, 5)]
    grounds = [(None, None, None), *itertools.product(range(4), range(4), (None, 0, 5))]
    for (shape, count, colour), (place, texture, ground) in itertools.product(itertools.product(*choices), grounds):
        meant = Asked(shape, count, colour, place, texture, ground)
        assert parsed(meant.caption) == meant
    tokenizer = WordTokenizer()
    assert tokenizer.ids(" Two  red STARS") == tokenizer.ids("two red stars")
    assert [VOCABULARY[i] for i in tokenizer.ids("two red stars")] == ["two", "red", "stars"]
    assert sorted(tokenizer.special(token) for token in SPECIAL) == [0, 1, 2]
    assert len(set(VOCABULARY)) == len(VOCABULARY) == TINY_T2I.decoder.vocab
    requests = [parsed(text) for text in TINY_TEXTS]
    assert len(set(TINY_TEXTS)) == len(TINY_TEXTS) == 256
    for axis in ("object", "colour", "count", "position", "texture"):
        often = Counter(getattr(request, axis) for request in requests)
        assert None not in often
        assert max(often.values()) - min(often.values()) <= 1
    assert 0 < sum(request.ground_colour is None for request in requests) < len(requests) / 2
    prompts = CAPTIONED.reader(TINY_T2I).shapes(TINY_TEXTS)
    assert {len(ids) for ids in prompts.conditional} == {7, 8, 9}
    assert [len(ids) for ids in prompts.unconditional] == [len(ids) for ids in prompts.conditional]
    assert prompts == janus.prompts_of(TINY_TEXTS, WordTokenizer(), form=CAPTION)
    for text in (
        "red stars", "two star", "a stars", "two red stars above", "two stars red", "two red stars blue stripes", "above blue stripes",
        "two red stars stripes above", ""):
        with pytest.raises(ValueError, match="is not a caption"):
            parsed(text)
