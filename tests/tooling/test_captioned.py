"""Training on captions: batches of prompts of any length, captions that are left out, and what the reader is taught."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachemark.models import janus
from cachemark.models.janus import JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.tiny.captions import VOCABULARY, WordTokenizer, asked
from cachemark.models.tiny.tiny_vq import load
from tools.train import captioned, generators
from tools.train.caption_scene import VERSION
from tools.train.captioned import CaptionedTask, ReaderTask
from tools.train.loops import TrainingRun, train

pytestmark = pytest.mark.usefixtures("quick")
SMALL = JanusConfig(LlamaConfig(1, 2, 32, 48, len(VOCABULARY)), codes=8, code_dim=2, grid=16)


def make(tokenizer: Path, seed: int = 0) -> CaptionedTask:
    return CaptionedTask(tokenizer, seed, config=SMALL, batch=2)


def test_a_step_has_its_own_captions_and_pictures_whatever_came_before(tokenizer: Path) -> None:
    first, second = make(tokenizer), make(tokenizer)
    chunk = generators.CHUNK
    steps = (0, 1, chunk - 1, chunk, 2 * chunk + 1)
    for step in steps:
        first.fresh(step)
    for step in reversed(steps):
        for one, other in zip(first.fresh(step), second.fresh(step), strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(first.fresh(0)[1], first.fresh(1)[1])
    assert not torch.equal(make(tokenizer, 1).fresh(0)[1], first.fresh(0)[1])


def test_labels_are_captions_between_the_marks_of_a_prompt(tokenizer: Path) -> None:
    captions, codes = make(tokenizer).fresh(3)
    words = WordTokenizer()
    for row in captions:
        ids = [int(i) for i in row if i != captioned.BEHIND]
        assert (ids[0], ids[-1]) == (words.special(janus.BEGIN), words.special(janus.IMAGE))
        asked(" ".join(VOCABULARY[i] for i in ids[1:-1]))
    assert codes.shape == (2, 256)


def test_one_caption_in_ten_is_left_out(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, seen = make(tokenizer), []
    own = task.model.teacher
    monkeypatch.setattr(task.model, "teacher", lambda rows, codes: seen.extend(rows) or own(rows, codes))
    draws = torch.Generator().manual_seed(0)
    for step in range(100):
        task.loss(step % generators.CHUNK, draws)
    pad = WordTokenizer().special(janus.PAD)
    gone = [row for row in seen if pad in row]
    assert 0.03 < len(gone) / len(seen) < 0.2
    assert all(row == janus.unconditional(row, pad) for row in gone)
    assert all(row[-1] == WordTokenizer().special(janus.IMAGE) for row in seen)


def test_training_starts_from_uniform_predictions_and_lowers_the_loss(tokenizer: Path, tmp_path: Path) -> None:
    task = make(tokenizer)
    before = task.validate()["nats_per_token"]
    assert before == pytest.approx(torch.tensor(8.0).log().item(), abs=1e-3)
    train(task, TrainingRun(tmp_path, 20, threads=1))
    assert task.validate()["nats_per_token"] < before - 0.1
    about = json.loads((tmp_path / "tiny-t2i.json").read_text())
    assert (about["data"], about["language"]) == (VERSION, load(tokenizer).language)
    assert about["config"]["decoder"]["dim"] == SMALL.decoder.dim


def test_a_continued_run_ends_as_an_uninterrupted_one(tokenizer: Path, ends_as_uninterrupted: Callable[..., None]) -> None:
    ends_as_uninterrupted(lambda: make(tokenizer), 4)


def test_the_reader_learns_and_says_what_it_reads_in_pictures_made_again(tokenizer: Path, tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captioned, "READ", 32)
    task = ReaderTask(tokenizer, batch=8)
    before = task.validate()
    train(task, TrainingRun(tmp_path, 30, threads=1))
    assert {"object", "object_made_again", "ground_colour", "ground_colour_made_again"} <= set(before)
    assert task.validate()["position"] > before["position"] + 0.2
    assert json.loads((tmp_path / "tiny-reader.json").read_text())["data"] == VERSION
