"""A drafter and a refiner as one model, beyond CoDe's vectors: tokens, costs, memory and bad pairs."""

from pathlib import Path

import pytest
import torch

from cachemark.cache.arena import Memory
from cachemark.cache.engines import Graph
from cachemark.contract.method import Method
from cachemark.core.errors import BadBudget, BadCheckpoint, BadParameter, Unsupported
from cachemark.core.spec import Budget, Sampling
from cachemark.kit.capture import CpuGraphs
from cachemark.kit.runner import model_checks
from cachemark.kit.saving import model as small
from cachemark.methods.window import Window
from cachemark.models.catalogue.composites import CompositeModel
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.models.relay import Relay
from cachemark.models.var import VAR
from cachemark.models.vision.msvq import MultiScaleQuantizer
from cachemark.plans.expand import resolve
from cachemark.roofline.flops_budget import image_flops
from cachemark.roofline.memory import allocated
from cachemark.workflows.prove import names_of
from cachemark.workflows.roofline import drafter_share
from support.stages import call

SAMPLING, LABELS, SEEDS = Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=12), torch.tensor([1, 7, 3]), (5, 11, 23)
PLUG_IN = """
from cachemark.models.catalogue.composites import CompositeModel
from cachemark.models.registry import model

class Mine(CompositeModel):
    pass


model("mine")(Mine("mine", drafter="tiny-var", refiner="tiny-var-d2", drafted=4).entry)
"""


@pytest.mark.parametrize(("drafted", "memory"), [(1, Memory()), (2, Memory(engine=Graph(CpuGraphs()))), (4, Memory())])
def test_a_model_that_refines_its_own_draft_makes_its_own_image(drafted: int, memory: Memory) -> None:
    own = small("var")
    relay = Relay("twice", own, own, drafted)
    alone = own.generate(LABELS, SEEDS, Method(), SAMPLING, Memory())
    for _ in range(3):  # a graph runs, captures and replays
        assert torch.equal(relay.generate(LABELS, SEEDS, Method(), SAMPLING, memory), alone)


def test_the_refiner_reads_no_key_of_the_drafter() -> None:
    """They are freed at the handover; a graph, which refers to them, keeps them."""
    own, memory, method = small("var"), Memory(), Method()
    relay = Relay("twice", own, own, 3)
    images = relay.generate(LABELS, SEEDS, method, SAMPLING, memory)
    drafter, refiner = memory._turns.values()
    assert not drafter.tensors
    both = [drafter._freed["slots"], refiner.nbytes("slots")]
    assert 0 < both[0] < both[1] == memory.nbytes("slots") == method.logical_bytes
    kept = Memory(engine=Graph(CpuGraphs()))  # which frees nothing
    assert torch.equal(relay.generate(LABELS, SEEDS, Method(), SAMPLING, kept), images)
    assert kept.nbytes("slots") == sum(both)


@pytest.mark.parametrize(("drafted", "share", "peak"), [(9, 0.774, 0.624), (6, 0.288, 0.284)])
def test_costs_of_the_published_pairs(drafted: int, share: float, peak: float) -> None:
    """FLOPs, and the larger of both caches, as fractions of VAR-d30's; computed by hand from the published code."""
    name = f"var-d30+d16-n{drafted}"
    assert drafter_share(name) == pytest.approx(share, rel=0.01)
    assert f"{share:.3f} of the drafter's" in call("roofline", name).output
    entry, alone = MODELS.get(name), MODELS.get("var-d30")
    layouts = [model.shape(model.presets["paper"], 1) for model in (entry, alone)]
    stored = [max(part.visual * part.layers * part.heads for part in (layout, layout.draft) if part) for layout in layouts]
    assert stored[0] / stored[1] == pytest.approx(peak, abs=0.001)  # the code stores the last scale too
    assert allocated(Method(), layouts[0]) < allocated(Method(), layouts[1])
    counts, both = entry.parameter_counts(), [MODELS.get(model).parameter_counts() for model in ("var-d30", "var-d16")]
    assert [counts.drafter, counts.block] == [both[0], both[1].block]
    rival = MODELS.get("var-d24").shape(alone.presets["paper"], 1)
    assert image_flops(Method(), rival) / image_flops(Method(), layouts[1]) == pytest.approx(0.518, rel=0.01)


def test_pairs_methods_weights_and_tokenizers_that_do_not_fit() -> None:
    for drafter, refiner, drafted, words in (
        ("var-d30", "var-d16", 0, r"mine: 0 drafted scales .* Draft 1 … 9 of the 10"), ("var-d30", "var-d16", 10, "mine: 10 drafted"),
        ("var-d30", "var-d16", 2.5, "mine: 2.5 drafted scales"), ("infinity-2b-256", "var-d16", 5, "the drafter has maps up to"),
        ("var-d36-512", "var-d16", 5, r"maps up to 32×32, 10 of them, the refiner up to 16×16, 10.*same token maps"),
        ("tiny-var", "var-d16", 5, "the drafter has maps up to 16×16, 8 of them"),
        ("tiny-llamagen", "tiny-var-d2", 3, "tiny-llamagen is a next-token model")):  # fmt: skip
        with pytest.raises(BadParameter, match=words) as caught:
            _ = CompositeModel("mine", drafter, refiner, drafted).entry
        assert "\n" not in str(caught.value)
    entry, other = MODELS.get("tiny-var+d2-n6"), small("var")
    with pytest.raises(BadBudget, match=r"window does not run on a composite model.*Run it on one"):
        resolve(Window, Budget.parse("1/2"), entry.shape(entry.presets["paper"], 1), {})
    with pytest.raises(Unsupported, match="window does not run on twice"):
        Relay("twice", other, other, 2).generate(LABELS, SEEDS, Window(B=9), SAMPLING, Memory())
    with pytest.raises(BadCheckpoint, match=r"has two models, and weights = .* names 1"):
        entry.identity(Request(weights="one.safetensors"))
    quantizer = MultiScaleQuantizer(other.config.sides, other.config.vocab, other.config.width)
    with pytest.raises(BadCheckpoint, match="mine: the image tokenizers of drafter and refiner differ"):
        Relay("mine", other, VAR(other.config, quantizer), 2)


def test_one_more_composite_costs_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUG_IN)
    (name,) = names_of("models", tmp_path / "mine.py")
    results = {planned.name: planned.run() for planned in model_checks(MODELS.get(name))}
    assert not {check: result.findings for check, result in results.items() if result.findings}
    done = {check for check, result in results.items() if not result.findings and not result.skipped}
    assert done >= {"entry matches the model", "samples are the same in any batch", "forced tokens are followed", "graph is eager"}
