"""LlamaGen: transformer (kind ``small``), image decoder (``small_vq``), generations under ZipAR (``zipar``), and HeadKV (``headkv``)."""

import math
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Site, Step, Tokens
from cachemark.contract.block import Block
from cachemark.contract.method import Method, Uncached
from cachemark.core.spec import Sampling
from cachemark.decoders.zipar import ZipAR
from cachemark.methods import full  # noqa: F401 - registers the method
from cachemark.methods.full import Full
from cachemark.methods.headkv import local_heads, stratified
from cachemark.methods.registry import METHODS
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.sampling import filter_logits
from cachemark.models.vision.vq import VQ, VQConfig

from ..checks import LOGITS, RARE, Check, Kind, Vector, apart, beside, compare, differing, differing_bytes, filled, slot_apart, worst


# -- the transformer --------------------------------------------------------------------------------------------------
def sampling_of(vector: Vector, run: str) -> Sampling:
    scale = 1.0 if run == "greedy_nocfg" else vector.facts["cfg_scale"]
    interval = next((value for name, value in vector.facts.items() if name.startswith("cfg_interval")), -1)
    return Sampling(cfg_scale=scale, cfg_interval=interval if run == "greedy_cfg_interval" else -1, temperature=0.0)


@dataclass
class Watched(Uncached):
    """The uncached pass that records hidden states after each block."""

    hidden: list[Tensor] = field(default_factory=list)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        tokens = super().block(site, step, tokens, block)
        self.hidden.append(tokens.x)
        return tokens


def config_of(facts: dict[str, Any]) -> LlamaGenConfig:
    c = facts["config"]
    config = LlamaGenConfig(
        layers=c["n_layer"], heads=c["n_head"], dim=c["dim"], vocab=c["vocab_size"], classes=c["num_classes"],
        grid=math.isqrt(c["block_size"]), kv_heads=c.get("n_kv_head"), norm_eps=c["norm_eps"], rope_base=float(c["rope_base"]),
    )
    assert (config.head_dim, config.hidden, config.grid**2) == (c["head_dim"], c["ffn_hidden"], c["block_size"])
    return config


def transformer(vector: Vector) -> LlamaGen:
    return filled(LlamaGen(config_of(vector.facts)), vector.weights())


def generated(model: LlamaGen, labels: Tensor, sampling: Sampling, forced: Tensor | None = None) -> tuple[Tensor, Tensor, Method]:
    """Return tokens (B, N), guided logits (B, N, vocab) and method of a generation with the full cache."""
    method, seen = METHODS.get("full")(), []
    seeds = range(len(labels))
    tokens = model.generate(labels, seeds, method, sampling, Memory(), forced=forced, see=lambda _, logits: seen.append(logits))
    return tokens, torch.cat(seen, 1), method


def cached_logits(model: LlamaGen, labels: Tensor, tokens: Tensor) -> Tensor:
    """Return cached logits; the last token is never fed, so the uncached pass predicts the last entry."""
    logits = generated(model, labels, Sampling(), tokens)[1]
    return torch.cat((logits, model.prefix_logits(labels, tokens)[:, -1:]), 1)


def teacher_logits(model: LlamaGen, vector: Vector) -> Tensor:
    return model.teacher(vector["input/class_ids"], vector["input/tokens"])


def hidden_states(model: LlamaGen, vector: Vector) -> list[Tensor]:
    """Return hidden states (B, 1 + N, dim) after each block, before the final norm."""
    method = Watched()
    x = torch.cat((model.cls_embedding(vector["input/class_ids"][:, None]), model.tok_embeddings(vector["input/tokens"])), 1)
    model(Tokens(x, model.rope), Step(0, 1), method)
    return method.hidden


def slot(name: str, part: int, need: str) -> Check:
    """Check layer 0: the class and the N − 1 tokens that a generation feeds."""

    def measure(model: LlamaGen, vector: Vector) -> float:
        tokens = vector["input/tokens"]
        method = generated(model, vector["input/class_ids"], Sampling(), tokens)[2]
        return slot_apart(part, method.slots[model.sites[0]], vector[need][:, :, : tokens.shape[1]])

    return Check(name, LOGITS, measure, (need,))


def greedy(run: str) -> Check:
    return compare(run, f"{run}/tokens", lambda model, vector: generated(
        model, vector["input/class_ids"], sampling_of(vector, run))[0], 0.0, by=differing)


def filters(model: LlamaGen, vector: Vector) -> float:
    """Compare probabilities under each of the file's settings of temperature, top-k and top-p."""
    logits, settings = vector["filter/logits_in"][:, -1], vector.facts["filters"]
    assert settings
    probabilities = {name: filter_logits(logits, Sampling(**setting)).softmax(-1) for name, setting in settings.items()}
    return max(apart(probabilities[name], vector[f"filter/{name}"]) for name in settings)


# -- the tokenizer's decoder ------------------------------------------------------------------------------------------
def to_uint8(images: Tensor) -> Tensor:
    """Convert images in [−1, 1] to bytes as published: 127.5·x + 128, clamped, truncated."""
    return images.mul(127.5).add(128.0).clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def tokenizer(vector: Vector) -> VQ:
    c = vector.facts["config"]
    config = VQConfig(c["ch"], tuple(c["ch_mult"]), c["num_res_blocks"], c["z_channels"], c["codebook_size"], c["codebook_embed_dim"])
    return filled(VQ(config), vector.weights())


def image_of(model: VQ, vector: Vector) -> Tensor:
    return model.decode(vector["input/codes"], tuple(vector.facts["config"]["grid"]))


def resized(model: VQ, vector: Vector) -> Tensor:
    height, width = vector["image_bicubic_two_thirds"].shape[2:]
    return F.interpolate(image_of(model, vector), size=(height, width), mode="bicubic", align_corners=False, antialias=False)


KINDS = {
    "small": Kind(transformer, (
        compare("rope", "freqs_cis", lambda model, vector: torch.view_as_real(model.rope), 1e-6),
        compare("logits_cached", "teacher/logits_kv", lambda model, vector: cached_logits(
            model, vector["input/class_ids"], vector["input/tokens"])),
        compare("logits_null", "teacher/logits_kv_null", lambda model, vector: cached_logits(
            model, torch.full_like(vector["input/class_ids"], vector.facts["null_class_id"]), vector["input/tokens"])),
        compare("logits_full", "teacher/logits_full_eval", lambda model, vector: model.prefix_logits(
            vector["input/class_ids"], vector["input/tokens"])),
        compare("logits_train", "teacher/logits_train_forward", teacher_logits),
        compare("train_loss", "teacher/train_loss", lambda model, vector: F.cross_entropy(
            teacher_logits(model, vector).flatten(0, 1), vector["input/tokens"].flatten()).view(1), 1e-5),
        compare("hidden_first", "debug/hidden_after_layer0", lambda model, vector: hidden_states(model, vector)[0]),
        compare("hidden_last", "debug/hidden_after_last_layer", lambda model, vector: hidden_states(model, vector)[-1]),
        slot("slot_keys", 0, "debug/k_cache_layer0"),
        slot("slot_values", 1, "debug/v_cache_layer0"),
        greedy("greedy_cfg"),
        greedy("greedy_cfg_interval"),
        greedy("greedy_nocfg"),
        compare("guided_logits", "greedy_cfg/logits", lambda model, vector: generated(
            model, vector["input/class_ids"], sampling_of(vector, "greedy_cfg"))[1]),
        Check("filters", 1e-6, filters, ("filter/logits_in",)),
    ), "the LlamaGen transformer, with and without a cache, and its sampling", ("full",)),
    "small_vq": Kind(tokenizer, (
        compare("code_vectors", "quant", lambda model, vector: model.quantize(
            vector["input/codes"], tuple(vector.facts["config"]["grid"])), 1e-6),
        compare("image", "image", image_of),
        compare("image_bytes", "image_u8_hwc", lambda *arguments: to_uint8(image_of(*arguments)), RARE, by=differing_bytes),
        compare("bicubic", "image_bicubic_two_thirds", resized),
        compare("bicubic_bytes", "image_bicubic_u8_hwc", lambda *arguments: to_uint8(resized(*arguments)), RARE,
                needs=("image_bicubic_two_thirds",), by=differing_bytes),
    ), "LlamaGen's image tokenizer, decoding"),
}


# -- ZipAR, on the weights and classes of ``golden_small`` next to the file -------------------------------------------
RUNS = tuple(f"w{window}_{kind}" for window in (2, 3, 5) for kind in ("cfg", "cfg_hidden", "nocfg"))


class Released(Full):
    """The full cache that also attends to positions without an entry, with a key and value of zero, as the authors' code does."""

    fronts = True

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not step.places:
            return super().attend(site, step, q, k, v)
        slot = self.slots[site]
        (run,) = slot.runs
        slot.append(k, v)
        keys, values = slot.read(run, slot.live[0])
        stored = torch.cat((slot.visual[0, 0, run.condition : slot.live[0] - step.count], torch.tensor(step.places)))
        visible = stored <= torch.tensor(step.places)[:, None]
        absent = torch.tensor(step.places) + 1 - visible.sum(1)  # scores of zero, one for each
        scores = (q @ keys.mT * q.size(-1) ** -0.5).masked_fill(~F.pad(visible, (run.condition, 0), value=True), -torch.inf)
        scores = torch.cat((scores, absent.log().to(scores)[:, None].expand(*scores.shape[:-1], 1)), -1)
        return scores.softmax(-1)[..., :-1] @ values


@dataclass
class Generations:
    """The model and its generations by run: tokens, and guided logits by position."""

    vector: Vector
    model: LlamaGen
    labels: Tensor
    done: dict[str, tuple[Tensor, dict[int, Tensor]]] = field(default_factory=dict)

    def run(self, name: str) -> tuple[Tensor, dict[int, Tensor]]:
        if name not in self.done:
            facts, seen = self.vector.facts["runs"][name], dict[int, Tensor]()
            method = Full() if facts["masked"] else Released()
            tokens = self.model.generate(
                self.labels, range(len(self.labels)), method, Sampling(cfg_scale=facts["cfg_scale"], temperature=0.0), Memory(),
                decoder=ZipAR(window=facts["window"]), see=lambda place, logits: seen.update({place: logits[:, 0].clone()}))
            self.done[name] = tokens, seen
        return self.done[name]


def built(vector: Vector) -> Generations:
    small = beside(vector, "golden_small")
    return Generations(vector, transformer(small), small["input/class_ids"])


def schedule(subject: Generations, vector: Vector) -> float:
    """Return the number of passes that feed other positions, or the same in another order."""
    layout = subject.model.layout(range(2), Sampling())
    wrong = 0
    for run in vector.facts["runs"].values():
        fed = [[place + 1 for place in front.step.places] or [0] for front in ZipAR(window=run["window"]).schedule(layout)]
        wrong += sum(own != theirs for own, theirs in zip_longest(fed, run["positions"]))
    return float(wrong)


def tokens(run: str) -> Check:
    return compare(f"tokens_{run}", f"{run}/tokens", lambda subject, vector: subject.run(run)[0].to(torch.int16), 0.0, by=differing)


def logits(run: str) -> Check:
    """Check the guided logits of every token that a stored pass draws."""
    def measure(subject: Generations, vector: Vector) -> float:
        seen = subject.run(run)[1]
        facts = vector.facts["runs"][run]
        fronts = ZipAR(window=facts["window"]).schedule(subject.model.layout(range(2), Sampling()))
        deviations = []
        for name, index in vector.matching(f"{run}/logits/*"):
            draws = fronts[int(index)].draws
            deviations.append(apart(torch.stack([seen[place] for place in draws], 1), vector[name][:, -len(draws) :]))
        return worst(deviations)

    return Check(f"logits_{run}", LOGITS, measure, (f"{run}/logits/*",))


KINDS |= {
    "zipar": Kind(built, (
        Check("schedule", 0.0, schedule, ("json/runs",)), *map(tokens, RUNS), *(logits(run) for run in RUNS if "nocfg" not in run),
    ), "ZipAR on LlamaGen with windows of 2, 3 and 5 of 6 tokens: passes, tokens and guided logits, as released and masked"),
}


# -- HeadKV: types of heads and evicted entries. Not official: two computations of one reading of the paper -----------
def local_of(vector: Vector, number: int, latest: int) -> list[bool]:
    """Return of each head whether its ``latest`` keys hold tau of the attention of the current query."""
    q, k = vector[f"{number}/queries"][None, :, -1], vector[f"{number}/keys"][None]
    near = (torch.arange(k.size(2)) >= k.size(2) - latest)[None, None]
    return local_heads(q, k, torch.ones(1, 1, 1, dtype=torch.bool), near, vector.facts["cases"][number]["tau"])[0].tolist()


def types(_: Any, vector: Vector) -> float:
    """Count the heads with another type, or which need another number of keys: as many hold tau, and one less do not."""
    wrong = 0
    for number, case in enumerate(vector.facts["cases"]):
        local = local_of(vector, number, case["window"] - 1)
        wrong += sum((kind == "local") != own for kind, own in zip(case["types"], local, strict=True))
        wrong += sum(not local_of(vector, number, needed)[head] or local_of(vector, number, needed - 1)[head]
                     for head, needed in enumerate(case["needed"]))
    return float(wrong)


def evicted(score: str) -> Check:
    def measure(_: Any, vector: Vector) -> float:
        wrong = 0
        for number, case in enumerate(vector.facts["cases"]):
            for noted in case["evict"]:
                head, first = slice(noted["head"], noted["head"] + 1), case["cond"]
                q, k = vector[f"{number}/queries"][None, head], vector[f"{number}/keys"][None, head, first : first + noted["history"]]
                ranks = stratified(q, k, noted["share"], noted["evicted"], softmax=score == "softmax")
                wrong += sorted(ranks.flatten().tolist()) != noted[score]
        return float(wrong)

    return Check(f"evicted_{score}", 0.0, measure, ("*/queries", "*/keys"))


KINDS |= {
    "headkv": Kind(lambda vector: None, (Check("types", 0.0, types, ("*/queries", "*/keys")), evicted("logits"), evicted("softmax")),
                   "types of heads and evicted entries by two computations of one reading of the paper, which has no code", ("headkv",)),
}
