"""Names and shapes of every published checkpoint, and sizes that no shape tells."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
from cachemark.models.prompts import Prompts
from cachemark.models.vision import bsq, emu3_vq, kl, msvq, vq, vqgan

from .checks import Vector
from .discovery import DEFAULT
from .readers import FAMILIES
from .readers.mar import subject

FOLDER = Path(__file__).parent
MAR_PARAMETERS = {"B": 207_924_768, "L": 478_326_304, "H": 942_403_104}  # as the authors' classes count them


@dataclass(frozen=True)
class Layout:
    """How a published file names the tensors of our modules, by a prefix for each, and patterns of those that they lack."""

    modules: dict[str, Callable[[], nn.Module]]
    unused: Sequence[str] = ()
    ours: Callable[[str], str] = str


def msvq_of(name: str) -> Layout:
    return Layout({"": lambda: msvq.MSVQ(msvq.MSVQConfig(sides=tuple(manifest(name)["patch_nums"])))}, msvq.UNUSED)


def janus_of(size: str) -> Layout:
    reading = [janus.PREFIX + pattern for pattern in (*vq.ENCODER, "quantize.codebook_used")]
    modules = {"": lambda: janus.Janus(janus.SIZES[size], Prompts()), janus.PREFIX: janus.tokenizer}
    return Layout(modules, ("language_model.lm_head.weight", *reading), janus.official)


LAYOUTS: dict[str, Layout] = {  # by family and name of the manifest
    **{f"llamagen/{size}": Layout({"": lambda size=size: llamagen.LlamaGen(llamagen.SIZES[size])}) for size in llamagen.SIZES},
    "llamagen/t2i_XL": Layout({"": lambda: llamagen_text.CaptionedLlamaGen(llamagen_text.SIZES[256])}),
    "llamagen/vq16": Layout({"": lambda: vq.VQ(vq.VQ16)}, vq.UNUSED),
    "llamagen/vq8": Layout({"": lambda: vq.VQ(vq.VQConfig(ch_mult=(1, 2, 2, 4)))}, vq.UNUSED),
    **{f"infinity/{size.lower()}": Layout({"": lambda size=size: infinity.Infinity(infinity.SIZES[size])}, infinity.BUFFERS)
       for size in infinity.SIZES},
    "infinity/vae_d32": Layout({"": bsq.BSQ}, bsq.UNUSED, bsq.official),
    "lumina/7B": Layout({"": lambda: lumina.Lumina(lumina.SIZES["7B-768"], Prompts())}),  # the larger one has the same shapes
    "lumina/vqgan": Layout({"": lambda: vqgan.VQGAN(lumina.TOKENIZER)}, vqgan.UNUSED),
    **{f"mar/{size}": Layout({"": lambda size=size: mar.MAR(mar.SIZES[size])}) for size in mar.SIZES},
    "mar/vae_kl16": Layout({"": kl.KL}, kl.UNUSED),
    **{f"var/{size.replace('-', '_')}": Layout({"": lambda size=size: build_var(var.SIZES[size])}, var.BUFFERS) for size in var.SIZES},
    **{name: msvq_of(name) for name in ("var/vqvae", "var/vqvae_512")},
    **{f"janus/{size}_{file}": janus_of(size) for size in janus.SIZES for file in ("official", "converted")},
    "emu3/Gen": Layout({"": lambda: emu3.Emu3(emu3.GEN, Prompts()), emu3.IMAGES: emu3_vq.Emu3VQ},
                       [emu3.IMAGES + pattern for pattern in vq.ENCODER], emu3.official),
    "glm_image/AR": Layout({"": lambda: glm_image.GlmImage(glm_image.PUBLISHED, Prompts())}, glm_image.UNUSED),
}


def manifest(name: str) -> dict[str, Any]:
    family, _, file = name.partition("/")
    return json.loads((FOLDER / family / f"manifest_{file}.json").read_text())


def shapes(model: nn.Module, prefix: str = "") -> dict[str, list[int]]:
    return {prefix + name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def matching(table: dict[str, list[int]], patterns: Iterable[str]) -> dict[str, list[int]]:
    return {key: shape for key, shape in table.items() if any(fnmatchcase(key, pattern) for pattern in patterns)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_names_and_shapes_are_those_of_the_published_file(name: str) -> None:
    content, layout, (family, _, size) = manifest(name), LAYOUTS[name], name.partition("/")
    theirs = content.get("state_dict") or content.get("shapes") or content
    table = {layout.ours(key): shape for key, shape in theirs.items()}
    assert len(table) == len(theirs), "two tensors of the file have one name"
    with torch.device("meta"):
        models = {prefix: build() for prefix, build in layout.modules.items()}
    own = {key: shape for prefix, model in models.items() for key, shape in shapes(model, prefix).items()}
    unused = matching(table, layout.unused)
    assert table == own | unused
    assert not own.keys() & unused.keys()
    assert bool(unused) == bool(layout.unused)
    expected = content.get("n_params") or content.get("info", {}).get("num_parameters") or MAR_PARAMETERS.get(size)
    if expected and family in ("llamagen", "infinity", "mar", "var"):
        encoder = sum(math.prod(shape) for shape in matching(table, vq.ENCODER).values())
        assert sum(parameter.numel() for parameter in models[""].parameters()) == expected - encoder


def test_every_manifest_is_compared_and_sizes_that_no_shape_tells() -> None:
    files = {f"{path.parent.name}/{path.stem.removeprefix('manifest_')}" for path in FOLDER.glob("*/manifest_*.json")}
    assert files == LAYOUTS.keys()
    renamed = set(map(bsq.official, manifest("infinity/vae_d32")["shapes"]))
    assert set(map(bsq.official, renamed)) == renamed, "names without the extra level must stay as they are"
    for size, config in infinity.SIZES.items():
        content = manifest(f"infinity/{size.lower()}")
        assert (config.depth, config.dim, config.heads, config.chunks) == tuple(
            content[key] for key in ("depth", "embed_dim", "num_heads", "block_chunks"))
    for size, var_config in var.SIZES.items():
        content = manifest(f"var/{size.replace('-', '_')}")
        assert list(var_config.sides) == content["patch_nums"]
        assert (var_config.shared_aln, var_config.l2_norm) == (content["shared_aln"], content["attn_l2_norm"])
    with torch.device("meta"):
        assert shapes(llamagen_text.CaptionedLlamaGen(llamagen_text.SIZES[512])) == manifest("llamagen/t2i_XL")["state_dict"]
        assert shapes(llamagen_text.CaptionedLlamaGen(replace(llamagen_text.XL, longest=77))) != manifest("llamagen/t2i_XL")["state_dict"]
        assert len({json.dumps(shapes(lumina.Lumina(config, Prompts()))) for config in lumina.SIZES.values()}) == 1
    facts = json.loads((DEFAULT / "mar" / "golden_lazy.json").read_text())["_meta"]["hard_coded"]
    assert list(schedule.PUBLISHED) == facts["retain_ratio"]
    assert (list(lazymar.BRIDGED), lazymar.HEAD_PERIOD) == (facts["head_delta_blocks"], facts["head_threshold"])


def test_a_mar_with_the_eager_head_passes_the_checks_of_its_vectors() -> None:
    vector = Vector.load(DEFAULT / "mar" / "golden_small.safetensors")
    eager = subject(vector, eager_head=True)
    with torch.no_grad():
        assert not "".join(check.fault(eager, vector) for check in FAMILIES["mar"]["small"].checks_of(vector.names))
