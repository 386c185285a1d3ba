"""Description of a published Llama-like model as a file that registers it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.edited import TABLE, EditedFile, number, text_of
from ..core.errors import BadCheckpoint, Unsupported
from ..models import checkpoints, llama_like
from ..models.llama import LlamaConfig
from ..models.llama_like import Described, LlamaLikeConfig
from ..models.prompts import PublishedTokenizer, tokenizer_file
from .new import require_free, start, template

INNER = ("text_config", "language_config", "llm_config")  # where configurations of several parts hold the decoder's
MOST_LAYERS = 1_000  # each is built, without its numbers, before it is compared with the files
FIRST = "layers.0.self_attn.q_proj.weight"
SIZES = {"num_hidden_layers": "layers", "num_attention_heads": "heads", "hidden_size": "dim", "intermediate_size": "hidden",
         "vocab_size": "vocab", "num_key_value_heads": "kv_heads"}


@dataclass(frozen=True)
class Drawing:
    """Facts about image generation that no configuration file has.

    ``first``: id of the first image code; ``codes``: number of image codes; ``grid``: codes per side of the image; ``begin`` and ``image``:
    special tokens before and after the prompt; ``longest``: tokens of a prompt; ``cfg_scale``: guidance scale.
    """

    first: int
    codes: int
    grid: int
    begin: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    longest: int = 1024
    cfg_scale: float = 1.0


def describe(folder: str | Path, name: str, drawing: Drawing) -> Described:
    """Return the model in a folder in the format of the transformers library.

    Reads ``config.json``, safetensors and ``tokenizer.json``; every tensor of the decoder must have the configured shape. Raises
    BadCheckpoint, and Unsupported for another kind of model.
    """
    here = Path(folder)
    decoder, tied = _decoder(here)
    tensors = checkpoints.read(here)
    firsts = [tensor for tensor in tensors if tensor.endswith(FIRST)]
    if len(firsts) != 1:
        raise Unsupported(f"{str(here)!r} has {len(firsts)} decoders with the tensors of a Llama (…{FIRST}).",
                          remedy="Use the folder of one decoder, or write its entry by hand: docs/how-to/add-a-model.md.")
    prefix = firsts[0].removesuffix(FIRST)
    heads = [tensor for tensor in tensors if tensor.endswith("lm_head.weight")]
    config = LlamaLikeConfig(_with_norms(decoder, prefix, tensors), drawing.first, drawing.codes, drawing.grid,
                             _ids(here, drawing.begin), _ids(here, drawing.image), drawing.longest, tied or not heads)
    if not 0 <= drawing.first <= drawing.first + drawing.codes <= decoder.vocab or drawing.codes < 1:
        raise Unsupported(f"{drawing.codes} image codes from {drawing.first} on exceed the vocabulary of {decoder.vocab}.",
                          remedy="Set the ids of the image codes.")
    if drawing.codes > (most := llama_like.codebook_size()):
        raise Unsupported(f"{drawing.codes} image codes, but LlamaGen's image tokenizer has {most}.",
                          remedy="Write its entry by hand, with the tokenizer that it has: docs/how-to/add-a-model.md.")
    ignored = tuple(sorted({f"{tensor.partition('.')[0]}.*" for tensor in tensors if not tensor.startswith(prefix)
                            and tensor not in heads}))
    made = Described(name, config, prefix, "" if config.tied else heads[0],
                     (*ignored, *(heads if config.tied else ()), "*.rotary_emb.inv_freq"), drawing.cfg_scale)
    file = made.model.weights
    checkpoints.check(file.build, here, ignore=file.ignored, wrappers=file.wrappers, rename=file.rename)
    return made


def start_described(folder: str | Path, name: str, drawing: Drawing, to: str | Path = ".") -> list[Path]:
    """Write a package with the described model to ``to``/``cachemark-NAME`` and return its files.

    Raises the errors of :func:`describe` and :func:`~cachemark.workflows.new.start`.
    """
    require_free("model", name)
    return start("model", name, to, source=source_of(describe(folder, name, drawing), folder))


def source_of(made: Described, folder: str | Path) -> str:
    """Return the text of the file that registers a described model; free text becomes a Python literal."""
    c, origin = made.config, re.sub(r"[^\w. -]", "?", Path(folder).resolve().name)[:60]
    return template("described_model.py").substitute(
        title=made.name, layers=c.decoder.layers, grid=c.grid, source=origin, decoder=c.decoder, first=c.first, codes=c.codes,
        begin=c.begin, image=c.image, longest=c.longest, tied=c.tied, name=repr(made.name), prefix=repr(made.prefix),
        head=repr(made.head), ignored=made.ignored, cfg_scale=made.cfg_scale)


def _decoder(folder: Path) -> tuple[LlamaConfig, bool]:
    """Return the sizes of the configuration, and whether the head is tied to the embedding."""
    file = EditedFile(str(folder / "config.json"), BadCheckpoint, "Use the folder of a published Llama.")
    data: Any = file.json(text_of(folder / "config.json", BadCheckpoint))
    file.check(data, {})
    part = next((name for name in INNER if name in data), "")
    fields, where = (data[part], f"{part}.") if part else (data, "")
    sizes = {key: number(1, MOST_LAYERS if key == "num_hidden_layers" else 10**7, whole=True) for key in SIZES}
    file.check(fields, {**sizes, "rms_norm_eps": number(0, 1), "rope_theta": number(1), "rope_parameters": TABLE}, where,
               optional=("num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_parameters"))
    sizes_read = {field: fields[key] for key, field in SIZES.items() if key in fields}
    if sizes_read["dim"] % sizes_read["heads"] or sizes_read["heads"] % sizes_read.get("kv_heads", 1):
        raise file.wrong(f"has {sizes_read['dim']} channels, {sizes_read['heads']} heads and {sizes_read.get('kv_heads')} K/V heads, which "
                         "do not go up.")
    if fields.get("head_dim", sizes_read["dim"] // sizes_read["heads"]) != sizes_read["dim"] // sizes_read["heads"]:
        raise file.wrong(f"has {where}head_dim = {fields['head_dim']}, which is not hidden_size / num_attention_heads.")
    turning = fields.get("rope_parameters") or {}
    base = fields.get("rope_theta", turning.get("rope_theta", 10_000.0))
    if not number(1).fits(base) or turning.get("rope_type", "default") != "default" or fields.get("rope_scaling"):
        raise Unsupported(f"{file.source} scales its rotations, which this decoder does not.", remedy="Write its entry by hand.")
    return LlamaConfig(**sizes_read, norm_eps=float(fields.get("rms_norm_eps", 1e-6)), rope_base=float(base)), bool(
        fields.get("tie_word_embeddings", data.get("tie_word_embeddings", False)))


def _with_norms(decoder: LlamaConfig, prefix: str, tensors: Any) -> LlamaConfig:
    """Return the decoder with q/k norms if its files have them."""
    return LlamaConfig(**{**vars(decoder), "qk_norm": f"{prefix}layers.0.self_attn.q_norm.weight" in tensors})


def _ids(folder: Path, names: tuple[str, ...]) -> tuple[int, ...]:
    if not names:
        return ()
    tokenizer = PublishedTokenizer(tokenizer_file(str(folder)))
    return tuple(map(tokenizer.special, names))
