"""DPG-Bench's rule on answers made by hand, and small networks of the published layouts that answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute import dpg
from cachemark.metrics.compute.dpg import Dpg, PretrainedAnswerer, share_of_yes
from cachemark.models.prompt_lists import Question
from support.judges import answerer_folder
from support.later import later

later("transformers")
later("torchvision")


def questions(*needs: tuple[int, ...]) -> list[Question]:
    """Questions 1, 2, … that need these."""
    return [Question(number, f"{number}?", "entity", each) for number, each in enumerate(needs, 1)]


@pytest.mark.parametrize(("needs", "answers", "share"), [
    ([(), (), ()], "yes yes no", 2 / 3), ([(), (1,), (1,)], "no yes yes", 0.0), ([(), (1,), (2,)], "yes no yes", 1 / 3),
    ([(), (), (1, 2)], "yes no yes", 1 / 3), ([(), (9,)], "yes yes", 1.0), ([(2,), ()], "yes no", 0.0), ([()], "YES", 1.0),
    ([()], "yes,", 0.0),
])  # fmt: skip
def test_a_question_counts_where_those_do_that_it_depends_on(needs: list[tuple[int, ...]], answers: str, share: float) -> None:
    assert share_of_yes(questions(*needs), answers.split(" ")) == pytest.approx(share)


def test_an_image_is_asked_the_questions_of_its_own_prompt() -> None:
    heard: list[tuple[float, str]] = []

    def answer(image: Tensor, question: str) -> str:
        heard.append((float(image.float().mean()), question))
        return "yes" if question == "1?" else " No "

    images = torch.stack([torch.full((3, 4, 4), value) for value in (-1.0, 1.0)])
    assert Dpg([questions((), ()), questions(())], answer)(images, [1, 0]).tolist() == [1.0, 0.5]
    assert heard == [(0, "1?"), (255, "1?"), (255, "2?")]


@pytest.fixture(scope="module", params=["writes", "chooses"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return answerer_folder(tmp_path_factory.mktemp(request.param), writes=request.param == "writes")


def test_a_network_answers_in_words(folder: Path) -> None:
    answerer = PretrainedAnswerer(str(folder))
    image = torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    answer = answerer(image, "is there a red dog?")
    assert answer == answerer(image, "is there a red dog?")
    assert isinstance(answer, str)
    if folder.name.startswith("chooses"):
        assert answer in ("yes", "no", "red")
    else:
        assert not set(answer.split()) & {"[CLS]", "[SEP]", "[DEC]"}, "special tokens are no words"


@pytest.mark.parametrize("missing", dpg.FILES)
def test_a_missing_file_is_named_with_how_to_get_it(folder: Path, tmp_path: Path, missing: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(Unsupported, match=rf"not measured: needs {missing} in .*get it with: hf download {dpg.PUBLISHED}"):
        dpg.identity(str(tmp_path))


def test_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadCheckpoint, match="contains no readable network for visual questions"):
        PretrainedAnswerer(str(tmp_path))
