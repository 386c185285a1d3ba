"""Composite models that plans can name: a drafter and a refiner. Importing this file registers them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cache.layout import Layout
from ...core.errors import BadCheckpoint, BadParameter
from ...core.spec import Sampling
from ...roofline.passes import ParameterCounts
from ..protocol import Loaded, ModelEntry, Request
from ..registry import MODELS
from ..relay import Relay, relayed
from ..scales import ScaleModel

AUTHORS_CODE = "yes: czg1225/CoDe"
AND = " + "  # between the weights of the drafter and of the refiner, in a plan


@dataclass(frozen=True)
class CompositeModel:
    """Two next-scale models of the catalogue; the ``drafter`` makes the first ``drafted`` scales.

    Both have bundled or random weights, or those of the request, two paths joined by ``AND``. Images are decoded by the refiner's
    tokenizer. A plug-in registers the ``entry`` of a class of its own, ``class Mine(CompositeModel)``.
    """

    name: str
    drafter: str
    refiner: str
    drafted: int
    about: str = ""
    authors_code: str = AUTHORS_CODE

    @property
    def models(self) -> tuple[ModelEntry, ModelEntry]:
        """The entries of drafter and refiner."""
        return MODELS.get(self.drafter), MODELS.get(self.refiner)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        """Return the layout of a generation of ``batch`` samples.

        Raises BadParameter for models that do not fit.
        """
        drafter, refiner = (entry.shape(sampling, batch) for entry in self.models)
        return relayed(refiner, drafter, self.drafted, self.name)

    def counts(self) -> ParameterCounts | None:
        """Return the refiner's operations with the drafter's, None if one of them is not counted."""
        first, second = (entry.parameter_counts() for entry in self.models)
        return first and second and replace(second, drafter=first)

    def identity(self, request: Request) -> str:
        """Return the hashes of both transformers and of the tokenizer.

        Raises BadCheckpoint if there are two tokenizers.
        """
        named = [entry.identity(own).rpartition("/") for entry, own in zip(self.models, self._requests(request), strict=True)]
        (first, _, tokenizer), (second, _, other) = named
        if tokenizer != other:
            raise BadCheckpoint(f"{self.name}: the image tokenizers of {self.drafter} and {self.refiner} differ.",
                                remedy="Use two models of one tokenizer.")
        return f"{first}+{second}/{tokenizer}"

    def __call__(self, request: Request) -> Loaded:
        """Load both transformers and one tokenizer."""
        identity = self.identity(request)
        drafter, refiner = (entry.load(own) for entry, own in zip(self.models, self._requests(request), strict=True))
        assert isinstance(drafter.generator, ScaleModel), "of a next-scale entry"
        assert isinstance(refiner.generator, ScaleModel)
        relay = Relay(self.name, drafter.generator, refiner.generator, self.drafted)
        resident = [*relay.drafter.parameters(), *refiner.parameters]
        return Loaded(relay, refiner.decode, identity, resident, token_dtype=refiner.token_dtype)

    @property
    def entry(self) -> ModelEntry:
        """The entry that plans name. Raises BadParameter for models that do not fit."""
        drafter, refiner = self.models
        if {drafter.paradigm, refiner.paradigm} != {Relay.paradigm}:
            raise BadParameter(f"{self.name}: {self.drafter} is a {drafter.paradigm} model and {self.refiner} a {refiner.paradigm} model.",
                               remedy="Use two next-scale models.")
        self.shape(refiner.presets["paper"], 1)
        counts = self.counts()
        if counts and counts.drafter and counts.drafter.vocab != counts.vocab:
            raise BadParameter(f"{self.name}: {self.drafter} has a vocabulary of {counts.drafter.vocab}, {self.refiner} of {counts.vocab}.",
                               remedy="Use two models of one tokenizer.")
        if drafter.classes != refiner.classes:
            raise BadParameter(f"{self.name}: {self.drafter} has {drafter.classes} classes, {self.refiner} {refiner.classes}.",
                               remedy="Use two models of the same classes.")
        about = self.about or f"{self.drafter} drafts {self.drafted} scales, {self.refiner} makes the rest (CoDe without training)"
        about += f"; authors' code: {self.authors_code.removeprefix('yes: ')}"
        return ModelEntry(self.name, refiner.family, refiner.paradigm, refiner.grid, refiner.classes, self.shape, self, self.identity,
                          refiner.presets, refiner.quality, refiner.preset, about, parameter_counts=self.counts,
                          authors_code=self.authors_code)

    def _requests(self, request: Request) -> tuple[Request, Request]:
        """Return the request of each model. Raises BadCheckpoint for weights that are not two paths."""
        paths = request.weights.split(AND) if request.weights else ["", ""]
        if len(paths) != 2:
            raise BadCheckpoint(f"{self.name} has two models, and weights = {request.weights!r} names {len(paths)}.",
                                remedy=f'Name both, the drafter first: weights = "{self.drafter}.pth{AND}{self.refiner}.pth".')
        return replace(request, weights=paths[0]), replace(request, weights=paths[1])


PUBLISHED = [("var-d30+d16", "var-d30", "var-d16", drafted) for drafted in (9, 8, 7, 6)]
BUNDLED = [("tiny-var+d2", "tiny-var", "tiny-var-d2", drafted) for drafted in (7, 6, 5)]
for _pair, _drafter, _refiner, _drafted in [*PUBLISHED, *BUNDLED]:
    _name = f"{_pair}-n{_drafted}"
    MODELS.add(_name)(CompositeModel(_name, _drafter, _refiner, _drafted).entry)
