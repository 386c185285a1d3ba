"""The cached model equals the model over all tokens; and the checks of the kit."""

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Step, Tokens
from cachemark.contract.method import Method, Uncached
from cachemark.core.spec import Sampling
from cachemark.models.protocol import Request
from cachemark.workflows.prove import prove_model
from cachemark_gpt.model import CONFIG, load
from cachemark_gpt.network import GPT


def test_logits_over_the_cache_are_those_of_all_tokens_at_once() -> None:
    model, labels, seen = load(Request()).generator, torch.tensor([3, 7]), []
    assert isinstance(model, GPT)
    tokens = model.generate(labels, [0, 1], Method(), Sampling(), Memory(), see=lambda _, logits: seen.append(logits))
    x = torch.cat((model.wce(labels)[:, None], model.wte(tokens[:, :-1])), 1) + model.wpe(torch.arange(CONFIG.grid**2))
    uncached = model.logits(model(Tokens(x), Step(0, 1), Uncached()))
    torch.testing.assert_close(torch.cat(seen, 1), uncached)
    order = torch.tensor([1, 0, *range(2, CONFIG.grid**2)])
    moved = model.logits(model(Tokens(x - model.wpe(torch.arange(len(order))) + model.wpe(order)), Step(0, 1), Uncached()))
    assert float((moved - uncached).abs().max()) > 1e-3, "places matter"


def test_the_model_passes_the_kit() -> None:
    (report,) = prove_model("gpt")
    assert report.passed, [(check.name, finding) for check in report.checks for finding in check.findings]
