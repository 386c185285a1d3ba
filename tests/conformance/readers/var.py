"""VAR: transformer, small tokenizer (kind ``small``), and full-size tokenizer (kind ``vqvae_full``)."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.contract.block import Block
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.sampling import filter_logits, guide_scale
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.autoencoder import JointAttnBlock, KLDecoder
from cachemark.models.vision.msvq import MSVQ, MSVQConfig, MultiScaleQuantizer
from cachemark.models.vision.vq import Pyramid

from ..checks import LOGITS, Check, Kind, Vector, apart, below, compare, differing, filled, slot_apart, worst


# -- the transformer --------------------------------------------------------------------------------------------------
@dataclass
class HiddenStates(Method):
    hidden: list[Tensor] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        if site.layer == self.layout.layers - 1:
            self.hidden.append(tokens.x)
        return tokens


@dataclass
class Watched(HiddenStates, Full):
    """The full cache including the last scale."""

    store_last: bool = True


@dataclass
class Ran:
    """A generation, by scale: guided logits, logits of all rows, hidden states, codes, feature maps."""

    guided: list[Tensor]
    plain: list[Tensor]
    hidden: list[Tensor]
    codes: list[Tensor]
    maps: list[Tensor]
    method: Method


@dataclass(frozen=True)
class Subject:
    """The subject of the checks. ``models``: by variant."""

    models: dict[str, VAR]
    decode: Callable[[Tensor], Tensor]
    ran: dict[str, Ran] = field(default_factory=dict)

    def run(self, variant: str, vector: Vector) -> Ran:
        """Return the greedy generation of a variant, cached; tokens are forced if the file sampled them."""
        if variant in self.ran:
            return self.ran[variant]
        model, method, labels = self.models[variant], Watched(), labels_of(self.models[variant], vector)
        guided: list[Tensor] = []
        forced = None if vector.facts["top_k"] == 1 else tokens_of(vector, variant)
        tokens = model.generate(labels, [0] * len(labels), method, sampling_of(vector), Memory(), forced=forced,
                                see=lambda _, logits: guided.append(logits.clone()))
        cond = model.class_emb(torch.cat((labels, torch.full_like(labels, model.config.classes))))
        codes = list(tokens.split([side**2 for side in model.config.sides], 1))
        plain = [model.logits(h, cond[: len(h)]) for h in method.hidden]
        self.ran[variant] = Ran(guided, plain, method.hidden, codes, maps_of(model.quantizer, tokens)[1:], method)
        return self.ran[variant]


def maps_of(quantizer: Any, tokens: Tensor) -> list[Tensor]:
    """Return the feature map before each scale, and after the last."""
    maps = [quantizer.empty(len(tokens))]
    for scale, part in enumerate(quantizer.split(tokens)):
        maps.append(quantizer.add(maps[-1], part, scale))
    return maps


def sampling_of(vector: Vector) -> Sampling:
    return Sampling(cfg_scale=vector.facts["cfg"], cfg_schedule="linear", top_k=vector.facts["top_k"],
                    top_p=vector.facts.get("top_p") or 1.0, temperature=0.0)


def labels_of(model: VAR, vector: Vector) -> Tensor:
    """Return the classes of a generation; null or a negative number means none."""
    return torch.tensor([model.config.classes if label is None or label < 0 else label for label in vector.facts["labels"]])


def tokens_of(vector: Vector, variant: str = "") -> Tensor:
    return torch.cat([vector[f"out/{variant}idx/{i}"] for i in range(len(vector.facts["config"]["patch_nums"]))], 1).long()


def config_of(facts: dict[str, Any], variant: str) -> VARConfig:
    c = {**facts["config"], **facts["variants"][variant.strip("/") or "base"]["overrides"]}
    config = VARConfig(c["depth"], c["num_heads"], c["embed_dim"], tuple(c["patch_nums"]), c["vocab"], c["num_classes"], c["Cvae"],
                       c["attn_l2_norm"], c["shared_aln"], c["norm_eps"])
    assert c["mlp_ratio"] == 4
    return config


def weights_of(vector: Vector, part: str, variant: str) -> dict[str, Tensor]:
    """Return weights of ``var`` or ``vae`` for a variant, which override the base's."""
    own = f"weights_{variant.strip('/')}/{part}/"
    extra = {name.removeprefix(own): vector[name].float() for name in vector.tensors if name.startswith(own)}
    return below(vector.weights(), f"{part}/") | extra


def quantizer_of(c: dict[str, Any], weights: dict[str, Tensor]) -> MultiScaleQuantizer:
    quantizer = MultiScaleQuantizer(c["patch_nums"], c["vocab"], c["Cvae"], phis=c["share_quant_resi"], ratio=c["quant_resi"])
    return filled(quantizer, weights)


def transformer(config: VARConfig, quantizer: MultiScaleQuantizer, weights: dict[str, Tensor]) -> VAR:
    model = VAR(config, quantizer)
    return filled(model, {name: tensor for name, tensor in weights.items() if name in model.state_dict()})


def subject(vector: Vector) -> Subject:
    c, state = vector.facts["config"], weights_of(vector, "vae", "")
    decoder = KLDecoder(Pyramid(c["vae_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"]), c["Cvae"], JointAttnBlock)
    filled(decoder, below(state, "decoder."))

    def decode(f_hat: Tensor) -> Tensor:
        after = torch.nn.functional.conv2d(f_hat, state["post_quant_conv.weight"], state["post_quant_conv.bias"], padding=1)
        return decoder(after).clamp(-1, 1)

    models = {prefix: transformer(config_of(vector.facts, prefix), quantizer_of(c, below(weights_of(vector, "vae", prefix), "quantize.")),
                                  weights_of(vector, "var", prefix))
              for prefix in ("" if name == "base" else f"{name}/" for name in vector.facts["variants"])}
    return Subject(models, decode)


def scales(name: str, part: str, measure: Callable[[Ran, int, Tensor], float], tolerance: float = LOGITS) -> Check:
    def measured(subject: Subject, vector: Vector) -> float:
        stored = {variant: [i for _, i in vector.matching(f"out/{variant}{part}/*")] for variant in subject.models}
        runs = {variant: subject.run(variant, vector) for variant, indices in stored.items() if indices}
        return worst(measure(ran, int(i), vector[f"out/{variant}{part}/{i}"]) for variant, ran in runs.items() for i in stored[variant])

    return Check(name, tolerance, measured, (f"out/{part}/*",))


def drawn(subject: Subject, vector: Vector) -> float:
    """Compare greedy tokens exactly; of sampled tokens, return the fraction that is impossible."""
    if vector.facts["top_k"] == 1:
        return scales("tokens", "idx", lambda ran, i, expected: differing(ran.codes[i], expected)).measure(subject, vector)
    logits = torch.cat(subject.run("", vector).guided, 1)
    allowed = filter_logits(logits, replace(sampling_of(vector), temperature=1.0)).isfinite()
    return float((~allowed.gather(-1, tokens_of(vector)[..., None])).double().mean())


def image(subject: Subject, vector: Vector) -> float:
    return worst(apart((subject.decode(subject.run(variant, vector).maps[-1]) + 1) / 2, vector[f"out/{variant}image"])
                 for variant in subject.models if f"out/{variant}image" in vector.tensors)


def next_map(subject: Subject, vector: Vector, index: str) -> Tensor:
    return subject.models[""].quantizer.next_map(subject.run("", vector).maps[int(index)], int(index) + 1).transpose(1, 2)


def teacher(subject: Subject, vector: Vector) -> float:
    """Compare one pass over all scales with the logits of the generation."""
    model, codes, labels = subject.models[""], tokens_of(vector), labels_of(subject.models[""], vector)
    made = model.teacher(labels, codes).detach().split([side**2 for side in model.config.sides], 1)
    if stored := vector.matching("out/logits_pre/*"):
        return worst(apart(made[int(i)], vector[name][: len(codes)]) for name, i in stored)
    free = model.teacher(torch.full_like(labels, model.config.classes), codes).detach().split([side**2 for side in model.config.sides], 1)
    logits_by_scale = [torch.cat(pair) for pair in zip(made, free, strict=True)]
    guided = [guide_scale(logits, sampling_of(vector), i, len(logits_by_scale)) for i, logits in enumerate(logits_by_scale)]
    return worst(apart(guided[int(i)], vector[name]) for name, i in vector.matching("out/logits_cfg/*"))


def quantised(subject: Subject, vector: Vector) -> float:
    sides = vector.facts["config"]["patch_nums"]
    expected = torch.cat([vector[f"quant/idx/{i}"] for i in range(len(sides))], 1)
    return differing(subject.models[""].quantizer.quantise(vector["quant/f"]), expected)


def restored(subject: Subject, vector: Vector) -> float:
    quantizer = subject.models[""].quantizer
    tokens = quantizer.quantise(vector["quant/f"])
    return max(apart(quantizer.restore(tokens).detach(), vector["quant/fhat_last"]),
               apart(quantizer.teacher(tokens).detach(), vector["quant/var_input"]))


def kept_by_filters(subject: Subject, vector: Vector) -> float:
    """Compare the tokens that each top-k and top-p leaves; sampled ones must be among them."""
    wrong = []
    for name, setting in vector.matching("sampler/keep_*"):
        k, p = (text.lstrip("kp") for text in setting.split("_"))
        # The files name p without its point: 08 is 0.8; 0 switches it off.
        top_p = float(f"{p[0]}.{p[1:] or 0}") or 1.0
        allowed = filter_logits(vector["sampler/logits"], Sampling(top_k=int(k), top_p=top_p)).isfinite()
        wrong.append(differing(allowed, vector[name].bool()))
        wrong += [float((~allowed.gather(-1, vector[ids].long()[..., None])).double().mean())
                  for ids, _ in vector.matching(f"sampler/idx_cpu_seed*_{setting}")]
    return worst(wrong)


# -- the full-size tokenizer ------------------------------------------------------------------------------------------
def recipe(name: str, shape: torch.Size) -> Tensor:
    """Return the pseudo-random weights that the file describes."""
    drawn = numpy.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape)).astype(numpy.float32)
    if "norm" in name and name.endswith("weight"):
        return torch.from_numpy(1 + numpy.float32(0.1) * drawn)
    if name.endswith("bias"):
        return torch.from_numpy(numpy.float32(0.05) * drawn)
    if name == "quantize.embedding.weight":
        return torch.from_numpy(drawn)
    return torch.from_numpy(drawn * numpy.float32(1.2 / numpy.sqrt(numpy.prod(shape[1:]))))


def codes_of(vector: Vector) -> list[Tensor]:
    return [vector[name] for name, _ in vector.matching("idx/*")]


def tokenizer(vector: Vector) -> MSVQ:
    with torch.device("meta"):
        model = MSVQ(replace(MSVQConfig(), sides=tuple(math.isqrt(codes.shape[1]) for codes in codes_of(vector))))
    model.load_state_dict({name: recipe(name, tensor.shape) for name, tensor in model.state_dict().items()}, assign=True)
    return model.eval().requires_grad_(False)


def full_image(model: MSVQ, vector: Vector) -> float:
    raw = model.decoder(model.post_quant_conv(vector["f"]))
    return max(apart(raw, vector["decoder_raw"]), apart(model.image(vector["f"]), vector["image_m1_1"]))


KINDS = {
    "small": Kind(subject, (
        scales("logits", "logits_pre", lambda ran, i, expected: apart(ran.plain[i].detach(), expected[: len(ran.plain[i])])),
        scales("guided", "logits_cfg", lambda ran, i, expected: apart(ran.guided[i], expected)),
        scales("hidden", "hidden_last", lambda ran, i, expected: apart(ran.hidden[i], expected[: len(ran.hidden[i])])),
        Check("tokens", 0.0, drawn, ("out/idx/*",)),
        scales("maps", "f_hat", lambda ran, i, expected: apart(ran.maps[i].detach(), expected)),
        compare("next_maps", "out/next_map/*", next_map, by=lambda actual, expected: apart(actual.reshape(expected.shape), expected)),
        Check("image", LOGITS, image, ("out/image",)),
        *(compare(f"cached_{kind}_block*", f"out/cached_{kind}_block*", lambda subject, vector, layer: subject.run(
            "", vector).method.slots[subject.models[""].sites[int(layer)]], 1e-5, by=partial(slot_apart, part))
          for part, kind in enumerate("kv")),
        Check("teacher", LOGITS, teacher, ("out/logits_cfg/*", "out/idx/*")),
        Check("quantised", 0.0, quantised, ("quant/f", "quant/idx/*")),
        Check("restored", LOGITS, restored, ("quant/f", "quant/fhat_last", "quant/var_input")),
        Check("kept", 0.0, kept_by_filters, ("sampler/logits", "sampler/keep_*")),
    ), "the VAR transformer, its quantiser and whole generations", ("full",)),
    "vqvae_full": Kind(tokenizer, (
        Check("image", LOGITS, full_image, ("f", "decoder_raw", "image_m1_1")),
        compare("again", "recon", lambda model, vector: model.decode(torch.cat(codes_of(vector), 1).long()), needs=("idx/*",)),
    ), "VAR's image tokenizer at full size, decoding"),
}
