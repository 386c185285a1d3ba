"""Prompts of text-to-image models: texts, the tokenizers that make ids of them, and the ids that the rows of a generation read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from . import checkpoints
from .protocol import Request

FILE = "tokenizer.json"  # of a published text tokenizer, beside the weights
MULTIPLE = 8  # lengths of the stand-in's prompts
PIECE = re.compile(r"<[^<>\s]+>|\w+|\n+|[^\w\s]")  # a special token, a word, an empty line, a sign


def refuse_unreadable(text: str, tokens: int, longest: int = 0) -> None:
    """Raise Unsupported for a text that asks for nothing, or has more tokens than a model reads (any number where ``longest`` is 0)."""
    if not text.strip():
        raise Unsupported("A prompt is empty: it asks for nothing.", remedy="Leave it out, or write what the image is to show.")
    if tokens > longest > 0:
        raise Unsupported(f"The prompt {text[:60]!r}… has {tokens} tokens; this model reads {longest}.", remedy="Shorten it.")


@dataclass(frozen=True)
class Prompts:
    """Token ids of every prompt, and those that its unconditional row reads in their place, which may be another number. A sample's label
    is the index of its prompt."""

    conditional: tuple[tuple[int, ...], ...] = ()
    unconditional: tuple[tuple[int, ...], ...] = ()

    def rows(self, labels: Sequence[int], copies: int) -> list[tuple[int, ...]]:
        """The ids of each row: the conditional rows of all samples, then with two ``copies`` the unconditional ones."""
        return [self.conditional[i] for i in labels] + [self.unconditional[i] for i in labels if copies > 1]

    def lengths(self, labels: Sequence[int], copies: int) -> tuple[int, ...]:
        """Number of ids in each row."""
        return tuple(map(len, self.rows(labels, copies)))

    def ids(self, labels: Sequence[int], copies: int, device: torch.device) -> Tensor:
        """(rows, longest) int64. Behind the end of a shorter row stand zeros, which nothing reads."""
        rows = [torch.tensor(row) for row in self.rows(labels, copies)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)


# -- tokenizers ----------------------------------------------------------------------------------------------------------
class TextTokenizer(Protocol):
    """Makes ids of a text. Special tokens are known by their text, since ids differ between sizes of a model."""

    def ids(self, text: str) -> list[int]:
        """Ids of the text and of the special tokens that are written in it; none is added."""

    def special(self, token: str) -> int:
        """The id of a special token. Raises BadCheckpoint where there is none."""

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """A whole prompt as it is read."""


@dataclass(frozen=True)
class HashedWords:
    """A stand-in where weights are random: every word, sign and special token is one id below ``vocab``, by its hash. A published tokenizer
    splits rare words; here a prompt is filled up to a multiple of ``MULTIPLE`` ids by repeating its own before the last, so that those of
    a list have few lengths, which attention takes together."""

    vocab: int

    def ids(self, text: str) -> list[int]:
        return [self.special(piece) for piece in PIECE.findall(text)]

    def special(self, token: str) -> int:
        return int.from_bytes(hashlib.sha256(token.encode()).digest()[:8], "big") % self.vocab

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        lacking = -len(ids) % MULTIPLE
        return (*ids[:-1], *(ids[1:-1] * MULTIPLE)[:lacking], ids[-1])


class PublishedTokenizer:
    """The tokenizer that was published beside the weights, read by the transformers library."""

    def __init__(self, file: Path) -> None:
        try:
            from transformers import PreTrainedTokenizerFast
        except ImportError as error:
            raise Unsupported("Prompts of published weights need the library transformers, which is not installed.",
                              remedy="Get it with: pip install 'cachemark[text]'.") from error
        if not file.is_file():
            raise BadCheckpoint(f"{str(file.parent)!r} has no {FILE}, without which no prompt can be read.",
                                remedy="Give weights in the folder of the model as it was published, its tokenizer among them.")
        try:
            self._tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))
        except Exception as error:  # a file of any origin: the reader may fail in any way
            raise BadCheckpoint(f"{str(file)!r} is no tokenizer that can be read: {' '.join(str(error).split())[:200]}.",
                                remedy="Fetch it again.") from error
        self._file = file

    def ids(self, text: str) -> list[int]:
        return [int(number) for number in self._tokenizer.encode(text, add_special_tokens=False)]

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token by its name."""
        return dict(self._tokenizer.get_vocab())

    def special(self, token: str) -> int:
        if token not in self.vocabulary:
            raise BadCheckpoint(f"{str(self._file)!r} has no token {token!r}.", remedy="Give the tokenizer of this model.")
        return int(self._tokenizer.convert_tokens_to_ids(token))

    def whole(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        return ids


@dataclass(frozen=True)
class TokenReader:
    """Reads texts as token ids: by the tokenizer beside published weights, else by ``stand_in``. ``bundled``: always by the latter."""

    prompts: Callable[[Sequence[str], TextTokenizer], Prompts]
    stand_in: TextTokenizer
    bundled: bool = False

    def read(self, texts: tuple[str, ...], request: Request) -> Prompts:
        """Return the ids of each text."""
        if self.bundled or not request.weights:
            return self.shapes(texts)
        return self.prompts(texts, PublishedTokenizer(tokenizer_file(request.weights)))

    def shapes(self, texts: tuple[str, ...]) -> Prompts:
        """Return the ids of each text with random weights."""
        return self.prompts(texts, self.stand_in)

    def identity(self, weights: str) -> str:
        """Return the SHA-256 of the tokenizer beside the weights; empty for bundled models."""
        return "" if self.bundled else checkpoints.sha256(tokenizer_file(weights))


def tokenizer_file(weights: str) -> Path:
    """The file of the text tokenizer that lies beside the weights at a path."""
    path = Path(weights)
    return (path if path.is_dir() else path.parent) / FILE
