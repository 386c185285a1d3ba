"""Files edited by people, and files of other programs: baselines, registers of incidents, benchmarks."""

import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .attack import PWNED, Attack
from .ground import BASELINE, BENCHMARKS, REGISTER, STORE, edited, replaced, written

DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000
CHECKED = ("check", "--baseline", BASELINE, "--store", STORE)
LIST = ("incident", "list", "--register", REGISTER)
CHECK = ("check", "--store", STORE, "--incidents", REGISTER)
CASE = ("outcomes", 0, "case")


def put(*keys: str | int, value: Any) -> Callable[[Any], None]:
    """Return a change: the value at these keys."""
    return lambda data: operator.setitem(functools.reduce(operator.getitem, keys[:-1], data), keys[-1], value)


def broken(name: str, file: str, arguments: tuple[str, ...], content: str | bytes, slug: str = "bad-baseline") -> Attack:
    """Return an attack with a file that is broken as a whole."""
    return Attack(f"{file}: {name}", arguments, slug, (Path(file).name,), prepare=written(file, content))


def baseline(*keys: str | int, value: Any, says: str = "") -> Attack:
    """Return an attack with one odd value in a baseline."""
    place = ".".join(map(str, keys))
    return Attack(f"a baseline with {place} = {str(value)[:9]!r}", CHECKED, "bad-baseline", (BASELINE, says or place),
                  prepare=edited(BASELINE, put(*keys, value=value)))


def incident(field: str, value: Any) -> Attack:
    """Return an attack with one odd field in the register."""
    return Attack(f"an incident whose {field} is {str(value)[:12]!r}", LIST, "bad-baseline", (REGISTER, f"incidents.0.{field}"),
                  prepare=edited(REGISTER, put("incidents", 0, field, value=value)))


def proposed(folder: Path) -> None:
    """Replace the accepted baseline by a text of somebody in the folder of proposals."""
    (accepted,) = (folder / "baselines" / "accepted").iterdir()
    accepted.rename(folder / "baselines" / "gone")
    (folder / "p" / accepted.name).mkdir(parents=True)
    (folder / "p" / accepted.name / "dots.json").write_text("nobody has a copy of this")


def dangling(folder: Path) -> None:
    """Replace the baseline by a link to nothing."""
    (folder / BASELINE).unlink()
    (folder / BASELINE).symlink_to("nowhere")


ROWS = [
    broken("nested 5000 deep", BASELINE, CHECKED, DEEP),
    broken("a pointer of Git LFS", BASELINE, CHECKED, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    Attack("a baseline with two results for one case", CHECKED, "bad-baseline", (BASELINE, "two results"),
           prepare=edited(BASELINE, lambda data: data["outcomes"].append(data["outcomes"][-1]))),
    baseline("outcomes", 0, "case", "sampling", "temperature", value=-1.0),
    baseline("outcomes", 0, "case", "sampling", "top_p", value=7.0),
    baseline("outcomes", 0, "case", "grid", value=[-1, 3]),
    baseline("outcomes", 0, "case", "batch", value=0),
    Attack("a broken register where nothing is worse", CHECK, "bad-baseline", (REGISTER,), prepare=written(REGISTER, "{")),
    baseline("meta", "expires", value="9999999-01-01"),
    baseline("outcomes", 0, "status", value="fine"), baseline("outcomes", 0, "samples", "latency", value=[-1.0, 0.1]),
    baseline("outcomes", 0, "samples", "latencyy", value=[1.0], says="Did you mean"), baseline(*CASE, "batch", value=10**30),
    Attack("a baseline with NaN", CHECKED, "bad-baseline", (BASELINE, "line"), prepare=lambda folder: (folder / BASELINE).write_text(
        (folder / BASELINE).read_text().replace('"seconds": ', '"seconds": NaN, "was": ', 1))),
    Attack("an accepted baseline named as a command", ("baseline", "list"), code=0, says=(": :error::pwned/x",),
           prepare=written(f"baselines/accepted/{PWNED}/x.json", "{")),
    Attack("a case in a baseline that is a command", CHECKED, code=4, says=("pwned",),
           prepare=edited(BASELINE, put(*CASE, "method", value=f"\n{PWNED}"))),
    *(baseline(*CASE, "evaluation", value=value, says=says) for value, says in (
        ({"metrics": [1]}, "define no metrics"), ({"batch": "x"}, "evaluation.batch"), ({"batch": 1.5}, "batch = 1.5"),
        ({"batch": True}, "batch = "), ({"reference_samples": 0}, "samples = 0"))),
    baseline("outcomes", 0, "samples", "kl", value=[1e308] * 4, says="whose mean is no number"), baseline("meta", "series", value=10**30),
    *(Attack(f"a key that is twice in {file}", arguments, "bad-baseline", ("is there twice",), prepare=replaced(file, old, new))
      for file, arguments, old, new in ((BASELINE, CHECKED, '"latency": [', '"latency": [1.0, 2.0], "latency": ['),
                                        (REGISTER, LIST, '"state": "new"', '"state": "new", "state": "accepted"'))),
    Attack("a commit in a baseline that is an option", ("baseline", "commit", *CHECKED[1:]), "bad-baseline", ("is no commit",),
           prepare=edited(BASELINE, put("code", "commit", value="--output=x"))),
    Attack("a proposal over a text", ("check", "--store", STORE, "--propose", "p"), "error", ("is not a baseline",), prepare=proposed),
    Attack("a baseline that is a dangling link", CHECKED, "bad-baseline", ("Known: bench.json, incidents.json. Make",), prepare=dangling),
    broken("half", REGISTER, LIST, '{"format": 3, "incid'), incident("until", "9999999-01-01"), incident("key", PWNED),
    incident("change", 1e300),
    Attack("two incidents of one key", LIST, "bad-baseline", ("two incidents",),
           prepare=edited(REGISTER, lambda register: register["incidents"].append(register["incidents"][0]))),
    Attack("a register of format 2", LIST, "bad-baseline", ("format = 2", "delete"), prepare=edited(REGISTER, put("format", value=2))),
    Attack("a register of format 99", LIST, "bad-baseline", ("format = 99",), prepare=edited(REGISTER, put("format", value=99))),
    broken("not text", BENCHMARKS, ("ingest", "pytest-benchmark", BENCHMARKS, "--store", STORE), b"\xff\xfe\x00", "bad-results"),
]
