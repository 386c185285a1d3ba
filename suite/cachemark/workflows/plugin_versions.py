"""Two versions of a plug-in as sides of a comparison: files, or commits of its repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..core.errors import BadPlugin
from ..core.git import git
from ..plans.planned import Prepared
from ..plugins import loading
from ..trial.request import TrialRequest
from .git import checkouts


@contextmanager
def version_requests(trial: TrialRequest, versions: tuple[str, str]) -> Iterator[tuple[TrialRequest, TrialRequest]]:
    """Yield the request of each side with its version of the plug-in; checkouts last that long.

    A version is a Python file, or a commit of the repository around the plug-in. Raises BadPlugin without exactly one plug-in.
    """
    if len(trial.plugins) != 1:
        raise BadPlugin(f"{len(trial.plugins)} plug-ins are loaded, and --versions compares two versions of one.",
                        remedy="Name the file of the plug-in once: --plugin FILE --versions OLD NEW.")
    file = Path(trial.plugins[0]).resolve()
    commits = [name for name in versions if not Path(name).is_file()]
    repository = Path(git(file.parent, "rev-parse", "--show-toplevel")) if commits else file.parent
    with checkouts(repository, commits) as folders:
        of_commit = dict(zip(commits, (folder / file.relative_to(repository) for folder in folders), strict=True))
        files = [str(of_commit.get(name) or Path(name).resolve()) for name in versions]
        yield replace(trial, plugins=(files[0],)), replace(trial, plugins=(files[1],))


def sides_of_versions(
    planned: Mapping[str, Prepared], loaded: Sequence[str], requests: tuple[TrialRequest, TrialRequest],
) -> tuple[dict[str, Prepared], dict[str, Prepared]]:
    """Return the cases that use the ``loaded`` plug-in, once for each version of it.

    Raises BadPlugin for two equal versions.
    """
    (own,) = (loading.read(file).digest for file in loaded)
    old, new = (loading.read(request.plugins[0]).digest for request in requests)
    if old == new:
        raise BadPlugin("Both versions of the plug-in are equal.", remedy="Name two versions that differ.")
    users = {name: each for name, each in planned.items() if own in each.needs}
    before, after = ({name: replace(each, needs=tuple(digest if needed == own else needed for needed in each.needs))
                      for name, each in users.items()} for digest in (old, new))
    return before, after
