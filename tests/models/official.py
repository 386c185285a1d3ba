"""Files as the authors of each model publish them, at reduced sizes, and the catalogue's entries that read them."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from cachemark.cache.layout import squares
from cachemark.core.spec import Sampling
from cachemark.models import emu3, glm_image, infinity, infinity_scales, janus, llamagen_text, lumina, text_features
from cachemark.models.catalogue import masked_models, next_scale, next_token, text_to_image
from cachemark.models.catalogue.family import CatalogueModel
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from cachemark.models.mar import MAR
from cachemark.models.prompts import FILE, Prompts
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.models.var import VAR
from cachemark.models.vision.bsq import BSQ, BSQConfig
from cachemark.models.vision.emu3_vq import Emu3VQ, Emu3VQConfig
from cachemark.models.vision.kl import KL, KLConfig
from cachemark.models.vision.msvq import MSVQ, MSVQConfig
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.models.vision.vqgan import VQGAN
from support import tiny_models as tiny

GUIDED = Sampling(cfg_scale=2.0, temperature=0.0)
LINEAR = replace(GUIDED, cfg_schedule="linear", temperature=1.0)
TEXTS = ("red star", "a blue stripe below")
TINY_VQ = VQConfig(32, (1, 1), 1, 16, 32)
ENCODER = {"encoder.conv_in.weight": torch.zeros(2, 3), "quant_conv.bias": torch.zeros(2)}  # beside the decoder of every published file
Patch = pytest.MonkeyPatch


class Official(NamedTuple):
    """The entry at reduced size, what a plan names, and tensors of the networks by their names here, for those that have these."""

    entry: ModelEntry
    request: Request
    state: Mapping[str, torch.Tensor] = {}


def words_tokenizer(folder: Path, words: Mapping[str, int], special: Sequence[str] = (), template: str = "$A") -> None:
    """Write a tokenizer of words with special tokens, of which it adds those of the template by itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(dict(words), unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([*special])
    added = [(token, made.token_to_id(token)) for token in template.split() if token != "$A"]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=added)
    made.save(str(folder / FILE))


def encoder(folder: Path, channels: int) -> None:
    transformers = pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "red", "star", "a", "blue", "stripe", "below"])}
    folder.mkdir()
    words_tokenizer(folder, words, template="$A </s>")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / FILE), pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=len(words), d_model=channels, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(folder)


def sharded(folder: Path, state: Mapping[str, torch.Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    shards = {f"part-{i}.safetensors": dict(list(state.items())[i::2]) for i in range(2)}
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    places = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def requested(folder: Path, weights: str = "", images: str = "") -> Request:
    return Request(weights=str(folder / weights), decoder_weights=str(folder / images) if images else "")


def llamagen_files(folder: Path, patch: Patch) -> Official:
    config = replace(tiny.LLAMAGEN_SIZES, grid=4)
    decoder = replace(next_token.DECODER, build=lambda: VQ(TINY_VQ))
    state = LlamaGen(config).initialise(0).state_dict()
    torch.save({"model": {name: t * 0 for name, t in state.items()}, "ema": {**state, "freqs_cis": torch.zeros(3)}, "steps": 5,
                "args": argparse.Namespace(image_size=64)}, folder / "c2i_B_256.pt")
    torch.save({"model": {**decoder.build().state_dict(), **ENCODER}, "ema": {}}, folder / "vq_ds16_c2i.pt")
    model = CatalogueModel(next_token.FAMILY, "llamagen-b", config, "c2i_B_256.pt", decoder, {"paper": GUIDED}, "", pixels=64)
    return Official(model.entry, requested(folder, "c2i_B_256.pt", "vq_ds16_c2i.pt"), state)


def var_files(folder: Path, patch: Patch) -> Official:
    config = tiny.VAR_SIZES
    decoder = replace(MODELS.get("var-d16").files[1], build=lambda: MSVQ(
        MSVQConfig(sides=config.sides, ch=32, ch_mult=(1, 1), num_res_blocks=1, z=config.width, codes=config.vocab)))
    state = VAR(config, tiny.QUANTIZER).initialise(0).state_dict()
    scale = torch.repeat_interleave(torch.arange(len(config.sides)), torch.tensor([side**2 for side in config.sides]))
    mask = torch.zeros(config.tokens, config.tokens).masked_fill(scale[:, None] < scale, -torch.inf)
    buffers = {"lvl_1L": scale[None], "attn_bias_for_masking": mask[None, None]}
    unused = {f"blocks.{i}.attn.zero_k_bias": torch.zeros(config.dim) for i in range(config.depth)}
    torch.save({**state, **buffers, **unused}, folder / "var_d16.pth")
    torch.save({**decoder.build().state_dict(), **ENCODER}, folder / "vae_ch160v4096z32.pth")
    model = CatalogueModel(next_scale.FAMILY, "var-d16", config, "var_d16.pth", decoder, {"paper": LINEAR}, "")
    return Official(model.entry, requested(folder, "var_d16.pth", "vae_ch160v4096z32.pth"), state)


def mar_files(folder: Path, patch: Patch) -> Official:
    decoder = replace(masked_models.DECODER, build=lambda: KL(replace(KLConfig(), ch=32, ch_mult=(1, 1), num_res_blocks=1, z=4)))
    state = MAR(tiny.MAR_SIZES).initialise(0).state_dict()
    torch.save({"model": {name: t * 0 for name, t in state.items()}, "model_ema": state, "args": argparse.Namespace(lr=1)},
               folder / "checkpoint-last.pth")
    torch.save({"model": {**decoder.build().state_dict(), **ENCODER}}, folder / "kl16.ckpt")
    model = CatalogueModel(masked_models.FAMILY, "mar-b", tiny.MAR_SIZES, "checkpoint-last.pth", decoder, {"paper": LINEAR}, "")
    return Official(model.entry, requested(folder, "checkpoint-last.pth", "kl16.ckpt"), state)


def llamagen_text_files(folder: Path, patch: Patch) -> Official:
    patch.setitem(llamagen_text.SIZES, 256, CaptionConfig(LlamaGenConfig(2, 2, 32, vocab=32, grid=4), text=128, longest=6))
    images = replace(text_to_image.LLAMAGEN_IMAGES, build=lambda: VQ(TINY_VQ))
    patch.setattr(text_to_image, "LLAMAGEN_IMAGES", images)
    torch.save({"model": CaptionedLlamaGen(llamagen_text.SIZES[256]).initialise(0).state_dict()}, folder / "t2i_XL_stage1_256.pt")
    torch.save({"model": {**images.build().state_dict(), **ENCODER}}, folder / "vq_ds16_t2i.pt")
    encoder(folder / text_features.ENCODER, 128)
    return Official(text_to_image.llamagen_t2i(256).asking(TEXTS), requested(folder, "t2i_XL_stage1_256.pt", "vq_ds16_t2i.pt"))
TINY_BSQ = BSQConfig(32, (1, 1), 1, tiny.INFINITY_SIZES.scales, tiny.INFINITY_SIZES.width)


def infinity_files(folder: Path, patch: Patch, channels: int = tiny.INFINITY_SIZES.text) -> Official:
    patch.setitem(infinity.SIZES, "2B", tiny.INFINITY_SIZES)
    patch.setitem(text_to_image.INFINITY_TOKENIZERS, "2B", TINY_BSQ)
    patch.setitem(infinity_scales.COUNTS, 256, 3)
    model = infinity.Infinity(replace(tiny.INFINITY_SIZES, scales=squares(infinity_scales.SIDES[:3]))).initialise(0)
    state = {**model.state_dict(), **{f"block_chunks.0.module.0.{part}.zero_k_bias": torch.zeros(32) for part in ("sa", "ca")},
             "text_proj_for_sos.ca.zero_k_bias": torch.zeros(32)}
    torch.save(state, folder / "infinity_2b_reg.pth")

    def with_level(name: str) -> str:
        module, _, kind = name.rpartition(".")
        return f"{module}.{'norm' if 'norm' in module.rpartition('.')[2] else 'conv'}.{kind}"

    torch.manual_seed(0)
    wrapped = {with_level(name): tensor for name, tensor in BSQ(TINY_BSQ).state_dict().items()}
    torch.save({"vae": {**wrapped, **ENCODER, "quantizer.lfq.mask": torch.zeros(5)}}, folder / "infinity_vae_d32reg.pth")
    encoder(folder / text_features.ENCODER, channels)
    entry = text_to_image.infinity_model("2B", 256).asking(TEXTS)
    return Official(entry, requested(folder, "infinity_2b_reg.pth", "infinity_vae_d32reg.pth"))
JANUS_READING = {name: torch.ones(2) for name in (
    "vision_model.blocks.0.attn.qkv.weight", "aligner.layers.0.bias", "gen_vision_model.encoder.mid.0.norm1.bias",
    "gen_vision_model.quant_conv.bias")}


def converted(name: str) -> str:
    """Return the transformers name of a tensor of the authors' file of Janus-Pro."""
    for theirs, ours in (
        ("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head."),
        ("gen_embed.", "model.generation_embeddings."), ("gen_aligner.layers.0.", "model.generation_aligner.fc1."),
        ("gen_aligner.layers.2.", "model.generation_aligner.hidden_layers.0."),
        ("gen_head.output_mlp_projector.", "model.generation_head.proj_out."), ("gen_head.", "model.generation_head."),
        ("gen_vision_model.", "model.vqmodel."), ("decoder.conv_blocks.", "decoder.up."), (".res.", ".block."), ("mid.0.", "mid.block_1."),
        ("mid.1.", "mid.attn_1."), ("mid.2.", "mid.block_2.")):
        name = name.replace(theirs, ours)
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def janus_files(folder: Path, patch: Patch, layout: str = "official") -> Official:
    """Of this layout: one file of the authors', or the shards of transformers."""
    patch.setitem(janus.SIZES, "1B", tiny.JANUS_SIZES)
    patch.setattr(janus, "TOKENIZER", VQConfig(32, (1, 1), 1, 16, tiny.JANUS_SIZES.codes))
    model, images = janus.Janus(tiny.JANUS_SIZES, Prompts()).initialise(0), janus.tokenizer()
    state = {**model.state_dict(), **{janus.PREFIX + name: tensor for name, tensor in images.state_dict().items()}}
    extras = {"language_model.lm_head.weight": torch.ones(128, 64), **JANUS_READING}
    if layout == "official":
        extras |= {"gen_vision_model.quantize.codebook_used": torch.zeros(65536), "language_model.model.rotary_emb.inv_freq": torch.ones(8)}
        torch.save({name: tensor.bfloat16() for name, tensor in {**state, **extras}.items()}, folder / "pytorch_model.bin")
    else:
        sharded(folder, {converted(name): tensor.bfloat16().contiguous() for name, tensor in {**state, **extras}.items()})
    words = sorted({word for text in text_to_image.TEXTS for word in text.split()} | {"<unk>", ":"})[:100]
    special = [janus.BEGIN, janus.PAD, janus.IMAGE, "<|User|>", "<|Assistant|>"]
    words_tokenizer(folder, {word: i for i, word in enumerate(dict.fromkeys(["<unk>", *words]))}, special, f"{janus.BEGIN} $A")
    return Official(text_to_image.janus_pro("1B").entry, requested(folder), {name: t.bfloat16().float() for name, t in state.items()})
LUMINA_VQ = VQConfig(32, (1, 1, 1), 1, 16, 32, 16)


def spelt(code: int) -> str:
    return f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z"


def vocabulary() -> dict[str, int]:
    """Return Lumina's codes in the order of their names, which is not numeric."""
    codes = sorted(spelt(code) for code in range(tiny.LUMINA_SIZES.ids.codes))
    return {"<s>": 0, **{name: tiny.LUMINA_SIZES.ids.first + i for i, name in enumerate(codes)}}


def lumina_files(folder: Path, patch: Patch) -> Official:
    """The transformer's folder with extra tensors and tokenizer, and Chameleon's file."""
    patch.setitem(lumina.SIZES, "7B-768", tiny.LUMINA_SIZES)
    patch.setattr(lumina, "TOKENIZER", LUMINA_VQ)
    extras = {"model.vqmodel.quantize.embedding.weight": torch.ones(2, 2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    save_file({**lumina.Lumina(tiny.LUMINA_SIZES, Prompts()).initialise(0).state_dict(), **extras}, folder / "model.safetensors")
    words_tokenizer(folder, {**vocabulary(), **{word: 50 + i for i, word in enumerate(("<unk>", "red", "blue", "star", ":"))}})
    torch.manual_seed(0)
    torch.save({"state_dict": {**VQGAN(LUMINA_VQ).state_dict(), **ENCODER, "loss.logvar": torch.zeros(1)}}, folder / "vqgan.ckpt")
    entry = text_to_image.lumina_mgpt("7B-768").asking(("red star", "blue star red"))
    return Official(entry, requested(folder, "model.safetensors", "vqgan.ckpt"))


def emu3_files(folder: Path, patch: Patch) -> Official:
    torch.manual_seed(0)
    sizes = Emu3VQConfig(32, (1, 1), 1, 4, 32, (1,), 4)
    state = {f"text_model.{name}": tensor for name, tensor in emu3.Emu3(tiny.EMU3_SIZES, Prompts()).initialise(0).state_dict().items()}
    state |= {f"vqmodel.{name}": tensor for name, tensor in Emu3VQ(sizes).state_dict().items()}
    reading = {"vqmodel.encoder.conv_in.weight": torch.ones(2, 3), "vqmodel.quant_conv.conv.bias": torch.ones(4)}
    save_file({name: tensor.contiguous() for name, tensor in {**state, **reading}.items()}, folder / "model.safetensors")
    words = {word: i for i, word in enumerate(("<unk>", "red", "blue", "star", "stripe", "a", "5", "4", "*"))}
    words_tokenizer(folder, words, [emu3.BEGIN, emu3.IMAGE, emu3.CODES])
    return Official(text_to_image.emu3_gen(tiny.EMU3_SIZES, sizes).asking(TEXTS), requested(folder), state)


def glm_image_files(folder: Path, patch: Patch) -> Official:
    weights, processor = folder / "vision_language_encoder", folder / "processor"
    weights.mkdir()
    processor.mkdir()
    state = glm_image.GlmImage(tiny.GLM_IMAGE_SIZES, Prompts()).initialise(0).state_dict()
    reading = {"model.visual.patch_embed.proj.bias": torch.ones(2), "model.vqmodel.quantize.embedding.weight": torch.ones(2, 3)}
    save_file({**state, **reading}, weights / "model.safetensors")
    words = {word: 60 + i for i, word in enumerate(("<unk>", "red", "blue", "star", "stripe", "a", "4", "2"))}
    special = [glm_image.GRID_BEGIN, glm_image.GRID_END, glm_image.IMAGE]
    words_tokenizer(processor, {**words, **{f"code{i}": i for i in range(60)}}, special)
    return Official(text_to_image.glm_image_model(tiny.GLM_IMAGE_SIZES).asking(TEXTS), requested(folder, weights.name), state)


FILES: dict[str, Callable[[Path, Patch], Official]] = {
    "llamagen": llamagen_files, "llamagen, texts": llamagen_text_files, "var": var_files, "mar": mar_files, "infinity": infinity_files,
    "janus": janus_files, "janus, converted": lambda folder, patch: janus_files(folder, patch, "converted"), "lumina": lumina_files,
    "emu3": emu3_files, "glm-image": glm_image_files}


def written(name: str, folder: Path, patch: Patch, **options: int | str) -> Official:
    folder.mkdir()
    torch.manual_seed(0)
    return FILES[name](folder, patch, **options)
