"""Infinity under FastVAR, with the weights and texts of ``golden_small``; and the rows of each pass of SkipVAR's code."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Grid, Layout, Site, Step, Tokens, squares
from cachemark.contract.block import Block, Branch
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.fastvar import FastVAR
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.vision.bsq import bits_of, packed_bits
from cachemark.models.vision.maps import ABSENT

from ..checks import Check, Kind, Vector, compare, differing, worst
from .infinity import logits_of
from .infinity_rivals import Rival

BRANCHES = ("sa", "ca", "ffn")
GATES = {"sa": 0, "ffn": 1}  # of a block's modulations; the text has no gate


@dataclass
class NotingFastVAR(FastVAR):
    """FastVAR that records, by scale and layer, selected tokens, gated outputs of branches, and hidden states."""

    picked: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)
    merged: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)
    hidden: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    gates: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    def pruned(self, site: Site, step: Step, number: int, tokens: Tokens, branch: Branch) -> Tensor:
        name = BRANCHES[number]
        where = (step.index, site.layer, name)

        def run(part: Tokens) -> Tensor:
            self.picked[where] = self.selected
            return branch.run(part)

        out = super().pruned(site, step, number, tokens, branch._replace(run=run))
        gate = tokens.cond[:, site.layer, GATES[name], None] if name in GATES else torch.ones(len(out), 1, 1)
        self.merged[where], self.gates[site.layer, name] = gate * out, gate
        return out

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.hidden[step.index, site.layer] = tokens.x
        return tokens


class Settings(Rival):
    """The settings of the file, each run once along its bits and once greedily."""

    def __init__(self, vector: Vector) -> None:
        super().__init__(vector)
        self.done: dict[tuple[str, str], tuple[NotingFastVAR, Tensor]] = {}

    def maps(self, setting: str) -> dict[str, Grid]:
        """Return the maps of a setting by their names in the file: ``6`` for 6×6, ``6x4`` for 6 rows and 4 columns."""
        stated = self.vector.facts["settings"][setting]["sides"]
        maps = squares(stated) if isinstance(stated[0], int) else tuple((rows, columns) for rows, columns in stated)
        return {str(rows) if rows == columns else f"{rows}x{columns}": (rows, columns) for rows, columns in maps}

    def index(self, setting: str, name: str) -> int:
        return list(self.maps(setting)).index(name)

    def names(self, setting: str) -> list[str]:
        return list(self.maps(setting))[: len(self.vector.facts["settings"][setting]["scales that run"])]

    def method(self, setting: str) -> NotingFastVAR:
        facts, names = self.vector.facts["settings"][setting], self.names(setting)
        first, cached = (self.index(setting, str(name)) for name in (next(iter(facts["prune"])), facts["cache side"]))
        shares = [facts["prune"].get(name, 0.0) for name in names[first:]] + [1.0] * (len(self.maps(setting)) - len(names))
        return NotingFastVAR(shares, layers=(facts["layers"][0], facts["layers"][-1]), cached=cached)

    def ran(self, setting: str, how: str) -> tuple[NotingFastVAR, Tensor]:
        """Return the method and the tokens of a generation, cached; ``how`` is ``forced`` or ``greedy``."""
        if (setting, how) not in self.done:
            facts, method = self.vector.facts["settings"][setting], self.method(setting)
            bits = [self.vector[f"{setting}/{how}/bits/{name}"] for name in self.names(setting)]
            tokens = torch.full((1, sum(rows * columns for rows, columns in self.maps(setting).values())), ABSENT)
            drawn = packed_bits(torch.cat(bits))
            tokens[0, : len(drawn)] = drawn
            model = self.own_model(setting)
            made = model.generate(torch.tensor([facts["prompt"]]), [0], method, self.sampling(model), Memory(),
                                  forced=tokens if how == "forced" else None)
            self.done[setting, how] = method, made
        return self.done[setting, how]

    def own_model(self, setting: str) -> Infinity:
        return self.model(tuple(self.maps(setting).values()))

    def own_logits(self, setting: str, scale: int) -> Tensor:
        """Return logits of all rows before guidance, (rows, tokens, 2 · bits)."""
        method, prompt = self.ran(setting, "forced")[0], self.vector.facts["settings"][setting]["prompt"]
        hidden = method.hidden[scale, method.layout.layers - 1]
        return logits_of(self.own_model(setting), [hidden], [prompt], len(hidden))[0]


def noted(part: str, how: str = "forced") -> Callable[..., Tensor]:
    """Return a function for what a generation recorded in ``part`` of a setting, at a scale and layer (and branch)."""
    return lambda subject, vector, setting, side, layer, *branch: getattr(
        subject.ran(setting, how)[0], part)[(subject.index(setting, side), int(layer), *branch)]


def same_sets(actual: Tensor, expected: Tensor) -> float:
    """Compare kept sets; the file has them by score."""
    return differing(actual, expected.long().sort(-1).values)


def outputs(subject: Settings, _: Vector, setting: str, layer: str, branch: str) -> Tensor:
    """Return gated outputs of the kept scale, which are stored before their gate."""
    method = subject.ran(setting, "forced")[0]
    return method.gates[int(layer), branch] * method.outputs[int(layer) - method.pruned_layers.start, BRANCHES.index(branch)]


def greedy_bits(subject: Settings, vector: Vector) -> float:
    """Compare drawn bits of generated scales; tokens of the others are absent."""
    def share(setting: str) -> float:
        model, (_, tokens) = subject.own_model(setting), subject.ran(setting, "greedy")
        bits = torch.cat([vector[f"{setting}/greedy/bits/{side}"] for side in subject.names(setting)])
        absent = tokens[0, len(bits) :] == ABSENT
        return differing(bits_of(tokens[0, : len(bits)], model.config.bits), bits.long()) if bool(absent.all()) else float("inf")

    return worst(share(setting) for setting in vector.facts["settings"])


KINDS = {
    "fastvar": Kind(Settings, (
        compare("kept", "*/forced/kept/*/*/*", noted("picked"), 0.0, by=same_sets),
        compare("outputs", "*/forced/cache/*/*", outputs, 1e-5),
        compare("merged", "*/forced/restored/*/*/*", noted("merged"), 1e-5),
        compare("hidden", "*/forced/hidden/*/*", noted("hidden"), 5e-5),
        compare("logits", "*/forced/logits/*", lambda subject, vector, setting, side: subject.own_logits(
            setting, subject.index(setting, side)), 5e-5),
        compare("summed", "*/*/summed", lambda subject, vector, setting, how: subject.own_model(setting).quantizer.restore(
            subject.ran(setting, how)[1]), 1e-5),
        compare("greedy_kept", "*/greedy/kept/*/*/*", noted("picked", "greedy"), 0.0, by=same_sets),
        Check("greedy_bits", 0.0, greedy_bits, ("*/greedy/bits/*",)),
    ), "Infinity under FastVAR: four settings of shares, blocks and kept scales, along the file's bits and greedy", ("fastvar",)),
}


# -- SkipVAR ----------------------------------------------------------------------------------------------------------
SIDES = tuple(range(1, 14))  # as many scales as the file's, of fewer tokens, which no pass depends on


@dataclass
class Recording(Method):
    """Computes what another method declares, and records the rows of each pass."""

    declared: Method = field(default_factory=Method)
    rows: list[int] = field(default_factory=list)

    def scales(self, layout: Layout) -> int:
        return self.declared.scales(layout)

    def computed_rows(self, layout: Layout, scale: int) -> int:
        return self.declared.computed_rows(layout, scale)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if not site.layer:
            self.rows.append(len(tokens.x))
        return super().block(site, step, tokens, block)


class SmallInfinity:
    def __init__(self, vector: Vector) -> None:
        config = InfinityConfig(2, 2, 32, chunks=1, scales=squares(SIDES), width=5, text=256, longest=8)
        self.model = Infinity(config, [torch.ones(3, config.text)]).initialise(1).eval()

    def rows(self, skipped: int, unguided: int) -> list[int]:
        """Return the rows of each of the 13 passes, 0 for those that are not made."""
        method = Recording(FewerScales(skipped) if skipped else GuidanceOff(len(SIDES) - unguided))
        self.model.generate(torch.tensor([0]), [0], method, Sampling(cfg_scale=3.0), Memory())
        return (method.rows + [0] * len(SIDES))[: len(SIDES)]


def rows(subject: SmallInfinity, vector: Vector) -> float:
    return differing(torch.tensor([subject.rows(*outcome) for outcome in vector.facts["outcomes"]]), vector["rows"])


KINDS |= {
    "skipvar": Kind(SmallInfinity, (Check("rows", 0.0, rows, ("rows",)),),
                    "Infinity under SkipVAR: the rows of all passes by outcome", ("fewer_scales", "guidance_off")),
}
