"""Infinity: transformer, whole generations, and image decoder (kind ``small``), of any aspect ratio and with texts of different length."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Grid, Step
from cachemark.core.spec import Sampling
from cachemark.models.infinity import Infinity, InfinityConfig, TextAttention, Texts, rope_table
from cachemark.models.infinity_scales import RATIOS
from cachemark.models.vision import bsq
from cachemark.models.vision.bsq import BSQ, BSQConfig, bits_of

from ..checks import RARE, Check, Kind, Vector, apart, below, compare, differing, differing_bytes, filled, slot_apart, spread
from .var import Watched, maps_of


class Subject:
    def __init__(self, vector: Vector, model: Infinity, images: BSQ) -> None:
        self.vector, self.model, self.images = vector, model, images

    @cached_property
    def tokens(self) -> Tensor:
        return self._generate()[0]

    @cached_property
    def ran(self) -> SimpleNamespace:
        """A generation along the file's bits, by scale: guided bit logits after the temperature, all logits, hidden states, next inputs."""
        tokens, guided, method = self._generate(tokens_of(self.vector))
        model, quantizer = self.model, self.model.quantizer
        plain = logits_of(model, method.hidden, range(len(model.texts)), len(method.hidden[0]) // len(model.texts))
        fed = [quantizer.next_map(f_hat, scale + 1) for scale, f_hat in enumerate(maps_of(quantizer, tokens)[1:-1])]
        return SimpleNamespace(guided=guided, plain=plain, hidden=method.hidden, fed=fed, method=method)

    @cached_property
    def rounded(self) -> list[Tensor]:
        """Logits with inputs and output of cross-attention rounded to bf16, as the authors do."""
        patch = Subject(self.vector, copy.deepcopy(self.model), self.images)
        for module in patch.model.modules():
            if isinstance(module, TextAttention):
                module.mixed = in_bf16(module.mixed)  # type: ignore[method-assign]
        return patch.ran.plain

    def _generate(self, forced: Tensor | None = None) -> tuple[Tensor, list[Tensor], Watched]:
        facts, method, guided, samples = self.vector.facts["config"], Watched(), list[Tensor](), len(self.model.texts)
        sampling = guided_by_scale(self.model, facts["cfg_list"])
        tokens = self.model.generate(torch.arange(samples), range(samples), method, sampling, Memory(), forced=forced,
                                     see=lambda _, logits: guided.append(logits / facts["tau_list"][len(guided)]))
        return tokens, guided, method


def logits_of(model: Infinity, hidden: Sequence[Tensor], texts: Sequence[int], branches: int) -> list[Tensor]:
    """Return logits of all rows, (rows, tokens, 2 · bits) per scale."""
    cond = model.text_proj_for_sos["ca"](None, *model.read(texts, branches))[:, 0]
    return [model.logits(h, cond).flatten(2).detach() for h in hidden]


def guided_by_scale(model: Infinity, cfg_list: Sequence[float]) -> Sampling:
    """Guide every scale of a model by its own number, 1 for no guidance, and return the greedy sampling for it."""
    own = type(model).guided

    def by_scale(hidden: Tensor, step: Step, sampling: Sampling, texts: Texts) -> Tensor:
        cfg = cfg_list[step.index]
        if cfg == 1:
            return model.logits(hidden, texts.cond)[: len(texts.key)]
        return own(model, hidden, step, replace(sampling, cfg_scale=cfg), texts)

    model.guided = by_scale  # type: ignore[method-assign]
    return Sampling(cfg_scale=2.0 if any(cfg != 1 for cfg in cfg_list) else 1.0, temperature=0.0)


def in_bf16(mixed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def through(*parts: Tensor) -> Tensor:
        *features, attended = parts
        return mixed(*(part.bfloat16().float() for part in features), attended).bfloat16().float()

    return through


def bits_of_file(vector: Vector) -> list[Tensor]:
    """Return the file's bits by scale: (batch, h·w, bits)."""
    return [vector[name].flatten(1, 3) for name, _ in vector.matching("out/bits/*")]


def tokens_of(vector: Vector) -> Tensor:
    return bsq.packed_bits(torch.cat(bits_of_file(vector), 1))


def finest_of(scales: Sequence[Grid], ratio: float | None = None) -> Grid:
    """Return the last map of 1024 pixels of a ratio of height and width, by default of the one that begins with these maps."""
    if ratio is not None:
        return RATIOS[min(RATIOS, key=lambda known: abs(known - ratio))][-1]
    return next(maps[-1] for maps in RATIOS.values() if maps[: len(scales)] == tuple(scales))


def config_of(facts: dict[str, Any]) -> InfinityConfig:
    """Return the sizes that a file states. Raises ValueError for those that the published models do not have."""
    c = facts["config"]
    if c["mlp_ratio"] != 4 or c.get("apply_spatial_patchify"):
        raise ValueError("the reader has no MLP of another mlp_ratio than 4, and no apply_spatial_patchify")
    scales = tuple((rows, columns) for _, rows, columns in c["scale_schedule"])
    return InfinityConfig(c["depth"], c["num_heads"], c["embed_dim"], c["block_chunks"], scales, finest_of(scales, c["h_div_w"]),
                          c["codebook_dim"], text=c["text_channels"], longest=c["text_maxlen"], norm_eps=c["norm_eps"])


def subject(vector: Vector) -> Subject:
    c = vector.facts["config"]
    config = config_of(vector.facts)
    model = Infinity(config, vector["text/kv"].split(c["text_lens"]))
    images = BSQ(BSQConfig(c["vae_base_ch"], tuple(c["vae_ch_mult"]), c["vae_num_res_blocks"], config.scales, config.width))
    state = {bsq.official(name): tensor for name, tensor in below(vector.weights(), "vae/").items()}
    if images.config.factor != c["vae_patch_size"]:
        raise ValueError(f"vae_patch_size {c['vae_patch_size']} does not follow from {len(c['vae_ch_mult'])} levels")
    return Subject(vector, filled(model, below(vector.weights(), "var/")), filled(images, state))


def codes(subject: Subject, vector: Vector, scale: str) -> Tensor:
    quantizer = subject.model.quantizer
    return quantizer.codes(quantizer.split(tokens_of(vector))[int(scale)], int(scale))


def image_bytes(subject: Subject, vector: Vector) -> Tensor:
    """Return bytes as the authors write them: truncated, blue first."""
    pixels = (subject.images.decode(tokens_of(vector)) + 1) / 2 * 255
    return pixels.permute(0, 2, 3, 1).flip(-1).to(torch.uint8)


def rotations(subject: Subject, vector: Vector) -> Tensor:
    c = subject.model.config
    table = rope_table(c.head_dim, c.scales, c.finest, c.rope_base, torch.device("cpu"))
    return torch.stack((table.real, table.imag))


def plain(subject: Subject, vector: Vector, which: str) -> Tensor:
    """Return logits before guidance and temperature; a scale without guidance has none of unconditional rows."""
    logits, conditional = subject.ran.plain[int(which)], len(subject.model.texts)
    return logits if vector.facts["config"]["cfg_list"][int(which)] != 1 else logits[:conditional]


KINDS = {
    "small": Kind(subject, (
        Check("bits", 0.0, lambda subject, vector: differing(
            bits_of(subject.tokens, subject.model.config.bits), torch.cat(bits_of_file(vector), 1)), ("out/bits/*",)),
        compare("guided", "out/bit_logits_cfg/*", lambda subject, vector, i: subject.ran.guided[int(i)].flatten(1, 2)),
        compare("logits", "out/logits_pre/*", plain),
        compare("hidden", "out/hidden_last/*", lambda subject, vector, i: subject.ran.hidden[int(i)]),
        # By root mean square, since summation order moves single values across a bf16 step. One such value moves a logit by up to 0.012.
        # The most seen on any processor is 0.0019; without rounding it is 0.0065.
        compare("rounded", "out_bf16ca/logits_pre/*", lambda subject, vector, i: subject.rounded[int(i)], 4e-3, by=spread),
        compare("codes", "out/codes/*", codes, 1e-6, by=lambda actual, expected: apart(actual, expected[:, :, 0])),
        compare("next_maps", "out/next_input/*", lambda subject, vector, i: subject.ran.fed[int(i)], 1e-5),
        compare("summed", "out/summed_codes", lambda subject, vector: subject.images.quantizer.restore(tokens_of(vector)), 1e-5),
        compare("image", "out/decoded", lambda subject, vector: subject.images.decode(tokens_of(vector))),
        compare("image_bytes", "out/image_uint8_bgr", image_bytes, RARE, by=differing_bytes),
        compare("rotations", "rope_cache_prefix", rotations, 1e-5),
        *(compare(f"cached_{kind}_block*", f"out/cached_{kind}_block*", lambda subject, vector, layer: subject.ran.method.slots[
            subject.model.sites[int(layer)]], by=partial(slot_apart, part)) for part, kind in enumerate("kv")),
    ), "the Infinity transformer, two texts of different length in one batch, its bitwise quantiser, its slots and its image decoder",
        ("full",)),
}
