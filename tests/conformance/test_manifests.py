"""Names and shapes of every published checkpoint, and golden weights through the loader."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cachemark.methods import lazymar
from cachemark.methods.base import lazy_schedule as schedule
from cachemark.models import emu3, glm_image, infinity, janus, llamagen, llamagen_text, lumina, mar, var
from cachemark.models.catalogue.next_scale import build as build_var
from cachemark.models.checkpoints import load
from cachemark.models.emu3 import Emu3
from cachemark.models.glm_image import GlmImage
from cachemark.models.infinity import Infinity
from cachemark.models.janus import Janus
from cachemark.models.llamagen import LlamaGen
from cachemark.models.llamagen_text import CaptionedLlamaGen
from cachemark.models.lumina import Lumina
from cachemark.models.mar import MAR
from cachemark.models.prompts import Prompts
from cachemark.models.vision import bsq, kl, msvq, vq, vqgan
from cachemark.models.vision.bsq import BSQ
from cachemark.models.vision.emu3_vq import Emu3VQ
from cachemark.models.vision.kl import KL
from cachemark.models.vision.msvq import MSVQ, MSVQConfig
from cachemark.models.vision.vq import VQ, VQ16, VQConfig
from cachemark.models.vision.vqgan import VQGAN

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES
from .readers.mar import Replayed, config_of, subject

FOLDER = Path(__file__).parent
JANUS_FILES = {f"janus/{size}_{layout}": size for size in janus.SIZES for layout in ("official", "converted")}
UNUSED = {  # tensors that the modules lack, by family or by name of the manifest
    "infinity": infinity.BUFFERS, "infinity/vae_d32": bsq.UNUSED, "llamagen/vq16": vq.UNUSED, "llamagen/vq8": vq.UNUSED,
    "lumina/vqgan": vqgan.UNUSED, "mar/vae_kl16": kl.UNUSED, "var": var.BUFFERS, "var/vqvae": msvq.UNUSED, "var/vqvae_512": msvq.UNUSED,
}
MAR_PARAMETERS = {"B": 207_924_768, "L": 478_326_304, "H": 942_403_104}  # as the authors' classes count them

Build = Callable[[], nn.Module]
MODELS: dict[str, Build] = {  # by family and name of the manifest
    **{f"llamagen/{size}": lambda size=size: LlamaGen(llamagen.SIZES[size]) for size in llamagen.SIZES},
    "llamagen/t2i_XL": lambda: CaptionedLlamaGen(llamagen_text.SIZES[256]),
    "llamagen/vq16": lambda: VQ(VQ16), "llamagen/vq8": lambda: VQ(VQConfig(ch_mult=(1, 2, 2, 4))),
    **{f"infinity/{size.lower()}": lambda size=size: Infinity(infinity.SIZES[size]) for size in infinity.SIZES},
    "infinity/vae_d32": BSQ,
    "lumina/7B": lambda: Lumina(lumina.SIZES["7B-768"], Prompts()),  # the larger one has the same shapes
    "lumina/vqgan": lambda: VQGAN(lumina.TOKENIZER),
    **{f"mar/{size}": lambda size=size: MAR(mar.SIZES[size]) for size in mar.SIZES},
    "mar/vae_kl16": KL,
    **{f"var/{size.replace('-', '_')}": lambda size=size: build_var(var.SIZES[size]) for size in var.SIZES},
    **{name: lambda name=name: MSVQ(MSVQConfig(sides=tuple(manifest(name)["patch_nums"]))) for name in ("var/vqvae", "var/vqvae_512")},
}


def manifest(name: str) -> dict[str, Any]:
    family, _, file = name.partition("/")
    return json.loads((FOLDER / family / f"manifest_{file}.json").read_text())


def shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def published(name: str, content: dict[str, Any]) -> dict[str, list[int]]:
    """Return names, as the module has them, and shapes."""
    table = content.get("state_dict") or content.get("shapes") or content
    if name != "infinity/vae_d32":
        return table
    renamed = {bsq.official(key): shape for key, shape in table.items()}
    assert len(renamed) == len(table), "two tensors of the file have one name"
    assert {bsq.official(key) for key in renamed} == renamed.keys(), "names without the extra level must stay as they are"
    return renamed


def matching(table: dict[str, list[int]], patterns: Iterable[str]) -> dict[str, list[int]]:
    return {key: shape for key, shape in table.items() if any(fnmatchcase(key, pattern) for pattern in patterns)}


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_of_the_published_file(name: str) -> None:
    content = manifest(name)
    with torch.device("meta"):
        model = MODELS[name]()
    family, _, size = name.partition("/")
    table, own = published(name, content), shapes(model)
    unused = matching(table, UNUSED.get(name) or UNUSED.get(family, ()))
    assert table == own | unused
    assert not own.keys() & unused.keys()
    expected = content.get("n_params") or content.get("info", {}).get("num_parameters") or MAR_PARAMETERS.get(size)
    if expected and family != "lumina":
        encoder = sum(math.prod(shape) for shape in matching(table, vq.ENCODER).values())
        assert sum(parameter.numel() for parameter in model.parameters()) == expected - encoder


@pytest.mark.parametrize("name", JANUS_FILES)
def test_names_and_shapes_of_janus_in_both_layouts(name: str) -> None:
    size, reading = JANUS_FILES[name], [janus.PREFIX + pattern for pattern in vq.ENCODER]
    with torch.device("meta"):
        model, images = Janus(janus.SIZES[size], Prompts()), janus.tokenizer()
    own = shapes(model) | {janus.PREFIX + key: shape for key, shape in shapes(images).items()}
    renamed = {janus.official(key): shape for key, shape in manifest(name)["shapes"].items()}
    assert len(renamed) == len(manifest(name)["shapes"]), "two tensors of the file have one name"
    assert len(matching(renamed, reading)) == 146
    unused = matching(renamed, ("language_model.lm_head.weight", f"{janus.PREFIX}quantize.codebook_used", *reading))
    assert unused["language_model.lm_head.weight"] == [102400, janus.SIZES[size].decoder.dim]
    assert renamed == own | unused


def test_names_and_shapes_of_emu3() -> None:
    content = manifest("emu3/Gen")
    with torch.device("meta"):
        model, images = Emu3(emu3.GEN, Prompts()), Emu3VQ()
    renamed = {emu3.official(key): shape for key, shape in content["shapes"].items()}
    assert len(renamed) == len(content["shapes"]), "two tensors of the file have one name"
    own = shapes(model) | {emu3.IMAGES + key: shape for key, shape in shapes(images).items()}
    reading = matching(renamed, [emu3.IMAGES + pattern for pattern in vq.ENCODER])
    assert len(reading) == 160
    assert renamed == own | reading


def test_names_and_shapes_of_glm_image() -> None:
    table = manifest("glm_image/AR")["shapes"]
    with torch.device("meta"):
        own = shapes(GlmImage(glm_image.PUBLISHED, Prompts()))
    reading = matching(table, glm_image.UNUSED)
    assert len(reading) == 488
    assert table == own | reading


def test_every_manifest_is_compared() -> None:
    files = {f"{path.parent.name}/{path.stem.removeprefix('manifest_')}" for path in FOLDER.glob("*/manifest_*.json")}
    assert files == MODELS.keys() | JANUS_FILES.keys() | {"emu3/Gen", "glm_image/AR"}


def test_sizes_that_no_shape_tells() -> None:
    for size, config in infinity.SIZES.items():
        content = manifest(f"infinity/{size.lower()}")
        assert (config.depth, config.dim, config.heads, config.chunks) == tuple(
            content[key] for key in ("depth", "embed_dim", "num_heads", "block_chunks"))
    for size, var_config in var.SIZES.items():
        content = manifest(f"var/{size.replace('-', '_')}")
        assert list(var_config.sides) == content["patch_nums"]
        assert (var_config.shared_aln, var_config.l2_norm) == (content["shared_aln"], content["attn_l2_norm"])
    with torch.device("meta"):
        assert shapes(CaptionedLlamaGen(llamagen_text.SIZES[512])) == manifest("llamagen/t2i_XL")["state_dict"]
        assert shapes(CaptionedLlamaGen(replace(llamagen_text.XL, longest=77))) != manifest("llamagen/t2i_XL")["state_dict"]
    with torch.device("meta"):
        assert len({json.dumps(shapes(Lumina(config, Prompts()))) for config in lumina.SIZES.values()}) == 1
    facts = json.loads((DEFAULT / "mar" / "golden_lazy.json").read_text())["_meta"]["hard_coded"]
    assert list(schedule.PUBLISHED) == facts["retain_ratio"]
    assert (list(lazymar.BRIDGED), lazymar.HEAD_PERIOD) == (facts["head_delta_blocks"], facts["head_threshold"])


# -- the golden weights through the loader --------------------------------------------------------------------------------
def test_a_mar_from_averaged_weights_and_one_with_the_eager_head_pass_their_checks(tmp_path: Path) -> None:
    """Averaged weights are used, whichever comes first in the file."""
    vector = Vector.load(DEFAULT / "mar" / "golden_small.safetensors")
    checks = {check.name: check for check in FAMILIES["mar"]["small"].checks_of(vector.names)}
    weights = vector.weights()
    torch.save({"model": {name: torch.zeros_like(t) for name, t in weights.items()}, "model_ema": weights}, tmp_path / "tiny.pth")
    averaged = subject(vector)
    averaged.models["10"] = load(lambda: Replayed(config_of(vector.facts, "10")), tmp_path / "tiny.pth")
    eager = subject(vector, eager_head=True)
    with torch.no_grad():
        assert not "".join(checks[name].fault(averaged, vector) for name in ("head_inputs", "head"))
        assert not "".join(check.fault(eager, vector) for check in checks.values())
