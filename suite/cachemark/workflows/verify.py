"""Verification of published weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BadCheckpoint, Unsupported
from ..models import checkpoints, prompts, text_features
from ..models.protocol import ModelEntry, PublishedFile
from ..models.registry import MODELS
from ..models.weights import packaged
from .weights import FOLDER, Publication, noted_of, publications

PUBLISHED, UNKNOWN = "as published", "not published"


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


def verify(model: str, *, weights: str = "", decoder_weights: str = "", folder: str | Path = FOLDER) -> list[Verified]:
    """Check the weights of a model: name, shape and dtype of every tensor, image size, and known SHA-256.

    Weights that are not named are looked for below ``folder``. Raises BadCheckpoint with what does not fit, UnknownName, and Unsupported
    for a model without published weights.
    """
    entry: ModelEntry = MODELS.get(model)
    if not entry.files:
        carried = packaged(f"{model}.safetensors").is_file()
        raise Unsupported(f"The weights of {model} {'come with cachemark' if carried else 'are published nowhere'}.",
                          remedy="Name a model of `cachemark weights list`.")
    verified = []
    for file, path in _found(entry, weights, decoder_weights, folder):
        publication = _publication(model, file.key)
        _whole(path, publication)
        _, present, ignored = file.fitted(path)
        tensors = present.values()
        dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
        verified.append(Verified(file.key, str(path), len(present), sum(tensor.numel() for tensor in tensors),
                                 sum(tensor.nbytes for tensor in tensors), tuple(dtypes), tuple(ignored), checkpoints.sha256(path),
                                 _known(path)))
    return verified


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
    if _publication(model, "tokenizer") and not prompts.path_beside(weights, prompts.FILE).is_file():
        raise BadCheckpoint(f"{str(weights)!r} has no {prompts.FILE} next to it, which prompts need.",
                            remedy=f"Run `cachemark weights fetch {model}`, or give the folder as it was published.")
    if _publication(model, "text_encoder"):
        text_features.identity(prompts.path_beside(weights, text_features.ENCODER))


def _whole(path: Path, publication: Publication | None) -> None:
    """Raise BadCheckpoint for a file with fewer bytes than published."""
    for file in checkpoints.parts(path):
        noted, has = noted_of(file), file.stat().st_size
        if noted and has != noted.nbytes:
            again = f"`cachemark weights fetch {publication.model}`" if publication else "the download"
            raise BadCheckpoint(f"{str(file)!r} has {has} of {noted.nbytes} bytes: its download is not whole.",
                                remedy=f"Delete it and run {again} again.")


def _known(path: Path) -> str:
    """Return whether the SHA-256 of the weights is published. Raises BadCheckpoint for a wrong one."""
    noted = {file.name: noted_of(file) for file in checkpoints.parts(path)}
    for name, digest in checkpoints.digests(path).items():
        published = getattr(noted[name], "sha256", "")
        if published and published != digest:
            raise BadCheckpoint(f"{name} in {str(path)!r} has the SHA-256 {digest}, not {published}.",
                                remedy="It was changed or damaged: delete it and fetch it again.")
        if not published:
            return UNKNOWN
    return PUBLISHED
