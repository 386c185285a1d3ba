"""Metrics by pretrained networks; small ones of the published layouts with random weights stand for the published ones."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.base import ImageBatch, ImageMetric, MetricContext
from cachemark.metrics.color_consistency import CLASSES
from cachemark.metrics.compute import detector as detectors, pretrained
from cachemark.metrics.compute.detector import GREY, NAMES, TEMPLATES, ClipColors, Detection, PretrainedDetector
from cachemark.metrics.compute.pretrained import ANSWERER, CLIP, DETECTOR, Clip, PublishedNetwork
from cachemark.metrics.preference_scores import HumanPreference, ImageReward
from cachemark.metrics.question_score import answerer
from cachemark.metrics.similarity import PerceptualDistance, files
from cachemark.metrics.text_similarity import PROMPT, TextSimilarity
from cachemark.models.prompt_lists import COLOURS
from metrics.toys import noise
from support.judges import answerer_folder, clip_folder, detector_folder
from support.later import later

transformers, torchvision = later("transformers"), later("torchvision")
later("torch_fidelity")

FOLDERS: dict[str, tuple[Callable[[Path], Path], Callable[[str], Any], PublishedNetwork]] = {
    "clip": (clip_folder, Clip, CLIP),
    "boxes": (partial(detector_folder, masks=False), PretrainedDetector, DETECTOR),
    "masks": (partial(detector_folder, masks=True), PretrainedDetector, DETECTOR),
    "writes": (partial(answerer_folder, writes=True), answerer, ANSWERER),
    "chooses": (partial(answerer_folder, writes=False), answerer, ANSWERER),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {name: build(tmp_path_factory.mktemp(name)) for name, (build, *_) in FOLDERS.items()}


def copied(folder: Path, to: Path, without: str = "") -> str:
    for file in folder.iterdir():
        if file.name != without:
            (to / file.name).write_bytes(file.read_bytes())
    return str(to)


def batch(images: torch.Tensor, labels: list[int], reference: torch.Tensor | None = None) -> ImageBatch:
    reference = images if reference is None else reference
    return ImageBatch(images, reference, images, reference, labels, [*range(len(images))])


def pixels(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_file_is_named_with_how_to_get_it(name: str, folders: Mapping[str, Path], tmp_path: Path) -> None:
    _, load, network = FOLDERS[name]
    for missing in network.needed:
        (folder := tmp_path / missing).mkdir()
        with pytest.raises(Unsupported, match=rf"not measured: needs {missing} in .*get it with: hf download {network.repository}"):
            load(copied(folders[name], folder, without=missing))


def test_changed_files_alone_are_read_and_change_the_identity(
    folders: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied(folders["clip"], tmp_path)
    (tmp_path / "README.md").write_text("not a weight")
    known, read, sha256 = {CLIP.identity(str(folders["clip"]))}, list[str](), pretrained.sha256
    assert CLIP.identity(str(tmp_path)) in known
    monkeypatch.setattr(pretrained, "sha256", lambda path: read.append(path.name) or sha256(path))
    changed = (*CLIP.needed, "tokenizer.json")
    for name in changed:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b" ")
        assert CLIP.identity(str(tmp_path)) not in known, name
        known.add(CLIP.identity(str(tmp_path)))
    assert read == [*changed]


def test_the_score_is_the_cosine_that_the_model_itself_gives(folders: Mapping[str, Path]) -> None:
    """The model's own forward pass on one prompt and one image at a time, for classes and for prompts."""
    folder = str(folders["clip"])
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    tokenizer, ready = (kind.from_pretrained(folder) for kind in (transformers.CLIPTokenizer, transformers.CLIPImageProcessor))
    images, labels = noise(20, 1, 64), [*range(10), *range(10)]
    for prompts, texts in (((), [PROMPT.format(name) for name in CLASSES]), (CLASSES, CLASSES)):
        expected = []
        for image, label in zip(images, labels, strict=True):
            shown = ((image + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
            with torch.no_grad():
                outputs = model(**tokenizer([texts[label]], return_tensors="pt"), **ready(shown, return_tensors="pt"))
            expected.append(100 * max(0.0, float((outputs.text_embeds * outputs.image_embeds).sum())))
        metric = TextSimilarity().prepared(MetricContext(options={"weights": folder}, prompts=prompts, dataset="scene"))
        assert metric.measure(batch(images, labels)).tolist() == pytest.approx(expected, abs=1e-3)
        assert {value > 0 for value in expected} == {True, False}, "negative cosines count as 0"


@pytest.mark.parametrize("name", ["boxes", "masks"])
def test_a_detector_gives_what_its_library_gives(name: str, folders: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes and scores equal the network's own; a box holds all pixels of its mask. Names are those of GenEval."""
    folder, image = str(folders[name]), pixels(0)
    monkeypatch.setattr(detectors, "THRESHOLD", 0.0)  # random weights are never sure
    detections = PretrainedDetector(folder)(image)
    assert {detection.name for detection in detections} <= {"dog", "computer mouse", "cow"} == detectors.classes(folder)
    assert {detection.mask is None for detection in detections} == {name == "boxes"}
    assert all(0 <= detection.score <= 1 for detection in detections)
    if name == "boxes":
        model = transformers.YolosForObjectDetection.from_pretrained(folder)
        ready = transformers.YolosImageProcessor.from_pretrained(folder)
        with torch.no_grad():
            own = model(**ready(image.permute(1, 2, 0).numpy(), return_tensors="pt"))
        scores, labels = own.logits[0].softmax(-1)[:, :-1].max(-1)
        assert [detection.score for detection in detections] == pytest.approx(scores.tolist(), abs=1e-5)
        assert [detection.name for detection in detections] == [["dog", "computer mouse", "cow"][label] for label in labels]
        middles = [[(d.box[0] + d.box[2]) / 2 / 48, (d.box[1] + d.box[3]) / 2 / 40] for d in detections]
        assert torch.allclose(torch.tensor(middles), own.pred_boxes[0, :, :2], atol=1e-4)
    for detection in detections if name == "masks" else ():
        x0, top, right, bottom = map(int, detection.box)
        assert detection.mask.shape == (40, 48)
        assert detection.mask[top:bottom, x0:right].sum() == detection.mask.sum() > 0
    monkeypatch.setattr(detectors, "THRESHOLD", 1.1)
    assert PretrainedDetector(folder)(torch.zeros(3, 40, 48, dtype=torch.uint8)) == []
    assert not set(NAMES) & set(NAMES.values())


def test_a_color_is_that_of_the_object_alone_and_a_network_answers_in_words(folders: Mapping[str, Path]) -> None:
    """Compared with CLIP on a crop made by hand, and the mean of its texts."""
    clip, image, mask = Clip(str(folders["clip"])), pixels(1), torch.zeros(40, 48, dtype=torch.bool)
    mask[5:20, 10:20] = True
    parts = [torch.where(mask, image, GREY)[:, 5:30, 10:40].numpy(), image[:, 5:30, 10:40].numpy()]
    texts = torch.stack([clip.of_texts([t.format(color=color, name="dog") for t in TEMPLATES]).mean(0) for color in COLOURS])
    expected = [COLOURS[int((torch.nn.functional.normalize(texts, dim=-1) @ clip.of_images([part])[0]).argmax())] for part in parts]
    objects = [Detection("dog", 1.0, (10, 5, 40, 30), mask), Detection("dog", 1.0, (10, 5, 40, 30))]
    assert ClipColors(clip)(image, objects, "dog") == expected
    outside = Detection("dog", 1.0, (60.0, -9.0, 90.0, -3.0))
    assert len(ClipColors(clip)(image, [outside], "dog")) == 1, "a box outside of the image is one of its pixels"
    for name in ("writes", "chooses"):
        answer = answerer(str(folders[name]))
        text = answer(pixels(0), "is there a red dog?")
        assert text == answer(pixels(0), "is there a red dog?")
        assert text in ("yes", "no", "red") or name == "writes"
        assert not set(text.split()) & {"[CLS]", "[SEP]", "[DEC]"}, "special tokens are not words"


PACKAGES = {
    "ImageReward/__init__.py": """
class Model:
    def score(self, prompt, image):
        return len(prompt) + image.getpixel((0, 0))[0] / 255

def load(name, device, med_config):
    print("load checkpoint from", name)
    assert open(name).read() and open(med_config).read() == "{}" and device == "cpu"
    return Model()
""",
    "hpsv2/__init__.py": "", "hpsv2/src/__init__.py": "",
    "hpsv2/src/open_clip.py": """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, image, text):
        return {"image_features": image.flatten(1)[:, :2] * self.weight, "text_features": text}

def create_model_and_transforms(name, pretrained, precision, device, output_dict):
    assert (name, pretrained) == ("ViT-H-14", None), "nothing is fetched"
    return Model(), None, lambda image: torch.tensor([[image.getpixel((0, 0))[0] / 255, 1.0]])

def get_tokenizer(name):
    return lambda texts: torch.tensor([[len(text), 1.0] for text in texts])
""",
}


@pytest.fixture
def preferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricContext]:
    for name, text in PACKAGES.items():
        (tmp_path / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    (tmp_path / "ImageReward.pt").write_text("weights")
    (tmp_path / "med_config.json").write_text("{}")
    torch.save({"state_dict": {"weight": torch.full((1,), 2.0)}}, tmp_path / "HPS_v2.1_compressed.pt")
    yield MetricContext(options={"weights": str(tmp_path)}, prompts=("a dog", "a ca"))
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in ("ImageReward", "hpsv2")]:
        del sys.modules[name]


@pytest.mark.parametrize(("cls", "expected"), [(ImageReward, [4.0, 6.0]), (HumanPreference, [2 * 0 + 2, 2 * 5 + 2])])
def test_each_image_is_scored_with_its_own_prompt(
    cls: type[ImageMetric], expected: list[float], preferences: MetricContext, capsys: pytest.CaptureFixture[str],
) -> None:
    images = torch.stack([torch.full((3, 4, 4), value) for value in (-1.0, 1.0)])
    assert cls().prepared(preferences).measure(batch(images, [1, 0])).tolist() == expected
    assert capsys.readouterr().out == "", "the worker's output is a protocol"


@pytest.mark.parametrize(("cls", "file", "broken", "words"), [
    (HumanPreference, "hpsv2/src/open_clip.py", "open('bpe_vocab.txt.gz')", "hpsv2 cannot be imported: FileNotF.*lacks the vocabulary"),
    (HumanPreference, "hpsv2/__init__.py", "import no_such_library", "hpsv2 cannot be imported: ModuleNotFoundError.*no_such_library"),
    (ImageReward, "ImageReward/__init__.py", "import no_such_clip", "ImageReward cannot be imported.*no_such_clip.*OpenAI's clip"),
])
def test_an_incomplete_library_is_blamed_instead_of_the_weights(
    cls: type[ImageMetric], file: str, broken: str, words: str, preferences: MetricContext, tmp_path: Path,
) -> None:
    (tmp_path / "packages" / file).write_text(broken)
    with pytest.raises(Unsupported, match=words):
        cls().prepared(preferences).measure(batch(torch.zeros(1, 3, 4, 4), [0]))


LPIPS = ("vgg16-397923af.pth", "weights-vgg16-lpips.pth")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyTorch's download cache with both files: names and shapes of the published ones, few bytes each."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    hub, draws = tmp_path / "checkpoints", torch.Generator().manual_seed(0)
    hub.mkdir()
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in torchvision.models.vgg16().state_dict().items()}
    vgg = {name: torch.full((1,), 0.02 if len(shape) > 1 else 0.0).expand(shape) for name, shape in shapes.items()}
    for name in ("features.0.weight", "features.2.weight"):  # else all channels are equal
        vgg[name] = torch.randn(shapes[name], generator=draws) * 0.1
    torch.save(vgg, hub / LPIPS[0])
    torch.save({f"lin{i}.model.1.weight": torch.full((1,), 0.1).expand(1, c, 1, 1) for i, c in enumerate((64, 128, 256, 512, 512))},
               hub / LPIPS[1])
    return hub


def test_distances_are_those_of_torch_fidelity_on_bytes_and_grow_with_the_difference(hub: Path) -> None:
    from torch_fidelity.sample_similarity_lpips import SampleSimilarityLPIPS

    metric, images = PerceptualDistance().prepared(MetricContext()), noise(3, 1, 32)
    levels = torch.randint(0, 256, (2, 2, 3, 32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    expected = SampleSimilarityLPIPS("x")(levels[0], levels[1]).flatten()
    first, second = (level.float() / 127.5 - 1 for level in levels)
    assert metric.measure(batch(first, [0, 0], second)) == pytest.approx(expected, rel=1e-4)
    other = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    same, near, far = (metric.measure(batch(images, [0] * 3, images + share * other)) for share in (0, 0.05, 0.5))
    assert same.tolist() == [0, 0, 0]
    assert (far > near).logical_and(near > 0).tolist() == [True] * 3


@pytest.mark.parametrize("file", LPIPS)
def test_missing_and_damaged_files_of_lpips_are_named(hub: Path, file: str) -> None:
    (hub / file).write_bytes((hub / file).read_bytes()[:100])
    with pytest.raises(BadCheckpoint, match=file):
        PerceptualDistance()._network()
    (hub / file).unlink()
    with pytest.raises(Unsupported, match=rf"not measured: needs {file}, get it with: curl .*{file}"):
        files()
