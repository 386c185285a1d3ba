"""Files as training code leaves them, from their path to images of the bundled models."""

import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cachemark as cm
from cachemark.core.errors import UnknownName
from cachemark.models import checkpoints
from cachemark.models.catalogue.text_to_image import INFINITY
from cachemark.models.infinity import InfinityConfig
from cachemark.models.protocol import CheckpointNote
from cachemark.models.weights import packaged

TABLES = {"tiny-llamagen": "cls_embedding.embedding_table.weight", "tiny-var": "class_emb.weight", "tiny-mar": "class_emb.weight"}


def bundled(model: str) -> dict[str, torch.Tensor]:
    return load_file(packaged(f"{model}.safetensors"))


@pytest.mark.parametrize(("model", "classes"), [("tiny-llamagen", 3), ("tiny-var", 40), ("tiny-mar", 3)])
def test_the_number_of_classes_is_read_from_the_file(model: str, classes: int, tmp_path: Path) -> None:
    """Images of classes that both models have are equal."""
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
