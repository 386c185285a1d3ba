"""A plug-in that tells everything it knows, and every output there is: no canary of :mod:`hostile.secrets` stands in any."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachemark.core import secrets as masking
from support import examples
from support.stages import Stage

from . import ground, kinds, secrets
from .attack import Ending
from .process import CopiedCommandLine
from .secrets import CANARIES, ENVIRONMENT

PLAN, PLUGIN, KEY, STORE = ground.PLAN, ground.PLUGIN, ground.KEY, "told.sqlite"
TEXTS = [canary.text for canary in CANARIES]
TELLS = '''

import base64
import json
import sys

from cachemark.decoders.jacobi import Jacobi

with open(__file__.replace("dot.py", "texts.json")) as file:
    TEXTS = json.load(file)
BASIC = [base64.b64encode(("user:" + text).encode()).decode() for text in TEXTS[:HELD]]  # the others are nobody's but their teller's


def written(texts):
    return [" and ".join(texts[start:start + 3]) for start in range(0, len(texts), 3)]


@registry.methods.add("tells")
@dataclass
class Tells(Calm):
    __doc__ = TEXTS[0] + " is told."
    name: ClassVar[str] = "tells"
    source: ClassVar[str] = "a letter of " + TEXTS[1] + " by " + TEXTS[30]
    footnotes: ClassVar[tuple[str, ...]] = (*written(TEXTS), *written(BASIC[:9]))


@registry.decoders.add("mutters")
@dataclass
class Mutters(Jacobi):
    __doc__ = TEXTS[3] + " is muttered."
    name: ClassVar[str] = "mutters"
    source: ClassVar[str] = "a letter of " + TEXTS[4] + " by " + TEXTS[31]
    footnotes: ClassVar[tuple[str, ...]] = written(TEXTS)


@registry.methods.add("cries")
@dataclass
class Cries(Calm):
    name: ClassVar[str] = "cries"

    def begin(self, layout, sites, memory):
        raise RuntimeError("\\n".join([*TEXTS, *BASIC, repr(TEXTS), "::error::" + TEXTS[2] + " \\x1b[31m"]))


@registry.methods.add("dies")
@dataclass
class Dies(Calm):
    name: ClassVar[str] = "dies"

    def begin(self, layout, sites, memory):
        print("\\n".join(TEXTS), file=sys.stderr, flush=True)
        os._exit(3)
'''


@dataclass(frozen=True)
class Step:
    """A command and its exit code. ``trials``: it imports the plug-in or measures. ``daily``: `make test` calls it; `make test-slow` calls
    all, those that can print JSON a second time with ``--json``."""

    name: str
    arguments: tuple[str, ...]
    code: int = 0
    trials: bool = False
    daily: bool = False

    @property
    def ways(self) -> list[tuple[str, ...]]:
        given = (*self.name.split(), *self.arguments)
        return [given, (*given, "--json")] if self.name in JSON else [given]


def _step(name: str, line: str, *more: str, code: int = 0, trials: bool = False, daily: bool = False) -> Step:
    words = [word.replace("+", " ") for word in line.split()]
    stored = ("--store", STORE) if "--store" in OPTIONS[name] and "--store" not in words else ()
    return Step(name, (*words, *more, *stored), code, trials, daily)


OPTIONS = {name: {option for parameter in command.params for option in parameter.opts} for name, command in kinds.commands()}
JSON = {name for name, options in OPTIONS.items() if "--json" in options}
RUN = f"{PLAN} --plugin {PLUGIN} --threads 1"
UNSURE = -1  # of a command that is given too little time to tell
JUDGED = "--run 1 --baseline old.json --incidents incidents.json"
STEPS = (  # in this order
    _step("run", f"{RUN} --report page.html", trials=True, daily=True),
    _step("run", f"{RUN} --explain", trials=True), _step("run", f"{RUN} --dry-run", trials=True),
    _step("compare", f"{RUN} --arms tells+1/2 cries+1/2 --no-aa --images 3 --minutes 0.02", code=UNSURE, trials=True),
    _step("show", "--run 1"), _step("show", "--run 1 tells+1/2", daily=True), _step("show", "--run 1 cries+1/2"),
    _step("advise", f"--model dot --gpu cpu --batch 2 --plugin {PLUGIN}", code=2, trials=True),
    _step("list", f"methods --plugin {PLUGIN}", trials=True), _step("list", f"decoders --plugin {PLUGIN}", trials=True),
    _step("list", "runs"),
    _step("ingest pytest-benchmark", "bench.json", daily=True),
    _step("baseline save", "--run 1", "--reason", TEXTS[0], daily=True),
    _step("baseline promote", "--run 1", "--reason", TEXTS[1], daily=True),
    _step("baseline rebase", "--run 1", "--reason", TEXTS[2], code=2), _step("baseline list", ""),
    _step("baseline diff", "old.json --run 1"), _step("baseline commit", "--baseline old.json --run 1"),
    _step("incident acknowledge", f"{KEY} --register incidents.json --until 2999-01-01", "--who", TEXTS[3], "--link", TEXTS[-1],
          daily=True),
    _step("incident accept", f"{KEY} --register incidents.json", "--who", TEXTS[5]),
    _step("incident list", "--register incidents.json", daily=True),
    _step("check", f"{JUDGED} --threshold 1", code=1, daily=True),
    _step("report", f"again.html {JUDGED}"), _step("report", f"public.html --public {JUDGED}", daily=True),
    _step("report", "--site site"), _step("report", "--site public --public"),
    _step("export markdown", "--run 1"), _step("export markdown", "run.md --run 1"), _step("export latex", "--run 1"),
    _step("export figures", "--run 1"), _step("export csv", "run.csv --run 1", daily=True), _step("export csv", "--samples --run 1"),
    _step("export parquet", "run.parquet --run 1"), _step("export junit", JUDGED), _step("export junit", f"junit.xml {JUDGED}", daily=True),
    _step("export github", f"--summary summary.md --comment comment.md {JUDGED}", daily=True),
    _step("export asv", "--repository repository --changed"),
    _step("export grid", "grid.png --run 1"),
    _step("db check", ""), _step("db merge", f"{STORE} --store other.sqlite", daily=True), _step("db repair", "--store other.sqlite"),
    _step("db prune", "--store other.sqlite --policy keep-last:1 --yes", code=2), _step("db migrate", "--store other.sqlite"),
    _step("calibrate", "tells dot --samples 1", code=2),
    _step("doctor", "--quick"), _step("test-method", "fewer_steps"), _step("test-model", PLUGIN),
    _step("test-metric", PLUGIN, code=2), _step("new", "method mine"),
    _step("weights list", ""), _step("weights fetch", "mar-b", "--to", f"{TEXTS[0]}", code=2, daily=True),
    _step("weights verify", "var-d16", "--weights", TEXTS[1], code=2), _step("weights verify", "var-d16", "--from", TEXTS[2], code=2),
    _step("weights convert", "var-d16 --to made", "--weights", TEXTS[3], code=2),
)
ELSEWHERE = {"bisect": "prints what compare prints", "roofline": "is arithmetic, and of a store prints numbers and a device"}


@pytest.fixture(scope="module")
def command_line() -> Iterator[CopiedCommandLine]:
    with CopiedCommandLine() as copied:
        yield copied


@pytest.fixture(scope="module")
def furnished(measured: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with canaries in every file that a person writes."""
    here = ground.furnish(measured, tmp_path_factory.mktemp("secrets") / "furnished")
    shutil.rmtree(here / "baselines")
    (here / "texts.json").write_text(json.dumps(TEXTS))
    (here / PLUGIN).write_text(examples.MODEL + TELLS.replace("HELD", str(len(ENVIRONMENT))))
    text = (here / PLAN).read_text().replace('"streaming"', '"streaming", "tells", "cries", "dies"')
    text = text.replace("batch = 2", 'batch = 2\ndecoders = ["sequential", "mutters"]', 1)
    (here / PLAN).write_text(text.replace('name = "dots"', f'name = "dots"\ndescription = {json.dumps("; ".join(TEXTS[6:]))}', 1))
    told = " ".join(TEXTS)
    ground.edited(ground.BASELINE, _better)(here)
    (here / ground.BASELINE).rename(here / "old.json")
    whose = {"who": told[:900].replace("\n", " "), "link": TEXTS[-1], "worst": 1e6}  # so that no busy machine makes it news again
    ground.edited(ground.REGISTER, lambda data: data["incidents"][0].update(whose))(here)
    (here / ground.OWNERS).write_text(f'[[owner]]\nname = "{TEXTS[2]} {TEXTS[-2]}"\nmethod = "streaming"\n')
    bench = json.loads((here / ground.BENCHMARKS).read_text())
    bench["machine_info"]["node"] = told
    bench["benchmarks"][0].update(extra_info={"env": ENVIRONMENT}, options={"url": TEXTS[-3]})
    (here / "bench.json").write_text(json.dumps(bench))
    return here


def _better(data: dict[str, Any]) -> None:
    """A baseline that says more than it should, and of less memory than methods take, so that whoever owns them is paged."""
    data["code"].update(commit="3fcb7f085b31", dirty=False)
    data["meta"].update(reason=" ".join(TEXTS), more={"by": " ".join(TEXTS)})
    for samples in (outcome["samples"] for outcome in data["outcomes"]):
        if "kv_allocated" in samples:
            samples["kv_allocated"] = [value / 2 for value in samples["kv_allocated"]]


def contents(path: Path) -> Iterator[bytes]:
    """A file as it is, and what is packed in it."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        import pandas

        yield pandas.read_parquet(path).to_json(force_ascii=False).encode()


# -- the table ------------------------------------------------------------------------------------------------------------
def test_there_are_canaries_of_every_kind() -> None:
    assert len(CANARIES) >= 40
    assert len({canary.word for canary in CANARIES}) == len(CANARIES)
    for canary in CANARIES:
        plain = canary.text.encode()
        for content in (plain, base64.b64encode(plain), base64.b64encode(b"user:" + plain)):
            assert secrets.found_in(content) == [canary.variable or canary.text]


def test_every_command_has_a_step() -> None:
    """A new command, such as an exporter, needs a step, or a reason why it has none."""
    assert OPTIONS.keys() == {step.name for step in STEPS} | ELSEWHERE.keys()


# -- the run --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_output_holds_a_canary(everything: bool, furnished: Path, command_line: CopiedCommandLine, tmp_path: Path) -> None:
    here = ground.lay_out(furnished, tmp_path / "ground")
    (here / "repository").symlink_to(Path(__file__).parents[2])
    given = {path: path.read_bytes() for path in here.parent.rglob("*") if path.is_file()}
    faults, first = [], None
    for step in (step for step in STEPS if everything or step.daily):
        for way in step.ways if everything else step.ways[:1]:
            end = command_line.call(here.parent, way, ENVIRONMENT, trials=step.trials)
            first = first or end
            leaked = secrets.found_in(f"{end.stdout}\n{end.stderr}".encode())
            if leaked or end.code not in (step.code, *((1, 3, 4) if step.code == UNSURE else ())) or end.outside:
                faults.append((way, leaked, end.code, end.outside, end.stdout[-500:], end.stderr[-2000:]))
    assert faults == []
    written = [path for path in here.parent.rglob("*") if path.is_file() and given.get(path) != path.read_bytes()]
    assert {here / name for name in (STORE, "page.html", "incidents.json", "run.csv", "comment.md", "other.sqlite")} <= set(written)
    assert {str(path): told for path in written for content in contents(path) if (told := secrets.found_in(content))} == {}
    assert first is not None
    _stars_stand_in_their_place(here, first)


def _stars_stand_in_their_place(here: Path, run: Ending) -> None:
    """Else outputs would be without canaries because they are without anything."""
    with closing(sqlite3.connect(here / STORE)) as store:
        (log,) = store.execute("SELECT log FROM outcome WHERE log LIKE 'Traceback%'").fetchone()
        assert log.count("***") > len(CANARIES)
        (died,) = store.execute("SELECT log FROM outcome WHERE log LIKE '%exit code 3%'").fetchone()
        assert died.count("***") > len(CANARIES) / 2
        assert store.execute("SELECT count(*) FROM outcome WHERE facts LIKE '%*** and ***%'").fetchone()[0] > 0
        (muttered,) = store.execute("SELECT json_extract(facts, '$.decoder.source') AS said FROM outcome WHERE said NOT NULL").fetchone()
        assert muttered.startswith("a letter of *** by ")
        assert store.execute("SELECT count(*) FROM run WHERE plan_json LIKE '%***%'").fetchone()[0] > 0
    for name in ("page.html", "incidents.json", "run.csv"):
        assert "***" in (here / name).read_text(), name
    assert ": :error" in run.stderr
    assert not re.search(r"^\s*::|\x1b", run.stderr, re.MULTILINE)


# -- what names a case ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("plugin", "edit", "says"), [
    ("", ('"streaming"', '{ name = "held", note = "%s" }'), "knobs holds the value of DB_PASS"),
    ("", ('"streaming"', '"held"'), "knobs holds the value of DB_PASS"),
    ("", ('"streaming"', '{ name = "held", note = "https://u:%s@h/x" }'), "knobs holds"),
    ("", ("batch = 2", 'batch = 2\ndecoders = ["heard"]'), "decoder holds the value of DB_PASS"),
])  # fmt: skip
def test_a_knob_that_holds_a_secret_is_refused(
    plugin: str, edit: tuple[str, str], says: str, furnished: Path, command_line: CopiedCommandLine, tmp_path: Path,
) -> None:
    here = ground.lay_out(furnished, tmp_path / "ground")
    secret = CANARIES[0]
    assert secret.variable == "DB_PASS"
    (here / PLUGIN).write_text(examples.MODEL + f'''
@registry.methods.add("held")
@dataclass
class Held(Calm):
    name: ClassVar[str] = "held"
    note: str = "{secret.text}"


from cachemark.decoders.jacobi import Jacobi


@registry.decoders.add("heard")
@dataclass
class Heard(Jacobi):
    name: ClassVar[str] = "heard"
    note: str = "{secret.text}"
''')
    plan = (here / PLAN).read_text().replace(', "tells", "cries", "dies"', "").replace('\ndecoders = ["sequential", "mutters"]', "")
    (here / PLAN).write_text(plan.replace(edit[0], edit[1].replace("%s", secret.text)))
    end = command_line.call(here.parent, ("run", PLAN, "--plugin", PLUGIN, "--store", "new.sqlite"), ENVIRONMENT, trials=True)
    assert end.code == 2, end.stderr
    assert says in end.stderr
    assert "[bad-plan;" in end.stderr
    assert secrets.found_in(f"{end.stdout}\n{end.stderr}".encode()) == []
    assert not (here / "new.sqlite").exists()


# -- the environment ------------------------------------------------------------------------------------------------------
LOOKS = """
import os
seen = {name: open(f"/proc/{pid}/environ", "rb").read() for name, pid in (("own", "self"), ("parent", os.getppid()))}
open(__file__ + ".seen", "ab").write(repr([dict(os.environ), seen]).encode())
raise RuntimeError("looked")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_plug_in_finds_no_secret_in_the_environment_that_the_system_shows(tmp_path: Path) -> None:
    """Neither in the process that tries it first, nor in its parent, and the variables are there again afterwards."""
    file = tmp_path / "looks.py"
    file.write_text(LOOKS)
    code = ("import os, sys\nfrom cachemark.core.errors import BadPlugin\nfrom cachemark.plans.plugin_import import imported\n"
            "try:\n    imported(sys.argv[1])\nexcept BadPlugin as error:\n    print(error.message)\nprint(os.environ['DB_PASS'])\n"
            "import subprocess\nprint(subprocess.run(['printenv', 'DB_PASS'], capture_output=True, text=True).stdout)\n")
    done = subprocess.run([sys.executable, "-c", code, str(file)], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True,
                          check=True)
    seen = Path(f"{file}.seen").read_bytes()
    assert seen.count(b"PATH=") >= 2
    assert secrets.found_in(seen) == []
    assert "looked" in done.stdout
    assert done.stdout.split()[-2:] == [ENVIRONMENT["DB_PASS"]] * 2


def test_a_value_that_is_no_text_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_remembered", {})
    monkeypatch.setenv("DB_PASS", os.fsdecode(b"\xff\xfe8charsandmore"))
    assert masking.mask(f"<{os.environ['DB_PASS']}> %FF%FE8charsandmore") == "<***> ***"

