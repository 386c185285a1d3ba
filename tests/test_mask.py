"""A canary secret, planted wherever one may come from, appears nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from cachemark.analysis.public import WITHHELD, public_outcomes, public_verdicts, scrubbed
from cachemark.cli import progress
from cachemark.core import plugins
from cachemark.core import secrets as mask
from cachemark.core.errors import BadPlugin
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.store.rows import Verdict
from cachemark.trial.bounds import bounded_log, bounded_text, last_words
from support import examples, stages

CANARY = "c4n4ry-9f2b7e"
URL = f"postgresql+psycopg://user:{CANARY}@db.example.org/bench"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask, "_remembered", {})


@pytest.mark.parametrize("name", [
    "MY_TOKEN", "DB_PASSWORD", "secret_thing", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASS", "SSHPASS", "GH_PAT",
    "SIGNING_KEY", "SMTP_PWD", "NPM_AUTH", "APP_CREDS", "SENTRY_DSN", "SLACK_WEBHOOK", "AZURE_CONNECTION_STRING", "PASSWORD_SALT",
])  # fmt: skip
def test_values_of_variables_that_say_so_are_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CANARY in mask.mask(f"x {CANARY} y")
    monkeypatch.setenv(name, CANARY)
    assert mask.mask(f"x {CANARY} y") == "x *** y"
    assert name not in mask.without_secrets(os.environ)
    assert "PATH" in mask.without_secrets(os.environ)


def test_passwords_in_urls_are_hidden_and_the_rest_is_not() -> None:
    assert mask.mask(f"could not reach {URL}.") == "could not reach postgresql+psycopg://user:***@db.example.org/bench."
    for plain in ("https://example.org/a:b@c", "sqlite:///a.sqlite", "time 10:20@noon", "postgresql://user@host/db"):
        assert mask.mask(plain) == plain
    mask.remember(URL)
    assert mask.mask(f"password {CANARY}, user db.example.org") == "password ***, user db.example.org"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "PWD", "OLDPWD", "KEYBOARD", "BYPASS_CACHE", "COMPASS", "MONKEY", "PATTERN"])
def test_names_that_only_look_like_it_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, CANARY)
    assert mask.mask(CANARY) == CANARY
    assert name in mask.without_secrets(os.environ)


@pytest.mark.parametrize("value", [f"/{CANARY}", f".{CANARY}", f"@{CANARY}", f"{CANARY}.db", f"{CANARY}/+=", f"a b{CANARY}", f'"{CANARY}"'])
def test_a_value_is_hidden_whatever_it_begins_with_and_however_it_is_written(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", value)
    for written in (value, quote(value, safe=""), json.dumps(value), repr(value)):
        assert CANARY not in mask.mask(f"<{written}>")


@pytest.mark.parametrize("value", ["1", "true", "False", "none", "12345", "123456789", "default", "disabled", "/tmp", __file__])
def test_ordinary_values_are_no_secrets(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", value)
    assert mask.mask(f"is {value} so") == f"is {value} so"


def test_each_line_of_a_key_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNING_KEY", f"-----BEGIN-----\n{CANARY}{CANARY}\n-----END-----")
    assert mask.mask(f"  {CANARY}{CANARY}") == "  ***"


@pytest.mark.parametrize(("url", "shown"), [
    (f"postgresql://host/db?user=u&password={CANARY}&x=1", "postgresql://host/db?user=u&password=***&x=1"),
    (f"postgresql://host/db?sslpassword={CANARY}", "postgresql://host/db?sslpassword=***"),
    (f"host=h password={CANARY} dbname=d", "host=h password=*** dbname=d"),
    (f"postgresql://u:a@b{CANARY}@host/db", "postgresql://u:***@host/db"), (f"postgresql://u:a/b{CANARY}@host/db", "postgresql://u:***@host/db"),
    (f"redis://:{CANARY}@host:6379/0", "redis://:***@host:6379/0"), (f"https://{CANARY}@github.com/a", "https://***@github.com/a"),
    (f"https://ghp{CANARY}000:x-oauth-basic@github.com/a", "https://***:***@github.com/a"),
    (f"https://h/x?X-Amz-Signature={CANARY}", "https://h/x?X-Amz-Signature=***"), (f"a://u:{CANARY}@h,b://v:{CANARY}@i", "a://u:***@h,b://v:***@i"),
])  # fmt: skip
def test_every_form_of_a_url_hides_its_secret(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a text, and by value elsewhere where a variable of any name holds it, which other people's code then does not see."""
    assert mask.mask(f"at {url} now") == f"at {shown} now"
    assert mask.mask(shown) == shown
    if "://" in url:
        monkeypatch.setenv("ENDPOINT", url)
        taken = re.fullmatch(re.escape(shown).replace(re.escape(mask.STARS), "(.+)"), url)
        assert taken
        assert {mask.mask(f"<{secret}>") for secret in taken.groups()} == {"<***>"}
        assert "ENDPOINT" not in mask.without_secrets(os.environ)


@pytest.mark.parametrize("plain", ["http://host:8080/a@b", "https://git@github.com/a", "ssh://deploy@host/a", "a?max=3&b=4", "://", "a://b:c"])
def test_urls_without_a_secret_stay_as_they_are(plain: str) -> None:
    assert mask.mask(plain) == plain


@pytest.mark.parametrize("part", ["a", "a://", "a://b:", "://u:p@", "?", "?a=", "password=", "x" * 64 + "=", "a:b@", "\n"])
def test_the_time_is_proportional_to_the_text(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the text takes about eight times as long; were it quadratic, 64 times."""
    monkeypatch.setenv("A_TOKEN", CANARY)

    def seconds(characters: int) -> float:
        text, best = part * (characters // len(part)), float("inf")
        for _ in range(3):
            began = time.process_time()
            mask.mask(text)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(320_000) < 30 * max(seconds(40_000), 1e-4)


def test_a_plug_in_does_not_see_a_secret_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_TOKEN", CANARY)
    monkeypatch.setenv("ENDPOINT", URL)
    file = tmp_path / "told.py"
    file.write_text("import os\nraise RuntimeError(sorted({'BENCH_TOKEN', 'ENDPOINT', 'PATH'} & set(os.environ)))\n")
    with pytest.raises(BadPlugin, match=r"RuntimeError: \['PATH'\]"):
        plugins.load(file)
    assert os.environ["BENCH_TOKEN"] == CANARY


def test_a_line_of_a_log_is_no_command_and_no_control_character() -> None:
    assert progress.plain("::error::x \x1b[31mred\r\n##[group]") == ": :error: :x  [31mred  ## [group]"


def test_nested_values_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", CANARY)
    assert mask.masked({"a": [CANARY, 1, {"b": f"<{CANARY}>"}], "c": None}) == {"a": ["***", 1, {"b": "<***>"}], "c": None}


def test_short_values_and_paths_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEMARK_STORE", "results.sqlite")
    monkeypatch.setenv("X_TOKEN", "ok")
    assert mask.mask("ok: results.sqlite") == "ok: results.sqlite"


# ------------------------------------------------------------------------------------------------ the whole program

LEAKS = '''

@registry.methods.add("leaks")
@dataclass
class Leaks(Calm):
    """Tells everything it knows."""

    name: ClassVar[str] = "leaks"

    def begin(self, layout, sites, memory):
        import sys, time
        from pathlib import Path
        told = open(__file__).read().split("# planted: ")[-1].split()
        Path(__file__ + ".seen").write_text(repr(dict(os.environ)) + repr(sys.argv))
        while os.path.exists(__file__ + ".hold"):
            time.sleep(0.02)
        print("last words:", told[0], file=sys.stderr)
        raise RuntimeError(f"cannot log in with {told[0]} at {told[1]}")
'''


@pytest.fixture
def stage(tmp_path: Path) -> stages.Stage:
    made = stages.stage(tmp_path / "stage", '"leaks"', examples.MODEL + LEAKS + f"# planted: {CANARY} {URL}\n")
    made.plan.write_text(made.plan.read_text().replace(str(made.weights), ""))
    return made


def test_a_canary_appears_in_no_output(stage: stages.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment as a token, in a URL, and in the traceback of a method that tells both: not in what is printed, not in the
    database, not in the report, not in the trial's environment, and not in the list of processes while it runs."""
    monkeypatch.setenv("BENCH_TOKEN", CANARY)
    monkeypatch.setenv("DATABASE_PASSWORD", CANARY)
    hold, seen = (Path(f"{stage.plugin}.{name}") for name in ("hold", "seen"))
    hold.touch()
    report = stage.folder / "report.html"
    process = stage.start("--report", str(report), "--json")
    stages.until(seen.exists, "the method that leaks")
    time.sleep(0.05)  # until its text is written
    assert CANARY not in "".join(command_lines())
    hold.unlink()
    out, err = process.communicate(timeout=stages.PATIENCE)
    assert process.returncode == 0, err
    outcome = stage.outcomes()["leaks 1/2"]
    assert "cannot log in with *** at postgresql+psycopg://user:***@db.example.org/bench" in outcome.log
    files = [path for path in stage.folder.rglob("*") if path.is_file() and path != stage.plugin and path.suffix != ".pyc"]
    kept = b"".join(path.read_bytes() for path in files)
    assert b"cannot log in" in kept
    for text in (out.encode(), err.encode(), kept):
        assert CANARY.encode() not in text
    for command in (["show"], ["show", "leaks 1/2"], ["show", "--json"], ["list", "runs"]):
        assert CANARY not in stages.call(*command, "--store", stage.store).output


def command_lines() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_text(errors="replace"))
        except OSError:
            continue
    return found


def test_an_error_of_our_own_hides_it_too() -> None:
    code = ("import sys\nfrom cachemark.cli import main\nfrom cachemark.store.db import Store\n"
            "def broken(*a, **k): raise RuntimeError('lost ' + sys.stdin.read())\n"
            "Store.open = broken\nsys.argv = ['cachemark', 'show']\nmain()")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], input=URL, capture_output=True, text=True, check=False,
                          env={**os.environ, "CACHEMARK_STORE": URL})  # fmt: skip
    assert done.returncode == 70
    assert "RuntimeError: lost postgresql+psycopg://user:***@db.example.org/bench" in done.stderr
    assert CANARY not in done.stderr + done.stdout


def test_a_password_on_the_command_line_is_refused() -> None:
    result = stages.call("show", "--store", URL)
    assert result.exit_code == 2
    assert "list of processes" in result.output
    assert CANARY not in result.output


def test_a_url_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{tmp_path}/none.sqlite\n")
    file.chmod(0o644)
    result = stages.call("show", "--store", f"@{file}")
    assert (result.exit_code, "chmod 600" in result.output) == (2, True)
    file.chmod(0o600)
    assert "There is no store" in stages.call("show", "--store", f"@{file}").output
    file.write_text("")
    assert "is empty" in stages.call("show", "--store", f"@{file}").output
    assert "cannot be read" in stages.call("show", "--store", f"@{file}.not").output


# ------------------------------------------------------------------------------------------------ what anybody may see

@pytest.mark.parametrize(("text", "public"), [
    ("weights/a/b.pth", "weights/a/b.pth"), ("at /home/jo/run/b.pth, line 3", "at …/b.pth, line 3"), ("~/x/y", "…/y"),
    ("on GPU-0a1b2c3d-1111-2222-3333-444455556666.", "on a device."), ("tokens/s over 1/4", "tokens/s over 1/4"),
    ("https://example.org/a/b", "https://example.org/a/b"), ("C:\\Users\\jo\\x.toml", "…/x.toml"), ("../jo/x", "…/x"),
])  # fmt: skip
def test_paths_and_device_numbers_go(text: str, public: str) -> None:
    assert scrubbed({"a": [text]}) == {"a": [public]}


def test_private_facts_and_texts_of_errors_go() -> None:
    case = Case("m", "random:0", (4, 4), "c", Sampling(), "streaming")
    facts = {"device": {"uuid": "GPU-1", "sm_mhz": [1]}, "host": "jo-pc"}
    outcome = Outcome(case, Status.ERROR, log="Traceback in /home/jo/x.py", facts=facts)
    (shown,) = public_outcomes([outcome])
    assert (shown.log, shown.facts) == (WITHHELD, {"device": {"sm_mhz": [1]}})


def test_what_names_a_case_loses_its_paths_and_keeps_its_key() -> None:
    evaluation = {"lpips": {"missing": "needs vgg16.pth, get it with: curl -o /home/jo/.cache/vgg16.pth https://example.org/vgg16.pth"}}
    case = Case("m", "random:0", (4, 4), "c", Sampling(), "streaming", {"table": "/home/jo/t.csv", "B": 3}, evaluation=evaluation)
    (shown,) = public_outcomes([Outcome(case, Status.ERROR, log="x")])
    assert "/home" not in json.dumps(shown.case.to_json())
    assert (shown.case.knobs, shown.case.key, shown.case.cell) == ({"table": "…/t.csv", "B": 3}, case.key, case.cell)
    row = Verdict(case.key, "streaming", "status", "regressed", "error: no file /home/jo/t.csv")
    assert public_verdicts([row])[0].reason == "error: no file …/t.csv"


@pytest.mark.parametrize("cut", [bounded_text, bounded_log, lambda text: last_words(text, 1000)])
@pytest.mark.parametrize("shift", range(0, 60, 7))
def test_a_bounded_text_holds_no_part_of_a_secret(cut: Callable[[str], str], shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a secret is not known for one."""
    monkeypatch.setenv("A_TOKEN", CANARY)
    text = "x" * shift + f" {CANARY}" * 5000
    assert len(cut(text)) < 25_000
    assert not re.search(r"c4n4|7e\b", mask.mask(cut(text)))


def test_a_store_looks_secrets_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", CANARY)
    with mask.looked_up_once():
        monkeypatch.setenv("B_TOKEN", "another-one")
        assert mask.mask(f"{CANARY} another-one") == "*** another-one"
    assert mask.mask(f"{CANARY} another-one") == "*** ***"


def test_a_public_report_has_none_of_it(stage: stages.Stage) -> None:
    stage.run()
    pages = {}
    for kind in ((), ("--public",)):
        path = stage.folder / f"{len(kind)}.html"
        assert stages.call("report", path, "--store", stage.store, *kind).exit_code == 0
        pages[len(kind)] = path.read_text()
    assert "cannot log in" in pages[0]
    assert str(stage.folder) in pages[0]
    assert "cannot log in" not in pages[1]
    assert WITHHELD in pages[1]
    assert str(stage.folder) not in pages[1]
    assert not re.search(r"GPU-[0-9a-f]{8}", pages[1])
