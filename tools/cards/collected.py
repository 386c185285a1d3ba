"""The content of the cards: models, methods, vectors, published values and anchors, as plain data."""

from __future__ import annotations

import importlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from benchmarks.papers.size_claims import size_claims
from cachemark.analysis import formatting as fmt
from cachemark.analysis.papers import PaperCell, published
from cachemark.analysis.report_row import QUALITY, derive
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.contract.method import Method
from cachemark.core.result import Outcome
from cachemark.core.units import metric
from cachemark.gate import anchors
from cachemark.gate import baselines as stored
from cachemark.methods.base.calibrated import Calibrated
from cachemark.methods.registry import METHODS
from cachemark.models.protocol import ModelEntry
from cachemark.models.registry import MODELS
from cachemark.roofline.kv_bytes import entries, nbytes
from cachemark.store.exchange import Exchange
from cachemark.workflows.list import sentence

from .pages import Claim, Drawn, Evidence, Size, Speed, Trained, Vectors, changed

DATA = Path(str(resources.files("cachemark") / "data"))
WEIGHTS = DATA / "weights"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# -- models -----------------------------------------------------------------------------------------------------------
def trained(baselines: Path) -> list[Trained]:
    """Every model whose weights the package carries, generators first, with what their images were worth in the ``baselines`` of that
    folder. A description without weights of its own name is that of an earlier stage of the model it names."""
    runs = _runs(baselines)
    described = {path.stem: _read(path) for path in sorted(WEIGHTS.glob("*.json"))}
    own = [name for name in described if (WEIGHTS / f"{name}.safetensors").is_file()]
    return [_trained(name, described, runs) for name in sorted(own, key=lambda name: (name not in MODELS, name))]


def _trained(name: str, described: dict[str, dict[str, Any]], runs: list[Exchange]) -> Trained:
    earlier = [stem for stem, data in described.items() if data.get("model") == name and stem != name]
    files = {path.name: path.stat().st_size for path in sorted(WEIGHTS.glob(f"{name}.*safetensors"), key=lambda path: len(path.name))}
    stages = [{**described[stem], "log": _log(stem)} for stem in (*earlier, name)]
    return Trained(name, _what(name), files, stages, draws=name in MODELS, drawn=_drawn(name, described[name]["sha256"], runs))


def _log(stem: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (WEIGHTS / f"{stem}.log.jsonl").read_text(encoding="utf-8").splitlines()]


def _runs(baselines: Path) -> list[Exchange]:
    """The baselines of a folder that can be read, oldest first."""
    found = [stored.load(listed.path) for listed in stored.list_(baselines) if not listed.problem]
    return sorted(found, key=lambda run: str(run.meta.get("saved", "")))


def _drawn(name: str, sha256: str, runs: list[Exchange]) -> Drawn | None:
    """Quality of the images of a model with these weights, by the newest run that looked at the most of them."""
    seen = [(_scored(o)[1], number, o) for number, run in enumerate(runs) for o in run.outcomes
            if o.ok and o.case.role == "baseline" and _scored(o)[1]
            and (o.case.model, o.case.weights.partition("/")[0]) == (name, sha256)]
    if not seen:
        return None
    _, number, outcome = max(seen, key=lambda entry: entry[:2])
    return _worth(outcome, runs[number])


def _scored(outcome: Outcome) -> tuple[str, int]:
    """The subset whose images were judged, and how many of them: those of the quality pass, else those that were scored one by one."""
    case = outcome.case
    if case.measures("quality"):
        return str(case.evaluation["quality"]["seeds"]), int(case.evaluation["quality"]["samples"])
    return case.seeds, len(outcome.samples.get("prompt_score", ()))


def _worth(outcome: Outcome, run: Exchange) -> Drawn:
    """The values of a run's outcome, with the intervals of a report."""

    def told(name: str, *ends: float) -> str:
        return "{} [{}, {}]".format(*(fmt.metric_value(end, name) for end in ends))

    rows = [(metric(name).title + (f", {found.n} images" if name in QUALITY else ""), told(name, found.value, found.low, found.high))
            for name, found in derive(outcome, None).quality.items()]
    rows += [(f"{metric(name).title}, of real ones", told(name, *ends)) for name, ends in outcome.facts.get("real", {}).items()]
    sampling = ", ".join(f"{name} {value}" for name, value in changed(outcome.case.sampling).items())
    where = f"{run.environment.device}, commit {str(run.code.get('commit') or 'unknown')[:10]}"
    return Drawn(f"of the full cache, seeds `{_scored(outcome)[0]}`, {sampling}; {where}", rows)


def _what(name: str) -> str:
    """The summary of a registered model, else the first sentence of the file that defines it, without the markup of references."""
    if name in MODELS:
        return str(MODELS.get(name).summary)
    module = importlib.import_module(f"cachemark.models.tiny.{name.replace('-', '_')}")
    return sentence(module.__doc__).removesuffix(".").replace(":mod:`~cachemark.models.tiny.tiny_", "`tiny-")


def released() -> list[ModelEntry]:
    """Every published model."""
    return [entry for name in MODELS if (entry := MODELS.get(name)).files]


# -- methods ----------------------------------------------------------------------------------------------------------
def methods_known(everything: bool = False) -> list[type[Method]]:
    """The methods that come with the package, the full cache first; with ``everything`` also those of plug-ins."""
    names = sorted(METHODS, key=lambda name: (name != "full", name))
    found: list[type[Method]] = [METHODS.get(name) for name in names]
    return [cls for cls in found if everything or cls.__module__.startswith("cachemark.methods.")]


# -- what speaks for them ---------------------------------------------------------------------------------------------
def evidence(folder: Path) -> Evidence:
    """Vectors and published values of the package, and the anchors in ``folder``."""
    vectors = [Vectors(name, entry["family"], entry["about"], entry["methods"], len(entry["checks"]))
               for name, entry in _read(DATA / "conformance.json").items()]
    claims = [Claim(**record) for record in _read(DATA / "published" / "quality.json")["records"]]
    return Evidence(vectors, claims, anchors.load(folder), speeds(), sizes())


def sizes() -> list[Size]:
    """Published sizes of a cache, each with what follows from the model."""
    scaled = [name for name in MODELS if MODELS.get(name).paradigm == "next-scale"]
    return [Size(name, f"{claim.paper}, {claim.table}", str(claim.batch or fmt.DASH), f"{claim.method} {claim.budget}".strip(),
                 f"{claim.printed} {claim.unit}", claim.finding, f"{claim.allocated.in_unit:.3f} in {claim.means}")
            for name in scaled for claim in size_claims(MODELS.get(name), torch.float16)]


def speeds() -> list[Speed]:
    """Published times, each with the roofline time of its GPU and the bytes of keys and values, of models that are not built."""
    return [Speed(cell.model, cell.table, cell.row, f"{cell.batch}{'' if cell.batch_stated else ' (ours)'}", cell.hardware,
                  fmt.seconds(cell.seconds) if cell.seconds else fmt.DASH,
                  fmt.seconds(cell.roofline_time) if cell.roofline_time else fmt.DASH,
                  cell.gap or fmt.DASH, _kept(cell))
            for cell in published().cells if cell.model in MODELS]


def _kept(cell: PaperCell) -> str:
    """Bytes of keys and values in 16 bit, as text; a dash for a model that keeps none, or a method whose sizes follow from its weights."""
    entry: ModelEntry = MODELS.get(cell.model)
    layout = entry.shape(entry.presets["paper"], cell.batch)
    if isinstance(layout, MaskedLayout):
        return fmt.DASH
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in cell.ours.get("parameters", {}).items()}
    cls: type[Method] = METHODS.get(cell.ours["method"])
    if issubclass(cls, Calibrated) and "calibration" not in parameters:
        return fmt.DASH
    method = cls.build(parameters)
    return f"{nbytes(layout, entries(method, layout), (2, 2)) / 1e9:.2f} GB"
