"""The devices of a Ray cluster: each trial is a task with one GPU or the threads of a CPU trial."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.errors import Infrastructure
from ...core.limits import Rates
from ...core.result import Environment, Status
from ...machine.environment import environment
from ...machine.rates import rates
from ...plans.expand import Planned
from ...plugins.loading import read
from ..identity import identify
from ..request import TrialRequest
from ..supervisor import Admit, Advanced, Finished, Started, always, unheard, unmeasured
from .local import Groups, Local, Part, local

PATIENCE = 10.0  # seconds for a cluster to answer
Packed = Mapping[str, tuple[str, Mapping[str, bytes]]]  # plug-ins by path, as :attr:`cachemark.plugins.sources.Sources.packed` gives them
REDOS = 1  # times that the cases of a worker that died run again: it may have died of them
AHEAD = 2  # tasks in hand for each trial that the cluster runs at once: no worker idles, and a deadline still decides late


@dataclass
class Ray:
    """Executor over an existing cluster. Workers never open the store: results come back through Ray."""

    ray: Any
    cuda: bool = False
    notes: Sequence[str] = ()
    _kind: str = ""

    def environment(self, device: str, threads: int) -> Environment:
        """Return the environment of a worker. Results of workers with other numerics are refused later."""
        result: Environment = self.ray.get(self._task(environment, threads).remote(device, threads))
        self._kind = result.fingerprint
        return result

    def rates(self, device: str, threads: int, dtypes: Iterable[str]) -> dict[str, Rates]:
        result: dict[str, Rates] = self.ray.get(self._task(rates, threads).remote(device, threads, list(dtypes)))
        return result

    def run(
        self, groups: Groups, request: TrialRequest, started: Started, admit: Admit = always, advanced: Advanced = unheard
    ) -> Iterator[Finished]:
        """Yield every case once, without progress.

        The cases of a task whose worker or node died run again, ``REDOS`` times at most; then they end as errors."""
        task, code = self._task(trials, request.threads), {file: read(file).packed for file in request.plugins}
        waiting: dict[Any, list[Planned]] = {}
        remaining, deaths = [list(group) for group in groups], Counter[str]()
        while remaining or waiting:
            everything = self.ray.cluster_resources()
            width = max(1, int(everything.get("GPU", 0) if self.cuda else everything.get("CPU", 0) / request.threads))
            while remaining and len(waiting) < AHEAD * width:
                group = list[Planned]()
                for planned in remaining.pop(0):
                    if reason := admit(planned, bool(group)):
                        yield unmeasured(planned, Status.NOT_REACHED, reason)
                    else:
                        group.append(planned)
                if group:
                    waiting[task.remote([(group, request)], code)] = group
                    started(group[0])
            if waiting:
                (done, *_), _ = self.ray.wait(list(waiting), num_returns=1)
                group = waiting.pop(done)
                finished = list(self._received(done, group))
                deaths[group[0].case.key] += (died := any(each.lost for each in finished))
                if died and deaths[group[0].case.key] <= REDOS:
                    remaining.append(group)
                else:
                    yield from finished

    def identify(self, request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
        self._kind = self._kind or self.environment(device, request.threads).fingerprint
        result: tuple[Environment, dict[str, Any]] = self.ray.get(self._task(identify, request.threads).remote(request, device))
        return result

    def in_turn(self, parts: Sequence[Part]) -> list[list[Finished]]:
        """Run every group once, all in one task and so on one device."""
        threads = max(request.threads for _, request in parts)
        code = {file: read(file).packed for _, request in parts for file in request.plugins}
        done = self._task(trials, threads).remote([(list(group), request) for group, request in parts], code, in_turn=True)
        results = iter(list(self._received(done, [planned for group, _ in parts for planned in group])))
        return [[next(results) for _ in group] for group, _ in parts]

    def _task(self, function: Any, threads: int) -> Any:
        needs = {"num_gpus": 1} if self.cuda else {"num_cpus": threads}
        return self.ray.remote(max_retries=0, **needs)(function)

    def _received(self, done: Any, group: Sequence[Planned]) -> Iterator[Finished]:
        try:
            kind, node, finished = self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            died = not isinstance(error, self.ray.exceptions.RayTaskError)  # else the task itself raised it
            for planned in group:
                yield unmeasured(planned, Status.ERROR, f"The task on the cluster failed: {error}")._replace(lost=died)
            return
        if kind == self._kind:
            yield from finished
            return
        log = f"It was measured on a worker of another kind (numerics {kind} on {node}) than the first one ({self._kind})."
        planned_of = {planned.case.key: planned for planned in group}
        yield from (unmeasured(planned_of[each.outcome.case.key], Status.ERROR, log) for each in finished)


def trials(parts: list[Part], code: Packed, *, in_turn: bool = False) -> tuple[str, str, list[Finished]]:
    """Run groups of cases on a worker's device; return its numerics fingerprint, name and results.

    ``in_turn``: as :meth:`Executor.in_turn` does, each group once."""
    device, threads = parts[0][0][0].case.device_class, max(request.threads for _, request in parts)
    for folder in {request.code for _, request in parts if request.code}:
        if not Path(folder, "cachemark").is_dir():
            raise Infrastructure(f"{platform.node()} does not see {folder}.", remedy="Compare commits on a file system that workers share.")
    with _workplace(device, threads, code) as (places, files):
        here = [(group, replace(request, plugins=files, node=platform.node())) for group, request in parts]
        results = places.in_turn(here) if in_turn else [places.run([group], request, lambda planned: None) for group, request in here]
        return places.environment(device, threads).fingerprint, platform.node(), [finished for group in results for finished in group]


@contextmanager
def _workplace(device: str, threads: int, code: Packed) -> Iterator[tuple[Local, tuple[str, ...]]]:
    """Yield a local executor over the device that Ray has reserved, and the files of the plug-ins.

    The device is pinned, leased and watched as on a single machine. Plug-ins are sent with all their files, since a worker need not see
    them; only the trial itself imports them."""
    gpus = device != "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES", "").strip(",")
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, (named, contents) in enumerate(code.values()):
            for name, content in contents.items():
                path = Path(folder) / str(number) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            files.append(str(Path(folder) / str(number) / named))
        with local(device, threads, names=["all"] if gpus else []) as places:
            yield places, tuple(files)


@contextmanager
def cluster(address: str, device: str) -> Iterator[Ray]:
    """Yield an executor over the cluster at ``address`` (``auto``, ``host:port`` or ``ray://…``).

    Raises Infrastructure if none answers or Ray is not installed."""
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise Infrastructure("--executor ray needs Ray, which is not installed.", remedy="Run: pip install 'cachemark[ray]'") from None
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _silent(address, error) from None
    try:
        if device != "cpu" and not ray.cluster_resources().get("GPU"):
            raise Infrastructure("The Ray cluster has no GPU.", remedy="Start workers with --num-gpus, or use --device cpu.")
        yield Ray(ray, device != "cpu")
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise Infrastructure if nothing listens at a host and port: Ray itself would wait for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _silent(address, error) from None


def _silent(address: str, error: Exception) -> Infrastructure:
    return Infrastructure(f"No Ray cluster answers at {address!r}: {error}.",
                          remedy="Start one (ray start --head), or set RAY_ADDRESS.")
