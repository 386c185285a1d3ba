"""The weights that come with cachemark: described truly, belonging together, and good enough to measure with."""

import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from cachemark.cache.arena import Memory
from cachemark.core.seeds import subset
from cachemark.core.version import __version__
from cachemark.methods.full import Full
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.extractor import extractor_name
from cachemark.metrics.compute.image_features import RealImages
from cachemark.models.catalogue import text_to_image
from cachemark.models.catalogue.masked_models import TINY_MAR
from cachemark.models.catalogue.next_scale import TINY_VAR
from cachemark.models.catalogue.next_token import TINY
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.tiny.networks import FEATURE_WEIGHTS, READER_WEIGHTS
from cachemark.models.tiny.tokenizers import KL_WEIGHTS, MSVQ_WEIGHTS, VQ_WEIGHTS
from cachemark.models.weights import packaged
from support.wheels import lay_out, of_the_repository
from tools.train import caption_scene
from tools.train.feature_network import FLOORS, KEPT, REAL, attributes, consistency, corrupted
from tools.train.scene import VERSION, scenes

ROOT = Path(__file__).parents[2]


class Family(NamedTuple):
    """The bundled generator of a paradigm, its configuration, and its tokenizer with what reads that."""

    generator: str
    config: Any
    tokenizer: str
    load: Callable[..., Any]
    used: int  # codes that new scenes use at least; 0 where tokens are vectors


FAMILIES = {
    "next-token": Family("tiny-llamagen", TINY, "tiny-vq", VQ_WEIGHTS.load, 400),
    "next-scale": Family("tiny-var", TINY_VAR, "tiny-msvq", MSVQ_WEIGHTS.load, 400),
    "masked": Family("tiny-mar", TINY_MAR, "tiny-kl", KL_WEIGHTS.load, 0)}
OF_CAPTIONS = (text_to_image.TINY_NAME, READER_WEIGHTS.name)  # learnt from captions


def file(name: str) -> Any:
    return packaged(f"{name}.safetensors")


def about(name: str) -> dict[str, Any]:
    return dict(json.loads(file(name).with_suffix(".json").read_text()))


def test_descriptions_and_the_citation_are_of_these_files_and_this_version() -> None:
    names = [name for family in FAMILIES.values() for name in (family.generator, family.tokenizer)]
    for name in (*names, FEATURE_WEIGHTS.name, *OF_CAPTIONS):
        description = about(name)
        assert description["sha256"] == hashlib.sha256(file(name).read_bytes()).hexdigest()
        assert description["finished"]
        assert description["data"] == (caption_scene.VERSION if name in OF_CAPTIONS else VERSION)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"], cited["title"].split(":")[0]) == (project["version"], project["license"], project["name"])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_tokenizer_speaks_the_language_of_its_generator_and_reconstructs_new_scenes(family: Family) -> None:
    coder, images = family.load(file(family.tokenizer)), scenes(64, 987).images
    assert about(family.generator)["language"] == coder.language
    assert about(family.generator)["config"] == json.loads(json.dumps(asdict(family.config)))
    with torch.inference_mode():
        tokens = coder.encode(images)
        decoded = coder.decode(tokens).clamp(-1, 1)
    psnr = 10 * torch.log10(4 / (decoded - images).square().mean((1, 2, 3)))
    assert psnr.mean() >= 29
    assert tokens.unique().numel() > family.used
    assert tokens.is_floating_point() == (family.used == 0)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_images_of_the_full_cache_match_their_color_key(family: Family) -> None:
    """A hue hits by chance in 0.15 of all cases, so two images that ignore their color key reach 0.9 less than once in 10**5 times."""
    entry = MODELS.get(family.generator)
    model, chosen = entry.load(Request()), subset("tune64", entry.classes).first(2)
    tokens = model.generator.generate(torch.tensor(chosen.labels), chosen.seeds, Full(), entry.presets["paper"], Memory())
    with torch.inference_mode():
        assert float(matching_colors(model.decode(tokens)).float().mean()) >= 0.9


def test_the_feature_network_knows_what_new_scenes_show_and_the_reference_is_of_it() -> None:
    net, scene = FEATURE_WEIGHTS.load(file(FEATURE_WEIGHTS.name)), scenes(256, 987)
    images = torch.cat((scene.images, corrupted(scene.images, torch.Generator().manual_seed(987))))
    with torch.inference_mode():
        answers = net.judge(net.embed(images))
    for name, right in attributes(scene).items():
        assert (answers[name][:256].argmax(1) == right).float().mean() > 0.9, name
    assert ((answers["consistent"] > 0) == (consistency(images, 256) > 0)).float().mean() > 0.9
    weights, path = file(FEATURE_WEIGHTS.name), file("tiny-features.reference")
    reference = RealImages.load(path, extractor_name(about(FEATURE_WEIGHTS.name)["sha256"]))
    assert (reference.count, len(reference.features)) == (REAL, KEPT)
    assert path.stat().st_size <= 1_000_000
    assert weights.stat().st_size <= 1_200_000
    assert reference.mean.abs().max() < 0.25
    values = [reference.floors[count][0] for count in FLOORS]
    assert values == sorted(values, reverse=True), "FID falls as images get more"
    assert all(0 < low < value < high for value, low, high in reference.floors.values())


def test_the_wheel_has_all_that_is_read_runs_and_has_a_page_of_absolute_links(tmp_path: Path) -> None:
    wheel = of_the_repository(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        everything = set(archive.namelist())
        (name,) = [name for name in everything if name.endswith(".dist-info/METADATA")]
        about = email.message_from_string(archive.read(name).decode())
    packed = {name for name in everything if name.startswith("cachemark/")}
    listed = subprocess.run(["git", "ls-files", "-z", "suite/cachemark"], cwd=ROOT, capture_output=True, check=True, text=True)
    there = {name.removeprefix("suite/") for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    assert there - packed == set()
    assert "cachemark/py.typed" in packed, "without it what plug-ins import has no types"
    assert {name.partition("/")[0] for name in everything - packed} == {f"cachemark-{__version__}.dist-info"}, "no example, no test"
    assert wheel.stat().st_size < 40_000_000, "the bundled weights among them"
    urls = dict(str(line).split(", ") for line in about.get_all("Project-URL", ()))
    assert urls.keys() >= {"Repository", "Documentation", "Changelog", "Issues"}
    links = re.findall(r'(?:\]\(|src="|srcset=")([^)"\s]+)', str(about.get_payload()))
    assert all(link.startswith(("#", "https://")) for link in links)
    ours = [link.removeprefix(urls["Repository"]) for link in links if link.startswith(urls["Repository"])]
    blobs, raws = ([link.partition("/main/")[2].partition("#")[0] for link in ours if link.startswith(kind)] for kind in ("/blob", "/raw"))
    assert min(len(blobs), len(raws)) > 0
    assert all((ROOT / page).is_file() for page in (*blobs, *raws))
    assert all(page.endswith((".png", ".webp")) for page in raws)
    lay_out(wheel, tmp_path / "site")
    (tmp_path / "empty").mkdir()
    done = subprocess.run([sys.executable, "-P", "-m", "cachemark", "list", "plans"], cwd=tmp_path / "empty", capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, text=True, check=False)
    assert "demo" in done.stdout, done.stderr
