"""Protocols of benchmarks and scores of images with their prompts: which prompt an image has, and values by a second computation."""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from click.testing import CliRunner
from PIL import Image

from cachemark.cli import main
from cachemark.core.errors import CachemarkError
from cachemark.metrics.compute import inception
from cachemark.metrics.compute.image_folders import ImageFolder, Resized
from cachemark.metrics.compute.pretrained import Clip
from cachemark.metrics.compute.sample_batches import SampleBatch
from cachemark.models import prompt_lists
from cachemark.models.prompt_lists import Download, prompt_list
from cachemark.workflows import score as scoring, score_protocols as protocols
from cachemark.workflows.score_prompts import prompt_numbers
from cachemark.workflows.score_protocols import score
from metrics.test_adm_evaluator import frechet
from metrics.toys import spatial_toy
from support.judges import answerer_folder, clip_folder, detector_folder
from support.later import later
from support.stages import data

from .test_score import noise_images

PER, CATEGORIES, CAPTIONS, ATOMS = 30, ("art", "people"), 30, (3, 1, 2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for module in (scoring, protocols):
        monkeypatch.setattr(module, "scorer", lambda name, weights: (spatial_toy(), inception.OPTIONS))
    for name, value in {"CATEGORIES": CATEGORIES, "PER_CATEGORY": PER, "CAPTIONS": CAPTIONS, "TASKS": len(ATOMS)}.items():
        monkeypatch.setattr(protocols, name, value)


def test_mjhq_has_fid_by_category_on_resized_images() -> None:
    rows = {f"{category}{i}": {"category": category, "prompt": f"{category} {i}"} for category in CATEGORIES for i in range(PER)}
    Path("meta_data.json").write_text(json.dumps(rows))
    names = list(rows)
    real = noise_images(Path("real"), [f"{name.rstrip('0123456789')}/{name}.png" for name in names], 1, 40)
    mine = noise_images(Path("mine"), [f"{name}.png" for name in names], 2, 40)
    scores = score(mine, real, preset_name="mjhq", prompts="meta_data.json")
    assert {"fid_mjhqart_30", "fid_mjhqpeople_30", "fid_mjhq_60"} == scores.values.keys()
    assert {"image_reward", "hpsv2"} == scores.absent.keys()

    def pooled(files: list[Path]) -> np.ndarray:
        channels = [[Image.fromarray(channel.astype(np.float32)) for channel in np.asarray(Image.open(file)).transpose(2, 0, 1)]
                    for file in files]
        bicubic = [[np.asarray(each.resize((299, 299), Image.Resampling.BICUBIC)).clip(0, 255).round() for each in image]
                   for image in channels]
        return spatial_toy().load()(torch.from_numpy(np.array(bicubic, np.uint8)))[0].double().numpy()[:, :-1]

    expected = frechet(pooled(sorted(mine.glob("art*"))), pooled(sorted(real.glob("art/*"))))
    assert scores.values["fid_mjhqart_30"].value == pytest.approx(expected, rel=1e-3)
    folder = ImageFolder.open(mine)  # resizing is a part of the key of features
    assert len({folder.digest(slice(0, 1)), *(Resized(folder, side).digest(slice(0, 1)) for side in (64, 299))}) == 3
    for name in names[PER:]:
        (mine / f"{name}.png").unlink()
    alone = score(mine, real, preset_name="mjhq", prompts="meta_data.json")
    assert alone.values == {"fid_mjhqart_30": scores.values["fid_mjhqart_30"]}
    assert "people" in alone.absent["fid"]


def test_coco2017_compares_pairs_and_sets_with_the_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = [{"image_id": i, "id": 100 - number, "caption": f"{i} {number}"} for i in range(CAPTIONS) for number in range(2)]
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr(prompt_lists.COCO_MEMBER, json.dumps({"annotations": captions}))
    for name in ("full", "mine"):
        noise_images(Path(name), [f"{i}.png" for i in range(CAPTIONS)], len(name), 40)
    with pytest.raises(CachemarkError, match=r"a\.zip has \d+ bytes, not the 252907541 of annotations_trainval2017\.zip"):
        score("mine", "full", preset_name="coco2017-full", prompts="a.zip")
    size = Path("a.zip").stat().st_size
    monkeypatch.setattr(prompt_lists, "COCO_2017", Download("http://x/a.zip", size, "0" * 32))
    with pytest.raises(CachemarkError, match="has the MD5 "):
        prompt_list("a.zip")
    monkeypatch.setattr(prompt_lists, "COCO_2017", Download("http://x/a.zip", size, hashlib.md5(Path("a.zip").read_bytes()).hexdigest()))
    assert prompt_list("a.zip").texts[:2] == ("0 1", "1 1")  # the caption of the lowest id, by images
    scores = score("mine", "full", preset_name="coco2017-full", prompts="a.zip")
    assert {"psnr", "ssim", f"fid_adm_{CAPTIONS}"} <= scores.values.keys()
    Path("mine/3.png").unlink()
    with pytest.raises(CachemarkError, match="mine has 29 images, not 30"):
        score("mine", "full", preset_name="coco2017-full", prompts="a.zip")


def geneval2(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["score", "mine", "--preset", "geneval2", "--prompts", "geneval2_data.jsonl", *options])
    return result.exit_code, result.output


def test_geneval2_exports_paths_and_imports_scores() -> None:
    lines = [{"prompt": f"prompt {i}", "vqa_list": [["Is it?", "Yes"]] * atoms} for i, atoms in enumerate(ATOMS)]
    Path("geneval2_data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    noise_images(Path("mine"), ["0.png", "1.png", "2.png"])
    for _ in range(2):  # its own output is replaced
        assert geneval2("--metric", "geneval2,paths=paths.json")[0] == 0
    assert json.loads(Path("paths.json").read_text()) == {f"prompt {i}": str(Path("mine", f"{i}.png").resolve()) for i in range(3)}
    lists = [[0.9, 0.8, 0.1], [0.5], [1.0, 0.25]]
    Path("scores.json").write_text(json.dumps(lists))
    code, text = geneval2("--metric", "geneval2,scores=scores.json", "--json")
    values = {name: value["value"] for name, value in json.loads(text)["values"].items()}
    assert values == pytest.approx({"geneval2_am": np.mean([100 * np.mean(each) for each in lists]),
                                    "geneval2_gm": np.mean([100 * scipy.stats.gmean(each) for each in lists])})
    assert (code, geneval2("--metric", "geneval2,scores=scores.json")[0]) == (0, 0)
    for bad in ([[0.9]], [[0.9, 0.8, 7], [0.5], [1, 1]], {"a": 1}, [1, 2, 3]):
        Path("scores.json").write_text(json.dumps(bad))
        code, text = geneval2("--metric", "geneval2,scores=scores.json")
        assert (code, "has no scores of GenEval 2" in text) == (2, True), text
    assert geneval2()[0] == 2


@pytest.mark.parametrize(("preset", "words"), [
    ("mjhq", "curl -LO https://huggingface.co/datasets/playgroundai/MJHQ-30K"), ("coco2017-full", "annotations_trainval2017.zip"),
    ("geneval2", "curl -LO https://raw.githubusercontent.com/facebookresearch/GenEval2")])
def test_a_protocol_says_what_to_fetch(preset: str, words: str) -> None:
    noise_images(Path("mine"), ["0.png"])
    with pytest.raises(CachemarkError, match=re.escape(words)):
        score("mine", preset_name=preset)
    Path("p.csv").write_text("prompt,category\na,art\n")
    with pytest.raises(CachemarkError, match="has 1 prompt"):
        score("mine", "mine", preset_name=preset, prompts="p.csv")


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
    (["10.png", "2.png", "party.png"], dpg, [1, 0, 3]), (["a.png", "q.png"], table, "has no prompt for q.png"),
    (["a.png", "b.png"], lines, "has 2 images and .* 4 prompts"), (["00004/0.png"], lines, "an image of prompt 4 and .* 4 prompts")])
def test_an_image_has_its_prompt_or_is_refused(names: list[str], prompts: Callable[[Path], Path], expected: Any, tmp_path: Path) -> None:
    with pytest.raises(CachemarkError, match=expected) if isinstance(expected, str) else nullcontext():
        assert prompt_numbers(scoring.opened(noise_images(tmp_path / "images", names)), prompt_list(str(prompts(tmp_path)))) == expected


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
    scored = scoring.score(folder, prompts=table(tmp_path), metrics=[("clip_score", {"weights": "nowhere"})])
    assert not scored.values
    assert "hf download openai/clip-vit-base-patch16" in scored.absent["clip_score"]


def test_geneval_and_dpg_have_their_rules_and_folders(tmp_path: Path) -> None:
    """Networks of random weights see nothing in GenEval's images; their answers are those of the metric."""
    task = {"tag": "single_object", "include": [{"class": "dog", "count": 1}], "prompt": "a photo of a dog"}
    (tmp_path / "evaluation_metadata.jsonl").write_text(f"{json.dumps(task)}\n{json.dumps({**task, 'tag': 'counting'})}\n")
    folder = noise_images(tmp_path / "geneval", ["00000/samples/0000.png", "00001/samples/0000.png", "00001/samples/0001.png"])
    options = {"detector": str(detector_folder(tmp_path / "boxes", masks=False)), "clip": str(clip_folder(tmp_path / "clip"))}
    scored = scoring.score(folder, prompts=tmp_path / "evaluation_metadata.jsonl", metrics=[("geneval", options)])
    assert scored.values.keys() == {"geneval", "geneval_single_object", "geneval_counting"}
    head = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language\n"
    (tmp_path / "dpg_bench.csv").write_text(head + "skipped,,,1,0,,,,\n" + "".join(f"{name},t,k,1,0,e,w,t,is there a dog?\n"
                                                                                for name in ("10", "2", "party", "x")))
    scored = scoring.score(noise_images(tmp_path / "dpg", ["10.png", "2.png"]), prompts=dpg(tmp_path), metrics=[
        ("dpg", {"weights": str(answerer_folder(tmp_path / "vilt", writes=False))})])
    assert 0 <= scored.values["dpg"].value <= 1


@pytest.mark.parametrize(("words", "error"), [
    (("--metric", "clip_score,weights=nowhere"), "Prompts and a metric of images and prompts belong together"),
    (("--prompts", "{p}", "--metric", "clip"), "Unknown metric of images and prompts 'clip'. Did you mean 'clip_score'"),
    (("--prompts", "{p}", "--metric", "clip_score,model=x"), "Unknown option of metric clip_score 'model'"),
    (("--prompts", "{p}", "--metric", "clip_score"), "clip_score needs weights"),
    (("--prompts", "{p}", "--metric", "clip_score,x"), "write clip_score")])
def test_a_request_that_is_refused(words: tuple[str, ...], error: str, tmp_path: Path) -> None:
    folder, prompts = noise_images(tmp_path / "images", ["a.png", "b.png", "c.png", "d.png"]), table(tmp_path)
    done = CliRunner().invoke(main, ["score", str(folder), *(word.format(p=prompts) for word in words)])
    assert done.exit_code == 2, done.output
    assert error in done.output
