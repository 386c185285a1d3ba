"""Verification and conversion of published weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint, Unsupported
from ..models import checkpoints, conversion, prompts, text_features, trained_size
from ..models.conversion import SHARD
from ..models.protocol import ModelEntry, PublishedFile
from ..models.registry import MODELS
from ..models.weights import packaged
from .publications import Noted, Publication, noted_of, publications
from .weights import FOLDER

PUBLISHED, CONVERTED, UNKNOWN = "as published", "as converted", "not published"


@dataclass(frozen=True)
class Verified:
    """Weights that hold every tensor of their model and no other, and whose SHA-256 was compared."""

    key: str
    path: str
    tensors: int
    parameters: int
    nbytes: int
    dtypes: tuple[str, ...]
    passed: tuple[str, ...]
    sha256: str
    published: str

    @property
    def covered(self) -> str:
        return f"{self.tensors} of {self.tensors} tensors"


def verify(
    model: str, *, weights: str = "", decoder_weights: str = "", folder: str | Path = FOLDER, pixels: int = 0
) -> list[Verified]:
    """Check the weights of a model: name, shape and dtype of every tensor, image size, and known SHA-256.

    Weights that are not named are looked for below ``folder``. Raises BadCheckpoint with what does not fit, UnknownName, and Unsupported
    for a model without published weights.
    """
    entry = _published(model)
    return [_verified(file, path, _publication(model, file.key), pixels) for file, path in _found(entry, weights, decoder_weights, folder)]


def convert(
    model: str, to: str | Path, *, weights: str = "", decoder_weights: str = "", folder: str | Path = FOLDER, pixels: int = 0,
    shard: int = SHARD, say: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Write the weights of a model below the folder ``to`` as sharded safetensors; return paths by key.

    A file has at most ``shard`` bytes. Each checkpoint is written completely or not at all, and an interrupted conversion continues. Raises
    the errors of :func:`verify`, CachemarkError if ``to`` holds something else, and Infrastructure for a full disk.
    """
    entry, made = _published(model), {}
    for file, path in _found(entry, weights, decoder_weights, folder):
        _whole(path, _publication(model, file.key))
        made[file.key] = Path(to) / file.key

        def note(index: int, count: int, unchanged: bool, key: str = file.key) -> None:
            say(f"{key} {index} of {count}{', kept' if unchanged else ''}")

        conversion.convert(file, path, made[file.key], pixels=pixels, shard=shard, note=note)
    return made


def _published(model: str) -> ModelEntry:
    entry: ModelEntry = MODELS.get(model)
    if not entry.files:
        carried = packaged(f"{model}.safetensors").is_file()
        raise Unsupported(f"The weights of {model} {'come with cachemark' if carried else 'are published nowhere'}.",
                          remedy="Name a model of `cachemark weights list`.")
    return entry


def _publication(model: str, key: str) -> Publication | None:
    return next((publication for publication in publications() if (publication.model, publication.key) == (model, key)), None)


def _found(entry: ModelEntry, weights: str, decoder_weights: str, folder: str | Path) -> list[tuple[PublishedFile, Path]]:
    """Return the named weights, or all fetched ones. Raises BadCheckpoint for a missing file."""
    paths: dict[str, str] = {"weights": weights, "decoder_weights": decoder_weights}
    if weights and len({file.name for file in entry.files}) == 1:
        paths["decoder_weights"] = decoder_weights or weights
    if not any(paths.values()):
        paths = {publication.key: str(publication.located(folder)) for publication in publications() if publication.model == entry.name}
    pairs = [(file, Path(paths[file.key])) for file in entry.files if paths.get(file.key)]
    if not pairs:
        raise BadCheckpoint(f"It is not known where weights of {entry.name} are fetched to.", remedy="Name them with --weights.")
    for file, path in pairs:
        if not path.exists():
            raise BadCheckpoint(f"There are no {file.key} of {entry.name} at {str(path)!r}.",
                                remedy=f"Run `cachemark weights fetch {entry.name}`, or name them with --{file.key.replace('_', '-')}.")
        if file.key == "weights":
            _reads_texts(entry.name, path)
    return pairs


def _reads_texts(model: str, weights: Path) -> None:
    """Raise BadCheckpoint where the text tokenizer or encoder of a model is missing."""
    if _publication(model, "tokenizer") and not prompts.tokenizer_file(str(weights)).is_file():
        raise BadCheckpoint(f"{str(weights)!r} has no {prompts.FILE} next to it, which prompts need.",
                            remedy=f"Run `cachemark weights fetch {model}`, or give the folder as it was published.")
    if _publication(model, "text_encoder"):
        text_features.identity(text_features.encoder_folder(str(weights)))


def _verified(file: PublishedFile, path: Path, publication: Publication | None, pixels: int) -> Verified:
    _whole(path, publication)
    contents = conversion.contents(file, path)
    trained_size.check(file, path, pixels)
    return Verified(file.key, str(path), contents.tensors, contents.parameters, contents.nbytes, contents.dtypes, contents.passed,
                    checkpoints.sha256(path), _known(path, publication))


def _whole(path: Path, publication: Publication | None) -> None:
    """Raise BadCheckpoint for a file with fewer bytes than published."""
    for file in checkpoints.parts(path):
        noted, has = _noted(file, publication), file.stat().st_size
        if noted and has != noted.nbytes:
            again = f"`cachemark weights fetch {publication.model}`" if publication else "the download"
            raise BadCheckpoint(f"{str(file)!r} has {has} of {noted.nbytes} bytes: its download is not whole.",
                                remedy=f"Delete it and run {again} again.")


def _noted(file: Path, publication: Publication | None) -> Noted | None:
    """Return the published size and SHA-256 of a file, noted at download time, else known here."""
    if (noted := noted_of(file)) is not None or publication is None or not publication.nbytes:
        return noted
    return Noted(publication.nbytes, (publication.sha256 or {}).get(file.name, ""))


def _known(path: Path, publication: Publication | None) -> str:
    """Return whose SHA-256 the weights have. Raises BadCheckpoint for a wrong one."""
    digests: dict[str, str] = checkpoints.digests(path)
    written: Any = checkpoints.remarks(path).get("sha256")
    converted = isinstance(written, dict)
    noted = {file.name: _noted(file, publication) for file in checkpoints.parts(path)}
    for name, digest in digests.items():
        published = written.get(name) if converted else getattr(noted[name], "sha256", "")
        if published and published != digest:
            raise BadCheckpoint(f"{name} in {str(path)!r} has the SHA-256 {digest}, not {published}.",
                                remedy="It was changed or damaged: delete it, and fetch or convert it again.")
        if not published:
            return UNKNOWN
    return CONVERTED if converted else PUBLISHED
