"""Prompts of text-to-image models: texts, tokenizers, and the ids of each row."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from . import checkpoints
from .protocol import Request

FILE = "tokenizer.json"  # of a published text tokenizer, next to the weights
MULTIPLE = 8  # lengths of the stand-in's prompts
PIECE = re.compile(r"<[^<>\s]+>|\w+|\n+|[^\w\s]")  # a special token, a word, an empty line, a sign


def refuse_unreadable(text: str, tokens: int, longest: int = 0) -> None:
    """Raise Unsupported for an empty text or more than ``longest`` tokens (0: no limit)."""
    if not text.strip():
        raise Unsupported("A prompt is empty.", remedy="Remove it, or describe the image.")
    if tokens > longest > 0:
        raise Unsupported(f"The prompt {text[:60]!r}… has {tokens} tokens; this model reads {longest}.", remedy="Shorten it.")


@dataclass(frozen=True)
class Prompts:
    """Token ids of every prompt and of its unconditional row, which may differ in length.

    A sample's label is the index of its prompt.
    """

    conditional: tuple[tuple[int, ...], ...] = ()
    unconditional: tuple[tuple[int, ...], ...] = ()

    def rows(self, labels: Sequence[int], copies: int) -> list[tuple[int, ...]]:
        """Return the ids of each row: conditional rows first, with two ``copies`` unconditional ones after."""
        return [self.conditional[i] for i in labels] + [self.unconditional[i] for i in labels if copies > 1]

    def lengths(self, labels: Sequence[int], copies: int) -> tuple[int, ...]:
        """Return the number of ids in each row."""
        return tuple(map(len, self.rows(labels, copies)))

    def ids(self, labels: Sequence[int], copies: int, device: torch.device) -> Tensor:
        """Return the ids (rows, longest) int64, zero-padded at the end."""
        rows = [torch.tensor(row) for row in self.rows(labels, copies)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)


# -- tokenizers ----------------------------------------------------------------------------------------------------------
class TextTokenizer(ABC):
    """Interface of tokenizers. Special tokens are given by text, since ids differ between model sizes."""

    @abstractmethod
    def ids(self, text: str) -> list[int]:
        """Return the ids of the text and of special tokens written in it; none is added."""

    @abstractmethod
    def special(self, token: str) -> int:
        """Return the id of a special token. Raises BadCheckpoint if it is missing."""

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return a complete prompt as the model reads it."""
        return ids


@dataclass(frozen=True)
class HashedWords(TextTokenizer):
    """Stand-in tokenizer for random weights: one id below ``vocab`` per word or sign, by hash.

    Published tokenizers split rare words; here prompts are padded with their own ids to a multiple of ``MULTIPLE``, so that a list has
    few lengths, which attention processes together.
    """

    vocab: int

    def ids(self, text: str) -> list[int]:
        return [self.special(piece) for piece in PIECE.findall(text)]

    def special(self, token: str) -> int:
        return int.from_bytes(hashlib.sha256(token.encode()).digest()[:8], "big") % self.vocab

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        lacking = -len(ids) % MULTIPLE
        return (*ids[:-1], *(ids[1:-1] * MULTIPLE)[:lacking], ids[-1])


class PublishedTokenizer(TextTokenizer):
    """The tokenizer published with the weights, read by the transformers library."""

    def __init__(self, weights: str, file: str = FILE) -> None:
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError as error:
            raise Unsupported("Prompts of published weights need the library transformers, which is not installed.",
                              remedy="Get it with: pip install 'cachemark[text]'.") from error
        path = tokenizer_beside(weights, file)
        try:
            self._tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(path))
        except Exception as error:  # a file of any origin: the reader may fail in any way
            raise BadCheckpoint(f"{str(path)!r} is not a readable tokenizer: {' '.join(str(error).split())[:200]}.",
                                remedy="Fetch it again.") from error
        self._file = path

    def ids(self, text: str) -> list[int]:
        return [int(number) for number in self._tokenizer.encode(text, add_special_tokens=False)]

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token by its name."""
        return dict(self._tokenizer.get_vocab())

    def special(self, token: str) -> int:
        if token not in self.vocabulary:
            raise BadCheckpoint(f"{str(self._file)!r} has no token {token!r}.", remedy="Use the tokenizer of this model.")
        return int(self._tokenizer.convert_tokens_to_ids(token))


@dataclass(frozen=True)
class TokenReader:
    """Reader of texts as token ids, by the published tokenizer or by ``stand_in``.

    ``bundled``: always use ``stand_in``. ``file``: path of the published tokenizer from the folder of the weights.
    """

    prompts: Callable[[Sequence[str], TextTokenizer], Prompts]
    stand_in: TextTokenizer
    bundled: bool = False
    file: str = FILE

    def read(self, texts: tuple[str, ...], request: Request) -> Prompts:
        """Return the ids of each text."""
        if self.bundled or not request.weights:
            return self.shapes(texts)
        return self.prompts(texts, PublishedTokenizer(request.weights, self.file))

    def shapes(self, texts: tuple[str, ...]) -> Prompts:
        """Return the ids of each text with random weights."""
        return self.prompts(texts, self.stand_in)

    def identity(self, weights: str) -> str:
        """Return the SHA-256 of the published tokenizer; empty for bundled models."""
        return "" if self.bundled else checkpoints.sha256(tokenizer_beside(weights, self.file))


def tokenizer_beside(weights: str, name: str = FILE) -> Path:
    """Return the path of the tokenizer next to the weights. Raises BadCheckpoint if it is missing."""
    file = path_beside(weights, name)
    if not file.is_file():
        raise BadCheckpoint(f"{str(file.parent)!r} has no {FILE}, without which no prompt can be read.",
                            remedy="Use weights in the folder of the model as it was published, its tokenizer among them.")
    return file


def path_beside(weights: str | Path, name: str) -> Path:
    """Return the path of a file or folder that is published with the weights, next to them."""
    path, _ = checkpoints.file_and_entry(weights)
    return (path if path.is_dir() else path.parent) / name
