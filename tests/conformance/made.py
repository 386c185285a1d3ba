"""Vectors of other configurations than the stored ones, made by the package's own models in the format of the official ones.

They say nothing about fidelity: they show that the readers follow the file, whatever sizes, patch, passes or seeds it has.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cachemark.cache.arena import Memory
from cachemark.cache.masked_layout import MaskedStep
from cachemark.contract.method import Bidirectional, Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.methods.lazymar import LazyMAR
from cachemark.models import diffusion
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.autoencoder import JointAttnBlock, KLDecoder
from cachemark.models.vision.msvq import MultiScaleQuantizer
from cachemark.models.vision.vq import Pyramid

PATCH, VAE = 2, 3  # pixels of a latent map on the side of a token, and its channels


def written(folder: Path, name: str, facts: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    path = folder / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(facts))
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, path)
    return path


def random(module: nn.Module, seed: int, deviation: float = 0.2) -> None:
    """Weights of all sizes, biases included, that fp16 holds exactly: official files store them so."""
    draws = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.normal_(0, deviation, generator=draws)
        parameter.data = parameter.data.half().float()
    module.eval().requires_grad_(False)


def weights(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor.half() for name, tensor in module.state_dict().items()}


# -- MAR --------------------------------------------------------------------------------------------------------------
class Recorded(MAR):
    """Keeps what a generation drew, saw and told the head."""

    def order(self, key: Tensor) -> Tensor:
        self.orders = super().order(key)
        self.noises: list[Tensor] = []
        self.told: list[Tensor] = []
        self.masks: list[Tensor] = []
        return self.orders

    def noise(self, key: Tensor, places: Tensor, passes: int) -> Tensor:
        drawn = super().noise(key, places, passes)
        self.noises.append(drawn.flatten(1, 2))
        return drawn

    def encode(self, prefix: Tensor, latents: Tensor, step: MaskedStep, method: Method) -> Tensor:
        self.masks.append(torch.ones(latents.shape[:2]).scatter(1, step.known[: len(latents)], 0))
        return super().encode(prefix, latents, step, method)

    def conditions(self, hidden: Tensor, places: Tensor) -> Tensor:
        self.told.append(super().conditions(hidden, places))
        return self.told[-1]

    @property
    def counts(self) -> list[int]:
        left = [int(mask[0].sum()) for mask in self.masks] + [0]
        return [a - b for a, b in itertools.pairwise(left)]


def scales_of(counts: list[int], tokens: int, cfg: float) -> list[float]:
    """Linear guidance: of the share that is known after a pass, of which the last leaves one token by the schedule."""
    known = [min(sum(counts[: i + 1]), tokens - 1) for i in range(len(counts))]
    return [1 + (cfg - 1) * share / tokens for share in known]


def unpatchified(tokens: Tensor, side: int) -> Tensor:
    parts = tokens.unflatten(2, (VAE, PATCH, PATCH)).unflatten(1, (side, side))
    return torch.einsum("nhwcpq->nchpwq", parts).reshape(len(tokens), VAE, side * PATCH, side * PATCH)


def mar_small(folder: Path) -> Path:
    """Six by six tokens of two by two; three samples, of which one or all have no class; six passes of the head."""
    config = {"img_size": 48, "patch_size": PATCH, "vae_stride": 4, "vae_embed_dim": VAE, "encoder_embed_dim": 24, "encoder_depth": 1,
              "encoder_num_heads": 3, "decoder_embed_dim": 24, "decoder_depth": 2, "decoder_num_heads": 3, "class_num": 5, "buffer_size": 3,
              "diffloss_d": 2, "diffloss_w": 20, "num_sampling_steps": "6", "mlp_ratio": 4, "norm_eps": 1e-6}
    model = Recorded(MARConfig(24, (1, 2), 3, 2, 20, 6, VAE * PATCH**2, 5, 3, diffusion=(6,)))
    random(model, 5)
    tensors = weights(model, "weights/")
    runs = [
        {"id": "X", "bsz": 3, "num_iter": 7, "cfg": 2.0, "cfg_schedule": "linear", "temperature": 0.8, "resp": "6", "labels": [1, None, 3]},
        {"id": "Y", "bsz": 1, "num_iter": 4, "cfg": 1.0, "cfg_schedule": "constant", "temperature": 1.0, "resp": "5,0", "labels": None},
    ]
    for given in runs:
        tensors |= _generated(model, given)
    tensors |= _states(model) | _head(model)
    facts = {"config": config, "trajectories": runs, "timestep_maps": {"6": [0, 200, 400, 599, 799, 999]}, "psl_variants": {
        "bare": "all rows, cfg 1.0, temperature 0.7, respacing 6", "led": 'as bare with cfg 1.5, respacing "n,0"'}}
    return written(folder, "mar/made_small", facts, tensors)


def _generated(model: Recorded, given: dict[str, Any]) -> dict[str, Tensor]:
    """A generation whose last class stands for none, by way of its row in the table."""
    own = model.class_emb.weight.data.clone()
    model.class_emb.weight.data[-1] = model.fake_latent.data[0]
    labels = given["labels"] or [None] * given["bsz"]
    sections = tuple(int(part) for part in given["resp"].split(","))
    model.config = MARConfig(**{**vars(model.config), "diffusion": sections})
    sampling = Sampling(cfg_scale=given["cfg"], cfg_schedule=given["cfg_schedule"], temperature=given["temperature"],
                        steps=given["num_iter"])
    ids = torch.tensor([4 if label is None else label for label in labels])
    tokens = model.generate(ids, range(70, 70 + len(labels)), Bidirectional(), sampling, Memory())
    model.class_emb.weight.data = own
    noise, at = torch.cat(model.noises, 1), f"traj{given['id']}"
    scales = [given["cfg"]] * len(model.counts) if given["cfg_schedule"] == "constant" else scales_of(model.counts, 36, given["cfg"])
    latent = unpatchified(tokens, 6)
    return {
        f"in/{at}/orders": model.orders, f"in/{at}/init_noise": noise[0], f"in/{at}/noise": noise[1:],
        f"out/{at}/counts": torch.tensor(model.counts), f"out/{at}/masks": torch.stack(model.masks),
        f"out/{at}/cfg_iter": torch.tensor(scales), f"out/{at}/z_pred": torch.cat([z.flatten(0, 1) for z in model.told]),
        f"out/{at}/latent": latent, "in/patchify/in": latent, "out/patchify/out": tokens,
    }


def _states(model: Recorded) -> dict[str, Tensor]:
    """One state, without a class."""
    draws = torch.Generator().manual_seed(8)
    tokens, mask = torch.randn(2, 36, 12, generator=draws), torch.ones(2, 36)
    known = torch.stack([torch.randperm(36, generator=draws)[:9].sort().values for _ in range(2)])
    step, method = MaskedStep(0, 1, known=known.repeat(2, 1)), Bidirectional()
    encoded = MAR.encode(model, model.prefix(model.fake_latent.expand(4, -1)), tokens, step, method)
    z = MAR.conditions(model, MAR.decode(model, encoded, step, method), torch.arange(36).expand(4, -1))
    return {"in/states/free/tokens": tokens, "in/states/free/mask": mask.scatter(1, known, 0),
            "out/states/free/encoder_out": encoded, "out/states/free/z": z}


def _head(model: Recorded) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(9)
    x, c = torch.randn(4, 12, generator=draws), torch.randn(4, 24, generator=draws)
    t, noise = torch.tensor([0, 999, 40, 500]), torch.randn(7, 4, 12, generator=draws)
    head, made = model.diffloss, {"in/head/x": x, "in/head/t": t, "in/head/c": c, "in/psl/init_noise": noise[0], "in/psl/noise": noise[1:]}
    made["out/head/out"] = head.net(x[:, None], t[:, None], c[:, None])[:, 0]
    one = head.net(x[:, None], torch.full((4, 1), 200), c[:, None])[:, 0].chunk(2, -1)
    made["out/head/pmv_t1/log_variance"] = diffusion.process((6,)).predicted(x, *one, torch.ones(4, dtype=torch.int64)).log_variance
    for name, sections, scale, rows in (("bare", (6,), None, 4), ("led", (6, 0), 1.5, 2)):
        steps: list[Tensor] = []
        back = head.back
        head.back = lambda *args, back=back, steps=steps: steps.append(back(*args)) or steps[-1]
        made[f"out/psl/{name}/out"] = head.sample(c[:, None], noise[:, :rows, None], scale, head.schedule(sections, 0.7),
                                                  MaskedStep(0, 1), Bidirectional())[:, 0]
        made[f"out/psl/{name}/steps"] = torch.stack(steps)[:, :, 0]
        del head.back
    return made


# -- MAR under LazyMAR ------------------------------------------------------------------------------------------------
def mar_lazy(folder: Path) -> Path:
    """Twelve passes of another schedule, a head of fourteen, one sample."""
    config = {"img_size": 24, "patch_size": 1, "vae_stride": 4, "vae_embed_dim": 5, "encoder_embed_dim": 16, "encoder_depth": 2,
              "encoder_num_heads": 2, "decoder_embed_dim": 16, "decoder_depth": 3, "decoder_num_heads": 2, "class_num": 4, "buffer_size": 4,
              "diffloss_d": 6, "diffloss_w": 12, "num_sampling_steps": "14"}
    table = [1.0] * 4 + [0.6] * 4 + [0.3] * 4
    knobs: dict[str, Any] = {"start": 2, "period": 3, "table": table, "layer": 1, "extra": 2, "schedule": "published"}
    model = Recorded(MARConfig(16, (2, 3), 2, 6, 12, 6, 5, 4, 4, diffusion=(14,)))
    random(model, 6)
    forced, places = torch.randn(1, 36, 5, generator=torch.Generator().manual_seed(3)), 40
    told = {}
    for name, method in (("z_pred", LazyMAR(**knobs)), ("z_pred_mar", Bidirectional())):
        sampling = Sampling(cfg_scale=2.5, cfg_schedule="linear", steps=12)
        model.generate(torch.tensor([2]), [4], method, sampling, Memory(), forced=forced)
        told[f"out/trajQ/{name}"] = torch.cat([z.flatten(0, 1) for z in model.told])
    counts = model.counts
    full = [s for s in range(12) if s < 2 or (s - 2) % 3 == 0]
    partial = [s for s in range(12) if s not in full]
    kept = [min(places, max(counts[s] + counts[s - 1] + 2, int(places * table[s]))) for s in partial]
    shapes = [[2, 4 + sum(counts[:s])] if s in full else [1, 4 + counts[s - 1]] for s in range(12)]
    tensors = weights(model, "weights/") | told | _cached_head(model, knobs) | {
        "in/trajQ/orders": model.orders, "in/trajQ/tokens": forced, "out/trajQ/masks": torch.stack(model.masks)}
    built_in = {"start_step": 2, "refresh_period": 3, "retain_ratio": table, "similarity_layer_index": 1, "min_extra": 2,
                "head_threshold": 7, "head_delta_blocks": [1, 2, 3, 4]}
    facts = {"trajQ/": {"full_steps": full, "cached_steps": partial, "kept_counts": kept, "counts": counts, "encoder_input_shape": shapes,
                        "cfg_iter": scales_of(counts, 36, 2.5)},
             "_meta": {"config": config, "hard_coded": built_in, "notes": ["head: both kinds, cfg 1.75, temperature 0.5"],
                       "trajectories": [{"id": "Q", "num_iter": 12, "bsz": 1, "cfg": 2.5, "labels": [2]}]}}
    return written(folder, "mar/made_lazy", facts, tensors)


def _cached_head(model: Recorded, knobs: dict[str, Any]) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(7)
    c, noise = torch.randn(6, 16, generator=draws), torch.randn(15, 3, 5, generator=draws)
    made, head = {"in/head/c": c, "in/head/init_noise": noise[0], "in/head/noise": noise[1:]}, model.diffloss
    for kind, cached in (("plain_out", False), ("cached_out", True)):
        method = LazyMAR(**knobs, head_cache=cached)
        method.begin(model.layout([0, 1, 2], Sampling(cfg_scale=1.75, steps=12)), model.sites, Memory())
        steps: list[Tensor] = []
        back = head.back
        head.back = lambda *args, back=back, steps=steps: steps.append(back(*args)) or steps[-1]
        step = MaskedStep(0, 12, count=1)
        out = head.sample(c[:, None], noise[:, :, None], 1.75, head.schedule((14, 0), 0.5), step, method)[:, 0]
        del head.back
        made[f"out/head/tame/{kind}"] = out
        if cached:
            made["out/head/tame/cached_steps"] = torch.stack(steps)[:, :, 0]
    return made


# -- VAR --------------------------------------------------------------------------------------------------------------
def var_small(folder: Path) -> Path:
    """Three scales up to five; tokens that were drawn, not greedy ones; a row without a class; only guided logits."""
    config = {"depth": 2, "embed_dim": 16, "num_heads": 2, "vocab": 24, "num_classes": 6, "patch_nums": [1, 2, 5], "Cvae": 4, "vae_ch": 32,
              "vae_ch_mult": [1], "vae_num_res_blocks": 1, "share_quant_resi": 3, "quant_resi": 0.25, "mlp_ratio": 4.0, "norm_eps": 1e-6,
              "shared_aln": False, "attn_l2_norm": True}
    quantizer = MultiScaleQuantizer((1, 2, 5), 24, 4, phis=3, ratio=0.25)
    decoder, after = KLDecoder(Pyramid(32, (1,), 1), 4, JointAttnBlock), nn.Conv2d(4, 4, 3, padding=1)
    for number, module in enumerate((quantizer, decoder, after)):
        random(module, number)
    tensors = (weights(quantizer, "weights/vae/quantize.") | weights(decoder, "weights/vae/decoder.")
               | weights(after, "weights/vae/post_quant_conv."))
    for variant, l2 in (("", True), ("flat/", False)):
        model = VAR(VARConfig(2, 2, 16, (1, 2, 5), 24, 6, 4, l2), quantizer)
        random(model, 11)
        tensors |= weights(model, f"weights{'_flat' if variant else ''}/var/")
        seen: list[Tensor] = []
        sampling = Sampling(cfg_scale=2.0, cfg_schedule="linear", top_k=5, top_p=0.9)
        tokens = model.generate(torch.tensor([1, 6, 4]), [21, 22, 23], Full(), sampling, Memory(),
                                see=lambda _, logits, seen=seen: seen.append(logits.clone()))
        for i, (codes, logits) in enumerate(zip(tokens.split([1, 4, 25], 1), seen, strict=True)):
            tensors |= {f"out/{variant}idx/{i}": codes.int(), f"out/{variant}logits_cfg/{i}": logits}
        tensors[f"out/{variant}image"] = (decoder(after(quantizer.restore(tokens))).clamp(-1, 1) + 1) / 2
    facts = {"config": config, "seed": 1, "labels": [1, None, 4], "cfg": 2.0, "top_k": 5, "top_p": 0.9,
             "variants": {"base": {"overrides": {}}, "flat": {"overrides": {"attn_l2_norm": False}}}}
    return written(folder, "var/made_small", facts, tensors)
