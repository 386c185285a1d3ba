"""VAR: the transformer with a small tokenizer (kind ``small``) and the full-size tokenizer (kind ``vqvae_full``)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from cachemark.cache.layout import Site, Step, Tokens
from cachemark.cache.slot import Memory
from cachemark.contract.method import Block, Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.sampling import filter_logits
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.autoencoder import JointAttnBlock, KLDecoder, Pyramid
from cachemark.models.vision.msvq import MSVQ, MSVQConfig, MultiScaleQuantizer

from ..checks import Check, Kind, Vector, apart, differing

LOGITS = 1e-4
VARIANTS = ("", "no_l2/", "shared_aln/")


# -- the transformer --------------------------------------------------------------------------------------------------
@dataclass
class Watched(Full):
    """The full cache that keeps the last scale too, and notes the hidden states behind the last block of each scale."""

    store_last: bool = True
    hidden: list[Tensor] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        if site.layer == self.layout.layers - 1:
            self.hidden.append(tokens.x)
        return tokens


@dataclass
class Ran:
    """What a greedy generation gave, scale by scale: guided logits, logits of all rows, hidden states, codes, feature maps."""

    guided: list[Tensor]
    plain: list[Tensor]
    hidden: list[Tensor]
    codes: list[Tensor]
    maps: list[Tensor]
    method: Method


@dataclass(frozen=True)
class Subject:
    """What the checks look at; the negative controls exchange its parts. ``models`` by variant."""

    models: dict[str, VAR]
    decode: Callable[[Tensor], Tensor]
    filter_logits: Callable[[Tensor, Sampling], Tensor] = filter_logits

    def run(self, variant: str, vector: Vector) -> Ran:
        model, method = self.models[variant], Watched()
        sampling = Sampling(cfg_scale=vector.facts["cfg"], cfg_schedule="linear", top_k=vector.facts["top_k"], temperature=0.0)
        labels = torch.tensor(vector.facts["labels"])
        guided: list[Tensor] = []
        tokens = model.generate(labels, [0] * len(labels), method, sampling, Memory(), see=lambda _, logits: guided.append(logits.clone()))
        cond = model.class_emb(torch.cat((labels, torch.full_like(labels, model.config.classes))))
        codes = list(tokens.split([side**2 for side in model.config.sides], 1))
        maps = [model.quantizer.empty(len(labels))]
        for scale, part in enumerate(codes):
            maps.append(model.quantizer.add(maps[-1], part, scale))
        return Ran(guided, [model.logits(h, cond) for h in method.hidden], method.hidden, codes, maps[1:], method)


def config_of(facts: dict[str, Any], variant: str) -> VARConfig:
    c = {**facts["config"], **facts["variants"][variant.strip("/") or "base"]["overrides"]}
    config = VARConfig(c["depth"], c["num_heads"], c["embed_dim"], tuple(c["patch_nums"]), c["vocab"], c["num_classes"], c["Cvae"],
                       c["attn_l2_norm"], c["shared_aln"], c["norm_eps"])
    assert c["mlp_ratio"] == 4
    return config


def weights_of(vector: Vector, part: str, variant: str) -> dict[str, Tensor]:
    """Weights of ``var`` or ``vae`` for a variant, whose own ones stand in a group of their own."""
    own = f"weights_{variant.strip('/')}/{part}/"
    extra = {name.removeprefix(own): vector[name].float() for name in vector.tensors if name.startswith(own)}
    base = {name.removeprefix(f"{part}/"): tensor for name, tensor in vector.weights().items() if name.startswith(f"{part}/")}
    return base | extra


def quantizer_of(vector: Vector, variant: str = "") -> MultiScaleQuantizer:
    c = vector.facts["config"]
    quantizer = MultiScaleQuantizer(c["patch_nums"], c["vocab"], c["Cvae"], phis=c["share_quant_resi"], ratio=c["quant_resi"])
    held = {name.removeprefix("quantize."): t for name, t in weights_of(vector, "vae", variant).items() if name.startswith("quantize.")}
    quantizer.load_state_dict(held)
    return quantizer.eval()


def transformer(vector: Vector, variant: str, model: type[VAR] = VAR) -> VAR:
    built = model(config_of(vector.facts, variant), quantizer_of(vector, variant))
    wanted = built.state_dict()
    built.load_state_dict({name: t for name, t in weights_of(vector, "var", variant).items() if name in wanted})
    return built.eval()


def subject(vector: Vector, model: type[VAR] = VAR) -> Subject:
    c, held = vector.facts["config"], weights_of(vector, "vae", "")
    decoder = KLDecoder(Pyramid(c["vae_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"]), c["Cvae"], JointAttnBlock)
    decoder.load_state_dict({name.removeprefix("decoder."): t for name, t in held.items() if name.startswith("decoder.")})

    def decode(f_hat: Tensor) -> Tensor:
        after = torch.nn.functional.conv2d(f_hat, held["post_quant_conv.weight"], held["post_quant_conv.bias"], padding=1)
        return decoder.eval()(after).clamp(-1, 1)

    return Subject({variant: transformer(vector, variant, model) for variant in VARIANTS}, decode)


def _scales(measure: Callable[[Ran, int, Vector, str], float]) -> Callable[[Subject, Vector], float]:
    """The greatest deviation over variants and scales."""

    def measured(given: Subject, vector: Vector) -> float:
        count = len(vector.facts["config"]["patch_nums"])
        runs = {variant: given.run(variant, vector) for variant in VARIANTS if f"out/{variant}logits_cfg/0" in vector.tensors}
        return max(measure(ran, i, vector, f"out/{variant}") for variant, ran in runs.items() for i in range(count))

    return measured


def _if(vector: Vector, name: str, given: Tensor) -> float:
    """The deviation, where the file holds that tensor for this variant."""
    return apart(given, vector[name]) if name in vector.tensors else 0.0


def image(given: Subject, vector: Vector) -> float:
    found = {variant: (given.decode(given.run(variant, vector).maps[-1]) + 1) / 2 for variant in VARIANTS}
    return max(apart(picture, vector[f"out/{variant}image"]) for variant, picture in found.items())


def next_maps(given: Subject, vector: Vector) -> float:
    maps, quantizer = given.run("", vector).maps, given.models[""].quantizer
    fed = [quantizer.next_map(f_hat, i + 1).transpose(1, 2) for i, f_hat in enumerate(maps[:-1])]
    return max(apart(part.reshape(vector[f"out/next_map/{i}"].shape), vector[f"out/next_map/{i}"]) for i, part in enumerate(fed))


def slot_part(part: int, name: str) -> Check:
    def measure(given: Subject, vector: Vector) -> float:
        method = given.run("", vector).method
        slot, live = method.slots[given.models[""].sites[0]], vector[name].shape[2]
        return apart(slot.read(slot.bank.runs[0], live)[part], vector[name]) if slot.live == [live] else float("inf")

    return Check(name.partition("/")[2], 1e-5, measure, (name,))


def teacher(given: Subject, vector: Vector) -> float:
    """One pass over all scales against the logits of the generation."""
    codes = torch.cat([vector[f"out/idx/{i}"] for i in range(len(vector.facts["config"]["patch_nums"]))], 1).long()
    expected = torch.cat([vector[f"out/logits_pre/{i}"][: len(codes)] for i in range(len(vector.facts["config"]["patch_nums"]))], 1)
    return apart(given.models[""].teacher(torch.tensor(vector.facts["labels"]), codes).detach(), expected)


def quantised(given: Subject, vector: Vector) -> float:
    sides = vector.facts["config"]["patch_nums"]
    expected = torch.cat([vector[f"quant/idx/{i}"] for i in range(len(sides))], 1)
    return differing(given.models[""].quantizer.quantise(vector["quant/f"]), expected)


def restored(given: Subject, vector: Vector) -> float:
    quantizer = given.models[""].quantizer
    tokens = quantizer.quantise(vector["quant/f"])
    return max(apart(quantizer.restore(tokens).detach(), vector["quant/fhat_last"]),
               apart(quantizer.teacher(tokens).detach(), vector["quant/var_input"]))


def kept(given: Subject, vector: Vector) -> float:
    """Which tokens each setting of top-k and top-p leaves, and that the drawn ones are among them."""
    wrong = 0.0
    for name in [name for name in vector.tensors if name.startswith("sampler/keep_")]:
        k, p = (text.lstrip("kp") for text in name.removeprefix("sampler/keep_").split("_"))
        # The files name p without its point: 08 is 0.8; 0 switches it off.
        top_p = float(f"{p[0]}.{p[1:] or 0}") or 1.0
        left = given.filter_logits(vector["sampler/logits"], Sampling(top_k=int(k), top_p=top_p)).isfinite()
        drawn = vector[name.replace("keep_", "idx_cpu_seed9_")].long()
        wrong = max(wrong, differing(left, vector[name].bool()), float((~left.gather(-1, drawn[..., None])).double().mean()))
    return wrong


# -- the full-size tokenizer ------------------------------------------------------------------------------------------
def recipe(name: str, shape: torch.Size) -> Tensor:
    """The pseudo-random weights that the file describes and does not hold."""
    drawn = numpy.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape)).astype(numpy.float32)
    if "norm" in name and name.endswith("weight"):
        return torch.from_numpy(1 + numpy.float32(0.1) * drawn)
    if name.endswith("bias"):
        return torch.from_numpy(numpy.float32(0.05) * drawn)
    if name == "quantize.embedding.weight":
        return torch.from_numpy(drawn)
    return torch.from_numpy(drawn * numpy.float32(1.2 / numpy.sqrt(numpy.prod(shape[1:]))))


def tokenizer(vector: Vector) -> MSVQ:
    sides = [vector[f"idx/{i}"].shape[1] for i in range(sum(name.startswith("idx/") for name in vector.tensors))]
    with torch.device("meta"):
        model = MSVQ(replace(MSVQConfig(), sides=tuple(int(n**0.5) for n in sides)))
    model.load_state_dict({name: recipe(name, tensor.shape) for name, tensor in model.state_dict().items()}, assign=True)
    return model.eval().requires_grad_(False)


def full_image(model: MSVQ, vector: Vector) -> float:
    raw = model.decoder(model.post_quant_conv(vector["f"]))
    return max(apart(raw, vector["decoder_raw"]), apart(model.image(vector["f"]), vector["image_m1_1"]))


def full_latents(model: MSVQ, vector: Vector) -> float:
    return apart(model.latents(vector["x"]), vector["z"])


def full_tokens(model: MSVQ, vector: Vector) -> float:
    names = sorted(name for name in vector.tensors if name.startswith("idx/"))
    return differing(model.encode(vector["x"]), torch.cat([vector[name] for name in names], 1))


def full_again(model: MSVQ, vector: Vector) -> float:
    names = sorted(name for name in vector.tensors if name.startswith("idx/"))
    return apart(model.decode(torch.cat([vector[name] for name in names], 1).long()), vector["recon"])


KINDS = {
    "small": Kind(subject, (
        Check("logits", LOGITS, _scales(lambda r, i, v, at: apart(r.plain[i].detach(), v[f"{at}logits_pre/{i}"])), ("out/logits_pre/0",)),
        Check("guided", LOGITS, _scales(lambda r, i, v, at: apart(r.guided[i], v[f"{at}logits_cfg/{i}"])), ("out/logits_cfg/0",)),
        Check("hidden", LOGITS, _scales(lambda r, i, v, at: _if(v, f"{at}hidden_last/{i}", r.hidden[i])), ("out/hidden_last/0",)),
        Check("tokens", 0.0, _scales(lambda r, i, v, at: differing(r.codes[i], v[f"{at}idx/{i}"])), ("out/idx/0",)),
        Check("maps", LOGITS, _scales(lambda r, i, v, at: apart(r.maps[i].detach(), v[f"{at}f_hat/{i}"])), ("out/f_hat/0",)),
        Check("next_maps", LOGITS, next_maps, ("out/next_map/0",)),
        Check("image", LOGITS, image, ("out/image",)),
        slot_part(0, "out/cached_k_block0"),
        slot_part(1, "out/cached_v_block0"),
        Check("teacher", LOGITS, teacher, ("out/idx/0", "out/logits_pre/0")),
        Check("quantised", 0.0, quantised, ("quant/f", "quant/idx/0")),
        Check("restored", LOGITS, restored, ("quant/f", "quant/fhat_last", "quant/var_input")),
        Check("kept", 0.0, kept, ("sampler/logits",)),
    ), "the VAR transformer, its quantiser and whole generations", ("full",)),
    "vqvae_full": Kind(tokenizer, (
        Check("image", LOGITS, full_image, ("f", "decoder_raw", "image_m1_1")),
        Check("latents", LOGITS, full_latents, ("x", "z")),
        Check("tokens", 0.0, full_tokens, ("x", "idx/0")),
        Check("again", LOGITS, full_again, ("recon", "idx/0")),
    ), "VAR's image tokenizer at full size, encoding and decoding"),
}
