"""Scores of any tool's images with their prompts: which prompt an image has, and the values of a plan's metrics."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from cachemark.cli import main
from cachemark.core.errors import CachemarkError
from cachemark.metrics.compute.pretrained import Clip
from cachemark.metrics.compute.sample_batches import SampleBatch
from cachemark.workflows.score import opened, score
from cachemark.workflows.score_prompts import prompt_list, prompt_numbers
from support.judges import answerer_folder, clip_folder, detector_folder
from support.later import later
from support.stages import data

from .test_score import noise_images

transformers = later("transformers")
TEXTS = ("a red dog", "a cow", "two mice", "there is a dog")


def table(path: Path) -> Path:
    (path / "p.csv").write_text("file,prompt\n" + "".join(f"{name},{text}\n" for name, text in zip("dcba", TEXTS, strict=True)))
    return path / "p.csv"


def lines(path: Path) -> Path:
    (path / "p.txt").write_text("\n".join(TEXTS))
    return path / "p.txt"


def dpg(path: Path) -> Path:
    for name, text in zip(("10", "2", "party", "x"), TEXTS, strict=True):
        (path / "prompts").mkdir(exist_ok=True)
        (path / "prompts" / f"{name}.txt").write_text(text)
    return path / "prompts"


@pytest.mark.parametrize(("names", "prompts", "expected"), [
    (["a.png", "b.png", "c.png", "d.png"], table, [3, 2, 1, 0]), (["0.png", "1.png", "10.png", "2.png"], lines, [0, 1, 3, 2]),
    (["w.png", "x.jpg", "y.webp", "z.bmp"], lines, [0, 1, 2, 3]),
    (["00000/samples/0000.png", "00000/samples/0001.png", "00002/samples/0000.png"], lines, [0, 2, 0]),
    (["10.png", "2.png", "party.png"], dpg, [1, 0, 3]),
])  # fmt: skip
def test_an_image_has_its_prompt(names: list[str], prompts: Callable[[Path], Path], expected: list[int], tmp_path: Path) -> None:
    assert prompt_numbers(opened(noise_images(tmp_path / "images", names)), prompt_list(str(prompts(tmp_path)))) == expected


@pytest.mark.parametrize(("names", "prompts", "words"), [
    (["a.png", "q.png"], table, "has no prompt for q.png"), (["a.png", "b.png"], lines, "has 2 images and .* 4 prompts"),
    (["00004/0.png"], lines, "an image of prompt 4 and .* 4 prompts"),
])  # fmt: skip
def test_images_without_a_prompt_are_refused(names: list[str], prompts: Callable[[Path], Path], words: str, tmp_path: Path) -> None:
    with pytest.raises(CachemarkError, match=words):
        prompt_numbers(opened(noise_images(tmp_path / "images", names)), prompt_list(str(prompts(tmp_path))))


def test_a_batch_has_prompts_by_its_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "labeled.npz", arr_0=np.zeros((3, 8, 8, 3), np.uint8), arr_1=np.array([2, 0, 3]))
    np.savez(tmp_path / "plain.npz", arr_0=np.zeros((4, 8, 8, 3), np.uint8))
    listed = prompt_list(str(lines(tmp_path)))
    assert prompt_numbers(SampleBatch(tmp_path / "labeled.npz"), listed) == [2, 0, 3]
    assert prompt_numbers(SampleBatch(tmp_path / "plain.npz"), listed) == [0, 1, 2, 3]


def test_clip_scores_any_tools_images_and_a_missing_network_is_named(tmp_path: Path) -> None:
    """By the command, with transformers' own embeddings of the same files; sets are not compared."""
    folder, clip = noise_images(tmp_path / "images", ["a.png", "b.png", "c.png", "d.png"]), clip_folder(tmp_path / "clip")
    options = "--prompts", str(table(tmp_path)), "--metric", f"clip_score,weights={clip}", "--json"
    printed, model = data(CliRunner().invoke(main, ["score", str(folder), *options])), Clip(str(clip))
    pictures = [np.array(Image.open(folder / f"{name}.png")).transpose(2, 0, 1) for name in "dcba"]
    expected = 100 * (model.of_images(pictures) * model.of_texts(TEXTS)).sum(1).clamp_min(0).mean()
    assert (printed["values"].keys(), printed["preset"]) == ({"clip_score"}, "")
    assert printed["values"]["clip_score"]["value"] == pytest.approx(float(expected), abs=1e-4)
    scored = score(noise_images(tmp_path / "images", ["a.png", "b.png", "c.png", "d.png"]), prompts=table(tmp_path), metrics=[
        ("clip_score", {"weights": "nowhere"})])
    assert not scored.values
    assert "hf download openai/clip-vit-base-patch16" in scored.absent["clip_score"]


def test_geneval_and_dpg_have_their_rules_and_folders(tmp_path: Path) -> None:
    """Networks of random weights see nothing in GenEval's images; their answers are those of the metric."""
    task = {"tag": "single_object", "include": [{"class": "dog", "count": 1}], "prompt": "a photo of a dog"}
    (tmp_path / "evaluation_metadata.jsonl").write_text(f"{json.dumps(task)}\n{json.dumps({**task, 'tag': 'counting'})}\n")
    folder = noise_images(tmp_path / "geneval", ["00000/samples/0000.png", "00001/samples/0000.png", "00001/samples/0001.png"])
    options = {"detector": str(detector_folder(tmp_path / "boxes", masks=False)), "clip": str(clip_folder(tmp_path / "clip"))}
    scored = score(folder, prompts=tmp_path / "evaluation_metadata.jsonl", metrics=[("geneval", options)])
    assert scored.values.keys() == {"geneval", "geneval_single_object", "geneval_counting"}
    head = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language\n"
    (tmp_path / "dpg_bench.csv").write_text(head + "skipped,,,1,0,,,,\n" + "".join(f"{name},t,k,1,0,e,w,t,is there a dog?\n"
                                                                                for name in ("10", "2", "party", "x")))
    scored = score(noise_images(tmp_path / "dpg", ["10.png", "2.png"]), prompts=dpg(tmp_path), metrics=[
        ("dpg", {"weights": str(answerer_folder(tmp_path / "vilt", writes=False))})])
    assert 0 <= scored.values["dpg"].value <= 1


@pytest.mark.parametrize(("words", "error"), [
    (("--metric", "clip_score,weights=nowhere"), "Prompts and a metric of images and prompts belong together"),
    (("--prompts", "{p}", "--metric", "clip"), "Unknown metric of images and prompts 'clip'. Did you mean 'clip_score'"),
    (("--prompts", "{p}", "--metric", "clip_score,model=x"), "Unknown option of metric clip_score 'model'"),
    (("--prompts", "{p}", "--metric", "clip_score"), "clip_score needs weights"),
    (("--prompts", "{p}", "--metric", "clip_score,x"), "write clip_score"),
])  # fmt: skip
def test_a_request_that_is_refused(words: tuple[str, ...], error: str, tmp_path: Path) -> None:
    folder, prompts = noise_images(tmp_path / "images", ["a.png", "b.png", "c.png", "d.png"]), table(tmp_path)
    done = CliRunner().invoke(main, ["score", str(folder), *(word.format(p=prompts) for word in words)])
    assert done.exit_code == 2, done.output
    assert error in done.output
