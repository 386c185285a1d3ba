"""MAR: the transformer with its head (kind ``small``), and the decoder of its image tokenizer (kind ``vae_decoder``)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedStep
from cachemark.cache.timesteps import respaced
from cachemark.contract.block import Block
from cachemark.contract.method import Bidirectional, Method
from cachemark.core.spec import Sampling
from cachemark.models import diffusion, mar
from cachemark.models.diffusion import DiffusionHead, Predicted
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.vision.kl import KL, KLConfig, grid_of, tokens_of
from tools.train.mar_loss import terms

from ..checks import Check, Kind, Vector, apart, compare, differing, filled

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
    behind: dict[Site, Tensor] = field(default_factory=dict)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.behind[site] = tokens.x
        return tokens


class Replayed(MAR):
    """MAR with order and noise of a file, that records its passes, states, and what is drawn. Rows may lack a class."""

    def __init__(self, config: MARConfig, *, eager_head: bool = False) -> None:
        super().__init__(config, eager_head=eager_head)
        table = self.class_emb.forward
        self.class_emb.forward = lambda ids: torch.where(ids[:, None] < 0, self.fake_latent, table(ids.clamp_min(0)))

    def replay(self, orders: Tensor, noise: Callable[[Tensor, int], Tensor]) -> None:
        """Follow these orders, and noise by places and passes of the head, and forget what was recorded."""
        self.orders, self.noise_of = orders.long(), noise
        self.passes: list[MaskedStep] = []
        self.encoded, self.hidden, self.head_inputs, self.drawn = (list[Any]() for _ in range(4))

    def order(self, key: Tensor) -> Tensor:
        return self.orders

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        return self.noise_of(places, passes)

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.passes.append(step)
        self.encoded.append(super().encode(prefix, latents, step, method))
        return self.encoded[-1]

    def decode(self, encoded: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.hidden.append(super().decode(encoded, step, method))
        return self.hidden[-1]

    def everything(self, index: int) -> Tensor:
        """Return the head conditions of all positions in a pass."""
        return MAR.conditions(self, self.hidden[index], everywhere(len(self.hidden[index]), self.config.tokens))

    def see(self, *drawn: Tensor) -> None:
        self.drawn.append(drawn)

    def conditions(self, hidden: Tensor, places: Tensor) -> Tensor:
        self.head_inputs.append(super().conditions(hidden, places))
        return self.head_inputs[-1]


def in_turn(noise: Tensor) -> Callable[[Tensor, int], Tensor]:
    """Return what gives each pass its part of the noise."""
    left = [noise]

    def taken(places: Tensor, passes: int) -> Tensor:
        own, left[0] = left[0].split((places.numel(), left[0].size(1) - places.numel()), 1)
        return own.unflatten(1, tuple(places.shape))

    return taken


def traced(head: DiffusionHead) -> list[list[Tensor]]:
    """Record x after every step of each process that a head runs from here on."""
    traces, back = list[list[Tensor]](), head.back

    def recorded(x: Tensor, eps: Tensor, v: Tensor, noise: Tensor, index: int, process: diffusion.Process) -> Tensor:
        if index == len(process) - 1:
            traces.append([])
        traces[-1].append(back(x, eps, v, noise, index, process))
        return traces[-1][-1]

    head.back = recorded  # type: ignore[method-assign]
    return traces


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
        model, at = self.models[run["resp"]], f"in/traj{run['id']}"
        model.replay(self.vector[f"{at}/orders"], in_turn(torch.cat((self.vector[f"{at}/init_noise"][None], self.vector[f"{at}/noise"]))))
        sampling = Sampling(cfg_scale=run["cfg"], cfg_schedule=run["cfg_schedule"], temperature=run["temperature"], steps=run["num_iter"])
        tokens = model.generate(labels_of(run), [0] * run["bsz"], Bidirectional(), sampling, Memory())
        head_inputs = torch.cat([z.flatten(0, 1) for z in model.head_inputs])
        scales = [1.0 if (s := mar.guidance(sampling, step, model.config.tokens)) is None else s for step in model.passes]
        return Ran(tokens, model.passes, scales, head_inputs, model.everything(-1))

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


def subject(vector: Vector, *, eager_head: bool = False) -> Subject:
    models, c = {}, vector.facts["config"]
    for spacing in (str(c["num_sampling_steps"]), *(run["resp"] for run in vector.facts["trajectories"])):
        models[spacing] = filled(Replayed(config_of(vector.facts, spacing), eager_head=eager_head), vector.weights())
    patch = c["patch_size"]
    return Subject(models, vector, partial(grid_by_patch, patch=patch), lambda grid: tokens_of(F.pixel_unshuffle(grid, patch)))


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


# -- the head ---------------------------------------------------------------------------------------------------------
def output(subject: Subject, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
    """Return the network's output (rows, 2·C) for rows of one token."""
    return subject.head.net(x[:, None], t[:, None], c[:, None])[:, 0]


def guided_output(subject: Subject, vector: Vector, scale: str) -> Tensor:
    """Return guided outputs; both halves read the first half of x."""
    half = vector["in/head/x"].chunk(2)[0]
    out = output(subject, half.repeat(2, 1), vector["in/head/t"], vector["in/head/c"])
    eps, v = diffusion.guided(out, float(scale))
    return torch.cat((torch.cat((eps, v), 1), torch.cat((eps, out.chunk(2)[1].chunk(2, -1)[1]), 1)))


def predicted(subject: Subject, vector: Vector, index: str) -> Predicted:
    short, x, c = diffusion.process(respaced(sections_of(subject.spacing))), vector["in/head/x"], vector["in/head/c"]
    eps, v = output(subject, x, torch.full((len(x),), short.timesteps[int(index)]), c).chunk(2, -1)
    return short.predicted(x, eps, v, torch.full((len(x),), int(index)))


def timesteps(subject: Subject, vector: Vector) -> float:
    maps = vector.facts["timestep_maps"]
    return max(differing(torch.tensor(respaced(sections_of(name))), torch.tensor(steps)) for name, steps in maps.items())


def losses(subject: Subject, vector: Vector) -> tuple[Tensor, Tensor]:
    parts = (vector[name][:, None] for name in ("in/head/c", "in/loss/x_start", "in/loss/noise", "in/loss/t"))
    squared, bound = terms(subject.head, *parts)
    return squared[:, 0], bound[:, 0]


def settings_of(vector: Vector, variant: str) -> tuple[str, float, float]:
    """Parse spacing, with ``n`` for the file's, guidance and temperature of a sampling variant; "as x" refers to another variant."""
    text, spacing = vector.facts["psl_variants"][variant], str(vector.facts["config"]["num_sampling_steps"])
    settings = {name: match[1] for name in ("as", "respacing", "cfg", "temperature")
                if (match := re.search(rf'\b{name} "?([\w.,]*\w)', text))}
    same = settings_of(vector, settings["as"]) if settings.get("as") in vector.facts["psl_variants"] else (spacing, 1.0, 1.0)
    spaced = settings.get("respacing", same[0]).replace("n", spacing)
    return spaced, float(settings.get("cfg", same[1])), float(settings.get("temperature", same[2]))


def sampled(subject: Subject, vector: Vector, which: str) -> float:
    """Compare every intermediate token of the head, and the last."""
    head, (spacing, scale, temperature) = subject.head, settings_of(vector, which)
    rows = len(vector["in/head/c"]) // (1 if scale == 1 else 2)
    schedule = head.schedule(respaced(sections_of(spacing)), temperature)
    noise = torch.cat((vector["in/psl/init_noise"][None, :rows], vector["in/psl/noise"][: len(schedule.process), :rows]))[:, :, None]
    traces = traced(head)
    out = head.sample(vector["in/head/c"][:, None], noise, None if scale == 1 else scale, schedule, MaskedStep(0, 1), Bidirectional())
    del head.back
    expected = vector[f"out/psl/{which}/steps"][:, :rows]
    deviations = [far(x[:, 0], y) for x, y in zip(traces[0], expected, strict=True)]
    return max(*deviations, far(out[:, 0], vector[f"out/psl/{which}/out"][:rows]))


# -- whole generations ------------------------------------------------------------------------------------------------
def masks_of(passes: Sequence[MaskedStep], batch: int, count: int) -> Tensor:
    """Return the unknown positions before each pass, (passes, batch, count)."""
    return torch.stack([torch.ones(batch, count).scatter(1, step.known[:batch], 0) for step in passes])


def flattened(subject: Subject, vector: Vector) -> float:
    grid, tokens = vector["in/patchify/in"], vector["out/patchify/out"]
    return max(apart(subject.flat(grid), tokens), apart(subject.grid(tokens), grid))


close = partial(compare, tolerance=RELATIVE, by=far)
KINDS = {
    "small": Kind(subject, (
        close("encoder", "out/states/*/encoder_out", lambda subject, vector, which: state(subject, vector, which)[0]),
        close("head_inputs", "out/states/*/z", lambda subject, vector, which: state(subject, vector, which)[1]),
        *(close(f"{stack}_block", f"out/states/*/{stack}_block0_out", by=lambda actual, expected: far(actual[: len(expected)], expected),
                actual=lambda subject, vector, which, stack=stack: state(subject, vector, which)[2].behind[Site(stack, 0)])
          for stack in ("encoder", "decoder")),
        compare("waves", "out/head/timestep_embedding", lambda subject, vector: subject.head.net.time_embed.waves(vector["in/head/t"]),
                WAVES, by=far),
        close("time_embed", "out/head/time_embed", lambda subject, vector: subject.head.net.time_embed(vector["in/head/t"])),
        close("cond_embed", "out/head/cond_embed", lambda subject, vector: subject.head.net.cond_embed(vector["in/head/c"])),
        close("head", "out/head/out", lambda subject, vector: output(
            subject, vector["in/head/x"], vector["in/head/t"], vector["in/head/c"])),
        close("head_guided", "out/head/out_cfg*", guided_output),
        close("mean", "out/head/pmv_t*/mean", lambda *arguments: predicted(*arguments).mean),
        close("log_variance", "out/head/pmv_t*/log_variance", lambda *arguments: predicted(*arguments).log_variance),
        close("start", "out/head/pmv_t*/pred_xstart", lambda *arguments: predicted(*arguments).start),
        Check("timesteps", 0.0, timesteps, ("json/timestep_maps",)),
        close("loss_mse", "out/loss/mse", lambda *arguments: losses(*arguments)[0]),
        close("loss_vb", "out/loss/vb", lambda *arguments: losses(*arguments)[1]),
        close("loss_loss", "out/loss/loss", lambda *arguments: sum(losses(*arguments))),
        Check("sampled_*", RELATIVE, sampled, ("out/psl/*/out", "out/psl/*/steps")),
        compare("counts", "out/traj*/counts", lambda subject, vector, which: torch.tensor(
            [step.count for step in subject.runs[which].passes]), 0.0, by=differing),
        compare("masks", "out/traj*/masks", lambda subject, vector, which: masks_of(
            subject.runs[which].passes, *subject.runs[which].tokens.shape[:2]), 0.0, by=differing),
        compare("guidance", "out/traj*/cfg_iter", lambda subject, vector, which: torch.tensor(subject.runs[which].scales), 1e-6),
        close("conditions", "out/traj*/z_pred", lambda subject, vector, which: subject.runs[which].head_inputs),
        close("last_conditions", "out/traj*/z_full_laststep", lambda subject, vector, which: subject.runs[which].last),
        close("latents", "out/traj*/latent", lambda subject, vector, which: subject.grid(subject.runs[which].tokens)),
        Check("flattened", 0.0, flattened, ("in/patchify/in",)),
    ), "the MAR transformer, its diffusion head and whole generations", ("full",)),
}


# -- the image tokenizer's decoder ------------------------------------------------------------------------------------
SCALE = 0.2325  # of the authors' code


def decoder(vector: Vector) -> KL:
    c = vector.facts["decoder_config"]
    return filled(KL(KLConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"])), vector.weights())


KINDS |= {
    "vae_decoder": Kind(decoder, (
        compare("image", "out/image", lambda model, vector: model.image(vector["in/z"]), RELATIVE, needs=("in/z",), by=far),
        compare("decoded", "out/image", lambda model, vector: model.decode(tokens_of(vector["in/z"]) * SCALE), RELATIVE, needs=("in/z",),
                by=lambda actual, expected: far(actual, expected.clamp(-1, 1))),
    ), "MAR's image tokenizer, decoding"),
}
