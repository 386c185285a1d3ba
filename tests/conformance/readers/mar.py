"""MAR: the transformer with its head (kind ``small``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedStep
from cachemark.contract.method import Bidirectional, Block, Method
from cachemark.core.spec import Sampling
from cachemark.models import diffusion, mar
from cachemark.models.diffusion import DiffusionHead, Predicted
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.vision.kl import grid_of, tokens_of

from ..checks import Check, Kind, Vector, apart, differing, worst

RELATIVE = 1e-5
# Angles reach 999, where fp32 numbers are 6e-5 apart, and a frequency whose last bit differs turns the angle by as much again. AVX2
# kernels give 3e-5 to 5.6e-5, and the stored tensor itself is 3.4e-5 from fp64.
WAVES = 1e-4
NO_CLASS = -1  # label of a row that is drawn without one


def far(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest value: untrained heads amplify to 10⁵."""
    return apart(actual, expected) / float(expected.double().abs().max())


def sections_of(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


# -- the transformer --------------------------------------------------------------------------------------------------
@dataclass
class Watched(Bidirectional):
    """Records the output of each block."""

    behind: dict[Site, Tensor] = field(default_factory=dict)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.behind[site] = tokens.x
        return tokens


class Replayed(MAR):
    """MAR with order and noise of the file; records passes and head conditions. Rows may lack a class."""

    def __init__(self, config: MARConfig, *, eager_head: bool = False) -> None:
        super().__init__(config, eager_head=eager_head)
        table = self.class_emb.forward
        self.class_emb.forward = lambda ids: torch.where(ids[:, None] < 0, self.fake_latent, table(ids.clamp_min(0)))

    def replay(self, vector: Vector, group: str) -> None:
        self.orders = vector[f"in/{group}/orders"]
        self.drawn = torch.cat((vector[f"in/{group}/init_noise"][None], vector[f"in/{group}/noise"]))
        self.head_inputs: list[Tensor] = []
        self.passes: list[MaskedStep] = []

    def order(self, key: Tensor) -> Tensor:
        return self.orders

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        taken, self.drawn = self.drawn.split((places.numel(), self.drawn.size(1) - places.numel()), 1)
        return taken.unflatten(1, tuple(places.shape))

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.passes.append(step)
        return super().encode(prefix, latents, step, method)

    def decode(self, encoded: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.hidden = super().decode(encoded, step, method)
        return self.hidden

    def conditions(self, hidden: Tensor, places: Tensor) -> Tensor:
        self.head_inputs.append(super().conditions(hidden, places))
        return self.head_inputs[-1]


@dataclass
class Ran:
    """One generation: tokens, passes, guidance per pass, head conditions, and those of the last pass."""

    tokens: Tensor
    passes: list[MaskedStep]
    scales: list[float]
    head_inputs: Tensor
    last: Tensor


@dataclass
class Subject:
    """The subject of the checks. ``models``: by spacing; ``grid``, ``flat``: tokens to a map and back."""

    models: dict[str, Replayed]
    vector: Vector
    grid: Callable[[Tensor], Tensor]
    flat: Callable[[Tensor], Tensor]

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {run["id"]: self._run(run) for run in self.vector.facts["trajectories"]}

    def _run(self, run: dict[str, Any]) -> Ran:
        model = self.models[run["resp"]]
        model.replay(self.vector, f"traj{run['id']}")
        sampling = Sampling(cfg_scale=run["cfg"], cfg_schedule=run["cfg_schedule"], temperature=run["temperature"],
                            steps=run["num_iter"])
        tokens = model.generate(labels_of(run), [0] * run["bsz"], Bidirectional(), sampling, Memory())
        head_inputs, count = torch.cat([z.flatten(0, 1) for z in model.head_inputs]), model.config.tokens
        last = MAR.conditions(model, model.hidden, everywhere(len(model.hidden), count))
        scales = [1.0 if (s := mar.guidance(sampling, step, count)) is None else s for step in model.passes]
        return Ran(tokens, model.passes, scales, head_inputs, last)

    @property
    def spacing(self) -> str:
        return str(self.vector.facts["config"]["num_sampling_steps"])

    @property
    def model(self) -> Replayed:
        return self.models[self.spacing]

    @property
    def head(self) -> DiffusionHead:
        return self.model.diffloss


def everywhere(rows: int, count: int) -> Tensor:
    return torch.arange(count).expand(rows, -1)


def labels_of(run: dict[str, Any]) -> Tensor:
    """Return the classes of a generation; null in the file means none."""
    labels = run["labels"] or [None] * run["bsz"]
    return torch.tensor([NO_CLASS if label is None else label for label in labels])


FIXED = {"mlp_ratio": 4, "norm_eps": 1e-6, "diffloss_t_freq_dim": 256}  # of every published size, and of the model's class


def config_of(facts: dict[str, Any], spacing: str) -> MARConfig:
    """Return the sizes of the file's model. Raises ValueError if the model's class cannot have them."""
    c = facts["config"]
    expected = FIXED | {"decoder_embed_dim": c["encoder_embed_dim"], "decoder_num_heads": c["encoder_num_heads"]}
    if other := {name: c[name] for name, value in expected.items() if c.get(name, value) != value}:
        raise ValueError(f"no MAR of this package has {other}: expected {({name: expected[name] for name in other})}")
    patch = c["patch_size"]
    return MARConfig(c["encoder_embed_dim"], (c["encoder_depth"], c["decoder_depth"]), c["encoder_num_heads"], c["diffloss_d"],
                     c["diffloss_w"], c["img_size"] // c["vae_stride"] // patch, c["vae_embed_dim"] * patch**2, c["class_num"],
                     c["buffer_size"], diffusion=sections_of(spacing))


def grid_by_patch(tokens: Tensor, patch: int) -> Tensor:
    """Map (B, N, C·p²) to (B, C, h, w); within a token the channel changes slowest, then the row."""
    return F.pixel_shuffle(grid_of(tokens), patch)


def tokens_by_patch(grid: Tensor, patch: int) -> Tensor:
    return tokens_of(F.pixel_unshuffle(grid, patch))


def subject(vector: Vector, *, eager_head: bool = False) -> Subject:
    models, c = {}, vector.facts["config"]
    for spacing in (str(c["num_sampling_steps"]), *(run["resp"] for run in vector.facts["trajectories"])):
        models[spacing] = Replayed(config_of(vector.facts, spacing), eager_head=eager_head)
        models[spacing].load_state_dict(vector.weights())
        models[spacing].eval().requires_grad_(False)
    patch = c["patch_size"]
    return Subject(models, vector, partial(grid_by_patch, patch=patch), partial(tokens_by_patch, patch=patch))


# -- encoder and decoder ----------------------------------------------------------------------------------------------
def state(subject: Subject, vector: Vector, name: str) -> tuple[Tensor, Tensor, Watched]:
    """Return the encoder's output, head conditions of all positions, and the recording method."""
    model, method = subject.model, Watched()
    tokens, mask = (vector[f"in/states/{name}/{part}"] for part in ("tokens", "mask"))
    known_places = mask.argsort(dim=1, stable=True)[:, : int((mask[0] == 0).sum())].repeat(2, 1)
    labels = f"in/states/{name}/labels"
    cond = model.class_emb(vector[labels] if labels in vector.tensors else torch.full((len(tokens),), NO_CLASS))
    step = MaskedStep(0, 1, known=known_places)
    encoded = MAR.encode(model, model.prefix(torch.cat((cond, model.fake_latent.expand_as(cond)))), tokens, step, method)
    hidden = MAR.decode(model, encoded, step, method)
    return encoded, MAR.conditions(model, hidden, everywhere(len(hidden), model.config.tokens)), method


def encoded(subject: Subject, vector: Vector) -> float:
    return worst(far(state(subject, vector, which)[0], vector[name]) for name, which in vector.matching("out/states/*/encoder_out"))


def head_inputs(subject: Subject, vector: Vector) -> float:
    return worst(far(state(subject, vector, which)[1], vector[name]) for name, which in vector.matching("out/states/*/z"))


def first_block(stack: str) -> Check:
    """Check the stored rows of the first block."""
    pattern = f"out/states/*/{stack}_block0_out"

    def measure(subject: Subject, vector: Vector) -> float:
        return worst(far(state(subject, vector, which)[2].behind[Site(stack, 0)][: len(vector[name])], vector[name])
                     for name, which in vector.matching(pattern))

    return Check(f"{stack}_block", RELATIVE, measure, (pattern,))


# -- the head ---------------------------------------------------------------------------------------------------------
def waves(subject: Subject, vector: Vector) -> float:
    return far(subject.head.net.time_embed.waves(vector["in/head/t"]), vector["out/head/timestep_embedding"])


def time_embed(subject: Subject, vector: Vector) -> float:
    return far(subject.head.net.time_embed(vector["in/head/t"]), vector["out/head/time_embed"])


def cond_embed(subject: Subject, vector: Vector) -> float:
    return far(subject.head.net.cond_embed(vector["in/head/c"]), vector["out/head/cond_embed"])


def output(subject: Subject, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
    """Return the network's output (rows, 2·C) for rows of one token."""
    return subject.head.net(x[:, None], t[:, None], c[:, None])[:, 0]


def head_out(subject: Subject, vector: Vector) -> float:
    return far(output(subject, vector["in/head/x"], vector["in/head/t"], vector["in/head/c"]), vector["out/head/out"])


def head_guided(subject: Subject, vector: Vector) -> float:
    """Compare guided outputs; both halves read the first half of x."""

    def deviation(name: str, scale: str) -> float:
        half = vector["in/head/x"].chunk(2)[0]
        out = output(subject, half.repeat(2, 1), vector["in/head/t"], vector["in/head/c"])
        eps, v = diffusion.guided(out, float(scale))
        other = out.chunk(2)[1].chunk(2, -1)[1]
        return far(torch.cat((torch.cat((eps, v), 1), torch.cat((eps, other), 1))), vector[name])

    return worst(deviation(name, scale) for name, scale in vector.matching("out/head/out_cfg*"))


def predicted(part: str, name: str) -> Check:
    pattern = f"out/head/pmv_t*/{name}"

    def measure(subject: Subject, vector: Vector) -> float:
        return worst(far(getattr(_predicted(subject, vector, int(index)), part), vector[at]) for at, index in vector.matching(pattern))

    return Check(part, RELATIVE, measure, (pattern,))


def _predicted(subject: Subject, vector: Vector, index: int) -> Predicted:
    short, x, c = diffusion.process(sections_of(subject.spacing)), vector["in/head/x"], vector["in/head/c"]
    eps, v = output(subject, x, torch.full((len(x),), short.timesteps[index]), c).chunk(2, -1)
    return short.predicted(x, eps, v, torch.full((len(x),), index))


def timesteps(subject: Subject, vector: Vector) -> float:
    maps = vector.facts["timestep_maps"]
    return max(differing(torch.tensor(diffusion.process(sections_of(name)).timesteps), torch.tensor(steps)) for name, steps in maps.items())


def loss_part(part: int, name: str) -> Check:
    def measure(subject: Subject, vector: Vector) -> float:
        terms = subject.head.terms(*(vector[at][:, None] for at in ("in/head/c", "in/loss/x_start", "in/loss/noise", "in/loss/t")))
        return far((*terms, terms[0] + terms[1])[part][:, 0], vector[f"out/loss/{name}"])

    return Check(f"loss_{name}", RELATIVE, measure, (f"out/loss/{name}",))


def settings_of(vector: Vector, variant: str) -> tuple[str, float, float]:
    """Parse spacing, guidance and temperature of a sampling variant from the file's description.

    ``n`` is its number of steps, and "as x" refers to another variant.
    """
    text, spacing = vector.facts["psl_variants"][variant], str(vector.facts["config"]["num_sampling_steps"])
    settings = {name: match[1] for name in ("as", "respacing", "cfg", "temperature")
                if (match := re.search(rf'\b{name} "?([\w.,]*\w)', text))}
    same = settings_of(vector, settings["as"]) if settings.get("as") in vector.facts["psl_variants"] else (spacing, 1.0, 1.0)
    spaced = settings.get("respacing", same[0]).replace("n", spacing)
    return spaced, float(settings.get("cfg", same[1])), float(settings.get("temperature", same[2]))


def sampled(subject: Subject, vector: Vector, which: str) -> float:
    """Compare every intermediate token of the head, and the last."""
    head, (spacing, scale, temperature) = subject.head, settings_of(vector, which)
    passes: list[Tensor] = []
    rows = len(vector["in/head/c"]) // (1 if scale == 1 else 2)
    schedule = head.schedule(sections_of(spacing), temperature)
    noise = torch.cat((vector["in/psl/init_noise"][None, :rows], vector["in/psl/noise"][: len(schedule.process), :rows]))[:, :, None]
    back = head.back

    def noted(*args: Any) -> Tensor:
        passes.append(back(*args))
        return passes[-1]

    head.back = noted  # type: ignore[method-assign]
    out = head.sample(vector["in/head/c"][:, None], noise, None if scale == 1 else scale, schedule, MaskedStep(0, 1), Bidirectional())
    del head.back
    expected = vector[f"out/psl/{which}/steps"][:, :rows]
    deviations = [far(x[:, 0], y) for x, y in zip(passes, expected, strict=True)]
    return max(*deviations, far(out[:, 0], vector[f"out/psl/{which}/out"][:rows]))


# -- whole generations ------------------------------------------------------------------------------------------------
def trajectory(name: str, part: str, measure: Callable[[Ran, Vector, str], float], tolerance: float = RELATIVE) -> Check:
    """Check all generations for which the file holds ``part``."""
    pattern = f"out/traj*/{part}"

    def measured(subject: Subject, vector: Vector) -> float:
        return worst(measure(subject.runs[which], vector, f"out/traj{which}/") for _, which in vector.matching(pattern))

    return Check(name, tolerance, measured, (pattern,))


def counts(ran: Ran, vector: Vector, at: str) -> float:
    return differing(torch.tensor([step.count for step in ran.passes]), vector[f"{at}counts"])


def masks(ran: Ran, vector: Vector, at: str) -> float:
    """Compare the unknown positions before each pass."""
    expected = vector[f"{at}masks"]
    own_masks = [torch.ones_like(mask).scatter(1, step.known[: len(mask)], 0) for mask, step in zip(expected, ran.passes, strict=True)]
    return differing(torch.stack(own_masks), expected)


def guidance(ran: Ran, vector: Vector, at: str) -> float:
    return apart(torch.tensor(ran.scales), vector[f"{at}cfg_iter"])


def conditions(ran: Ran, vector: Vector, at: str) -> float:
    return far(ran.head_inputs, vector[f"{at}z_pred"])


def last_conditions(ran: Ran, vector: Vector, at: str) -> float:
    return far(ran.last, vector[f"{at}z_full_laststep"])


def latents(subject: Subject, vector: Vector) -> float:
    return worst(far(subject.grid(subject.runs[which].tokens), vector[name]) for name, which in vector.matching("out/traj*/latent"))


def flattened(subject: Subject, vector: Vector) -> float:
    grid, tokens = vector["in/patchify/in"], vector["out/patchify/out"]
    return max(apart(subject.flat(grid), tokens), apart(subject.grid(tokens), grid))


KINDS = {
    "small": Kind(subject, (
        Check("encoder", RELATIVE, encoded, ("out/states/*/encoder_out",)),
        Check("head_inputs", RELATIVE, head_inputs, ("out/states/*/z",)),
        first_block("encoder"),
        first_block("decoder"),
        Check("waves", WAVES, waves, ("out/head/timestep_embedding",)),
        Check("time_embed", RELATIVE, time_embed, ("out/head/time_embed",)),
        Check("cond_embed", RELATIVE, cond_embed, ("out/head/cond_embed",)),
        Check("head", RELATIVE, head_out, ("out/head/out",)),
        Check("head_guided", RELATIVE, head_guided, ("out/head/out_cfg*",)),
        predicted("mean", "mean"),
        predicted("log_variance", "log_variance"),
        predicted("start", "pred_xstart"),
        Check("timesteps", 0.0, timesteps, ("json/timestep_maps",)),
        loss_part(0, "mse"),
        loss_part(1, "vb"),
        loss_part(2, "loss"),
        Check("sampled_*", RELATIVE, sampled, ("out/psl/*/out", "out/psl/*/steps")),
        trajectory("counts", "counts", counts, 0.0),
        trajectory("masks", "masks", masks, 0.0),
        trajectory("guidance", "cfg_iter", guidance, 1e-6),
        trajectory("conditions", "z_pred", conditions),
        trajectory("last_conditions", "z_full_laststep", last_conditions),
        Check("latents", RELATIVE, latents, ("out/traj*/latent",)),
        Check("flattened", 0.0, flattened, ("in/patchify/in",)),
    ), "the MAR transformer, its diffusion head and whole generations", ("full",)),
}
