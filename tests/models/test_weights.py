"""Random weights, decoding in chunks, packed linear layers, and files as training code leaves them, from their path to images."""

import hashlib
import itertools
import json
import os
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cachemark as cm
from cachemark.core.errors import UnknownName
from cachemark.machine.memory import TensorPeak
from cachemark.models import checkpoints, layers, weights
from cachemark.models.catalogue.text_to_image import INFINITY
from cachemark.models.infinity import InfinityConfig
from cachemark.models.layers import LEAST, Packed, Projection, packed
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.protocol import CheckpointNote, PublishedFile, Request
from cachemark.models.registry import MODELS
from cachemark.roofline.flops import counted
from support.tiny_models import BUILDS

TABLES = {"tiny-llamagen": "cls_embedding.embedding_table.weight", "tiny-var": "class_emb.weight", "tiny-mar": "class_emb.weight"}


class Poisoned(checkpoints.NoDraws):
    """Fill with NaN what the initialization is skipped for."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs)
        return made.data.fill_(float("nan")) if function.__name__ in checkpoints.DRAWS else made


@pytest.mark.parametrize("family", BUILDS)
def test_every_random_weight_is_drawn(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PublishedFile("weights", "x", "x", BUILDS[family])
    first = weights.transformer(file, Request()).state_dict()
    monkeypatch.setattr(checkpoints, "NoDraws", Poisoned)
    torch.manual_seed(7)
    again = weights.transformer(file, Request()).state_dict()
    for name, value in first.items():
        assert torch.equal(value, again[name]), name


def test_images_are_decoded_in_chunks_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def decode(tokens: Tensor) -> Tensor:
        batches.append(len(tokens))
        return tokens[:, :1, None, None].expand(-1, 3, 8, 8).float()

    monkeypatch.setattr(weights, "PIXELS", 3 * 8 * 8)
    tokens = torch.arange(7)[:, None].repeat(1, 4)
    decoder = weights.in_chunks(decode)
    assert torch.equal(decoder(tokens), decode(tokens))
    assert batches == [1, 3, 3, 1, 7]
    decoder(tokens[:2])
    assert batches[5:] == [2]


class Net(nn.Module):
    """Layers on both sides of the limit, one of them inside a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.large = Projection(1024, 512, bias=False)
        self.inner = nn.Sequential(nn.SiLU(), nn.Linear(512, 1024))
        self.small = nn.Linear(1024, 511)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.small(self.inner(self.large(x, bias)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


@pytest.mark.parametrize("x", [torch.randn(1, 1024), torch.randn(2, 3, 1024), torch.randn(200, 1024), torch.randn(6, 2, 1024)[:, 1]])
def test_packed_layers_compute_what_they_computed(net: Net, x: Tensor) -> None:
    bias = torch.randn(512)
    before, flops = (net(x), net(x, bias)), counted(lambda: net(x))
    after = packed(net)
    assert [isinstance(layer, Packed) for layer in (net.large, net.inner[1], net.small)] == [True, True, False]
    assert net.large.weight.numel() == LEAST > net.small.weight.numel()
    assert counted(lambda: after(x)) == flops
    torch.testing.assert_close((after(x), after(x, bias)), before, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(after(x), after(x, bias)), "the caller's bias counts"


def any_packed(module: nn.Module) -> bool:
    return any(isinstance(part, Packed) for part in module.modules())


def test_other_weights_stay_as_they_are(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, on another device, of the reference engine, and without the kernel."""
    wide = MARConfig(768, (1, 1), 12, 1, 1024, grid=2, classes=3, buffer=2, steps=2, diffusion=(2,))
    reference = weights.transformer(PublishedFile("weights", "mar.pth", "x", partial(MAR, wide)), Request(engine="reference"))
    assert not any(map(any_packed, (reference, packed(Net().bfloat16()), packed(Net().to("meta")))))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not any_packed(packed(net))


def test_the_models_of_the_accepted_baseline_are_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact values hold with and without packing, so the fingerprint does not name it (ADR 13)."""
    files = list((Path(__file__).parents[2] / "baselines" / "accepted").glob("*-threads/*.json"))  # of CPUs: on a GPU nothing is packed
    models = {outcome["case"]["model"] for file in files for outcome in json.loads(file.read_text())["outcomes"]}
    assert models
    for name, limit in itertools.product(models, (LEAST, 1)):
        monkeypatch.setattr(layers, "LEAST", limit)
        assert any_packed(MODELS.get(name).load(Request()).generator) is (limit == 1)


def test_packed_copies_must_fit_the_memory_and_are_not_counted_in_the_peak(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PHYS_PAGES": 4, "SC_PAGE_SIZE": 2 * LEAST * 4 - 1}  # one byte less per copy than four times the weights
    monkeypatch.setattr(layers.os, "sysconf", pages.__getitem__)
    assert not any_packed(packed(net))
    pages["SC_PAGE_SIZE"] += 1
    assert any_packed(packed(net))
    x = torch.randn(4, 1024)
    plain, blocked = TensorPeak(net.parameters()), TensorPeak(packed(net).parameters())
    with blocked:
        net.large(x)
    with plain:
        torch.nn.functional.linear(x, torch.randn(512, 1024))
    assert blocked.peak == 4 * 512 * 4
    assert plain.peak > blocked.peak, "weights that were not there before do count"


def bundled(model: str) -> dict[str, torch.Tensor]:
    return load_file(weights.packaged(f"{model}.safetensors"))


@pytest.mark.parametrize(("model", "classes"), [("tiny-llamagen", 3), ("tiny-var", 40), ("tiny-mar", 3)])
def test_the_number_of_classes_is_read_from_the_file(model: str, classes: int, tmp_path: Path) -> None:
    state = bundled(model)
    table = state[TABLES[model]]
    more, null = table[:1].expand(max(0, classes - 10), -1), table[10:]
    save_file(state | {TABLES[model]: torch.cat((table[: min(classes, 10)], more, null))}, tmp_path / "tuned.safetensors")
    tuned = cm.load(model, weights=str(tmp_path / "tuned.safetensors"))
    assert tuned.classes == classes
    with pytest.raises(UnknownName, match=f"has no class {classes}. Use labels 0 … {classes - 1}"):
        tuned.generate(labels=[classes])
    if model == "tiny-var":  # the quickest
        image = tuned.generate(labels=[2], seeds=[5])
        assert torch.equal(image.tokens, cm.load(model).generate(labels=[2], seeds=[5]).tokens)
        assert image.case.conditions == f"{classes} classes, balanced"


def test_a_file_is_compared_with_its_model_once_until_it_changes(tmp_path: Path) -> None:
    compared, path = list[str](), tmp_path / "net.pt"
    file: Any = type("File", (), {"key": "weights", "check": lambda self, path: compared.append(path) or "ema"})()
    for content, changed, times in ((b"1", 1e9, 1), (b"1", 1e9, 1), (b"2", 1.1e9, 2), (b"2", 1.1e9, 2)):
        path.write_bytes(content)
        os.utime(path, (changed, changed))
        assert weights.identity(file, Request(weights=str(path))) == f"{hashlib.sha256(content).hexdigest()}#ema"
        assert len(compared) == times


def test_the_used_copy_is_printed_and_part_of_the_case(tmp_path: Path) -> None:
    good, path = bundled("tiny-var"), tmp_path / "0050000.pt"
    torch.save({"model": {name: tensor * 0 for name, tensor in good.items()}, "ema": good}, path)
    with pytest.warns(CheckpointNote, match=re.escape(f"the averaged ones under 'ema' are used, not those under model. To use others: "
                                                      f'weights = "{path}#model".')):
        averaged = cm.load("tiny-var", weights=path).generate(labels=[1])
    with warnings.catch_warnings(action="error", category=CheckpointNote):  # it was asked for
        raw = cm.load("tiny-var", weights=f"{path}#model").generate(labels=[1])
    own = cm.load("tiny-var").generate(labels=[1])
    assert torch.equal(averaged.tokens, own.tokens)
    assert not torch.equal(raw.tokens, own.tokens)
    digest = checkpoints.sha256(path)
    assert [each.case.weights.partition("/")[0] for each in (averaged, raw)] == [f"{digest}#ema", f"{digest}#model"]
    assert len({each.case.key for each in (own, averaged, raw)}) == 3


@pytest.mark.parametrize("chunks", [1, 4])
def test_infinity_loads_with_any_grouping_of_its_blocks(chunks: int, tmp_path: Path) -> None:
    build = partial(INFINITY.network, InfinityConfig(depth=4, heads=2, dim=64, chunks=2, text=128, longest=8), None, "eager")
    state = {name: torch.full_like(tensor, float(at)) for at, (name, tensor) in enumerate(build().state_dict().items())}
    place = r"block_chunks\.(\d+)\.module\.(\d+)"

    def grouped(match: re.Match[str]) -> str:
        block = 2 * int(match[1]) + int(match[2])
        return f"blocks.{block}" if chunks == 1 else f"block_chunks.{block}.module.0"

    torch.save({"trainer": {"gpt_fsdp": {re.sub(place, grouped, name): tensor for name, tensor in state.items()}}}, tmp_path / "tuned.pth")
    loaded = checkpoints.load(build, tmp_path / "tuned.pth").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
