"""A trial: one fresh process that runs cases of one model and reports each as a line of JSON.

``python -m cachemark.trial.child.main`` reads a request from standard input and writes to the descriptor that was standard
output; whatever else is printed goes to standard error. When its parent dies, the pipe closes and the trial ends.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import IO, Any

import torch

from ...core import plugins
from ...core.errors import BadBudget, BadKnob, CachemarkError, Unsupported
from ...core.result import Outcome, Status
from ...machine.affinity import pin
from ...machine.memory import cap
from ...plans.expand import Planned
from ..request import Task, TrialRequest
from .bench import Bench
from .measure import Ended, fill, probe, run_arm, run_case, see_arm


def main() -> None:
    """Entry of the child process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        request = TrialRequest.from_json(json.loads(sys.stdin.readline()))
    except CachemarkError as error:
        sys.exit(str(error))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pin(request.cpus)
    torch.set_num_threads(request.threads)
    for file in request.plugins:
        plugins.load(file)
    if request.memory_cap:
        cap(request.cases[0].case.device_class, request.memory_cap)
    works: dict[Task, Callable[[Planned, Bench], Ended]] = {
        Task.CASE: run_case, Task.TIMES: run_arm, Task.IMAGES: see_arm, Task.PROBE: probe,
        Task.FEATURES: partial(fill, share=request.share),
    }
    bench: Bench | None = None
    for number, planned in enumerate(request.cases):
        _say(out, {"start": number})
        outcome, artifacts, bench = _attempt(planned, bench, works[request.task], partial(_say, out, {"alive": True}))
        outcome = replace(outcome, facts={**outcome.facts, **_place(request)})
        encoded = {name: base64.b64encode(content).decode() for name, content in artifacts.items()}
        _say(out, {"done": number, "outcome": outcome.to_json(), "artifacts": encoded})
        if leaves(outcome, request.memory_cap) and number + 1 < len(request.cases):
            _say(out, {"leaves": number})
            return


def _attempt(
    planned: Planned, bench: Bench | None, work: Callable[[Planned, Bench], Ended], alive: Callable[[], None]
) -> tuple[Outcome, dict[str, bytes], Bench | None]:
    """Every failure of the code under test becomes an outcome."""
    try:
        bench = bench or Bench.load(planned, alive)
        began = time.perf_counter()
        outcome, artifacts = work(planned, bench)
        return replace(outcome, seconds=time.perf_counter() - began if outcome.ok else 0.0), artifacts, bench
    except (Unsupported, BadBudget, BadKnob) as error:
        status, log = Status.UNSUPPORTED, str(error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        status, log = Status.OOM, f"{type(error).__name__}: {error}"
    except CachemarkError as error:
        status, log = Status.ERROR, str(error)
    except Exception as error:
        exhausted = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        status, log = (Status.OOM if exhausted else Status.ERROR), traceback.format_exc()
    return Outcome(planned.case, status, log=log.strip() or "No reason was given."), {}, bench


def leaves(outcome: Outcome, memory_cap: int) -> bool:
    """True where the next case needs a fresh process: after an error a CUDA context may be of no use any more, and where memory ran out
    it may be in pieces."""
    return outcome.status in (Status.OOM, Status.ERROR) and (outcome.case.device_class != "cpu" or bool(memory_cap))


def _place(request: TrialRequest) -> dict[str, Any]:
    """Facts about the process that a case ran in: threads, processors and the limit of its memory."""
    cap = {"memory_cap": request.memory_cap} if request.memory_cap else {}
    return {"threads": torch.get_num_threads(), "cpus": list(request.cpus), **cap}


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _end_with_parent() -> None:
    """Nothing more comes through standard input, so its end means that the parent is gone."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
