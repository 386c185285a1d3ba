"""GenEval's rules on detections made by hand, and on what small networks of its layouts find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute import detector as detectors
from cachemark.metrics.compute.clip import Clip
from cachemark.metrics.compute.detector import GREY, NAMES, TEMPLATES, ClipColors, PretrainedDetector
from cachemark.metrics.compute.geneval import MOST, Detection, GenEval, counted, is_right, relations
from cachemark.models.prompt_lists import COLOURS
from support.judges import clip_folder, detector_folder
from support.later import later

transformers = later("transformers")
later("torchvision")


def seen(name: str, score: float = 0.95, box: tuple[float, float, float, float] = (0, 0, 10, 10)) -> Detection:
    return Detection(name, score, box)


def nobody(objects: Sequence[Detection], name: str) -> list[str]:
    raise AssertionError("no colour was asked for")


def task(*include: dict[str, Any], exclude: Sequence[dict[str, Any]] = (), tag: str = "two_object") -> dict[str, Any]:
    return {"tag": tag, "prompt": "x", "include": [*include], "exclude": [*exclude]}


DOG, CAT = {"class": "dog", "count": 1}, {"class": "cat", "count": 1}
THREE = task({"class": "dog", "count": 3}, exclude=[{"class": "dog", "count": 4}], tag="counting")


# -- rules ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("there", "right"), [(["dog", "cat"], True), (["cat", "dog", "cow"], True), (["dog", "dog"], False), ([], False)])
def test_every_object_that_is_asked_for_must_be_there(there: list[str], right: bool) -> None:
    assert is_right(task(DOG, CAT), counted([seen(name) for name in there], "two_object"), nobody) is right


@pytest.mark.parametrize(("scores", "right"), [
    ([0.95] * 3, True), ([0.95] * 2, False), ([0.95] * 4, False), ([0.95] * 3 + [0.9], True), ([0.95, 0.95, 0.9], False),
])  # fmt: skip
def test_a_number_is_exact_and_of_objects_that_are_sure(scores: list[float], right: bool) -> None:
    """0.9 itself is not above the threshold of 0.9."""
    assert is_right(THREE, counted([seen("dog", score) for score in scores], "counting"), nobody) is right


def test_a_number_is_also_of_the_first_sixteen_only() -> None:
    assert len(counted([seen("dog", 0.4 + i / 100) for i in range(20)], "colors")["dog"]) == MOST == 16
    assert counted([seen("dog", 0.3), seen("cat", 0.31)], "colors") == {"cat": [seen("cat", 0.31)]}


def test_colours_are_those_of_the_surest_objects() -> None:
    red = task({"class": "dog", "count": 1, "color": "red"}, tag="colors")
    objects_by_class = counted([seen("dog", 0.5, (1, 0, 5, 5)), seen("dog", 0.8, (2, 0, 5, 5))], "colors")
    classified: list[Detection] = []

    def named(objects: Sequence[Detection], name: str) -> list[str]:
        classified.extend(objects)
        return ["red" if detection.box[0] == 2 else "blue" for detection in objects]

    assert is_right(red, objects_by_class, named)
    assert [detection.score for detection in classified] == [0.8]
    assert not is_right(red, objects_by_class, lambda objects, name: ["blue"] * len(objects))
    assert not is_right(red, {}, nobody), "no colour is named of nothing"


def test_two_colours_are_bound_to_their_own_objects() -> None:
    two_objects = task({**DOG, "color": "red"}, {**CAT, "color": "blue"}, tag="color_attr")
    objects_by_class = counted([seen("dog"), seen("cat")], "color_attr")
    assert is_right(two_objects, objects_by_class, lambda objects, name: ["red" if name == "dog" else "blue"])
    assert not is_right(two_objects, objects_by_class, lambda objects, name: ["blue" if name == "dog" else "red"])


LEFT = [(0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0)]


@pytest.mark.parametrize(("box", "anchor", "expected"), [
    (*LEFT, {"left of"}), (LEFT[1], LEFT[0], {"right of"}), ((0, 20, 10, 30), (0, 0, 10, 10), {"below"}),
    ((0, 0, 10, 10), (0, 20, 10, 30), {"above"}), ((0, 0, 10, 10), (20, 20, 30, 30), {"left of", "above"}),
    (LEFT[0], LEFT[0], set()), ((0, 0, 10, 10), (2, 0, 12, 10), set()), ((0, 0, 10, 10), (2.1, 0, 12.1, 10), set()),
    ((0, 0, 10, 10), (5, 0, 15, 10), {"left of"}), ((0, 0, 10, 10), (4, 0, 14, 10), set()),
])  # fmt: skip
def test_relations_need_a_tenth_of_the_extents_between_centers(box: Any, anchor: Any, expected: set[str]) -> None:
    """For boxes of 10, (offset − 2) / offset must exceed 1/2, so the offset must exceed 4."""
    assert relations(box, anchor) == expected


def test_a_place_is_beside_what_is_right_itself() -> None:
    beside = task(CAT, {"class": "dog", "count": 1, "position": ["left of", 0]}, tag="position")
    objects_by_class = counted([seen("dog", box=LEFT[0]), seen("cat", box=LEFT[1])], "position")
    assert is_right(beside, objects_by_class, nobody)
    assert not is_right(beside, counted([seen("dog", box=LEFT[1]), seen("cat", box=LEFT[0])], "position"), nobody)
    assert not is_right(beside, {"dog": objects_by_class["dog"]}, nobody), "there is no cat to stand beside"


def test_every_pair_of_objects_must_be_at_its_place() -> None:
    beside = task({"class": "cat", "count": 2}, {"class": "dog", "count": 1, "position": ["left of", 0]}, tag="position")
    cats = [seen("cat", box=(40, 0, 50, 10)), seen("cat", 0.5, box=(60, 0, 70, 10))]
    assert is_right(beside, counted([seen("dog", box=LEFT[1]), *cats], "position"), nobody)
    assert not is_right(beside, counted([seen("dog", box=(80, 0, 90, 10)), *cats], "position"), nobody)
    assert not is_right(beside, counted([seen("dog", box=(51, 0, 59, 10)), *cats], "position"), nobody)


# -- scores of pictures --------------------------------------------------------------------------------------------------
def test_a_figure_has_the_images_of_its_kind_and_each_is_looked_at_once() -> None:
    tasks = [task(DOG, tag="single_object"), THREE, task({**DOG, "color": "red"}, tag="colors")]
    looked: list[float] = []

    def detector(image: Tensor) -> list[Detection]:
        looked.append(float(image.float().mean()))
        return [seen("dog")] * (3 if image.float().mean() > 200 else 1)

    score = GenEval(tasks, detector, lambda image, objects, name: ["red"] * len(objects))
    images = torch.stack([torch.full((3, 8, 8), value) for value in (-1.0, 1.0, -1.0, 0.0, -1.0)])
    labels = [0, 1, 1, 2, 2]
    assert score("geneval", images, labels).tolist() == [1, 1, 0, 1, 1]
    assert score("geneval_counting", images, labels).tolist() == [1, 0]
    assert score("geneval_colors", images, labels).tolist() == [1, 1]
    assert score("geneval_position", images, labels).tolist() == []
    assert looked == [0, 255, 0, 128, 0]


# -- networks ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["boxes", "masks"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detector_folder(tmp_path_factory.mktemp(request.param), masks=request.param == "masks")


def test_a_detector_gives_what_its_library_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold that random weights pass. Of boxes: those of the network's own values; of masks: boxes hold all pixels. Names are
    those of GenEval."""
    monkeypatch.setattr(detectors, "THRESHOLD", 0.0)
    image = torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    detections = PretrainedDetector(str(folder))(image)
    assert detections
    assert {detection.name for detection in detections} <= {"dog", "computer mouse", "cow"}
    for detection in detections:
        x0, top, right, bottom = detection.box
        assert 0 <= detection.score <= 1
        if detection.mask is not None:
            assert detection.mask.shape == (40, 48)
            assert detection.mask[int(top) : int(bottom), int(x0) : int(right)].sum() == detection.mask.sum() > 0
    assert {detection.mask is None for detection in detections} == {folder.name.startswith("boxes")}
    if folder.name.startswith("boxes"):
        kinds = transformers.YolosForObjectDetection, transformers.YolosImageProcessor
        model, ready = (kind.from_pretrained(str(folder)) for kind in kinds)
        with torch.no_grad():
            own = model(**ready(image.permute(1, 2, 0).numpy(), return_tensors="pt"))
        scores, labels = own.logits[0].softmax(-1)[:, :-1].max(-1)
        assert [detection.score for detection in detections] == pytest.approx(scores.tolist(), abs=1e-5)
        assert [detection.name for detection in detections] == [["dog", "computer mouse", "cow"][label] for label in labels]
        middles = [[(d.box[0] + d.box[2]) / 2 / 48, (d.box[1] + d.box[3]) / 2 / 40] for d in detections]
        assert torch.allclose(torch.tensor(middles), own.pred_boxes[0, :, :2], atol=1e-4)
    assert detectors.classes(str(folder)) == {"dog", "computer mouse", "cow"}


def test_of_nothing_sure_nothing_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "THRESHOLD", 1.1)
    assert PretrainedDetector(str(folder))(torch.zeros(3, 40, 48, dtype=torch.uint8)) == []


@pytest.mark.parametrize("missing", detectors.FILES)
def test_a_missing_file_is_named_with_how_to_get_it(folder: Path, tmp_path: Path, missing: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(Unsupported, match=rf"not measured: needs {missing} in .*get it with: hf download {detectors.PUBLISHED}"):
        PretrainedDetector(str(tmp_path))


def test_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadCheckpoint, match="contains no readable detector"):
        PretrainedDetector(str(tmp_path))


def test_a_colour_is_that_of_the_object_alone(tmp_path: Path) -> None:
    """By CLIP itself on the picture that is cut out by hand, and the mean of its texts."""
    clip = Clip(str(clip_folder(tmp_path / "clip")))
    image = torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(40, 48, dtype=torch.bool)
    mask[5:20, 10:20] = True
    cut = torch.where(mask, image, GREY)[:, 5:30, 10:40]
    texts = torch.stack([clip.of_texts([t.format(color=colour, name="dog") for t in TEMPLATES]).mean(0) for colour in COLOURS])
    parts = [cut.numpy(), image[:, 5:30, 10:40].numpy()]
    expected = [COLOURS[int((torch.nn.functional.normalize(texts, dim=-1) @ clip.of_images([part])[0]).argmax())] for part in parts]
    objects = [Detection("dog", 1.0, (10, 5, 40, 30), mask), Detection("dog", 1.0, (10, 5, 40, 30))]
    assert ClipColors(clip)(image, objects, "dog") == expected
    outside = Detection("dog", 1.0, (60.0, -9.0, 90.0, -3.0))
    assert len(ClipColors(clip)(image, [outside], "dog")) == 1, "a box outside of the picture is one pixel of it"


def test_names_are_those_of_geneval_s_own_list() -> None:
    assert not set(NAMES) & set(NAMES.values())
