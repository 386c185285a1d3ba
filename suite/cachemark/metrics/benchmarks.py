"""The benchmarks of text-to-image models that a case is asked for: of each, what decides its figures, or the one thing that is missing.

A benchmark is measured whole or not at all. GenEval and DPG-Bench ask about their own prompts, so each needs its list under
``fidelity.prompts``; what people prefer is asked of any prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..core.errors import Unsupported
from ..core.prompt_lists import PromptList, prompt_list
from ..core.spec import digest
from ..models.protocol import Request
from .compute import clip, detector, dpg, geneval
from .compute.clip import Clip
from .compute.detector import ClipColours, PretrainedDetector
from .compute.dpg import Dpg, PretrainedAnswerer
from .compute.geneval import GenEval
from .compute.preference import PREFERENCES, Preference, PreferenceScore

GENEVAL, DPG = "geneval", "dpg"
Scored = Callable[[Tensor, Sequence[int]], Tensor]


def stated(request: Request) -> dict[str, dict[str, str]]:
    """The part of a case's identity that the benchmarks decide, by their names; of one that lacks something ``missing`` says what."""
    asked: dict[str, Callable[[], dict[str, str]]] = {}
    if request.detector:
        asked[GENEVAL] = partial(_geneval, request)
    if request.vqa:
        asked[DPG] = partial(_dpg, request)
    for name, preference in PREFERENCES.items():
        if folder := getattr(request, name):
            asked[name] = partial(_preferred, preference, folder)
    return {name: _or_missing(known) for name, known in asked.items()}


def _or_missing(known: Callable[[], dict[str, str]]) -> dict[str, str]:
    try:
        return known()
    except Unsupported as error:
        return {"missing": str(error)}


def _geneval(request: Request) -> dict[str, str]:
    """Detector, colours and tasks. Raises Unsupported where one of them is missing, or the detector cannot see what is asked for."""
    given = _list_of(request, GENEVAL, "evaluation_metadata.jsonl", "https://raw.githubusercontent.com/djghosh13/geneval/main/prompts/")
    found = {"detector": detector.identity(request.detector)}
    if not request.clip:
        raise Unsupported(f"not measured: needs a CLIP model for colours, named under fidelity.clip, get it with: "
                          f"hf download openai/clip-vit-large-patch14 --local-dir {request.detector.rstrip('/')}-clip")
    wanted = {clause["class"] for task in given.tasks for part in ("include", "exclude") for clause in task.get(part, ())}
    if unseen := sorted(wanted - detector.classes(request.detector)):
        raise Unsupported(f"not measured: the detector in {request.detector!r} knows no {unseen[0]!r}, get one that does with: "
                          f"hf download {detector.PUBLISHED} --local-dir {request.detector}")
    return {**found, "clip": clip.identity(request.clip), "tasks": digest(given.tasks)}


def _dpg(request: Request) -> dict[str, str]:
    """The network and its questions. Raises Unsupported where one of them is missing."""
    source = "https://raw.githubusercontent.com/TencentQQGYLab/ELLA/main/dpg_bench/"
    given = _list_of(request, DPG, "dpg_bench.csv", source)
    if not given.questions:
        raise Unsupported(f"not measured: needs dpg_bench.csv beside the prompts in {request.prompts!r}, get it with: "
                          f"curl -LO {source}dpg_bench.csv")
    questions = [[[one.number, one.text, one.needs] for one in asked] for asked in given.questions]
    return {"weights": dpg.identity(request.vqa), "questions": digest(questions)}


def _preferred(preference: Preference, folder: str) -> dict[str, str]:
    return {"weights": preference.identity(folder)}


def _list_of(request: Request, kind: str, file: str, source: str) -> PromptList:
    given = prompt_list(request.prompts) if request.prompts else None
    if given is None or given.kind != kind:
        raise Unsupported(f"not measured: needs its own prompts, named under fidelity.prompts, get them with: curl -LO {source}{file}")
    return given


class Benchmarks:
    """The benchmarks of a request, each loaded when it is first asked for. ``clip`` gives the CLIP that the CLIP score asks too."""

    def __init__(self, request: Request, prompts: Sequence[str], clip: Callable[[], Clip]) -> None:
        self._request, self._prompts, self._clip = request, prompts, clip
        self._loaded: dict[str, Any] = {}

    def figures(self, measured: Mapping[str, bool], labels: Sequence[int]) -> dict[str, Scored]:
        """By name the figures of the benchmarks that are measured, of images with these labels."""
        found: dict[str, Scored] = {}
        if measured[GENEVAL]:
            tags = {prompt_list(self._request.prompts).tasks[label]["tag"] for label in labels}
            found |= {name: partial(self._geneval, name) for name in geneval.figures(sorted(tags))}
        return found | {name: partial(self._other, name) for name in (DPG, *PREFERENCES) if measured[name]}

    def _geneval(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        score: GenEval = self._once(GENEVAL)
        return score(name, images, labels)

    def _other(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        score: Scored = self._once(name)
        return score(images, labels)

    def _once(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Any:
        request, device = self._request, self._request.device
        if name in PREFERENCES:
            return PreferenceScore(self._prompts, PREFERENCES[name].load(getattr(request, name), device=device))
        given = prompt_list(request.prompts)
        if name == DPG:
            return Dpg(given.questions, PretrainedAnswerer(request.vqa, device=device))
        return GenEval(given.tasks, PretrainedDetector(request.detector, device=device), ClipColours(self._clip()))


NAMES = (GENEVAL, DPG, *PREFERENCES)
