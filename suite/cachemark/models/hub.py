"""Weights named by their repository on Hugging Face, ``hf:org/repo[@revision][:file]``, without torch.

Names are resolved in the cache of huggingface_hub ($HF_HOME); nothing here uses the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadCheckpoint, UnknownName, Unsupported
from .publications import Publication, publications

PREFIX = "hf:"
INSTALL = "pip install 'cachemark[hub]'"
REVISION = "main"
FOLDER_FILES = ("*.json", "*.safetensors")  # of a repository that is not in the catalogue
SAFE = (".safetensors", ".safetensors.index.json")
PUBLISHED = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")  # in a folder
_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w.-][\w./-]*))?(?::([^\s:\\]+))?", re.ASCII)
_CACHED = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/(.+))?$")


@dataclass(frozen=True)
class HubName:
    """A repository, its revision (branch, tag or commit), and a file in it (empty: the catalogue's)."""

    repository: str
    revision: str = REVISION
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Parse ``hf:org/repo[@revision][:file]``, without the entry of a file after a #. Raises UnknownName."""
        text = text.partition("#")[0]
        match = _NAME.fullmatch(text)
        if match is None or any(part in (".", "..") for part in re.split("[/:@]", text[len(PREFIX) :])):
            raise UnknownName(f"{text[:200]!r} is not a name of weights on Hugging Face.", remedy="Write hf:org/repo[@revision][:file].")
        return cls(match[1], match[2] or REVISION, match[3] or "")

    def __str__(self) -> str:
        revision = "" if self.revision == REVISION else f"@{self.revision}"
        return f"{PREFIX}{self.repository}{revision}{f':{self.file}' if self.file else ''}"


def is_hub(text: str) -> bool:
    """Return whether weights are named by their repository."""
    return text.startswith(PREFIX)


def needed(model: str, key: str, name: HubName) -> tuple[str, tuple[str, ...]]:
    """Return the path of weights in their repository, and patterns of the files to fetch for them."""
    if name.file:
        shards = (f"{name.file.rpartition('/')[0]}/*".lstrip("/"),) if name.file.endswith(".index.json") else ()
        return name.file, (name.file, *shards)
    own = [file for file in publications() if file.model == model and file.origin.name == name.repository]
    path = next((file.path for file in own if file.key == key), None)
    if path is None:
        return ".", FOLDER_FILES
    return path, tuple(pattern for file in own if file.key in (key, "tokenizer") for pattern in file.files)


def complete(model: str, weights: str, decoder_weights: str) -> tuple[str, str]:
    """Return both names.

    An image tokenizer that is not named is taken from the weights' repository, if it is published there.
    """
    if is_hub(weights) and not decoder_weights:
        name = HubName.parse(weights)
        if any(file.origin.name == name.repository for file in _files(model, "decoder_weights")):
            decoder_weights = str(HubName(name.repository, name.revision))
    return weights, decoder_weights


def encoders(model: str) -> tuple[Publication, ...]:
    """Return the text encoders that a model needs from repositories of their own."""
    return tuple(_files(model, "text_encoder"))


def located(model: str, weights: str, decoder_weights: str) -> tuple[str, str]:
    """Return the paths of weights; files of repositories are in the cache.

    Raises UnknownName, BadCheckpoint for a name that is not in the cache or a pickle of a repository that is not in the catalogue, and
    Unsupported without huggingface_hub.
    """
    weights, decoder_weights = complete(model, weights, decoder_weights)
    return _path(model, "weights", weights), _path(model, "decoder_weights", decoder_weights)


def _path(model: str, key: str, text: str) -> str:
    if not is_hub(text):
        return text
    name = HubName.parse(text)
    relative, _ = needed(model, key, name)
    folder = snapshot(name)
    path = None if folder is None else folder / relative
    if path is None or not path.exists():
        raise BadCheckpoint(f"{name} is not in the cache of huggingface_hub.",
                            remedy=f"Fetch it: {fetch_command(model, key, name)}")
    if name.repository not in {file.origin.name for file in publications()}:
        file = path if path.is_file() else next((path / each for each in PUBLISHED if (path / each).is_file()), None)
        if file is not None and not file.name.endswith(SAFE):
            raise BadCheckpoint(f"{name} is a pickle, {file.name}; pickles are read from repositories of the catalogue only.",
                                remedy="Name a .safetensors file of the repository, or download the file and name its path.")
    return str(path) + text[len(text.partition("#")[0]) :]


def fetch_command(model: str, key: str, name: HubName | str) -> str:
    """Return the command that downloads weights by their name; ``key``: the key of a plan that names them."""
    return f"cachemark weights fetch {model} --{key.replace('_', '-')} {name}"


def snapshot(name: HubName, cache: Path | None = None) -> Path | None:
    """Return the folder of a revision in the cache, or None if it was not fetched.

    Raises Unsupported and UnknownName.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise Unsupported(f"{name} is read by the library huggingface_hub, which is not installed.",
                          remedy=f"Get it with: {INSTALL}.") from error
    try:
        return Path(snapshot_download(name.repository, revision=name.revision, cache_dir=cache, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise UnknownName(f"{name} is not a name of weights on Hugging Face.", remedy="Write hf:org/repo[@revision][:file].") from error


def source(path: str | Path) -> HubName | None:
    """Return the repository, commit and file of a path in the cache, or None for other paths."""
    match = _CACHED.search(Path(path).absolute().as_posix().partition("#")[0])
    return HubName(f"{match[1]}/{match[2]}", match[3], match[4] or "") if match else None


def encoder_in_cache(weights: str | Path, repository: str) -> Path | None:
    """Return a text encoder's folder in the cache that weights are in, or None."""
    if source(weights) is None:
        return None
    path = Path(weights).absolute()
    cache = next(parent for parent in path.parents if parent.name == "snapshots").parent.parent
    return snapshot(HubName(repository), cache)


def _files(model: str, key: str) -> Iterable[Publication]:
    return (file for file in publications() if (file.model, file.key) == (model, key))
