"""Download published weights; only :func:`fetch` and :func:`fetch_named` use the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ..core.errors import CachemarkError, Infrastructure, NoAccess, UnknownName, Unsupported, unknown
from ..models import hub
from ..models.hub import INSTALL, HubName
from ..models.publications import Publication, of_model, publications

FOLDER = "weights"  # below the working directory, unless another is named
MAY_LACK = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json", "spiece.model")  # a tokenizer is some of these


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


def fetch_named(model: str, weights: str = "", decoder_weights: str = "", say: Callable[[str], None] = lambda line: None) -> dict[str, str]:
    """Download weights that are named by their repository into the cache of huggingface_hub.

    Return all paths by key.

    Files in the cache are not downloaded again. A text encoder that the model reads from a repository of its own is fetched too. Raises
    UnknownName for a repository, revision or file that does not exist, and the errors of :func:`fetch`.
    """
    weights, decoder_weights = hub.complete(model, weights, decoder_weights)
    for key, text in (("weights", weights), ("decoder_weights", decoder_weights)):
        if hub.is_hub(text):
            name = HubName.parse(text)
            _from_hub(name.repository, None, hub.needed(model, key, name)[1], say, name.revision)
    if hub.is_hub(weights):
        for encoder in hub.encoders(model):
            _from_hub(encoder.origin.name, None, encoder.files, say)
    paths = zip(("weights", "decoder_weights"), hub.located(model, weights, decoder_weights), strict=True)
    return {key: path for key, path in paths if path}


def _from_hub(
    repository: str, folder: Path | None, patterns: Iterable[str], say: Callable[[str], None], revision: str = hub.REVISION,
) -> None:
    """Download matching, missing files of a repository to ``folder`` or the cache (None)."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise Unsupported("Weights are fetched by the library huggingface_hub, which is not installed.",
                          remedy=f"Get it with: {INSTALL}.") from error
    try:
        answer = huggingface_hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = {file.rfilename: file for file in answer.siblings or () if any(fnmatchcase(file.rfilename, p) for p in patterns)}
        for name, file in sorted(files.items()):
            path = None if folder is None else folder / name
            if path is None or not (path.is_file() and path.stat().st_size == file.size):
                say(f"{path or f'{repository}: {name}'}  {(file.size or 0) / 1e6:,.1f} MB")
                download = partial(huggingface_hub.hf_hub_download, repository, name, revision=answer.sha if folder else revision,
                                   local_dir=folder)
                if file.size not in (None, Path(download()).stat().st_size):  # the library trusts a file that was cut soon after it
                    download(force_download=True)
    except Exception as error:  # errors of networks and servers are many, and differ between versions of the library
        raise _refused(error, repository, revision) from error
    if absent := sorted(pattern for pattern in patterns if "*" not in pattern and pattern not in files and pattern not in MAY_LACK):
        if folder is None:
            raise unknown(f"file of {repository}", absent[0], [file.rfilename for file in answer.siblings or ()])
        raise Infrastructure(f"{repository} no longer has {', '.join(absent)}.", remedy="Request the files from its authors.")


def _refused(error: Exception, repository: str, revision: str) -> CachemarkError:
    """An answer of the hub or the system as an error of ours."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return NoAccess(f"{repository} is gated: its terms must be accepted, and no token was sent.",
                        remedy=f"Accept them at https://huggingface.co/{repository}, then run `hf auth login` or set HF_TOKEN.")
    if isinstance(error, RepositoryNotFoundError):
        return NoAccess(f"{repository} does not exist, or is private.",
                        remedy="Check its page; if it is private, run `hf auth login`.")
    if isinstance(error, RevisionNotFoundError):
        return UnknownName(f"{repository} has no revision {revision!r}.",
                           remedy=f"Name a branch, tag or commit of https://huggingface.co/{repository}/commits.")
    if isinstance(error, HFValidationError):
        return UnknownName(f"{repository!r} is not a repository of Hugging Face.", remedy="Write hf:org/repo[@revision][:file].")
    if isinstance(error, OfflineModeIsEnabled):
        return Infrastructure("HF_HUB_OFFLINE is set.", remedy="Unset it and rerun the command.")
    if isinstance(error, LocalEntryNotFoundError) or not isinstance(error, OSError) or error.errno is None:
        return Infrastructure(f"{repository} cannot be fetched: {' '.join(str(error).split())[:200]}.",
                              remedy="Rerun the command to continue.")
    return Infrastructure(f"{repository} cannot be written here: {error.strerror}.", remedy="Fix this and rerun the command.")
