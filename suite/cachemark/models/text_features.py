"""Features of texts: the last hidden states of a text encoder, one vector per token.

Features are computed when a model is loaded, before timing, and the encoder is then freed. They are cached on disk under the hash of text
and encoder, so that interrupted work resumes. Only ``RESIDENT`` texts of a list stay in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as unpacked, save as packed
from torch import Tensor

from ..core.errors import BadCheckpoint, Unsupported
from ..core.files import replacing
from ..core.seeds import subset
from . import hub
from .prompts import HashedWords, path_beside, refuse_unreadable
from .protocol import Request

VOCAB = 32128  # of T5; words of the stand-in use its vectors
END = "</s>"  # closes a text, as T5 does
ENCODER = "flan-t5-xl"  # the published folder, next to the weights
REPOSITORY = f"google/{ENCODER}"
KEPT = "cachemark-features"  # folder inside of it, a file for each text by its hash
SUBSET, RESIDENT = "s2k", 1024  # the features of so many texts stay in memory: of the first samples of every subset, all that are timed
WORDS = HashedWords(VOCAB)


class Features(Sequence[Tensor]):
    """Features (n, channels) of each text by label, on a device.

    ``resident``: features of the first ``RESIDENT`` samples; others are read by ``get`` each time. ``lengths``: the number n of each.
    """

    def __init__(
        self, lengths: Sequence[int], get: Callable[[int], Tensor], device: str = "cpu", dtype: torch.dtype = torch.float32,
    ) -> None:
        self.lengths, self._get, self._device, self._dtype = lengths, get, device, dtype
        labels = range(len(lengths)) if len(lengths) <= RESIDENT else subset(SUBSET, len(lengths)).labels[:RESIDENT]
        self.resident = {label: self._moved(label) for label in labels}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, label: int) -> Tensor:  # type: ignore[override]  # no slices
        at = range(len(self))[label]
        return self.resident[at] if at in self.resident else self._moved(at)

    def _moved(self, label: int) -> Tensor:
        return self._get(label).to(self._device, self._dtype)


def lengths_of(texts: Sequence[Tensor]) -> Sequence[int]:
    """Return the number of features of each text without reading them."""
    return texts.lengths if isinstance(texts, Features) else [*map(len, texts)]


@dataclass(frozen=True)
class FeatureReader:
    """Reader of texts as features of the published encoder, or of the stand-in.

    ``channels``: of the encoder; ``longest``: most tokens of a text.
    """

    channels: int
    longest: int

    def read(self, texts: tuple[str, ...], request: Request) -> Features:
        """Return the features of each text on the request's device."""
        where = request.device, request.dtype
        if request.weights:
            return self.encoded(texts, encoder_of(request.weights), *where)
        return self.stand_in(texts, *where)

    def stand_in(self, texts: Sequence[str], device: str = "cpu", dtype: torch.dtype = torch.float32) -> Features:
        """Return features with random weights: a normal vector per word, by its hash. Raises Unsupported."""
        def made(label: int) -> Tensor:
            numbers = (*WORDS.ids(texts[label]), WORDS.special(END))
            return torch.stack([torch.randn(self.channels, generator=torch.Generator().manual_seed(number)) for number in numbers])

        return Features(self.shapes(texts), made, device, dtype)

    def shapes(self, texts: Sequence[str]) -> list[int]:
        """Return the number of features of each text with random weights. Raises Unsupported."""
        lengths = [len(WORDS.ids(text)) + 1 for text in texts]
        for text, length in zip(texts, lengths, strict=True):
            refuse_unreadable(text, length, self.longest)
        return lengths

    def identity(self, weights: str) -> str:
        """Return a hash of the encoder next to the weights."""
        return identity(encoder_of(weights))

    def encoded(self, texts: Sequence[str], folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Features:
        """Return features of each text by the encoder in a published folder, computed on the CPU in fp32.

        Computed features are cached in that folder, or in memory if it is not writable. Raises Unsupported for a text of more than
        ``longest`` tokens, BadCheckpoint for a folder without such an encoder.
        """
        encoder, lengths, unwritten = identity(folder), dict[str, int](), dict[str, Tensor]()
        places = {text: _place(folder, encoder, text) for text in texts}
        for text, place in places.items():
            if (features := _kept(place)) is not None:
                self._check_channels(features.size(1), folder)
                refuse_unreadable(text, len(features), self.longest)
                lengths[text] = len(features)
        lacking = [text for text in places if text not in lengths]
        for text, features in zip(lacking, self._computed(lacking, folder), strict=True):
            lengths[text] = len(features)
            if not _keep(features, places[text]):
                unwritten[text] = features

        def get(label: int) -> Tensor:
            text = texts[label]
            read = unwritten[text] if text in unwritten else _kept(places[text])
            return next(self._computed([text], folder)) if read is None else read

        return Features([lengths[text] for text in texts], get, device, dtype)

    def _computed(self, texts: Sequence[str], folder: Path) -> Iterator[Tensor]:
        """Yield features text by text; the encoder is loaded only if there are texts."""
        if not texts:
            return
        try:
            from transformers import AutoTokenizer, T5EncoderModel
        except ImportError as error:
            raise Unsupported("Texts of published weights need the library transformers, which is not installed.",
                              remedy="Get it with: pip install 'cachemark[text]'.") from error
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            encoder: Any = T5EncoderModel.from_pretrained(str(folder), local_files_only=True).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise BadCheckpoint(f"{str(folder)!r} is not a readable text encoder: {' '.join(str(error).split())[:200]}.",
                                remedy=f"Use the folder {ENCODER} as it was published.") from error
        self._check_channels(encoder.config.d_model, folder)
        for text in texts:
            ids = tokenizer(text).input_ids
            refuse_unreadable(text, len(ids), self.longest)
            with torch.inference_mode():
                features = encoder(input_ids=torch.tensor([ids])).last_hidden_state[0].float().clone()
            yield features

    def _check_channels(self, actual: int, folder: Path) -> None:
        if actual != self.channels:
            raise BadCheckpoint(f"The text encoder in {str(folder)!r} has {actual} channels; this model reads {self.channels}.",
                                remedy=f"Use the folder {ENCODER} as it was published.")


def encoder_of(weights: str) -> Path:
    """Return the folder of the text encoder: next to the weights, or in the cache of huggingface_hub."""
    folder = path_beside(weights, ENCODER)
    return folder if folder.is_dir() else hub.encoder_in_cache(weights, REPOSITORY) or folder


def identity(folder: Path) -> str:
    """Return a hash of the encoder's configuration and file sizes, without reading gigabytes."""
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(f"There is no text encoder at {str(folder)!r}, which is needed to read prompts.",
                            remedy=f"Put the published folder {ENCODER} next to the weights.")
    files = sorted(file for file in folder.iterdir() if file.is_file())
    description = "".join(f"{file.name} {file.stat().st_size}\n" for file in files) + (folder / "config.json").read_text(encoding="utf-8")
    return hashlib.sha256(description.encode()).hexdigest()


# -- features on disk ----------------------------------------------------------------------------------------------------
def _place(folder: Path, encoder: str, text: str) -> Path:
    return folder / KEPT / f"{hashlib.sha256(f'{encoder} {text}'.encode()).hexdigest()}.safetensors"


def _kept(file: Path) -> Tensor | None:
    """Return cached features; None if missing or damaged."""
    try:
        features: Tensor = unpacked(file.read_bytes())["features"]
        return features if features.dim() == 2 and features.dtype == torch.float32 else None
    except (OSError, KeyError, SafetensorError):
        return None


def _keep(features: Tensor, file: Path) -> bool:
    """Write features to disk. Returns False if that is not permitted."""
    try:
        with replacing(file) as part:
            part.write_bytes(packed({"features": features.contiguous()}))
    except OSError:
        return False
    return True
