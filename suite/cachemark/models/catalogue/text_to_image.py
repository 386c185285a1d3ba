"""Text-to-image models that plans can name. Importing this file registers them.

Without published weights, weights are random and texts are hashed, to measure speed and bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...cache.layout import Grid
from ...core.errors import BadPlan, UnknownName
from ...core.spec import Sampling
from ...core.units import METRICS
from .. import checkpoints, costs, emu3, glm_image, infinity, janus, llamagen_text, lumina, prompt_lists
from ..emu3 import Emu3, Emu3Config
from ..glm_image import CodeView, GlmImage, GlmImageConfig
from ..infinity import Infinity
from ..infinity_scales import COUNTS, schedules
from ..janus import Janus, JanusConfig
from ..lined import LinedDecoder
from ..llama import LlamaConfig, rotations
from ..llamagen_text import CaptionedLlamaGen
from ..lumina import Lumina, LuminaConfig
from ..prompts import HashedWords, Prompts, PublishedTokenizer, TokenReader
from ..protocol import PublishedFile, Request
from ..text_features import FeatureReader
from ..tiny.captions import CAPTION, VOCABULARY, WordTokenizer, parsed
from ..tiny.tokenizers import VQ_WEIGHTS
from ..vision import bsq, vq, vqgan
from ..vision.bsq import BSQ, BSQConfig
from ..vision.emu3_vq import EMU3_VQ, Emu3VQ, Emu3VQConfig
from ..vision.vq import VQ
from ..vision.vqgan import VQGAN
from .family import CatalogueModel, Family, register, with_greedy

LIST = "own64"
TEXTS = prompt_lists.packaged(LIST)


# -- Janus-Pro, and the bundled model of its architecture -------------------------------------------------------------------
JANUS = Family(
    "janus", Janus.paradigm, "the folder of deepseek-ai on Hugging Face, or the one that deepseek-community has converted",
    lambda config, prompts, engine: Janus(config, prompts or Prompts()),
    lambda config, image, prompts: costs.janus(config, image), rename=janus.official, tables=rotations,
    ignored=(*checkpoints.EXTRAS, *janus.UNUSED, f"{janus.PREFIX}*"), prompted=True, one_folder=True,
    reader=lambda config: TokenReader(janus.prompts_of, HashedWords(config.decoder.vocab)),
)
TINY_NAME = "tiny-t2i"
TINY_LIST = "captions256"
TINY_TEXTS = prompt_lists.packaged(TINY_LIST)
TINY_T2I = JanusConfig(LlamaConfig(6, 5, 160, 432, len(VOCABULARY), rope_base=500.0), codes=512, code_dim=8, grid=16)
CAPTIONED = replace(
    JANUS, origin="the package", rename=str, ignored=checkpoints.EXTRAS, one_folder=False,
    reader=lambda config: TokenReader(partial(janus.prompts_of, form=CAPTION), WordTokenizer(), bundled=True),
)


def check_captions(texts: tuple[str, ...]) -> None:
    """Raise BadPlan for a text that is not a caption of procedural scenes."""
    for text in texts:
        try:
            parsed(text)
        except (ValueError, UnknownName) as error:
            problem = getattr(error, "message", str(error)).rstrip(".")
            raise BadPlan(f"{TINY_NAME} reads only captions of its own procedural scenes. {problem}.",
                          remedy=f"Use a caption such as {', '.join(TINY_TEXTS[:3])}.") from error


def janus_pro(size: str) -> CatalogueModel:
    """Describe a published size; ``decoder_weights`` may name another image tokenizer."""
    config, name = janus.SIZES[size], f"Janus-Pro-{size}"
    images = PublishedFile("decoder_weights", name, "the folder of `weights`, unless another is named", janus.tokenizer,
                           ignored=(*checkpoints.EXTRAS, *janus.UNUSED_BY_TOKENIZER), rename=janus.official_tokenizer)
    return CatalogueModel(JANUS, name.lower(), config, name, images, with_greedy(Sampling(cfg_scale=janus.PAPER_CFG)),
                           f"{name}, {config.decoder.layers} layers, {config.grid}×{config.grid} tokens", texts=TEXTS, preset="coco")


# -- Lumina-mGPT --------------------------------------------------------------------------------------------------------------
def _lumina_decoding(config: LuminaConfig, tokenizer: VQGAN, request: Request) -> Any:
    if not request.weights:
        return LinedDecoder(config, tokenizer).decode
    vocabulary = PublishedTokenizer(request.weights).vocabulary
    return LinedDecoder(config, tokenizer, lumina.code_table(vocabulary, config.ids).to(request.device)).decode


LUMINA = Family(
    "lumina", Lumina.paradigm, "the folder of Alpha-VLLM on Hugging Face",
    lambda config, prompts, engine: Lumina(config, prompts or Prompts()),
    lambda config, image, prompts: costs.lined(config, image),
    ignored=(*checkpoints.EXTRAS, *lumina.UNUSED), tables=rotations, decoding=_lumina_decoding,
    grid=lambda config: (config.lines, config.line), prompted=True,
    reader=lambda config: TokenReader(partial(lumina.prompts_of, config), HashedWords(config.decoder.vocab)),
)


def lumina_mgpt(size: str) -> CatalogueModel:
    """Describe a published size at one resolution; the image tokenizer is Chameleon's."""
    config = lumina.SIZES[size]
    images = PublishedFile("decoder_weights", "vqgan.ckpt", "the tokenizer of Meta's Chameleon, which requires an agreement to its terms",
                           partial(VQGAN, lumina.TOKENIZER), ignored=(*checkpoints.EXTRAS, *vqgan.UNUSED))
    return CatalogueModel(
        LUMINA, f"lumina-mgpt-{size.lower()}", config, f"Lumina-mGPT-{size}", images, with_greedy(lumina.PAPER),
        f"Lumina-mGPT-{size}, {config.decoder.layers} layers, {config.lines} lines of {config.line} tokens, "
        "the last one ends the line",
        pixels=lumina.UNIT * config.width, texts=TEXTS, preset="coco",
    )


# -- Emu3-Gen -----------------------------------------------------------------------------------------------------------------
EMU3 = Family(
    "emu3", Emu3.paradigm, "the folder of BAAI/Emu3-Gen-hf on Hugging Face",
    lambda config, prompts, engine: Emu3(config, prompts or Prompts()),
    lambda config, image, prompts: costs.lined(config, image), rename=emu3.official,
    ignored=(*checkpoints.EXTRAS, *emu3.UNUSED), tables=rotations,
    decoding=lambda config, tokenizer, request: LinedDecoder(config, tokenizer).decode,
    grid=lambda config: (config.lines, config.line), prompted=True, one_folder=True,
    reader=lambda config: TokenReader(partial(emu3.prompts_of, config), HashedWords(config.decoder.vocab)),
)


def emu3_gen(config: Emu3Config = emu3.GEN, tokenizer: Emu3VQConfig = EMU3_VQ) -> CatalogueModel:
    """Describe the published model; ``decoder_weights`` may name another image tokenizer."""
    images = PublishedFile("decoder_weights", "Emu3-Gen-hf", "the folder of `weights`, unless another is named", partial(Emu3VQ, tokenizer),
                           ignored=(*checkpoints.EXTRAS, *emu3.UNUSED_BY_TOKENIZER), rename=emu3.official_tokenizer)
    return CatalogueModel(
        EMU3, "emu3-gen", config, "Emu3-Gen-hf", images, with_greedy(emu3.PAPER),
        f"Emu3-Gen, {config.decoder.layers} layers with {config.decoder.groups} K/V heads, {config.lines} lines of {config.line} tokens, "
        "the last one ends the line",
        texts=TEXTS, preset="coco",
    )


# -- GLM-Image ----------------------------------------------------------------------------------------------------------------
GLM_IMAGE = Family(
    "glm_image", GlmImage.paradigm, "the folder vision_language_encoder of zai-org/GLM-Image on Hugging Face",
    lambda config, prompts, engine: GlmImage(config, prompts or Prompts()),
    lambda config, image, prompts: costs.glm_image(config, image),
    ignored=(*checkpoints.EXTRAS, *glm_image.UNUSED), tables=glm_image.tables,
    grid=lambda config: (config.lines, config.line), prompted=True, views=True,
    reader=lambda config: TokenReader(partial(glm_image.prompts_of, config), HashedWords(config.decoder.vocab), file=glm_image.TOKENIZER),
)


def glm_image_model(config: GlmImageConfig = glm_image.PUBLISHED) -> CatalogueModel:
    """Describe the autoregressive stage of the published model."""
    return CatalogueModel(
        GLM_IMAGE, "glm-image", config, "vision_language_encoder",
        PublishedFile("decoder_weights", "none", GLM_IMAGE.origin, partial(CodeView, config)), with_greedy(glm_image.PAPER),
        f"GLM-Image's autoregressive stage, {config.decoder.layers} layers with {config.decoder.groups} K/V heads, a preview of "
        f"{config.preview}×{config.preview} and an image of {config.grid}×{config.grid} tokens",
        texts=TEXTS, preset="coco",
    )


# -- LlamaGen -----------------------------------------------------------------------------------------------------------------
LLAMAGEN = Family(
    "llamagen", CaptionedLlamaGen.paradigm, "peizesun/llamagen_t2i on Hugging Face",
    lambda config, texts, engine: CaptionedLlamaGen(config, texts or ()),
    lambda config, image, lengths: costs.captioned_llamagen(config, image, max(lengths)),
    tables=lambda model: [*model.buffers(), model.rope, *model.texts.resident.values()],
    grid=lambda config: (config.transformer.grid, config.transformer.grid), prompted=True,
    reader=lambda config: FeatureReader(config.text, config.longest),
)
LLAMAGEN_FILES = {256: "t2i_XL_stage1_256.pt", 512: "t2i_XL_stage2_512.pt"}
LLAMAGEN_IMAGES = PublishedFile("decoder_weights", "vq_ds16_t2i.pt", LLAMAGEN.origin, VQ, vq.WRAPPERS,
                                ignored=(*checkpoints.EXTRAS, *vq.UNUSED))


def llamagen_t2i(pixels: int) -> CatalogueModel:
    """Describe one of the two stages, by the pixels along a side of its images."""
    config = llamagen_text.SIZES[pixels]
    c = config.transformer
    return CatalogueModel(
        LLAMAGEN, f"llamagen-t2i-{pixels}", config, LLAMAGEN_FILES[pixels], LLAMAGEN_IMAGES, with_greedy(llamagen_text.PAPER),
        f"LlamaGen-XL from text, {c.layers} layers, {c.grid}×{c.grid} tokens", pixels=pixels, texts=TEXTS, preset="coco",
    )


# -- Infinity -----------------------------------------------------------------------------------------------------------------
INFINITY = Family(
    "infinity", Infinity.paradigm, "FoundationVision/Infinity on Hugging Face",
    lambda config, texts, engine: Infinity(config, texts or (), recompute=engine == "reference"),
    lambda config, image, lengths: costs.infinity(config, image, max(lengths)),
    ignored=(*checkpoints.EXTRAS, *infinity.BUFFERS), tables=lambda model: [model.rope, *model.texts.resident.values()],
    reader=lambda config: FeatureReader(config.text, config.longest), token_dtype=torch.int64, grid=lambda config: config.grid,
)
INFINITY_PAPER = Sampling(cfg_scale=4.0, top_k=900, top_p=0.97, temperature=0.5)  # the authors' script for single images
INFINITY_FILES = {
    "2B": ("infinity_2b_reg.pth", "infinity_vae_d32reg.pth"), "8B": ("infinity_8b_weights", "infinity_vae_d56_f8_14_patchify.pth"),
}
# No manifest of the tokenizer with 14 channels is at hand: it is assumed to be the one with 32, one level smaller.
INFINITY_TOKENIZERS = {"2B": BSQConfig(), "8B": BSQConfig(ch_mult=(1, 2, 4, 4), z=14, patch=2)}


def infinity_model(size: str, pixels: int, grid: Grid | None = None) -> CatalogueModel:
    """Describe one size at one resolution (pixels per side of a square image) for a published ``grid``."""
    by_grid = schedules(pixels)
    config = replace(infinity.SIZES[size], **by_grid[grid or next(iter(by_grid))]._asdict())
    transformer, tokenizer = INFINITY_FILES[size]
    images = PublishedFile("decoder_weights", tokenizer, INFINITY.origin,
                           partial(BSQ, replace(INFINITY_TOKENIZERS[size], scales=config.scales)),
                           ignored=(*checkpoints.EXTRAS, *bsq.UNUSED), rename=bsq.official)
    return CatalogueModel(
        INFINITY, f"infinity-{size.lower()}" + ("" if pixels == max(COUNTS) else f"-{pixels}"), config, transformer, images,
        with_greedy(INFINITY_PAPER), texts=TEXTS, preset="coco",
        about=f"Infinity-{size}, {config.depth} blocks, {len(config.scales)} scales up to {'×'.join(map(str, config.grid))}",
        grids=tuple(by_grid), of_grid=partial(infinity_model, size, pixels),
    )


register(CatalogueModel(
    CAPTIONED, TINY_NAME, TINY_T2I, f"{TINY_NAME}.safetensors", VQ_WEIGHTS, with_greedy(Sampling(cfg_scale=2.0)),
    "A Janus of 2 M parameters trained on captioned procedural scenes, with its weights", texts=TINY_TEXTS, check_texts=check_captions,
    quality=tuple(name for name, metric in METRICS.items() if metric.of_model and metric.prompted),
))
for _size in janus.SIZES:
    register(janus_pro(_size))
for _size in lumina.SIZES:
    register(lumina_mgpt(_size))
register(emu3_gen())
register(glm_image_model())
for _pixels in llamagen_text.SIZES:
    register(llamagen_t2i(_pixels))
for _size, _pixels in (("2B", 1024), ("2B", 512), ("2B", 256), ("8B", 1024), ("8B", 512)):
    register(infinity_model(_size, _pixels))
