"""Scores of image folders: intervals, pairs, statistics without images, and input that cannot be scored."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

import cachemark as cm
from cachemark.cli import main
from cachemark.core.errors import CachemarkError, Unsupported
from cachemark.core.files import cache_folder
from cachemark.metrics.compute import inception
from cachemark.metrics.compute.image_features import ImageFeatures
from cachemark.metrics.compute.image_folders import ImageFolder
from cachemark.metrics.similarity import psnr, ssim
from cachemark.workflows import score as scoring
from cachemark.workflows.score import score
from metrics.toys import png_files, toy
from support.later import later
from support.stages import good
from tools.train.scene import scenes

torch_fidelity = later("torch_fidelity")
COUNT = 384


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def in_bytes(images: torch.Tensor) -> torch.Tensor:
    return ((images.clamp(-1, 1).double() + 1) * 255 / 2).round().byte()


def pixels(files: list[Path]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Scenes, and the same scenes darker and with noise; the noise of the fourth is the strongest."""
    home, images = tmp_path_factory.mktemp("folders"), scenes(COUNT, 5).images
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    noise[3] *= 8
    return Path(png_files(in_bytes(0.9 * images + 0.05 * noise), home / "a")), Path(png_files(in_bytes(images), home / "b"))


def test_the_worst_pair_is_first_and_intervals_are_kept(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scores = score(*folders, preset_name="scene")
    fid = scores.values[f"fid_scene_{COUNT}"]
    assert (fid.unit, fid.better, fid.note) == ("", "lower", "")
    assert all(scores.values[f"{name}_scene_{COUNT}"].low is not None for name in ("fid", "kid", "isc", "precision", "recall"))
    assert (scores.worst_by, scores.pairs[0].name, len(scores.pairs)) == ("ssim", "0003.png", COUNT)
    assert "curl" in scores.absent["lpips"]
    a, b = (pixels([folder / pair.name for pair in scores.pairs[:40]]).float() / 127.5 - 1 for folder in folders)
    for name, function in (("psnr", psnr), ("ssim", ssim)):
        assert [pair.values[name] for pair in scores.pairs[:40]] == pytest.approx(function(a, b).tolist(), rel=1e-5)
        assert scores.values[name].value == pytest.approx(np.mean([pair.values[name] for pair in scores.pairs]))
    assert all(one.values["ssim"] <= two.values["ssim"] for one, two in zip(scores.pairs, scores.pairs[1:], strict=False))
    monkeypatch.setattr(scoring, "intervals", lambda *_, **__: pytest.fail("intervals were computed again"))
    assert score(*folders, preset_name="scene").values == scores.values
    with pytest.raises(pytest.fail.Exception):
        score(*reversed(folders), preset_name="scene", unpaired=True)
    for file in (cache_folder() / "features").glob("*.json"):
        file.write_text('{"fid": [1]}')
    with pytest.raises(pytest.fail.Exception):
        score(*folders, preset_name="scene", unpaired=True)


def noise_images(folder: Path, names: list[str], seed: int = 0, side: int = 32) -> Path:
    draws = np.random.default_rng(seed)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / name)
    return folder


def few(folder: Path, name: str, count: int = 6, side: int = 64, first: int = 0) -> Path:
    return noise_images(folder / name, [f"{i:02d}.png" for i in range(first, first + count)], first, side)


def called(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["score", *map(str, arguments)])


def test_the_command_prints_a_table_json_and_a_grid_and_compares_unpaired(tmp_path: Path) -> None:
    unpaired = json.loads(called(few(tmp_path, "c", 4), few(tmp_path, "d", 3), "--preset", "scene", "--unpaired", "--json").output)
    assert (unpaired["pairs"], unpaired["values"].keys()) == ([], {"fid_scene_4"})
    first, second = few(tmp_path, "a"), few(tmp_path, "b")
    Image.new("RGB", (64, 64)).save(first / "02.png")
    for folder in (first, second):  # a name that is not UTF-8
        (folder / "05.png").rename(folder / os.fsdecode(b"05\xff.png"))
    assert "Worst pairs by SSIM: 02.png" in good(called(first, second, "--preset", "scene", "--grid", tmp_path / "worst.png"))
    grid = Image.open(tmp_path / "worst.png")
    assert grid.size == (3 * 64, 6 * 64 + 16)
    other = np.array(Image.open(second / "02.png"))
    assert (np.array(grid)[:64] == np.hstack([0 * other, other, other])).all(), "both, and their difference"
    data = json.loads(called(first, second, "--preset", "scene", "--json").output)
    assert [data["pairs"][0]["name"], *(pair["name"] for pair in data["pairs"] if "05" in pair["name"])] == ["02.png", "05\udcff.png"]
    assert {"psnr", "ssim", "fid_scene_6", "precision_scene_6", "recall_scene_6"} == data["values"].keys()
    assert data["values"]["fid_scene_6"]["low"] is None
    assert data["absent"]["kid"] == "It needs at least 250 images; there are 6 and 6 real ones. Add images."


def test_statistics_without_images_give_fid_alone_and_images_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "scorer", lambda name, weights: (toy(), {"isc_splits": 2}))
    monkeypatch.setitem(inception.LAYERS, "adm", 13)
    folder = few(tmp_path, "a", count=24)
    np.savez(tmp_path / "known.npz", mu=np.zeros(13), sigma=np.eye(13))
    scored = score(folder, tmp_path / "known.npz")
    assert (scored.values.keys(), scored.absent.keys()) == ({"fid_adm_24", "isc_adm_24"}, {"kid", "precision", "recall"})
    np.savez(tmp_path / "large.npz", arr_0=np.zeros((2, 256, 256, 3), np.uint8))
    with pytest.raises(Unsupported, match=r"are 64×64; those of .*large\.npz are 256×256\. Resize them"):
        score(folder, tmp_path / "large.npz")


def edited(folder: Path, change: Callable[[Path], object]) -> Path:
    change(few(folder, "a") / "03.png")
    return folder / "a"


def written(file: Path, text: str = "nothing") -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(("made", "words"), [
    (lambda home: (few(home, "a", count=4), few(home, "b", count=3)), "has 4 images and {b} 3: {b} lacks 03.png. Remove images without"),
    (lambda home: (few(home, "a"), few(home, "b", side=48)),
     "are 64×64, images of {b} 48×48. Resize them, e.g.: mogrify -path resized -resize '64x64!' {b}/*"),
    (lambda home: [edited(home, Image.new("RGB", (40, 64)).save)], "has images of several sizes: 00.png is 64×64, 03.png is 40×64. Resize"),
    (lambda home: (written(home / "a" / "notes.txt").parent, few(home, "b")), "has no images. Use a folder of files that end with .png"),
    (lambda home: [edited(home, lambda file: file.write_bytes(file.read_bytes()[:100]))], "03.png is not an image, or a damaged one"),
    (lambda home: [edited(home, written)], "03.png is not an image, or a damaged one"),
    (lambda home: (few(home, "a", count=1), "--preset", "scene"), "has one image; FID needs at least 2. Add images."),
    (lambda home: (few(home, "a"), few(home, "b", first=20), "--grid", home / "grid.png"),
     "A grid needs pairs: no file name is in both folders. Use the same file name for both images of a pair"),
    (lambda home: (few(home, "a"), few(home, "b"), "--grid", home / "a" / "03.png"), "03.png is an image to score. Write the grid to"),
    (lambda home: (few(home, "a", side=32), "--preset", "scene"), "are 32×32; preset scene takes 64×64. Resize them, e.g.: mogrify"),
    (lambda home: (few(home, "a") / "00.png", few(home, "b")), "is not a folder of images or an npz file."),
    (lambda home: (home / "a", few(home, "b")), "{a} does not exist. Use a folder of images, or an npz file"),
    (lambda home: (few(home, "a"), home / "b"), "{b} does not exist. Use a folder of images, or a file"),
    (lambda home: (few(home, "a"), few(home, "b", first=20)), "Preset adm needs the weights of Inception v3. Get it with: curl -L --cr"),
    (lambda home: (few(home, "a"), written(home / "file.npz"), "--weights", home / "file.npz"),
     "file.npz' is not a batch of images or statistics, or a damaged one")])
def test_bad_input_ends_with_one_line_and_the_fix(made: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch-home"))
    result = called(*made(tmp_path))
    assert result.exit_code == 2, result.output
    line, code = [line for line in result.output.splitlines() if line.strip()]
    assert "; see docs/errors.md#" in code
    assert words.format(a=tmp_path / "a", b=tmp_path / "b") in line
    assert not (tmp_path / "grid.png").exists()


GRAY = np.arange(64 * 64).reshape(64, 64) // 16 % 256
RGB = np.repeat(GRAY[..., None], 3, -1).astype(np.uint8)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # a quarter turn


@pytest.mark.parametrize(("name", "pixels", "options"), [
    ("16bit.png", (257 * GRAY).astype(np.uint16), {}), ("16bit.tif", (257 * GRAY + 100).clip(0, 65535).astype(np.uint16), {}),
    ("UPPER.PNG", RGB, {}), ("plain.ppm", RGB, {}), ("palette.png", RGB, {}),
    ("opaque.png", np.dstack([RGB, np.full((64, 64), 255, np.uint8)]), {}), ("plain.pgm", RGB[..., 0], {}),
    ("rotated.png", np.rot90(RGB), {"exif": TURNED}), ("rotated.tiff", np.rot90(RGB), {"exif": TURNED}),
    ("exact.webp", RGB, {"lossless": True})])
def test_files_of_every_kind_have_their_pixels(name: str, pixels: np.ndarray, options: dict[str, Any], tmp_path: Path) -> None:
    image = Image.fromarray(pixels)
    (image.quantize() if name == "palette.png" else image).save(tmp_path / name, **options)
    folder = ImageFolder.open(tmp_path)
    assert (folder.names, folder.size) == ((name,), (64, 64))
    assert (folder.images(folder.names)[0].permute(1, 2, 0).numpy() == RGB).all()


@pytest.mark.parametrize(("name", "image", "options", "words"), [
    ("a.png", Image.new("RGBA", (64, 64), (1, 2, 3, 128)), {}, "transparent pixels (alpha channel)"),
    ("a.png", Image.new("LA", (64, 64), (1, 0)), {}, "transparent pixels (alpha channel)"),
    ("a.png", Image.new("RGB", (64, 64), (1, 2, 3)), {"transparency": (1, 2, 3)}, "transparent pixels (alpha channel)"),
    ("a.jpg", Image.new("CMYK", (64, 64)), {}, "the color mode CMYK"), ("a.tif", Image.new("F", (64, 64)), {}, "the color mode F"),
    ("a.tif", Image.new("I", (64, 64), 10**6), {}, "gray values 1000000 to 1000000"),
    ("a.webp", Image.new("RGB", (64, 64)), {"save_all": True, "append_images": [Image.new("RGB", (64, 64), "red")]}, "has 2 frames")])
def test_files_without_one_conversion_are_refused_by_name(name: str, image: Any, options: Any, words: str, tmp_path: Path) -> None:
    image.save(tmp_path / name, **options)
    folder = ImageFolder.open(tmp_path)
    with pytest.raises(Unsupported, match=f"{name} has .*{re.escape(words.removeprefix('has '))}"):
        folder.images(folder.names)


def test_subfolders_are_read_class_by_class_and_other_files_counted(tmp_path: Path) -> None:
    home = tmp_path / "samples"
    for i, name in enumerate(("n01", "n02/deep", "n03")):
        few(home, name, count=3 - i % 2, first=10 * i)
    (home / "n01" / "again").symlink_to(home)
    for name in ("notes.txt", "movie.gif", "more.txt", ".hidden.png"):
        (home / name).write_text("x")
    folder = ImageFolder.open(home)
    assert folder.names == ("n01/00.png", "n02/deep/10.png", "n03/20.png", "n01/01.png", "n02/deep/11.png", "n03/21.png", "n01/02.png",
                            "n03/22.png")
    assert folder.note == f"{home}: 8 images in 3 subfolders; {home}: 3 files not read (1 .gif, 2 .txt)"


@pytest.mark.parametrize("ending", ["jpg", "PNG"])
def test_pairs_match_by_stem(ending: str, tmp_path: Path) -> None:
    first, second = few(tmp_path, "a", count=3), few(tmp_path, "b", count=3)
    for file in sorted(second.iterdir()):
        Image.open(file).save(file.with_suffix(f".{ending}"), quality=90)
        file.unlink()
    scored = score(first, second, preset_name="scene")
    same = {file.name: float(psnr(*(pixels([path]) / 127.5 - 1 for path in (file, second / f"{file.stem}.{ending}"))))
            for file in first.iterdir()}
    assert {pair.name: pair.values["psnr"] for pair in scored.pairs} == pytest.approx(same)
    Image.new("RGB", (64, 64)).save(first / "00.bmp")
    with pytest.raises(Unsupported, match=r"has 00\.(bmp|png) and 00\.(bmp|png), which differ in their ending only"):
        score(first, second, preset_name="scene")


def test_saved_generations_of_two_methods_are_pairs(tmp_path: Path) -> None:
    """Their names begin with the method; images of two methods in one folder are refused."""
    model, folders = cm.load("tiny-var"), [f"{tmp_path}/{name}/" for name in ("full", "half")]
    for folder, settings in zip(folders, ({}, {"method": "window", "budget": "1/2"}), strict=True):
        model.generate(labels=[3, 7], seeds=[0, 1], **settings).save(folder)
    pairs = {pair.name for pair in score(*folders, preset_name="scene").pairs}
    assert pairs == {f"full-{n:05}-label{3 + 4 * n}-seed{n}.png" for n in (0, 1)}
    model.generate(labels=[3, 7], seeds=[0, 1]).save(folders[1])
    with pytest.raises(Unsupported, match="lacks window"):
        score(*folders, preset_name="scene")


def test_a_pipe_is_no_image_and_no_reference(tmp_path: Path) -> None:
    images = few(tmp_path, "a")
    for path, words in ((images / "x.png", "x.png is not an image.*: not an ordinary"), (tmp_path / "ref.npz", "is not an ordinary file")):
        os.mkfifo(path)
        with pytest.raises(CachemarkError, match=words):
            score(images, *([path] if path.suffix == ".npz" else []))
        path.unlink()


@pytest.mark.parametrize(("side", "absent"), [(8, {"ssim", "lpips"}), (20, {"lpips"})])
def test_images_below_a_window_lose_that_metric_only(side: int, absent: set[str], tmp_path: Path) -> None:
    scored = score(few(tmp_path, "a", side=side), few(tmp_path, "b", side=side))
    assert {name for name, reason in scored.absent.items() if "pixels a side" in reason} == absent
    assert {"psnr", "ssim"} & scored.values.keys() == ({"psnr", "ssim"} if side >= 11 else {"psnr"})


def test_pairs_are_read_by_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, images = list[int](), ImageFolder.images
    monkeypatch.setattr(ImageFolder, "images", lambda self, names: together.append(len(names)) or images(self, names))
    folders = few(tmp_path, "a", 3, side=16), few(tmp_path, "b", 3, side=16)
    for limit, most in ((2 * 16 * 16, 2), (100, 1), (scoring.PIXELS, 3)):
        monkeypatch.setattr(scoring, "PIXELS", limit)
        together.clear()
        score(*folders)
        assert max(together) == most


def test_fid_near_zero_has_a_finite_interval(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Of images whose last bit differs."""
    images = pixels(sorted(folders[1].iterdir())[:128])
    copies = images ^ torch.randint(0, 2, images.shape, dtype=torch.uint8)
    written = [png_files(each, tmp_path / name) for name, each in (("images", images), ("copies", copies))]
    fid = score(*written, preset_name="scene", unpaired=True).values["fid_scene_128"]
    assert min(fid.value, 0) <= fid.low <= fid.value <= fid.high < 1  # type: ignore[operator]
    assert abs(fid.value) < 0.01


def test_features_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second score of a folder computes nothing; one changed pixel counts."""
    images = few(tmp_path, "a")
    first = score(images).values
    images.rename(tmp_path / "elsewhere")
    with monkeypatch.context() as patched:
        patched.setattr(ImageFeatures, "of", lambda *_, **__: pytest.fail("features were computed again"))
        assert score(tmp_path / "elsewhere").values == first
    with Image.open(tmp_path / "elsewhere" / "00.png") as image:
        image.putpixel((5, 5), (255, 255, 255))
        image.save(tmp_path / "elsewhere" / "00.png")
    assert score(tmp_path / "elsewhere").values != first
    assert first["recall_scene_6"].note.startswith("an interval needs 20 images; depends on the number of images, 6")
