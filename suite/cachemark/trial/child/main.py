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
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from ...core import plugins
from ...core.errors import BadBudget, BadKnob, CachemarkError, Unsupported
from ...core.limits import Rates
from ...core.result import Outcome, Status
from ...core.spec import Case
from ...machine.affinity import pin
from ...machine.memory_cap import cap
from ...models.protocol import Request
from ...plan.reuse import Earlier
from ...plan.schema import Planned
from .measure import Bench, Ended, fill, probe, run_arm, run_case, see_arm


def request_json(
    planned: list[Planned], plugin_files: list[str], threads: int, share: tuple[int, int] | None = None, cpus: Sequence[int] = (),
    memory_cap: int = 0, probe: bool = False, paired: bool = False, seen: bool = False,
) -> dict[str, Any]:
    """What the parent sends: cases with their requests, plug-in files, CPU threads, the share of a quality pass where that alone is
    to be made, the processors to keep to, how many bytes of the device may be allocated (0: all), whether cases are only timed,
    whether they are arms of pairs, and whether they are only judged."""
    items = [{"case": p.case.to_json(), "request": _told(p.request), "unmet": p.unmet,
              "folders": [str(folder or "") for folder in (p.shelf, p.beside)], "rates": p.rates and asdict(p.rates),
              "held": p.held and asdict(p.held)}
             for p in planned]
    return {"cases": items, "plugins": plugin_files, "threads": threads, "share": share, "cpus": list(cpus),
            "memory_cap": memory_cap, "probe": probe, "paired": paired, "seen": seen}


def _told(request: Request) -> dict[str, Any]:
    """A request without what is left at its default: the child may be another copy of the code, and one from before a field was added
    would refuse its name."""
    given = {f.name: getattr(request, f.name) for f in fields(request) if getattr(request, f.name) != f.default}
    return {**given, "dtype": str(request.dtype)}


def parse_item(item: dict[str, Any]) -> Planned:
    """The inverse of one entry of :func:`request_json`. Fields of a request that this copy of the code does not know are passed over, as
    those of a case are."""
    dtype = getattr(torch, item["request"]["dtype"].removeprefix("torch."))
    shelf, beside = (Path(folder) if folder else None for folder in item["folders"])
    rates = Rates(**item["rates"]) if item["rates"] else None
    known = {f.name for f in fields(Request)}
    request = Request(**{**{name: value for name, value in item["request"].items() if name in known}, "dtype": dtype})
    held = Earlier(**item["held"]) if item["held"] else None
    return Planned(Case.from_json(item["case"]), request, item["unmet"], shelf, beside, rates, held=held)


def main() -> None:
    """Entry of the child process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pin(tuple(request["cpus"]))
    torch.set_num_threads(request["threads"])
    for file in request["plugins"]:
        plugins.load(file)
    if request["memory_cap"]:
        cap(request["cases"][0]["case"]["device_class"], request["memory_cap"])
    bench: Bench | None = None
    for number, item in enumerate(request["cases"]):
        planned = parse_item(item)
        _say(out, {"start": number})
        alive, share = partial(_say, out, {"alive": number}), request["share"]
        ways: dict[str, Callable[[Planned, Bench], Ended]] = {
            "probe": probe, "seen": partial(see_arm, alive=alive), "paired": partial(run_arm, alive=alive)}
        whole = next((way for key, way in ways.items() if request[key]), partial(run_case, alive=alive))
        work = partial(fill, share=tuple(share), alive=alive) if share else whole
        outcome, artifacts, bench = _attempt(planned, bench, work)
        outcome = replace(outcome, facts={**outcome.facts, **_place(request)})
        encoded = {name: base64.b64encode(content).decode() for name, content in artifacts.items()}
        _say(out, {"done": number, "outcome": outcome.to_json(), "artifacts": encoded})
        if leaves(outcome, request["memory_cap"]) and number + 1 < len(request["cases"]):
            _say(out, {"leaves": number})
            return


def _attempt(
    planned: Planned, bench: Bench | None, work: Callable[[Planned, Bench], Ended]
) -> tuple[Outcome, dict[str, bytes], Bench | None]:
    """Every failure of the code under test becomes an outcome."""
    try:
        bench = bench or Bench.load(planned)
        return *work(planned, bench), bench
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
    """Whether the next case needs a fresh process: after an error a CUDA context may be of no use any more, and where memory ran out
    it may be in pieces."""
    return outcome.status in (Status.OOM, Status.ERROR) and (outcome.case.device_class != "cpu" or bool(memory_cap))


def _place(request: dict[str, Any]) -> dict[str, Any]:
    """On what a case ran, as far as this process decides it."""
    cap = {"memory_cap": request["memory_cap"]} if request["memory_cap"] else {}
    return {"threads": torch.get_num_threads(), "cpus": request["cpus"], **cap}


def _say(out: IO[str], message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _end_with_parent() -> None:
    """Nothing more comes through standard input, so its end means that the parent is gone."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
