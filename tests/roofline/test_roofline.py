"""Costs and memory of a generation: as dispatched and allocated, as worked out by hand, and as published."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.codec import INT8, KIVI4, NATIVE
from cachemark.cache.layout import Layout, Site, squares
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.contract.method import Method
from cachemark.core.errors import BadBudget, Unsupported
from cachemark.core.limits import GPUS, Rates, gpu
from cachemark.core.spec import Sampling
from cachemark.methods.fastvar import FastVAR
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.full import Full
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.methods.lazymar import LazyMAR
from cachemark.methods.linear import Linear
from cachemark.methods.marche import MARche
from cachemark.methods.registry import METHODS
from cachemark.methods.window import Window
from cachemark.models import costs, glm_image, infinity, janus, llamagen, lumina, mar, var
from cachemark.models.catalogue import next_scale
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.roofline.bill import attended, bill
from cachemark.roofline.flops import counted
from cachemark.roofline.flops_budget import budget_of, image_flops, share, work
from cachemark.roofline.memory import allocated, weight_bytes
from cachemark.roofline.operations import Bill
from cachemark.roofline.passes import ParameterCounts
from cachemark.roofline.scale_flops import by_pass

RASTER = llamagen.LlamaGenConfig(layers=2, heads=4, dim=64, vocab=96, classes=10, grid=4)
SCALES = var.VARConfig(3, 2, 32, sides=(1, 2, 3, 4, 6), vocab=48, classes=10, width=8)
BITWISE = infinity.InfinityConfig(3, 2, 32, chunks=1, scales=squares((1, 2, 3, 4, 6)), width=5, text=256, longest=8)
PROMPTS = Prompts(((1, 9, 7, 5, 3),), ((1, 2, 2, 2, 3),))
MODES: dict[str, list[tuple[str, dict[str, Any]]]] = {  # of each family; the kit checks every method on one model (tests/contracts)
    "next-token": [("full", {}), ("h2o", {"B": 12})],
    "next-scale": [("full", {}), ("guidance_off", {"start": 3}), ("fastvar", {"shares": (0.5, 1), "layers": (1, 2)})],
    "masked": [("full", {}), ("gtr", {"steps": 4, "detail": 0.3, "most": 0.9}),
               ("marche", {"active": 9, "encoder_cache": True, "refresh_layers": [4]})]}
BUILDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, Callable[[], Any]], ParameterCounts]]] = {
    "mha": (RASTER, llamagen.LlamaGen, costs.llamagen), "gqa": (replace(RASTER, kv_heads=2), llamagen.LlamaGen, costs.llamagen),
    "prompts": (janus.JanusConfig(LlamaConfig(2, 4, 64, 80, 128, kv_heads=2), codes=96, grid=4),
                partial(janus.Janus, prompts=PROMPTS), costs.janus),
    "line ends": (lumina.LuminaConfig(LlamaConfig(2, 4, 64, 80, 128, qk_norm=True), 3, 1, lumina.Vocabulary(4, 64, 75, 0, 69, 70, 76)),
                  partial(lumina.Lumina, prompts=PROMPTS), costs.lined),
    "preview": (glm_image.GlmImageConfig(LlamaConfig(2, 4, 64, 80, 128, kv_heads=2, qkv_bias=True), 64, 72, 4, 2, (1, 2, 1)),
                partial(glm_image.GlmImage, prompts=PROMPTS), costs.glm_image),
    "own": (SCALES, next_scale.build, costs.var), "shared": (replace(SCALES, shared_aln=True), next_scale.build, costs.var),
    **{name: (config, partial(infinity.Infinity, texts=[torch.zeros(7, 256), torch.zeros(4, 256)]), partial(costs.infinity, text=7))
       for name, config in {"bitwise": BITWISE, "rounded": replace(BITWISE, dim=96)}.items()},
    "masked": (mar.MARConfig(32, (2, 4), 4, 6, 24, grid=6, channels=4, classes=10, buffer=5, steps=5, diffusion=(9,)), mar.MAR, costs.mar),
}  # fmt: skip
# Worked out by hand: 4·(4·dim² + 3·dim·ffn)·layers + head, in GB per pass; keys and values 2·layers·dim·2 bytes per entry and row.
BY_HAND = [("llamagen-xl", 256, "1", 1.50, 27.27, 289), ("llamagen-xl", 256, "1/4", 1.50, 11.18, 118),
           ("llamagen-xl", 256, "1/8", 1.50, 5.52, 58), ("llamagen-xxl", 128, "1", 2.77, 21.8, 289)]
KV = [("llamagen-xl", 184_320, 212.7e6), ("llamagen-xxl", 294_912, 340.3e6), ("var-d30", 230_400, 313.3e6),
      ("var-d36-512", 331_776, 1486e6)]  # fmt: skip
A, B, V = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
MANY, OTHERS = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
PRODUCTS: dict[str, tuple[Callable[[], object], int]] = {
    "mm": (lambda: A @ B, 120), "mv": (lambda: A.mv(V), 24), "addmv": (lambda: torch.addmv(torch.zeros(3), A, V), 24),
    "dot": (lambda: V.dot(V), 8), "vdot": (lambda: torch.vdot(V, V), 8), "inner": (lambda: torch.inner(V, V), 8),
    "vecdot": (lambda: torch.linalg.vecdot(A, A), 24), "outer": (lambda: V.outer(V), 32), "ger": (lambda: torch.ger(V, V), 32),
    "addr": (lambda: torch.addr(torch.zeros(4, 4), V, V), 32), "addbmm": (lambda: torch.addbmm(torch.zeros(3, 5), MANY, OTHERS), 240),
    "baddbmm": (lambda: torch.baddbmm(torch.zeros(2, 3, 5), MANY, OTHERS), 240), "cdist": (lambda: torch.cdist(A, A), 72),
    "cdist by sums": (lambda: torch.cdist(MANY, MANY, p=1), 144), "batch times vector": (lambda: MANY @ V, 48),
    "vector times matrix": (lambda: V @ B, 40), "einsum": (lambda: torch.einsum("bij,j->bi", MANY, V), 48),
    "tensordot": (lambda: torch.tensordot(MANY, V, 1), 48), "linear of a vector": (lambda: torch.nn.functional.linear(V, A), 24),
    "_int_mm": (lambda: torch._int_mm(torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)), 8192),
    "batch times matrix": (lambda: MANY @ B, 240), "linear": (lambda: torch.nn.functional.linear(MANY, B.mT, torch.ones(5)), 240),
    "multi_dot": (lambda: torch.linalg.multi_dot([A, B]), 120), "sum": (lambda: A.sum() + A.norm(), 0)}
# Numbers of next-scale generations that were computed independently, to the FLOP.
STORED = json.loads(Path(__file__).with_name("flops_budgets.json").read_text())
PUBLISHED, BUDGETS = STORED["models"], STORED["how a budget becomes a knob"]
SIZES = {
    "VAR-d30 256": var.SIZES["d30"], "VAR-d36 512": var.SIZES["d36-512"], "Infinity-2B 1024": infinity.SIZES["2B"],
    "Infinity-8B 1024": infinity.SIZES["8B"]}
TEXT = 32  # entries of a text
ALL = (0, 31)
SAVERS: dict[str, dict[str, Callable[[], Method]]] = {  # one row of each kind of saving, per model
    "VAR-d30 256": {"skip last 2": partial(FewerScales, 2), "from 7": partial(GuidanceOff, 7), "off throughout": GuidanceOff,
                    "FastVAR .5 of 13, .75 of 16, layers 3-27": partial(FastVAR, (0.5, 0.75))},
    "Infinity-2B 1024": {"skip last 4": partial(FewerScales, 4), "from 9": partial(GuidanceOff, 9),
                         "FastVAR as published (.4 .5, 2 skipped; layers 3-27)": partial(FastVAR, (0.4, 0.5, 1, 1)),
                         "the same in all layers": partial(FastVAR, (0.4, 0.5, 1, 1), layers=ALL)},
}
BASES = {
    "FastVAR factor on published .4 .5 1 1, layers 3-27": FastVAR(),
    "FastVAR factor on .4 .5 .6 .75, layers 3-27": FastVAR(base=(0.4, 0.5, 0.6, 0.75)),
    "FastVAR factor on .5 .75, all layers": FastVAR(base=(0.5, 0.75), layers=ALL),
    "FastVAR factor on .3 .4 .5 .75, all layers": FastVAR(base=(0.3, 0.4, 0.5, 0.75), layers=ALL)}


@pytest.mark.parametrize("name", BUILDS)
def test_a_model_dispatches_its_bill(name: str) -> None:
    config, build, parts = BUILDS[name]
    model, counts = build(config).eval().requires_grad_(False), parts(config, lambda: None)  # decodes nothing: what is left is the model's
    schedule = "linear" if isinstance(config, var.VARConfig) else "constant"
    labels, sampling = torch.zeros(2, dtype=torch.int64), Sampling(cfg_scale=3.0, cfg_schedule=schedule)
    layout = model.layout([0, 1], sampling, labels.tolist())
    for method, parameters in MODES[layout.paradigm]:
        make = partial(METHODS.get(method).build, parameters)
        flops = counted(lambda make=make: model.generate(labels, [0, 1], make(), sampling, Memory("cpu")))
        own = bill(make(), layout, counts, images=False)
        assert own.flops == flops, method
        assert layout.paradigm != "masked" or 2 * image_flops(make(), layout) == own.without("method").flops


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-var", "tiny-mar", "tiny-t2i"])
def test_the_bundled_models_are_decoded_by_what_they_are_decoded_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``parameter_counts`` builds the decoder with default sizes; the packaged file has its own."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of the compiler fails: it takes seconds in every process
    entry: ModelEntry = MODELS.get(name)
    loaded, counts = entry.load(Request()), entry.parameter_counts()
    layout = entry.shape(entry.presets["paper"], 1)
    drawn = torch.zeros(1, layout.visual, dtype=torch.int64)
    if isinstance(layout, MaskedLayout):
        drawn = torch.zeros(1, layout.visual, layout.channels)
    loaded.decode(drawn)  # the first call also decodes one image to learn its size
    assert counted(lambda: loaded.decode(drawn)) == counted(counts.image) == bill(Full(), layout, counts).only("decode").flops > 0
    assert counts.image().device.type == "cpu"
    weights = sum(parameter.nbytes for parameter in entry.load(Request("cpu", torch.float32)).generator.parameters())
    assert 0.94 * weights < weight_bytes(replace(layout, dtype=torch.float32), counts) < weights, "but for tables, norms and biases"


# -- bytes, FLOPs and roofline times by hand ----------------------------------------------------------------------------
@cache
def shape(name: str, batch: int, preset: str = "paper") -> tuple[ParameterCounts, Layout]:
    entry: ModelEntry = MODELS.get(name)
    counts = entry.parameter_counts()
    return counts, replace(entry.shape(entry.presets[preset], batch), dtype=torch.bfloat16)


def bill_of(name: str, batch: int, preset: str = "paper", method: Method | None = None, **options: Any) -> Bill:
    counts, layout = shape(name, batch, preset)
    return bill(method or Full(), layout, counts, **options)


def linear(name: str, batch: int, budget: str) -> Method:
    """LineAR under a budget, or the full cache."""
    return Full() if budget == "1" else Linear.build(Linear.parameters_for(Fraction(budget), shape(name, batch)[1]))


def test_bytes_of_keys_and_values() -> None:
    """Within 1 %: the values are rounded and count the condition in every pass as one whole entry more."""
    for name, batch, budget, weights, read, entries in BY_HAND:
        method = linear(name, batch, budget)
        costs, mean = bill_of(name, batch, method=method), attended(method, shape(name, batch)[1])
        assert costs.moved("weights") / costs.passes / 1e9 == pytest.approx(weights, rel=0.01)
        assert costs.moved("read") / costs.passes / 1e9 == pytest.approx(read, rel=0.01)
        assert mean == pytest.approx(entries, abs=0.6)
    for name, token, image in KV:  # bytes per token and sequence, with both branches
        written, layout = bill_of(name, 1, images=False).moved("written"), shape(name, 1)[1]
        assert written == pytest.approx(image, rel=0.002), "the reference counts one more token"
        assert written == 2 * token * (layout.visual + layout.longest_condition - (0 if layout.scales else 1))


def test_codecs_read_codes_and_their_ranges() -> None:
    """Grouped keys read 2 bytes for each channel's step and minimum per 32 live tokens."""
    native, int8, kivi4 = (bill_of("llamagen-xl", 1, images=False, codec=codec).moved("read") for codec in (NATIVE, INT8, KIVI4))
    assert int8 / native == pytest.approx((64 + 4) / 128)
    entries = range(1, shape("llamagen-xl", 1)[1].visual + 1)
    pair, ranges, filling = (32 + 2) + (32 + 8), 64 * (2 + 2), 32 * 64 * 2
    assert kivi4 / native == pytest.approx(sum(pair * n + ranges * math.ceil(n / 32) + filling for n in entries)
                                           / sum(2 * 128 * n for n in entries))


def with_activations_apart(costs: Bill, rates: Rates) -> float:
    """Roofline time with activations moved by kernels of their own, a stricter sum that fused kernels may beat."""
    hidden = [op._replace(activations=0).seconds(rates) * op.times for op in costs.ops]
    return sum(hidden) + costs.moved("activations") / rates.bandwidth


def test_roofline_times() -> None:
    """Within 6 %, as the reference rewrites the whole cache once per line; masked within 7 %, without the bytes of attention."""
    a800, full = GPUS["a800"], with_activations_apart(bill_of("llamagen-xl", 256), GPUS["a800"])
    for budget, step, products, attention, bound in (("1", 16.5, 2.5, 13.4, 1), ("1/4", 9.2, 2.5, 5.5, 1.73), ("1/8", 6.1, 2.5, 2.8, 2.51)):
        costs = bill_of("llamagen-xl", 256, method=linear("llamagen-xl", 256, budget))
        assert with_activations_apart(costs.without("decode"), a800) / costs.passes * 1e3 == pytest.approx(step, rel=0.06)
        assert costs.only("matmul", "logits").roofline_time(a800) / costs.passes * 1e3 == pytest.approx(products, rel=0.02)
        assert costs.only("attention").roofline_time(a800) / costs.passes * 1e3 == pytest.approx(attention, rel=0.02)
        assert full / with_activations_apart(costs, a800) == pytest.approx(bound, rel=0.05), "the paper prints 5.18 and 7.57"
    for name, batch, milliseconds in (("var-d30", 64, 15.3), ("var-d36-512", 25, 86.4)):
        assert with_activations_apart(bill_of(name, batch), GPUS["a100"]) / batch * 1e3 == pytest.approx(milliseconds, rel=0.02)
    for name, device, method, milliseconds in (("mar-b", "h100", Full(), 15.0), ("mar-b", "h100", MARche(), 11.7),
                                               ("mar-h", "3090", Full(), 914), ("mar-h", "3090", LazyMAR(), 329)):
        seconds = bill_of(name, 128, "fewer", method).roofline_time(GPUS[device])
        assert seconds / 128 * 1e3 == pytest.approx(milliseconds, rel=0.07)


def test_a_method_is_counted_as_the_arena_counts_it() -> None:
    """As far as it comes, if it reads a value, and nothing for the full form of a masked model."""
    layout = replace(shape("tiny-llamagen", 2)[1], dtype=torch.float32)
    for method, codec in ((Full(), NATIVE), (Window(B=64), INT8)):
        memory = Memory("cpu", codec)
        method.begin(layout, [Site("decoder", layer) for layer in range(layout.layers)], memory)
        assert allocated(method, layout, codec) == sum(tensor.nbytes for _, tensor in memory.tensors.values()) > 0
    looking = type("Looking", (Window,), {"prepare": lambda self, slots, memory: memory.zeros("looked at", (1,), torch.float32).item()})
    assert allocated(looking(B=64), layout) >= allocated(Window(B=64), layout) // 2
    masked = shape("tiny-mar", 2)[1]
    assert allocated(Full(), masked) == 0 < allocated(MARche(), masked)


def test_memory_is_counted_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # its import would fail
    assert allocated(Full(), shape("llamagen-b", 3)[1]) > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_product_has_the_flops_of_its_shapes_and_one_without_a_formula_is_refused(mode: Callable[[], torch.no_grad]) -> None:
    with mode():
        assert {name: counted(run) for name, (run, _) in PRODUCTS.items()} == {name: flops for name, (_, flops) in PRODUCTS.items()}
        for run in (lambda: torch.nn.functional.bilinear(A, A, torch.randn(6, 4, 4)), lambda: torch.linalg.solve(torch.eye(4), V)):
            with pytest.raises(Unsupported, match=r"The FLOPs of \w+ cannot be counted"):
                counted(run)


def layout(name: str, batch: int = 1) -> Layout:
    """Return the layout of a guided generation in bf16."""
    config = SIZES[name]
    schedule = "linear" if isinstance(config, var.VARConfig) else "constant"
    text = {} if isinstance(config, var.VARConfig) else {"text": TEXT}
    return config.layout(range(batch), Sampling(cfg_scale=4.0, cfg_schedule=schedule), torch.bfloat16, **text)


@pytest.mark.parametrize("name", SIZES)
def test_the_full_cache_computes_the_published_flops(name: str) -> None:
    published = PUBLISHED[name]
    parts, scales = work(Method(), layout(name)), by_pass(Method(), layout(name))
    assert parts == {"matmul" if part == "linear" else part: flops for part, flops in published["parts"].items()}
    assert sum(parts.values()) == published["total"] == image_flops(Method(), layout(name, batch=3))
    assert [sum(scale.values()) for scale in scales] == published["flops per scale"]
    assert [scale["attention"] for scale in scales] == published["attention per scale"]


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, methods in SAVERS.items() for name in methods])
def test_a_method_computes_the_published_flops_and_has_the_published_bound(model: str, name: str) -> None:
    published, method, shape = PUBLISHED[model]["methods"][name], SAVERS[model][name](), layout(model)
    assert image_flops(method, shape) == published["flops"]
    assert round(float(share(method, shape)), 5) == published["share"]
    assert len(by_pass(method, shape)) == published["passes"]
    assert round(1 / float(share(method, shape)), 3) == published["bound by FLOPs"]
    counts = MODELS.get("var-d30" if model.startswith("VAR") else "infinity-2b").parameter_counts()
    if model.startswith("Infinity"):
        counts = costs.infinity(infinity.SIZES["2B"], counts.image, TEXT)
    full, own = (bill(each, layout(model, 8), counts).without("once", "method", "decode").roofline_time(gpu("h100"))
                 for each in (Method(), method))
    assert round(full / own, 3) == published["H100 spec, batch 8"]


@pytest.mark.parametrize(("model", "table"), [(model, table) for model, tables in BUDGETS.items() for table in tables])
def test_a_budget_gives_the_published_parameters(model: str, table: str) -> None:
    shape = layout(model)
    for budget, published in BUDGETS[model][table].items():
        method = BASES.get(table) or (FewerScales() if table == "scales that run" else GuidanceOff())
        if published is None:  # even with all that it can leave out
            with pytest.raises(BadBudget):
                method.fit(Fraction(budget), shape)
            continue
        fitted = method.fit(Fraction(budget), shape)
        if isinstance(method, FastVAR):
            expected = [min(1.0, published["factor"] * base) for base in method.base]
            assert fitted["shares"] == pytest.approx([1.0 if 1.0 in expected[:i] else share for i, share in enumerate(expected)])
            assert round(float(share(FastVAR(**{**method.parameters(), **fitted}), shape)), 5) == published["share"]
        elif isinstance(method, FewerScales):
            assert len(shape.scales) - fitted["count"] == published["scales"]
        else:
            assert fitted == {"start": published["scale"]}
    assert budget_of(FastVAR((0.4, 0.5, 1, 1)), layout("Infinity-2B 1024")) == Fraction(2387, 10**4)
