"""Weights from their source: the list, downloads, and manual steps."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cachemark as cm
from cachemark.analysis.facts import weights_sources
from cachemark.cli import main
from cachemark.core.errors import BadCheckpoint
from cachemark.core.facts import Facts, WeightsSource
from cachemark.models import glm_image, text_features
from cachemark.models.hub import is_hub
from cachemark.models.prompts import FILE, path_beside
from cachemark.models.publications import publications
from cachemark.models.registry import MODELS
from cachemark.models.weights import packaged
from cachemark.plans import schema
from cachemark.trial.child.facts import _source
from cachemark.workflows.weights import fetch_named
from support.hub import REVISION, Hub, serving
from support.stages import good, stage

pytest.importorskip("huggingface_hub")
LLAMAGEN, DATA = "FoundationVision/LlamaGen", bytes(range(256)) * 8000


def test_every_published_model_has_the_source_of_each_of_its_files_where_it_is_looked_for() -> None:
    listed = {(publication.model, publication.key): publication for publication in publications()}
    entries = {name: MODELS.get(name) for name in MODELS}
    wanted = {(name, file.key): file for name, entry in entries.items() for file in entry.files}
    assert {pair for pair in listed if pair[1] in ("weights", "decoder_weights")} == set(wanted)
    for pair, file in wanted.items():
        publication = listed[pair]
        assert file.name in ((publication.path, publication.folder)[publication.path == "."], "vqgan.ckpt"), pair
        owner = publication.origin.name.partition("/")[0]
        assert owner in file.origin or file.origin.startswith("the folder of `weights`") or "Chameleon" in file.origin, pair
        assert bool(publication.steps) is not publication.origin.on_hub, "a person is told what a program cannot do"
        assert all("{path}" in "".join(publication.steps) for _ in publication.steps)
    for (model, key), publication in listed.items():
        weights = listed[model, "weights"].located("w")
        if key == "tokenizer":
            file = glm_image.TOKENIZER if model == "glm-image" else FILE  # its folder has no tokenizer
            assert publication.located("w") == Path(os.path.normpath(weights / file))
        if key == "text_encoder":
            home = weights if weights.name.endswith("_weights") else weights.parent  # a folder of shards, or a file
            assert publication.located("w") == path_beside(home / "x", text_features.ENCODER), model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "nobody"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    files = {LLAMAGEN: {"c2i_B_256.pt": DATA, "vq_ds16_c2i.pt": DATA[:5000], "c2i_L_384.pt": b"of another size", "README.md": b"# x"}}
    with serving(Hub(files)) as running:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running


def fetch(folder: Path, model: str = "llamagen-b") -> Result:
    return CliRunner().invoke(main, ["weights", "fetch", model, "--to", str(folder / "w")])


def test_what_a_model_needs_is_fetched_alone_and_no_token_shown(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "w" / "LlamaGen").mkdir(parents=True)
    (folder / "c2i_B_256.pt").write_bytes(DATA[:-1])  # not whole
    assert f"weights = {json.dumps(str(folder / 'c2i_B_256.pt'))}" in good(fetch(tmp_path))
    assert sorted(file.name for file in folder.iterdir() if not file.name.startswith(".")) == ["c2i_B_256.pt", "vq_ds16_c2i.pt"]
    assert (folder / "c2i_B_256.pt").read_bytes() == DATA
    (folder / "c2i_B_256.pt").write_bytes(DATA[:-1])  # cut at once, when the library trusts the file's time
    assert fetch(tmp_path).exit_code == 0
    assert (folder / "c2i_B_256.pt").read_bytes() == DATA
    before = len(hub.asked)
    assert fetch(tmp_path).exit_code == 0
    assert not [line for line in hub.asked[before:] if "/resolve/" in line], "what is there is not sent again"
    hub.gated.add(LLAMAGEN)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    with_token = fetch(tmp_path / "gated")
    assert hub.token not in good(with_token) + with_token.stderr


def test_what_only_a_person_can_fetch_is_told_step_by_step(hub: Hub, tmp_path: Path) -> None:
    done = fetch(tmp_path, "mar-b")
    assert (done.exit_code, hub.asked) == (2, [])
    steps = done.stdout.splitlines()
    assert [step[:2] for step in steps] == ["1.", "2."]
    assert all("https://www.dropbox.com/" in step for step in steps)
    for path in ("mar/mar_base/checkpoint-last.pth", "mar/kl16.ckpt"):
        assert str(tmp_path / "w" / path) in done.stdout
        (tmp_path / "w" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "w" / path).write_bytes(b"x")
    assert fetch(tmp_path, "mar-b").exit_code == 0, "what is there need not be fetched"


def named(name: str, *options: str, model: str = "llamagen-b") -> Result:
    return CliRunner().invoke(main, ["weights", "fetch", model, "--weights", name, *options])


def test_named_weights_are_fetched_into_the_cache_once(hub: Hub, tmp_path: Path) -> None:
    done = named(f"hf:{LLAMAGEN}")
    home = tmp_path / "cache" / "models--FoundationVision--LlamaGen" / "snapshots" / REVISION
    assert sorted(file.name for file in home.iterdir()) == ["c2i_B_256.pt", "vq_ds16_c2i.pt"], "with its image tokenizer"
    for key, file in (("weights", "c2i_B_256.pt"), ("decoder_weights", "vq_ds16_c2i.pt")):
        assert f"{key} = {json.dumps(str(home / file))}" in good(done)
    (home / "c2i_B_256.pt").resolve().write_bytes(DATA[:-1])
    assert named(f"hf:{LLAMAGEN}").exit_code == 0
    before = len(hub.asked)
    assert weights_sources(Facts(weights_sources={"weights": _source(str(home / "c2i_B_256.pt"))})) == (
        ("Source of weights", f"hf:{LLAMAGEN}@{REVISION}:c2i_B_256.pt, SHA-256 {hashlib.sha256(DATA).hexdigest()}"),)
    assert not _source(str(packaged("tiny-var.safetensors"))), "a file of the user has no repository"
    again = named(f"hf:{LLAMAGEN}@main:c2i_B_256.pt", "--decoder-weights", f"hf:{LLAMAGEN}@{REVISION}")
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (0, done.stdout.splitlines()[-1])
    assert not [line for line in hub.asked[before:] if line.startswith("GET") and "/resolve/" in line], "nothing is sent again"


@pytest.mark.parametrize(("model", "name", "change", "code", "words"), [
    ("llamagen-l", "", "lacks", 5, "no longer has c2i_L_384.pt"), ("llamagen-l", "", "gone", 2, "does not exist, or is private"),
    ("llamagen-l", "", "down", 5, "cannot be fetched"), ("lamagen-l", "", "", 2, "Did you mean 'llamagen-l'"),
    ("llamagen-b", "hf:nobody/nothing", "", 2, "nobody/nothing does not exist, or is private. Check its page"),
    ("llamagen-b", f"hf:{LLAMAGEN}@v9", "", 2, "has no revision 'v9'. Name a branch, tag or commit"),
    ("llamagen-b", f"hf:{LLAMAGEN}:c2i_B_265.pt", "", 2, "Did you mean 'c2i_B_256.pt'"),
    ("llamagen-b", f"hf:{LLAMAGEN}", "gated", 2, "is gated: its terms must be accepted, and no token was sent. Accept them at"),
    ("llamagen-b", f"hf:{LLAMAGEN}", "offline", 5, "HF_HUB_OFFLINE is set. Unset it"),
    ("llamagen-b", "hf:somebody/model:pytorch_model.bin", "", 2,
     "is a pickle, pytorch_model.bin; pickles are read from repositories of the catalogue only"),
    ("llamagen-b", "hf:LlamaGen", "", 2, "Write hf:org/repo[@revision][:file]")])
def test_what_is_not_fetched_is_one_sentence(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str, change: str, code: int, words: str
) -> None:
    hub.files["somebody/model"] = {"pytorch_model.bin": b"PK", "config.json": b"{}"}
    {"": lambda: None, "lacks": lambda: hub.files[LLAMAGEN].pop("c2i_L_384.pt"), "gone": hub.files.clear,
     "gated": lambda: hub.gated.add(LLAMAGEN), "offline": lambda: monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True),
     "down": lambda: monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")}[change]()
    done = named(name, model=model) if name else fetch(tmp_path, model)
    assert (done.exit_code, words in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_nothing_is_fetched_without_a_request(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a plan nor by Python; both name the command. With it the files arrive, which are no weights here."""
    plan = tmp_path / "mine.toml"
    plan.write_text(f'name = "mine"\n[[cells]]\nmodel = "llamagen-b"\nmethods = ["window"]\nweights = "hf:{LLAMAGEN}"\n')
    monkeypatch.chdir(tmp_path)
    own = ["llamagen-b", "--weights", f"hf:{LLAMAGEN}"]
    for command in (["run", str(plan)], ["explain", str(plan)], ["generate", *own], ["test", "model", *own]):
        refused = CliRunner().invoke(main, command)
        assert refused.exit_code == 2, refused.stderr
        assert f"cachemark weights fetch llamagen-b --weights hf:{LLAMAGEN}" in refused.stderr
    priced = CliRunner().invoke(main, ["price", str(plan), "--card", "h100"]).stdout
    assert f"Missing: hf:{LLAMAGEN}  (estimated without it)  Get it: cachemark weights fetch llamagen-b --weights hf:{LLAMAGEN}\n" in priced
    with pytest.raises(BadCheckpoint, match="is not in the cache"):
        cm.load("llamagen-b", f"hf:{LLAMAGEN}")
    assert not hub.asked
    for call in (["run", str(plan), "--fetch"], ["generate", "llamagen-b", "--weights", f"hf:{LLAMAGEN}", "--fetch"]):
        fetched = CliRunner().invoke(main, call)
        assert (fetched.exit_code, "is not a checkpoint" in fetched.stderr) == (2, True), fetched.stderr
    assert {line.rpartition("/")[2] for line in hub.asked if "/resolve/" in line} == {"c2i_B_256.pt", "vq_ds16_c2i.pt"}
    assert not (tmp_path / "cachemark.sqlite").exists()
    with pytest.raises(BadCheckpoint, match="is not a checkpoint"):
        cm.load("llamagen-b", f"hf:{LLAMAGEN}", fetch=True)


NAMED = [(name, cells) for name in schema.names() for cells in schema.load(name).cells if cells.weights]


def test_shipped_plans_name_weights_where_they_are_fetched_to(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub.files.clear()
    by_hand = dict[str, Path]()
    for file in publications():
        if file.origin.on_hub:
            hub.files.setdefault(file.origin.name, {})[file.path] = file.path.encode()
        else:
            by_hand[f"{file.model} {file.key}"] = file.located("weights")
    for name in dict.fromkeys(name for name, _ in NAMED):
        absent = CliRunner().invoke(main, ["explain", name])
        assert (absent.exit_code, "cachemark weights fetch" in absent.stderr) == (2, True), absent.stderr
    for _, cells in NAMED:
        located = fetch_named(cells.model, cells.weights, cells.decoder_weights)
        for key, path in located.items():
            if is_hub(cells.weights):
                assert Path(path).read_bytes() == next(f.path for f in publications() if (f.model, f.key) == (cells.model, key)).encode()
            else:
                assert Path(path) == by_hand[f"{cells.model} {key}"]
        assert set(located) == {"weights", "decoder_weights"}
    assert {cells.model for _, cells in NAMED} == {"llamagen-xl", "var-d30", "mar-l"}


def test_a_plan_with_fetch_ends_in_a_measurement(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the small model lies at the hub, from where the run brings it; the next run asks nobody."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    made = stage(tmp_path / "stage", samples=2)
    content, name = made.weights.read_bytes(), made.weights.name
    hub.files["somebody/tiny"] = {name: content}
    made.plan.write_text(made.plan.read_text().replace(str(made.weights), f"hf:somebody/tiny:{name}"))
    assert "Run 1: 5 measured, 0 failed, 0 skipped." in good(made.run("--fetch"))
    before = len(hub.asked)
    assert "Run 2: 0 measured, 0 failed, 5 skipped." in good(made.run())
    assert len(hub.asked) == before
    source = WeightsSource(repository="somebody/tiny", revision=REVISION, file=name, sha256=hashlib.sha256(content).hexdigest())
    assert [outcome.facts.weights_sources for outcome in made.outcomes(1).values()] == [{"weights": source}] * 5
