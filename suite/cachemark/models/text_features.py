"""Features of texts for models that read them through an encoder: its last hidden states, one vector for each token.

They are made when a model is loaded, before anything is timed, and the encoder is not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from .prompts import HashedWords

VOCAB = 32128  # of T5, from which the stand-in's words take their vectors
END = "</s>"  # closes a text, as T5 does
ENCODER = "flan-t5-xl"  # the published folder, beside the weights


def stand_in(texts: Sequence[str], channels: int) -> list[Tensor]:
    """Features (n, channels) of each text where weights are random: a normal vector for every word, by its hash."""
    words = HashedWords(VOCAB)
    return [torch.stack([_vector(number, channels) for number in (*words.ids(text), words.special(END))]) for text in texts]


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


@torch.inference_mode()
def encoded(texts: Sequence[str], folder: Path, channels: int, longest: int) -> list[Tensor]:
    """Features (n, channels) fp32 of each text by the encoder in a published folder. Raises Unsupported for a text of more than ``longest``
    tokens, BadCheckpoint for a folder that holds no such encoder."""
    try:
        from transformers import AutoTokenizer, T5EncoderModel
    except ImportError as error:
        raise Unsupported("Texts of published weights need the library transformers, which is not installed.",
                          remedy="Get it with: pip install 'cachemark[text]'.") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(_existing(folder)), local_files_only=True)
        encoder: Any = T5EncoderModel.from_pretrained(str(folder), local_files_only=True).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadCheckpoint(f"{str(folder)!r} is no text encoder that can be read: {' '.join(str(error).split())[:200]}.",
                            remedy=f"Give the folder {ENCODER} as it was published.") from error
    if encoder.config.d_model != channels:
        raise BadCheckpoint(f"The text encoder in {str(folder)!r} has {encoder.config.d_model} channels; this model reads {channels}.",
                            remedy=f"Give the folder {ENCODER} as it was published.")
    found = []
    for text in texts:
        ids = tokenizer(text).input_ids
        if len(ids) > longest:
            raise Unsupported(f"The prompt {text[:60]!r}… has {len(ids)} tokens; this model reads {longest}.", remedy="Shorten it.")
        found.append(encoder(input_ids=torch.tensor([ids])).last_hidden_state[0].float().clone())
    return found


def _existing(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(f"There is no text encoder at {str(folder)!r}, without which no prompt can be read.",
                            remedy=f"Put the folder {ENCODER} as it was published beside the weights.")
    return folder
