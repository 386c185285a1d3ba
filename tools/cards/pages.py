"""Cards: a page about every model and one about every method.

Nothing is looked up here: ``python -m tools.cards`` collects what the package knows and hands it in, and equal content gives
equal pages. So a page in the repository can be compared with the one that would be made now.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.gate.anchors import ReachedAnchor
from cachemark.models.protocol import ModelEntry, PublishedFile

LAST = 4  # validations that the stated spread is taken from
MADE = "<!-- Made by `make docs`; edits are lost. -->"
NEVER = "not yet: no real weights"
UNSEEN = "not measured with these weights; `cachemark run bundled` does, and `cachemark baseline save` keeps it"
SCORES = {  # of a description's `held_out`: what it is, and its unit
    "nats_per_token": ("held-out likelihood, loss", "nat/token"), "psnr": ("held-out reconstruction, PSNR", "dB"),
    "psnr_pooled": ("PSNR of all pixels pooled", "dB"), "codes_used": ("codes in use", ""), "loss": ("held-out loss", ""),
    "noise_mse": ("held-out error of the predicted noise, mean square", ""),
    "token_mse_8": ("held-out error of a token as the head's first step predicts it, 8 of 256 tokens known, mean square", ""),
    "token_mse_36": ("36 of them known", ""), "token_mse_128": ("128 of them known", ""),
    "token_mse_8_unlabelled": ("8 of them known, without the class", ""),
    "token_mse_36_unlabelled": ("36 of them known, without the class", ""),
}


# -- what is handed in ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Drawn:
    """Quality of images of the full cache. ``numbers``: what each is, and its value with its interval, as text. ``made``: by which
    run."""

    made: str
    numbers: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Trained:
    """A model whose weights the package carries. ``files``: their bytes by name. ``stages``: the description of each training beside its
    weights, with its ``log``; the last made what is shipped. ``draws`` whether it makes images, and ``drawn`` what they are worth, None
    where a stored run of these weights is lacking."""

    name: str
    what: str
    files: Mapping[str, int]
    stages: Sequence[Mapping[str, Any]]
    draws: bool = False
    drawn: Drawn | None = None


@dataclass(frozen=True)
class Vectors:
    """A stored output of the authors' code, and how many checks it gets."""

    name: str
    family: str
    about: str
    methods: Sequence[str]
    checks: int


@dataclass(frozen=True)
class Claim:
    """A published FID, as printed, of a method with these settings."""

    paper: str
    table: str
    model: str
    method: str
    config: str
    fid: str


@dataclass(frozen=True)
class Speed:
    """A published time of a model: what is printed, the least that the GPU takes, and the bytes of keys and values, all as text."""

    model: str
    table: str
    row: str
    batch: str
    gpu: str
    printed: str
    least: str
    ratio: str
    kept: str


@dataclass(frozen=True)
class Size:
    """A published size of a model's cache as printed, whether it follows from the model, and what ours allocates, as text."""

    model: str
    table: str
    batch: str
    method: str
    printed: str
    finding: str
    allocated: str


@dataclass(frozen=True)
class Evidence:
    """Evidence for the code: vectors, published values of quality, speed and size, and anchors that were reached."""

    vectors: Sequence[Vectors] = ()
    claims: Sequence[Claim] = ()
    reached: Sequence[ReachedAnchor] = ()
    speeds: Sequence[Speed] = ()
    sizes: Sequence[Size] = ()


# -- models -----------------------------------------------------------------------------------------------------------
def models_page(trained: Sequence[Trained], released: Sequence[ModelEntry], evidence: Evidence) -> str:
    """``docs/models.md``."""
    parts = [
        "# Models", MADE,
        "The bundled models come with their weights and run anywhere; the published ones read the files of their authors. How to name "
        "either in a plan is described in [Use published weights](how-to/use-published-weights.md).",
        "## Bundled models",
        "They are trained on pictures that are computed, so nothing has to be downloaded to make them again. The spread is what the log "
        "can tell and no more: each was trained once, and what another seed would give has not been measured. A training on another "
        "machine or number of threads adds numbers in another order and gives other weights. Where all changes went in one direction the "
        "training had not come to rest, and more steps would give another value.",
        *(text for model in trained for text in _trained(model)),
        "## Published models",
        "Their weights are not part of the package. A plan names the files: `weights = \"…\"` and `decoder_weights = \"…\"` in its block "
        "`[[cells]]`. What is not named is random: speed and bytes are then real, images are noise, and no fidelity is measured. Every "
        "tensor listed must be in the file with its shape, under the first entry that holds tensors or at the top level; a file "
        "that holds others is refused, save for the names that may stand beside them.",
    ]
    for family in dict.fromkeys(model.family for model in released):
        own = [vectors for vectors in evidence.vectors if vectors.family == family]
        members = [model for model in released if model.family == family]
        names = {model.name for model in members}
        parts += [*_family(family, members, own), *_speeds([one for one in evidence.speeds if one.model in names]),
                  *_sizes([one for one in evidence.sizes if one.model in names])]
    return "\n\n".join(parts) + "\n"


def _trained(model: Trained) -> list[str]:
    last = model.stages[-1]
    rows = [("file", f"{_code(name)}, {_grouped(size)} bytes") for name, size in model.files.items()]
    rows += [("SHA-256 of the weights", _code(last["sha256"])), ("parameters", _grouped(last["parameters"])),
             ("configuration", _settings(last["config"]))]
    for number, stage in enumerate(model.stages, 1):
        title = "training" if len(model.stages) == 1 else f"training, stage {number}"
        rows.append((title, f"{_grouped(stage['steps'])} steps in {stage['seconds'] / 60:.0f} minutes ({stage['seconds']:.0f} s) on "
                            f"{_machine(stage)}, seed {stage['seed']}, data {_code(stage['data'])}"))
    rows += [(_score(name)[0], f"{value:g} {_score(name)[1]}".strip() + f"; {spread(last['log'], name)}")
             for name, value in last["held_out"].items()]
    if model.draws:
        rows += [("its images", model.drawn.made), *model.drawn.numbers] if model.drawn else [("its images", UNSEEN)]
    return [f"### `{model.name}`", f"{model.what.rstrip('.')}.", _table(("", ""), rows), "To train it again:",
            f"```console\n$ python -m tools.train {model.name}\n```"]


def _machine(stage: Mapping[str, Any]) -> str:
    threads = f" with {stage['threads']} thread{'s' if stage['threads'] != 1 else ''}" if stage["device"] == "cpu" else ""
    return f"{stage['device'].upper()}{threads}, torch {stage['torch']}"


def _score(name: str) -> tuple[str, str]:
    return SCORES.get(name, (f"held-out accuracy, {name.replace('_', ' ')}", ""))


def spread(log: Sequence[Mapping[str, float]], name: str) -> str:
    """The largest change of a score from one of the last validations to the next, and whether it went one way through all of them, so that
    training had not come to rest."""
    held = [(int(entry["step"]), entry[name]) for entry in log if name in entry][-LAST:]
    changes = [after - before for (_, before), (_, after) in pairwise(held)]
    if not changes:
        return "spread not known"
    told = f"± {max(map(abs, changes)):.2g}, the largest change between two validations of steps {held[0][0]} … {held[-1][0]}"
    one_way = len(changes) > 1 and (min(changes) > 0 or max(changes) < 0)
    return f"{told}, all in one direction" if one_way else told


def _family(family: str, models: Sequence[ModelEntry], vectors: Sequence[Vectors]) -> list[str]:
    """One family: its models, what each reads, and what its code was checked with."""
    rows = [(_code(model.name), model.summary, _settings(changed(model.presets["paper"]))) for model in models]
    parts = [f"### {family}", _table(("model", "what it is", "preset `paper`"), rows)]
    for key in dict.fromkeys(file.key for model in models for file in model.files):
        files = [(model.name, file) for model in models for file in model.files if file.key == key]
        shared: dict[tuple[str, str, str], list[str]] = {}
        for model, file in files:
            parameters = sum(p.numel() for p in module(file).parameters())
            shared.setdefault((_code(file.name), str(len(module(file).state_dict())), _grouped(parameters)), []).append(model)
        held = [(_codes(models), *row) for row, models in shared.items()]
        parts += [f"`{key}`, from {files[0][1].origin}:", _table(("model", "file", "tensors", "parameters"), held), *_layouts(files)]
    if vectors:
        parts += ["Checked against the authors' code on stored inputs and weights:", "\n".join(f"- {_vectors(one)}" for one in vectors)]
    return parts


def _speeds(speeds: Sequence[Speed]) -> list[str]:
    """The published times of a family, where there are any."""
    if not speeds:
        return []
    rows = [(s.table, s.row, s.batch, s.gpu, s.printed, s.least, s.ratio, s.kept) for s in speeds]
    return ["Published speed in seconds per image, next to the [roofline time](explanation/fair-speedups.md) of the paper's GPU "
            "(16 bit, image decoding included), their ratio, and the KV bytes of the batch in 16 bit with both rows of guidance:",
            _table(("table", "row", "batch", "GPU", "printed", "least", "times", "K and V"), rows)]


def _sizes(sizes: Sequence[Size]) -> list[str]:
    """The published sizes of a family's cache, where there are any."""
    rows = [(_code(s.model), s.table, s.batch, s.method, s.printed, s.finding, s.allocated) for s in sizes]
    head = ("model", "table", "batch", "method", "printed", "what follows from the model", "here, in 16 bit")
    return ["What papers print of the size of its cache, and what ours allocates for as many images, or for one where nothing says how "
            "many (`python -m benchmarks.papers sizes MODEL` prints more):", _table(head, rows)] if rows else []


@cache
def module(file: PublishedFile) -> nn.Module:
    """The module that is read from a file of the authors, on the meta device: names and shapes alone."""
    with torch.device("meta"):
        return file.build()


def changed(sampling: Sampling) -> dict[str, Any]:
    """The settings of a preset: everything that differs from plain sampling, and the guidance."""
    plain = asdict(type(sampling)())
    return {key: value for key, value in asdict(sampling).items() if value != plain[key] or key == "cfg_scale"}


def _layouts(files: Sequence[tuple[str, PublishedFile]]) -> list[str]:
    """The tensors that are read, once for all files with the same layout."""
    found: dict[tuple[str, ...], list[str]] = {}
    for model, file in files:
        found.setdefault(tuple(patterns(module(file).state_dict())), []).append(model)
    first = files[0][1]
    said = [f"Looked for under {_codes(first.wrappers)}, then at the top level. Ignored if present: {_codes(first.ignored)}."]
    for layout, models in found.items():
        whose = "Read" if len(found) == 1 else f"Read by {_codes(models)}"
        said.append(f"{whose} (*N* counts from 0): {_codes(layout)}.")
    return said


def patterns(names: Iterable[str]) -> list[str]:
    """Names of tensors in their order, each number that counts replaced by ``N``, equal ones once, and those of one module that end in
    ``weight`` and ``bias`` as one."""
    ends: dict[str, list[str]] = {}
    for name in names:
        module, _, end = re.sub(r"(?<=\.)\d+(?=\.)", "N", name).rpartition(".")
        paired = module and end in ("weight", "bias")
        ends.setdefault(module if paired else f"{module}.{end}".lstrip("."), []).extend([end] if paired else [])
    return [name + _end(list(dict.fromkeys(found))) for name, found in ends.items()]


def _end(ends: Sequence[str]) -> str:
    return f".{{{','.join(ends)}}}" if len(ends) > 1 else "".join(f".{end}" for end in ends)


# -- methods ----------------------------------------------------------------------------------------------------------
def methods_page(methods: Sequence[type[Method]], evidence: Evidence) -> str:
    """``docs/methods.md``."""
    parts = [
        "# Method cards", MADE,
        "Where each method comes from, which of its defaults its paper states, what its code was checked with, and what is published "
        "about it. What its parameters do is described in [Methods](reference/methods.md). Each method also passes the contract tests, "
        "as far as they apply to what it does: neutral parameters give the full cache bit for bit, evicting equals masking, a budget is "
        "kept at every step, nothing but live entries is read.",
        "FID as printed in the paper named, of 50 000 images of ImageNet where the settings name no others. *Reproduced* says whether it "
        "was measured here, with the weights of the model's authors.",
    ]
    for cls in methods:
        parts += _method(cls, evidence)
    return "\n\n".join(parts) + "\n"


def _method(cls: type[Method], evidence: Evidence) -> list[str]:
    doc = inspect.cleandoc(cls.__doc__ or "")
    checked = [vectors for vectors in evidence.vectors if cls.name in vectors.methods]
    claims = [claim for claim in evidence.claims if claim.method == cls.name]
    none = "no stored output of other code; contract tests and the tests of its rules alone"
    parts = [f"## `{cls.name}`", sentences(doc)[0], _table(("", ""), [
        ("source", cls.source), ("paradigms", ", ".join(cls.paradigms)),
        ("golden vectors", "; ".join(_vectors(vectors) for vectors in checked) or none),
    ])]
    if parameters := cls().parameters():
        told = [_parameter(name, "" if name == "B" else str(value), cls.unstated.get(name, "")) for name, value in parameters.items()]
        parts.append(_table(("parameter", "default", "stated by its source?"), told))
    parts.append("**Against its source.** " + (" ".join(differences(doc)) or "Its description names no difference."))
    parts += [f"**Footnote.** {note}" for note in cls().footnotes]
    if not claims:
        return [*parts, "**Published FID.** None is known for the models here."]
    rows = [(c.fid, _code(c.model), c.config, f"{c.paper}, {c.table}", reproduced(c, evidence.reached)) for c in claims]
    return [*parts, _table(("published FID", "model", "settings", "where", "reproduced"), rows)]


def _parameter(name: str, default: str, unstated: str) -> tuple[str, str, str]:
    """A row: ``default`` is empty where a budget gives the value, ``unstated`` where the source states the default."""
    stated = "yes" if default else "a plan gives it"
    return _code(name), _code(default) if default else "from the budget", f"no; {unstated}" if unstated else stated


def sentences(text: str) -> list[str]:
    """The sentences of a docstring, paragraph by paragraph, as Markdown on one line each."""
    found = []
    for paragraph in _plain_markup(text).split("\n\n"):
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", " ".join(paragraph.split()))
    return found


def differences(text: str) -> list[str]:
    """The passage of a docstring about departures from the source: from a sentence that begins such a passage to the end of
    the paragraph, and that no code is published."""
    found = []
    for paragraph in text.split("\n\n"):
        said = sentences(paragraph)
        begin = next((i for i, s in enumerate(said) if s.startswith(("Differs from", "Adapted", "Our readings"))), len(said))
        if any("published no code" in s or "no code is published" in s for s in said):
            found.append("No code is published.")
        found += said[begin:]
    return found


def reproduced(claim: Claim, reached: Sequence[ReachedAnchor]) -> str:
    """A word on whether a published value was measured here. An anchor vouches for the full cache of its model, at its own value."""
    own = next((r for r in reached if r.anchor.model == claim.model), None)
    if own is None:
        return NEVER
    if claim.method == "full" and float(claim.fid) == own.anchor.expected:
        return f"{own.value:.4g}"
    return "not yet; the full cache of this model is anchored"


# -- text -------------------------------------------------------------------------------------------------------------
def _plain_markup(text: str) -> str:
    """Markup of docstrings as Markdown: literals in single backticks, references by their last name."""
    text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", text)
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("``", "`")


def _vectors(vectors: Vectors) -> str:
    return f"{_code(vectors.name)}, {vectors.checks} checks: {vectors.about}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(_code(name) for name in names)


def _settings(values: Mapping[str, Any]) -> str:
    """A configuration for people: lists with spaces between their entries, no quotes."""
    plain = {key: " ".join(map(str, value)) if isinstance(value, list | tuple) else value for key, value in values.items()}
    return ", ".join(f"{key} {value}" for key, value in plain.items())


def _grouped(number: int) -> str:
    """Digits in groups of three, with spaces that do not break."""
    return f"{number:,}".replace(",", "\u00a0")
