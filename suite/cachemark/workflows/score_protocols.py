"""Scores by the protocols of three benchmarks, which fix images, prompts and network.

``mjhq``: MJHQ-30K (Li et al., "Playground v2.5", 2024): FID against its 30 000 images, and against the 3000 of each category, by
Inception v3 on images that clean-fid's bicubic resizing makes 299×299. ``coco2017-full``: ScaleKV's: PSNR, LPIPS and FID of images of the
5000 captions of COCO 2017 against the full cache's images. ``geneval2``: GenEval 2 (Kamath et al., 2025), whose judge runs outside: the
paths of images are exported for it, and its scores imported.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from ..core.errors import Unsupported
from ..core.files import output, read_json, writing
from ..core.units import metric, quality_name
from ..core.wording import count
from ..metrics.compute import inception
from ..metrics.compute.feature_store import features_of
from ..metrics.compute.image_features import ImageFeatures, RealImages
from ..metrics.compute.image_folders import ImageFolder, Resized
from ..metrics.compute.presets import scorer
from ..models.prompt_lists import COCO_2017, PromptList, prompt_list
from ..stats.intervals import mean_over_seeds
from . import score as plain
from .progress_bar import ProgressBar
from .score import Collected, Score, Scores
from .score_prompts import prompt_numbers

SIDE = 299  # pixels of Inception's input, to which clean-fid resizes
CATEGORIES = ("animals", "art", "fashion", "food", "indoor", "landscape", "logo", "people", "plants", "vehicles")
PER_CATEGORY, CAPTIONS, TASKS = 3000, 5000, 800
MJHQ = "https://huggingface.co/datasets/playgroundai/MJHQ-30K/resolve/main"
GENEVAL2 = "https://raw.githubusercontent.com/facebookresearch/GenEval2/main/geneval2_data.jsonl"
FID_ALONE = {"kid": False, "isc": False, "prc": False, "sfid": False}
LEAST_SCORE = 1e-12  # of an atom, for a geometric mean
Options = Sequence[tuple[str, Mapping[str, str]]]


def score(
    folder: str | Path, against: str | Path = "", *, preset_name: str = "", prompts: str | Path = "", metrics: Options = (),
    weights: str | Path = "", grid: str | Path = "", device: str = "cpu", unpaired: bool = False,
) -> Scores:
    """Score by a protocol, or as :func:`.score.score` does for another preset. Raises what that raises."""
    protocol = PROTOCOLS.get(preset_name)
    if protocol is None:
        return plain.score(folder, against, preset_name=preset_name, prompts=prompts, metrics=metrics, weights=weights, grid=grid,
                           device=device, unpaired=unpaired)
    if unpaired:
        raise Unsupported(f"--unpaired has no effect on the protocol {preset_name}.", remedy="Leave it out.")
    return protocol(folder, against, prompts=prompts, metrics=metrics, weights=weights, grid=grid, device=device)


# -- MJHQ-30K -----------------------------------------------------------------------------------------------------------------
def _mjhq(
    folder: str | Path, against: str | Path, *, prompts: str | Path, metrics: Options, weights: str | Path, grid: str | Path, device: str
) -> Scores:
    """Return FID by category and of all; the real images are checked by number, as no digest is published."""
    listed, collected = _listed(prompts, "MJHQ-30K's meta_data.json", f"curl -LO {MJHQ}/meta_data.json"), Collected()
    if Counter(listed.categories) != dict.fromkeys(CATEGORIES, PER_CATEGORY):
        raise Unsupported(f"{prompts} has {count(len(listed.texts), 'prompt')} of {len(set(listed.categories))} categories, not "
                          f"{PER_CATEGORY} of each of {', '.join(CATEGORIES)}.", remedy=f"Fetch it again: curl -LO {MJHQ}/meta_data.json")
    _without_grid(grid)
    mine, real = ImageFolder.open(folder), _folder(against, "the real images", f"curl -LO {MJHQ}/mjhq30k_imgs.zip")
    mine_by, real_by = _by_category(mine, listed, (0, PER_CATEGORY)), _by_category(real, listed, (PER_CATEGORY,))
    if metrics:
        plain.with_prompts(mine, prompts, metrics, collected, device)
    extractor, _ = scorer(inception.ADM, weights)
    features = []
    for images in (mine, real):
        with ProgressBar(f"features of {images.path}", len(images)) as bar:
            features.append(features_of(Resized(images, SIDE), extractor, device, bar.reach))
    if len(mine_by) == len(CATEGORIES):
        for sets in (mine_by, real_by):
            sets[""] = list(chain.from_iterable(sets.values()))
    else:
        collected.absent["fid"] = f"FID of all images needs the categories {', '.join(sorted(set(CATEGORIES) - mine_by.keys()))}."
    for category, rows in mine_by.items():
        generated, other = _rows(features[0], rows), _rows(features[1], real_by[category])
        fid = plain.values_of(generated, RealImages.of(other), FID_ALONE)["fid"]
        name = quality_name("fid", f"mjhq{category}", len(rows))
        low, high = (None if math.isnan(end) else end for end in (fid.low, fid.high))
        collected.values[name] = plain.as_score(metric(name), fid.value, low, high)
    for name, title in (("image_reward", "ImageReward"), ("hpsv2", "HPSv2.1")):
        if name not in {*collected.values, *collected.absent}:
            collected.absent[name] = f"{title} needs --metric {name},weights=FOLDER."
    return Scores(len(mine), mine.size, "mjhq", str(against), collected.values, collected.absent, notes=_notes(mine, real))


def _by_category(images: ImageFolder, listed: PromptList, allowed: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the places of the images of each category that has any.

    Raises Unsupported for incomplete categories.
    """
    places: dict[str, list[int]] = {category: [] for category in CATEGORIES}
    for place, number in enumerate(prompt_numbers(images, listed)):
        places[listed.categories[number]].append(place)
    for category, inside in places.items():
        if len(inside) not in allowed:
            raise Unsupported(f"{images.path} has {len(inside)} images of {category}, not {PER_CATEGORY}.", remedy="Generate all prompts "
                              f"of a category, or none; the real images are in {MJHQ}/mjhq30k_imgs.zip")
    return {category: inside for category, inside in places.items() if inside}


def _rows(features: ImageFeatures, rows: Sequence[int]) -> ImageFeatures:
    return ImageFeatures(features.extractor, features.features[torch.tensor(rows)], features.logits[torch.tensor(rows)])


# -- COCO 2017 against the full cache -----------------------------------------------------------------------------------------
def _coco2017(
    folder: str | Path, against: str | Path, *, prompts: str | Path, metrics: Options, weights: str | Path, grid: str | Path, device: str
) -> Scores:
    """Return the scores of pairs and sets of 5000 images."""
    remedy = f"curl -LO {COCO_2017.address}, and generate an image of each with seed = number of the caption"
    listed = _listed(prompts, f"COCO's captions of 2017 ({COCO_2017.name})", remedy)
    if listed.kind != "coco" or len(listed.texts) != CAPTIONS:
        raise Unsupported(f"{prompts} has {count(len(listed.texts), 'prompt')}, not one caption of each of {CAPTIONS} images.",
                          remedy=f"Get it with: {remedy}")
    mine, full = ImageFolder.open(folder), _folder(against, "the full cache's images", "generating the captions with the method full")
    for images in (mine, full):
        if len(images) != CAPTIONS:
            raise Unsupported(f"{images.path} has {count(len(images), 'image')}, not {CAPTIONS}.", remedy="Generate an image per caption.")
    if not mine.partners(full):
        raise Unsupported(f"No name is in both {folder} and {against}.", remedy="Give both images of a caption the same name.")
    scores = plain.score(folder, against, preset_name=inception.ADM, weights=weights, grid=grid, device=device)
    collected = Collected(dict(scores.values), dict(scores.absent))
    if metrics:
        plain.with_prompts(mine, prompts, metrics, collected, device)
    return replace(scores, preset="coco2017-full", values=collected.values, absent=collected.absent)


# -- GenEval 2 ----------------------------------------------------------------------------------------------------------------
def _geneval2(
    folder: str | Path, against: str | Path, *, prompts: str | Path, metrics: Options, weights: str | Path, grid: str | Path, device: str
) -> Scores:
    """Write the paths of images for the authors' evaluation.py, or read the scores that it wrote."""
    listed = _listed(prompts, "geneval2_data.jsonl", f"curl -LO {GENEVAL2}")
    atoms = _questions(prompts, listed)
    _without_grid(grid)
    options = dict(metrics).get("geneval2", {})
    if against or len(metrics) != 1 or options.keys() not in ({"paths"}, {"scores"}):
        raise Unsupported("GenEval 2 is judged by its authors' evaluation.py.", remedy="First write the paths of the images with --metric "
                          "geneval2,paths=image_paths.json, then read its output file with --metric geneval2,scores=score_lists.json.")
    images = ImageFolder.open(folder)
    numbers = prompt_numbers(images, listed)
    if sorted(numbers) != list(range(TASKS)):
        raise Unsupported(f"{folder} has images of {len(set(numbers))} of {TASKS} prompts, {count(len(images), 'image')}.",
                          remedy="Generate one image per prompt.")
    if path := options.get("paths"):
        with writing(path), output(path, "paths of images") as part:
            part.write_text(json.dumps({listed.texts[number]: str((images.path / name).resolve())
                                        for number, name in zip(numbers, images.names, strict=True)}, ensure_ascii=False, indent=0))
        return Scores(len(images), images.size, "geneval2", f"the prompts of {prompts}", {}, {}, notes=(f"Written: {path}",))
    values = _atom_scores(Path(options["scores"]), atoms)
    arithmetic = [100 * sum(each) / len(each) for each in values]
    geometric = [100 * math.exp(sum(math.log(max(atom, LEAST_SCORE)) for atom in each) / len(each)) for each in values]
    found = {}
    for name, each in (("geneval2_am", arithmetic), ("geneval2_gm", geometric)):
        mean = mean_over_seeds(each, (0.0, 100.0))
        found[name] = Score(mean.value, mean.low if mean.stated else None, mean.high if mean.stated else None, "", "higher")
    return Scores(len(images), images.size, "geneval2", f"the scores of {options['scores']}", found, {})


def _questions(prompts: str | Path, listed: PromptList) -> list[int]:
    """Return the number of questions of each prompt; the file's content is checked, for lack of a digest."""
    try:
        lines = [json.loads(line) for line in Path(prompts).read_text(encoding="utf-8").splitlines() if line.strip()]
        lists = [line["vqa_list"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        lists = [None]
    if len(listed.texts) != TASKS or len(set(listed.texts)) != TASKS or not all(isinstance(each, list) and each for each in lists):
        raise Unsupported(f"{prompts} has {count(len(listed.texts), 'prompt')}, not {TASKS} different ones with a vqa_list.",
                          remedy=f"Fetch it again: curl -LO {GENEVAL2}")
    return [len(each) for each in lists]


def _atom_scores(file: Path, atoms: Sequence[int]) -> list[list[float]]:
    """Return the score of each question of each prompt, 0 to 1. Raises Unsupported for another file."""
    try:
        lists = read_json(file)
        assert [len(each) for each in lists] == list(atoms), "numbers of scores differ from those of the questions"
        assert all(0 <= float(atom) <= 1 for each in lists for atom in each), "a score is not between 0 and 1"
    except (ValueError, TypeError, AssertionError) as error:
        raise Unsupported(f"{file} has no scores of GenEval 2: {error}.",
                          remedy="Use the --output_file of its evaluation.py --method soft_tifa_gm, for the same prompts.") from error
    return [[float(atom) for atom in each] for each in lists]


# -- common -------------------------------------------------------------------------------------------------------------------
def _listed(prompts: str | Path, what: str, remedy: str) -> PromptList:
    if not prompts:
        raise Unsupported(f"The preset needs {what} as --prompts.", remedy=f"Get it with: {remedy}")
    return prompt_list(str(prompts))


def _folder(path: str | Path, what: str, remedy: str) -> ImageFolder:
    if not path:
        raise Unsupported(f"The preset needs {what} as second folder.", remedy=f"Get them by: {remedy}")
    return ImageFolder.open(path)


def _without_grid(grid: str | Path) -> None:
    if grid:
        raise Unsupported("The preset compares no pairs, so there is no grid.", remedy="Omit --grid.")


def _notes(*folders: ImageFolder) -> tuple[str, ...]:
    return tuple(folder.note for folder in folders if folder.note)


PROTOCOLS: Mapping[str, Callable[..., Scores]] = {"mjhq": _mjhq, "coco2017-full": _coco2017, "geneval2": _geneval2}
