"""Features of texts for models that read them through an encoder: its last hidden states, one vector for each token.

They are made when a model is loaded, before anything is timed, and the encoder is not kept: no memory that is measured holds it. What it
made of a text is kept on disk, under the hash of both, and then neither the encoder nor the library that runs it is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as unpacked
from safetensors.torch import save as packed
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from ..core.files import replacing
from .prompts import HashedWords, refuse_unreadable

VOCAB = 32128  # of T5, from which the stand-in's words take their vectors
END = "</s>"  # closes a text, as T5 does
ENCODER = "flan-t5-xl"  # the published folder, beside the weights
KEPT = "cachemark-features"  # folder inside of it, a file for each text by its hash


WORDS = HashedWords(VOCAB)


def stand_in_lengths(texts: Sequence[str], longest: int) -> list[int]:
    """Number of features of each text where weights are random. Raises Unsupported for one that is empty or has more than ``longest``."""
    lengths = [len(WORDS.ids(text)) + 1 for text in texts]
    for text, length in zip(texts, lengths, strict=True):
        refuse_unreadable(text, length, longest)
    return lengths


def stand_in(texts: Sequence[str], channels: int) -> list[Tensor]:
    """Features (n, channels) of each text where weights are random: a normal vector for every word, by its hash."""
    return [torch.stack([_vector(number, channels) for number in (*WORDS.ids(text), WORDS.special(END))]) for text in texts]


def _vector(number: int, channels: int) -> Tensor:
    return torch.randn(channels, generator=torch.Generator().manual_seed(number))


def encoder_folder(weights: str) -> Path:
    """The folder of the text encoder beside published weights at a path."""
    path = Path(weights)
    return (path if path.is_dir() else path.parent) / ENCODER


def identity(folder: Path) -> str:
    """A hash of the text encoder's configuration and of the sizes of its files: what it holds is gigabytes, and is not read for a name."""
    files = sorted(file for file in _existing(folder).iterdir() if file.is_file())
    told = "".join(f"{file.name} {file.stat().st_size}\n" for file in files) + (folder / "config.json").read_text(encoding="utf-8")
    return hashlib.sha256(told.encode()).hexdigest()


def encoded(texts: Sequence[str], folder: Path, channels: int, longest: int) -> list[Tensor]:
    """Features (n, channels) fp32 of each text by the encoder in a published folder; those that it made once are kept on disk, inside of
    it. Raises Unsupported for a text of more than ``longest`` tokens, BadCheckpoint for a folder that holds no such encoder."""
    known = identity(folder)
    found = {text: _kept(_place(folder, known, text)) for text in texts}
    if lacking := [text for text, features in found.items() if features is None]:
        for text, made in zip(lacking, _encode(lacking, folder, channels, longest), strict=True):
            found[text] = made
            _keep(made, _place(folder, known, text))
    return [_checked(text, features, folder, channels, longest) for text in texts if (features := found[text]) is not None]


@torch.inference_mode()
def _encode(texts: Sequence[str], folder: Path, channels: int, longest: int) -> list[Tensor]:
    """Features by the encoder, which is in memory meanwhile."""
    try:
        from transformers import AutoTokenizer, T5EncoderModel
    except ImportError as error:
        raise Unsupported("Texts of published weights need the library transformers, which is not installed.",
                          remedy="Get it with: pip install 'cachemark[text]'.") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        encoder: Any = T5EncoderModel.from_pretrained(str(folder), local_files_only=True).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadCheckpoint(f"{str(folder)!r} is no text encoder that can be read: {' '.join(str(error).split())[:200]}.",
                            remedy=f"Give the folder {ENCODER} as it was published.") from error
    _same_channels(encoder.config.d_model, folder, channels)
    found = []
    for text in texts:
        ids = tokenizer(text).input_ids
        refuse_unreadable(text, len(ids), longest)
        found.append(encoder(input_ids=torch.tensor([ids])).last_hidden_state[0].float().clone())
    return found


def _checked(text: str, features: Tensor, folder: Path, channels: int, longest: int) -> Tensor:
    _same_channels(features.size(1), folder, channels)
    refuse_unreadable(text, len(features), longest)
    return features


def _same_channels(found: int, folder: Path, channels: int) -> None:
    if found != channels:
        raise BadCheckpoint(f"The text encoder in {str(folder)!r} has {found} channels; this model reads {channels}.",
                            remedy=f"Give the folder {ENCODER} as it was published.")


# -- features on disk ----------------------------------------------------------------------------------------------------
def _place(folder: Path, encoder: str, text: str) -> Path:
    return folder / KEPT / f"{hashlib.sha256(f'{encoder} {text}'.encode()).hexdigest()}.safetensors"


def _kept(file: Path) -> Tensor | None:
    """Features of an earlier time; None where there are none, or where the file is damaged."""
    try:
        found: Tensor = unpacked(file.read_bytes())["features"]
        return found if found.dim() == 2 and found.dtype == torch.float32 else None
    except (OSError, KeyError, SafetensorError):
        return None


def _keep(features: Tensor, file: Path) -> None:
    """Write them; where that is not allowed, they are made again another time."""
    with suppress(OSError), replacing(file) as part:
        part.write_bytes(packed({"features": features.contiguous()}))


def _existing(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(f"There is no text encoder at {str(folder)!r}, without which no prompt can be read.",
                            remedy=f"Put the folder {ENCODER} as it was published beside the weights.")
    return folder
