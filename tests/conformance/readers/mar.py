"""MAR: the transformer with its head (kind ``small``), and both halves of a narrow autoencoder (``vae_decoder``, ``vae_encoder``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.masked_layout import MaskedStep
from cachemark.cache.slot import Memory
from cachemark.contract.bidirectional import Bidirectional
from cachemark.contract.method import Block, Method
from cachemark.core.spec import Sampling
from cachemark.models import diffusion, mar
from cachemark.models.diffusion import DiffusionHead, Predicted
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.vision.kl import KL, KLConfig, grid_of, tokens_of

from ..checks import Check, Kind, Vector, apart, differing

RELATIVE = 1e-5
TRAJECTORIES = ("A", "B", "C", "D")
STATES = ("s0", "s1", "s2", "s3")


def far(given: Tensor, expected: Tensor) -> float:
    """The greatest difference as a share of the greatest value: untrained heads amplify to 10⁵."""
    return apart(given, expected) / float(expected.double().abs().max())


def sections_of(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


# -- the transformer --------------------------------------------------------------------------------------------------
@dataclass
class Watched(Bidirectional):
    """Notes what stands behind each block."""

    behind: dict[Site, Tensor] = field(default_factory=dict)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.behind[site] = tokens.x
        return tokens


class Replayed(MAR):
    """Order and noise come from the file; the passes and what the head was told are noted."""

    def replay(self, vector: Vector, group: str) -> None:
        self.orders = vector[f"in/{group}/orders"]
        self.drawn = torch.cat((vector[f"in/{group}/init_noise"][None], vector[f"in/{group}/noise"]))
        self.told: list[Tensor] = []
        self.passes: list[MaskedStep] = []

    def order(self, key: Tensor) -> Tensor:
        return self.orders

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        """The next rows of the file."""
        taken, self.drawn = self.drawn.split((places.numel(), self.drawn.size(1) - places.numel()), 1)
        return taken.unflatten(1, tuple(places.shape))

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.passes.append(step)
        return super().encode(prefix, latents, step, method)

    def decode(self, encoded: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.hidden = super().decode(encoded, step, method)
        return self.hidden

    def conditions(self, hidden: Tensor, places: Tensor) -> Tensor:
        self.told.append(super().conditions(hidden, places))
        return self.told[-1]


@dataclass
class Ran:
    """One generation: the tokens, the passes, guidance of each, what the head was told, and that of all places in the last pass."""

    tokens: Tensor
    passes: list[MaskedStep]
    scales: list[float]
    told: Tensor
    last: Tensor


@dataclass
class Subject:
    """What the checks look at. ``models`` by the spacing of the head's process; ``grid`` and ``flat`` turn tokens into a map and back."""

    models: dict[str, Replayed]
    vector: Vector
    grid: Callable[[Tensor], Tensor] = grid_of
    flat: Callable[[Tensor], Tensor] = tokens_of

    @cached_property
    def runs(self) -> dict[str, Ran]:
        return {given["id"]: self._run(given) for given in self.vector.facts["trajectories"]}

    def _run(self, given: dict[str, Any]) -> Ran:
        model, labels = self.models[given["resp"]], torch.tensor(given["labels"])
        model.replay(self.vector, f"traj{given['id']}")
        sampling = Sampling(cfg_scale=given["cfg"], cfg_schedule=given["cfg_schedule"], temperature=given["temperature"],
                            steps=given["num_iter"])
        tokens = model.generate(labels, [0] * given["bsz"], Bidirectional(), sampling, Memory())
        told, count = torch.cat([z.flatten(0, 1) for z in model.told]), model.config.tokens
        last = MAR.conditions(model, model.hidden, everywhere(len(model.hidden), count))
        scales = [1.0 if (s := mar.guidance(sampling, step, count)) is None else s for step in model.passes]
        return Ran(tokens, model.passes, scales, told, last)

    @property
    def model(self) -> Replayed:
        return self.models["10"]

    @property
    def head(self) -> DiffusionHead:
        return self.model.diffloss


def everywhere(rows: int, count: int) -> Tensor:
    return torch.arange(count).expand(rows, -1)


def config_of(facts: dict[str, Any], spacing: str) -> MARConfig:
    c = facts["config"]
    assert (c["encoder_embed_dim"], c["encoder_num_heads"]) == (c["decoder_embed_dim"], c["decoder_num_heads"])
    assert (c["patch_size"], c["mlp_ratio"], c["norm_eps"], c.get("diffloss_t_freq_dim", 256)) == (1, 4, 1e-6, 256)
    return MARConfig(c["encoder_embed_dim"], (c["encoder_depth"], c["decoder_depth"]), c["encoder_num_heads"], c["diffloss_d"],
                     c["diffloss_w"], c["img_size"] // c["vae_stride"], c["vae_embed_dim"], c["class_num"], c["buffer_size"],
                     diffusion=sections_of(spacing))


def subject(vector: Vector, *, eager_head: bool = False) -> Subject:
    models = {}
    for spacing in {given["resp"] for given in vector.facts["trajectories"]}:
        models[spacing] = Replayed(config_of(vector.facts, spacing), eager_head=eager_head)
        models[spacing].load_state_dict(vector.weights())
        models[spacing].eval().requires_grad_(False)
    return Subject(models, vector)


# -- encoder and decoder ----------------------------------------------------------------------------------------------
def state(given: Subject, vector: Vector, name: str) -> tuple[Tensor, Tensor, Watched]:
    """The encoder's output, what the head is told of all places, and the method that watched."""
    model, method = given.model, Watched()
    tokens, mask = (vector[f"in/states/{name}/{part}"] for part in ("tokens", "mask"))
    known = mask.argsort(dim=1, stable=True)[:, : int((mask[0] == 0).sum())].repeat(2, 1)
    cond = model.class_emb(vector[f"in/states/{name}/labels"])
    step = MaskedStep(0, 1, known=known)
    encoded = MAR.encode(model, model.prefix(torch.cat((cond, model.fake_latent.expand_as(cond)))), tokens, step, method)
    hidden = MAR.decode(model, encoded, step, method)
    return encoded, MAR.conditions(model, hidden, everywhere(len(hidden), model.config.tokens)), method


def encoded(given: Subject, vector: Vector) -> float:
    return max(far(state(given, vector, name)[0], vector[f"out/states/{name}/encoder_out"]) for name in STATES)


def told(given: Subject, vector: Vector) -> float:
    return max(far(state(given, vector, name)[1], vector[f"out/states/{name}/z"]) for name in STATES)


def first_block(stack: str) -> Check:
    name = f"out/states/s1/{stack}_block0_out"

    def measure(given: Subject, vector: Vector) -> float:
        return far(state(given, vector, "s1")[2].behind[Site(stack, 0)][:1], vector[name])

    return Check(f"{stack}_block", RELATIVE, measure, (name,))


# -- the head ---------------------------------------------------------------------------------------------------------
def waves(given: Subject, vector: Vector) -> float:
    return far(given.head.net.time_embed.waves(vector["in/head/t"]), vector["out/head/timestep_embedding"])


def time_embed(given: Subject, vector: Vector) -> float:
    return far(given.head.net.time_embed(vector["in/head/t"]), vector["out/head/time_embed"])


def cond_embed(given: Subject, vector: Vector) -> float:
    return far(given.head.net.cond_embed(vector["in/head/c"]), vector["out/head/cond_embed"])


def output(given: Subject, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
    """Of the network, for rows of one token each: (rows, 2·C)."""
    return given.head.net(x[:, None], t[:, None], c[:, None])[:, 0]


def head_out(given: Subject, vector: Vector) -> float:
    return far(output(given, vector["in/head/x"], vector["in/head/t"], vector["in/head/c"]), vector["out/head/out"])


def head_guided(given: Subject, vector: Vector) -> float:
    """Both halves see the first half of x; the file repeats the guided ε for the second."""
    expected = vector["out/head/out_cfg2.5"]
    half = vector["in/head/x"].chunk(2)[0]
    out = output(given, half.repeat(2, 1), vector["in/head/t"], vector["in/head/c"])
    eps, v = diffusion.guided(out, 2.5)
    other = out.chunk(2)[1].chunk(2, -1)[1]
    return far(torch.cat((torch.cat((eps, v), 1), torch.cat((eps, other), 1))), expected)


def predicted(part: str, name: str) -> Check:
    def measure(given: Subject, vector: Vector) -> float:
        return max(far(getattr(_predicted(given, vector, i), part), vector[f"out/head/pmv_t{i}/{name}"]) for i in (0, 5, 9))

    return Check(part, RELATIVE, measure, ("out/head/pmv_t0/mean",))


def _predicted(given: Subject, vector: Vector, index: int) -> Predicted:
    short, x, c = diffusion.process((10,)), vector["in/head/x"], vector["in/head/c"]
    eps, v = output(given, x, torch.full((len(x),), short.timesteps[index]), c).chunk(2, -1)
    return short.predicted(x, eps, v, torch.full((len(x),), index))


def timesteps(given: Subject, vector: Vector) -> float:
    maps = vector.facts["timestep_maps"]
    return max(differing(torch.tensor(diffusion.process(sections_of(name)).timesteps), torch.tensor(steps)) for name, steps in maps.items())


def loss_part(part: int, name: str) -> Check:
    def measure(given: Subject, vector: Vector) -> float:
        terms = given.head.terms(*(vector[at][:, None] for at in ("in/head/c", "in/loss/x_start", "in/loss/noise", "in/loss/t")))
        return far((*terms, terms[0] + terms[1])[part][:, 0], vector[f"out/loss/{name}"])

    return Check(f"loss_{name}", RELATIVE, measure, (f"out/loss/{name}",))


def sampled(variant: str, spacing: str, scale: float | None, temperature: float) -> Check:
    """The head alone: every intermediate token, of the conditional rows, and the last."""

    def measure(given: Subject, vector: Vector) -> float:
        head = given.models[spacing].diffloss
        seen: list[Tensor] = []
        rows = len(vector["in/head/c"]) // (1 if scale is None else 2)
        noise = torch.cat((vector["in/psl/init_noise"][None, :rows], vector["in/psl/noise"][:, :rows]))[:, :, None]
        back, course = head.back, head.course(sections_of(spacing), temperature)

        def noted(*args: Any) -> Tensor:
            seen.append(back(*args))
            return seen[-1]

        head.back = noted  # type: ignore[method-assign]
        out = head.sample(vector["in/head/c"][:, None], noise, scale, course, MaskedStep(0, 1), Bidirectional())
        del head.back
        expected = vector[f"out/psl/{variant}/steps"][:, :rows]
        deviations = [far(x[:, 0], y) for x, y in zip(seen, expected, strict=True)]
        return max(*deviations, far(out[:, 0], vector[f"out/psl/{variant}/out"][:rows]))

    return Check(f"sampled_{variant}", RELATIVE, measure, (f"out/psl/{variant}/out",))


# -- whole generations ------------------------------------------------------------------------------------------------
def trajectory(name: str, measure: Callable[[Ran, Vector, str], float], tolerance: float = RELATIVE) -> Check:
    def measured(given: Subject, vector: Vector) -> float:
        return max(measure(given.runs[which], vector, f"out/traj{which}/") for which in TRAJECTORIES)

    return Check(name, tolerance, measured, ("out/trajA/masks",))


def counts(ran: Ran, vector: Vector, at: str) -> float:
    return differing(torch.tensor([step.count for step in ran.passes]), vector[f"{at}counts"])


def masks(ran: Ran, vector: Vector, at: str) -> float:
    """Which places are unknown before each pass."""
    expected = vector[f"{at}masks"]
    found = [torch.ones_like(mask).scatter(1, step.known[: len(mask)], 0) for mask, step in zip(expected, ran.passes, strict=True)]
    return differing(torch.stack(found), expected)


def guidance(ran: Ran, vector: Vector, at: str) -> float:
    return apart(torch.tensor(ran.scales), vector[f"{at}cfg_iter"])


def conditions(ran: Ran, vector: Vector, at: str) -> float:
    name = f"{at}z_pred"
    return far(ran.told, vector[name]) if name in vector.tensors else 0.0


def last_conditions(ran: Ran, vector: Vector, at: str) -> float:
    name = f"{at}z_full_laststep"
    return far(ran.last, vector[name]) if name in vector.tensors else 0.0


def latents(given: Subject, vector: Vector) -> float:
    return max(far(given.grid(given.runs[which].tokens), vector[f"out/traj{which}/latent"]) for which in TRAJECTORIES)


def flattened(given: Subject, vector: Vector) -> float:
    grid, tokens = vector["in/patchify/in"], vector["out/patchify/out"]
    return max(apart(given.flat(grid), tokens), apart(given.grid(tokens), grid))


# -- the autoencoder --------------------------------------------------------------------------------------------------
def autoencoder(vector: Vector) -> KL:
    half = "decoder" if "in/z" in vector.tensors else "encoder"
    c = vector.facts[f"{half}_config"]
    model = KL(KLConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"]))
    missing, unexpected = model.load_state_dict(vector.weights(), strict=False)
    own = ("decoder.", "post_quant_conv.") if half == "decoder" else ("encoder.", "quant_conv.")
    assert not unexpected
    assert not [name for name in missing if name.startswith(own)]
    return model.eval().requires_grad_(False)


def image(model: KL, vector: Vector) -> float:
    return far(model.image(vector["in/z"]), vector["out/image"])


def decoded(model: KL, vector: Vector) -> float:
    """From scaled tokens to the clamped image."""
    tokens = tokens_of(vector["in/z"]) * 0.2325
    return far(model.decode(tokens), vector["out/image"].clamp(-1, 1))


def moments(model: KL, vector: Vector) -> float:
    return far(model.quant_conv(model.encoder(vector["in/image"])), vector["out/moments"])


def mean(model: KL, vector: Vector) -> float:
    return far(model.moments(vector["in/image"])[0], vector["out/mean"])


def deviation(model: KL, vector: Vector) -> float:
    return far(model.moments(vector["in/image"])[1], vector["out/std"])


def encoded_tokens(model: KL, vector: Vector) -> float:
    return far(model.encode(vector["in/image"]), tokens_of(vector["out/mean"]) * 0.2325)


KINDS = {
    "small": Kind(subject, (
        Check("encoder", RELATIVE, encoded, ("out/states/s0/encoder_out",)),
        Check("told", RELATIVE, told, ("out/states/s0/z",)),
        first_block("encoder"),
        first_block("decoder"),
        Check("waves", RELATIVE, waves, ("out/head/timestep_embedding",)),
        Check("time_embed", RELATIVE, time_embed, ("out/head/time_embed",)),
        Check("cond_embed", RELATIVE, cond_embed, ("out/head/cond_embed",)),
        Check("head", RELATIVE, head_out, ("out/head/out",)),
        Check("head_guided", RELATIVE, head_guided, ("out/head/out_cfg2.5",)),
        predicted("mean", "mean"),
        predicted("log_variance", "log_variance"),
        predicted("start", "pred_xstart"),
        Check("timesteps", 0.0, timesteps, ("in/head/t",)),
        loss_part(0, "mse"),
        loss_part(1, "vb"),
        loss_part(2, "loss"),
        sampled("cfg1", "10", None, 1.0),
        sampled("cfg3", "10", 3.0, 0.9),
        sampled("cfg3s", "10,0", 3.0, 0.9),
        trajectory("counts", counts, 0.0),
        trajectory("masks", masks, 0.0),
        trajectory("guidance", guidance, 1e-6),
        trajectory("conditions", conditions),
        trajectory("last_conditions", last_conditions),
        Check("latents", RELATIVE, latents, ("out/trajA/latent",)),
        Check("flattened", 0.0, flattened, ("in/patchify/in",)),
    ), "the MAR transformer, its diffusion head and whole generations", ("full",)),
    "vae_decoder": Kind(autoencoder, (
        Check("image", RELATIVE, image, ("in/z", "out/image")),
        Check("decoded", RELATIVE, decoded, ("in/z", "out/image")),
    ), "MAR's image tokenizer, decoding"),
    "vae_encoder": Kind(autoencoder, (
        Check("moments", RELATIVE, moments, ("in/image", "out/moments")),
        Check("mean", RELATIVE, mean, ("in/image", "out/mean")),
        Check("deviation", RELATIVE, deviation, ("in/image", "out/std")),
        Check("encoded", RELATIVE, encoded_tokens, ("in/image", "out/mean")),
    ), "MAR's image tokenizer, encoding"),
}
