"""Sources and download of published weights, without torch. Only :func:`fetch` uses the network.

The facts are in ``data/publications.json``; unknown facts are null.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.errors import CachemarkError, Infrastructure, NoAccess, Unsupported, unknown

FOLDER = "weights"  # below the working directory, unless another is named
MAY_LACK = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json", "spiece.model")  # a tokenizer is some of these
INSTALL = "pip install 'cachemark[hub]'"
KEYS = ("weights", "decoder_weights", "tokenizer", "text_encoder")  # the last two lie beside the weights
HUB = "https://huggingface.co/"


@dataclass(frozen=True)
class Origin:
    """Source of files: a Hugging Face repository ``name``, or an ``address`` for manual download.

    ``licence`` and ``gated`` (terms to accept) are null if unknown.
    """

    name: str
    address: str
    licence: str | None = None
    gated: bool | None = None

    @property
    def on_hub(self) -> bool:
        """True if the files can be fetched by a program."""
        return self.address.startswith(HUB)


@dataclass(frozen=True)
class Publication:
    """Files that a ``model`` needs under one ``key`` of a plan.

    ``files`` are patterns, ``path`` is relative to ``folder``. ``about_mib``: published size in MiB; ``steps`` describe a manual download.
    """

    model: str
    key: str
    origin: Origin
    folder: str
    path: str
    files: tuple[str, ...]
    about_mib: int | None = None
    steps: tuple[str, ...] = ()

    def located(self, root: str | Path) -> Path:
        """Return the path below the folder of all downloads."""
        return Path(root) / self.folder / self.path

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "key": self.key, "source": self.origin.address, "files": list(self.files), "about_mib": self.about_mib,
                "licence": self.origin.licence, "gated": self.origin.gated, "by_hand": list(self.steps)}


@functools.cache
def publications() -> tuple[Publication, ...]:
    """Return all publications, ordered by model."""
    data = json.loads((resources.files("cachemark") / "data" / "publications.json").read_text(encoding="utf-8"))
    origins = {name: Origin(name, **facts) for name, facts in data["origins"].items()}
    files = []
    for entry in data["files"]:
        origin, path = origins[entry["origin"]], entry["path"]
        folder = entry.get("folder", origin.name.rpartition("/")[2])
        files += [Publication(model, entry["key"], origin, folder, path, tuple(entry.get("files", (path,))), entry.get("about_mib"),
                              tuple(entry.get("steps", ()))) for model in entry["models"]]
    return tuple(sorted(files, key=lambda file: (file.model, KEYS.index(file.key))))


def of_model(model: str) -> tuple[Publication, ...]:
    """Return the publications of a model. Raises UnknownName."""
    result = tuple(item for item in publications() if item.model == model)
    if not result:
        raise unknown("published model", model, {item.model for item in publications()})
    return result


def weights_list(models: Sequence[str] = ()) -> list[Publication]:
    """List the files and folders that published models need, of all or of ``models``. Raises UnknownName."""
    return [publication for model in models for publication in of_model(model)] if models else list(publications())


def fetch(model: str, to: str | Path = FOLDER, say: Callable[[str], None] = lambda line: None) -> dict[str, Path]:
    """Download the weights of a model below the folder ``to``; return paths by key.

    Complete files are not requested again. Files that must be downloaded by hand are listed with the steps. Raises NoAccess for files that
    are gated or missing, Unsupported without huggingface_hub, and Infrastructure for network failures.
    """
    needed = of_model(model)
    for name in dict.fromkeys(file.origin.name for file in needed if file.origin.on_hub):
        for folder in dict.fromkeys(file.folder for file in needed if file.origin.name == name):
            patterns = {p for file in needed if (file.origin.name, file.folder) == (name, folder) for p in file.files}
            _from_hub(name, Path(to) / folder, patterns, say)
    missing = [file for file in needed if not file.origin.on_hub and not file.located(to).exists()]
    steps = [step.format(path=file.located(to)) for file in missing for step in file.steps]
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step}")
    if missing:
        raise NoAccess(f"{len(missing)} of {len(needed)} files of {model} must be downloaded by hand.", remedy="The steps are above.")
    return {file.key: file.located(to) for file in needed}


def _from_hub(repository: str, folder: Path, patterns: Iterable[str], say: Callable[[str], None]) -> None:
    """Download the files of a repository that match, unless they are present."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise Unsupported("Weights are fetched by the library huggingface_hub, which is not installed.",
                          remedy=f"Get it with: {INSTALL}.") from error
    try:
        answer = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
        files = {file.rfilename: file for file in answer.siblings or () if any(fnmatchcase(file.rfilename, p) for p in patterns)}
        for name, file in sorted(files.items()):
            if not ((path := folder / name).is_file() and path.stat().st_size == file.size):
                say(f"{path}  {(file.size or 0) / 1e6:,.1f} MB")
                huggingface_hub.hf_hub_download(repository, name, revision=answer.sha, local_dir=folder)
    except Exception as error:  # what a network or a server may answer has no end, and differs between versions of the library
        raise _refused(error, repository) from error
    if absent := sorted(pattern for pattern in patterns if "*" not in pattern and pattern not in files and pattern not in MAY_LACK):
        raise Infrastructure(f"{repository} no longer has {', '.join(absent)}.", remedy="Request the files from its authors.")


def _refused(error: Exception, repository: str) -> CachemarkError:
    """An answer of the hub or the system as an error of ours."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return NoAccess(f"{repository} is gated: its terms must be accepted, and no token was sent.",
                        remedy=f"Accept them at https://huggingface.co/{repository}, then run `hf auth login` or set HF_TOKEN.")
    if isinstance(error, RepositoryNotFoundError):
        return NoAccess(f"{repository} does not exist, or is private.",
                        remedy="Check its page; if it is private, run `hf auth login`.")
    if isinstance(error, OfflineModeIsEnabled):
        return Infrastructure("HF_HUB_OFFLINE is set.", remedy="Unset it and rerun the command.")
    if isinstance(error, LocalEntryNotFoundError) or not isinstance(error, OSError) or error.errno is None:
        return Infrastructure(f"{repository} cannot be fetched: {' '.join(str(error).split())[:200]}.",
                              remedy="Rerun the command to continue.")
    return Infrastructure(f"{repository} cannot be written here: {error.strerror}.", remedy="Fix this and rerun the command.")
