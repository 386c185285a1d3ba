"""``cachemark generate``: the grid it writes, the costs it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from support.stages import call

PROMPT = "two red stars above blue stripes"


def test_a_method_is_compared_with_the_full_cache(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    done = call("generate", "tiny-t2i", "--prompt", PROMPT, "--method", "rkv", "--budget", "1/2", "--compare", "-o", path)
    assert done.exit_code == 0, done.output
    full, rkv, files = done.stdout.splitlines()
    assert full.startswith("tiny-t2i full     ")
    assert rkv.startswith("tiny-t2i rkv 1/2  ")
    for line in (full, rkv):
        assert "tokens/s (first | last half)" in line
        assert "MiB" in line
    assert files == f"{path}: full to the left, rkv 1/2 to the right"
    with Image.open(path) as pair:
        assert pair.size == (64 + 8 + 64, 64)
        assert pair.crop((0, 0, 64, 64)).tobytes() != pair.crop((72, 0, 136, 64)).tobytes()


def test_json_has_the_costs_under_the_names_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    done = call("generate", "tiny-var", "--label", "3", "--images", "2", "--sampling", "temperature=0.5", "--sampling", "top_k=4",
                "--guidance", "2", "--json", "-o", path)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    (images,) = facts["generations"]
    assert (facts["file"], images["case"], images["labels"], images["seeds"]) == (str(path), "full", [3, 3], [0, 1])
    assert images["kv_logical"] > 0
    assert min(images["seconds"], images["tokens_per_s_first"], images["tokens_per_s_last"]) > 0


@pytest.mark.parametrize(("options", "words"), [
    (("--images", "2", "--seed", "1"), "--images and --seed cannot be combined"),
    (("--compare",), "Add --method, --codec or --decoder"),
    (("--sampling", "temperature=x"), "'temperature=x' is neither NAME=NUMBER"),
    (("--sampling", "greedy", "--sampling", "top_k=1"), "'greedy' is neither NAME=NUMBER"),
    (("--sampling", "temprature=1"), "sampling.temprature"),
    (("-o", "out.jpg"), "does not end in .png"),
    (("-o", "nowhere/out.png"), "folder nowhere does not exist"),
    (("-o", "notes.png"), "is not a PNG image of cachemark"),
    (("--budget", "1/2"), "Name a method, or leave it out"),
    (("--label", "3", "--prompt", PROMPT), "labels and prompts cannot be combined"),
    (("--prompt", "two read stars"), "Unknown word of a caption 'read'"),
    (("--method", "ams_kv", "--compare"), "ams_kv"),
    (("--method", "mine", "--plugin", "nowhere.py"), "nowhere.py"),
])  # fmt: skip
def test_a_request_that_is_refused(options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.png").write_text("of somebody else")
    done = call("generate", "tiny-t2i", *options)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.png"]
