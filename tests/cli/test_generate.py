"""``cachemark generate``: the grid it writes, the costs it prints, and what it refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from cachemark.models.weights import packaged
from support.stages import call, data, good


def test_a_method_is_compared_with_the_full_cache(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    done = call("generate", "tiny-t2i", "--prompt", "two red stars above blue stripes", "--method", "window", "--budget", "1/2",
                "--compare", "-o", path)
    full, window, files = good(done).splitlines()
    for line, name in ((full, "full        "), (window, "window 1/2  ")):
        assert line.startswith(f"tiny-t2i {name}")
        assert re.search(r"tokens/s \(first \| last half\).*MiB", line)
    assert files == f"{path}: full to the left, window 1/2 to the right"
    with Image.open(path) as pair:
        assert pair.size == (64 + 8 + 64, 64 + 16)
        assert np.asarray(pair)[64:].std() > 0, "a caption"
        assert pair.crop((0, 0, 64, 64)).tobytes() != pair.crop((72, 0, 136, 64)).tobytes()


def test_the_used_copy_of_the_weights_is_printed_once(tmp_path: Path) -> None:
    state = load_file(packaged("tiny-var.safetensors"))
    torch.save({"ema": state, "model": dict(state) | {"pos_1LC": state["pos_1LC"] * 0}}, tmp_path / "both.pt")
    done = call("generate", "tiny-var", "--weights", tmp_path / "both.pt", "-o", tmp_path / "out.png")
    assert done.exit_code == 0, done.output
    assert [line for line in done.stderr.splitlines() if line.startswith("Note: ")] == [
        f"Note: '{tmp_path}/both.pt' holds several copies of the weights: the averaged ones under 'ema' are used, not those under model. "
        f'To use others: weights = "{tmp_path}/both.pt#model".']


def test_json_has_the_costs_and_a_budget_that_cannot_be_met_says_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    done = call("generate", "tiny-var", "--label", "3", "--images", "2", "--sampling", "temperature=0.5", "--sampling", "top_k=4",
                "--guidance", "2", "--json", "-o", path)
    facts = data(done)
    (images,) = facts["generations"]
    assert (facts["file"], images["case"], images["labels"], images["seeds"]) == (str(path), "full", [3, 3], [0, 1])
    assert images["kv_logical"] > 0
    assert min(images["seconds"], images["tokens_per_s_first"], images["tokens_per_s_last"]) > 0
    done = call("generate", "tiny-var", "--method", "window", "--budget", "1/100", "-o", tmp_path / "out.png")
    assert re.search(r"window 0\.01 .*keeps 0\.\d % of the entries instead of 1\.0 %", done.stdout), done.output
    assert "keeps" not in call("generate", "tiny-var", "--method", "scalekv", "--budget", "1/16", "-o", tmp_path / "out.png").stdout


def test_a_sample_batch_has_the_classes_in_turns_and_says_where_it_is_from(tmp_path: Path) -> None:
    """Its images are those of the grid, whatever the order of the request; an older batch is replaced, another archive is not."""
    labels = [word for label in (3, 3, 5) for word in ("--label", str(label))]
    for _ in range(2):
        good(call("generate", "tiny-var", *labels, "--batch", "2", "-o", tmp_path / "samples.npz"))
    call("generate", "tiny-var", *labels, "-o", tmp_path / "grid.png")
    with np.load(tmp_path / "samples.npz") as file, Image.open(tmp_path / "grid.png") as grid:
        images, manifest = file["arr_0"], json.loads(file["manifest.json"])
        assert file["arr_1"].tolist() == manifest["labels"] == [3, 5, 3]
        assert (np.asarray(grid)[:64, 64:128] == images[2]).mean() > 0.95  # the second of class 3; batches of other sizes round otherwise
    assert manifest["seeds"] == [0, 2, 1]
    assert (manifest["tool"], manifest["plan"], manifest["case"]["model"]) == ("cachemark", "", "tiny-var")
    assert "commit" in manifest
    np.savez(tmp_path / "other.npz", arr_0=images)
    refused = call("generate", "tiny-var", "-o", tmp_path / "other.npz")
    assert (refused.exit_code, "is not a sample batch of cachemark" in refused.output) == (2, True)


@pytest.mark.parametrize(("model", "dtype", "file", "what", "loud", "more"), [
    ("tiny-var", "float16", "out.png", "logits", ("proj.weight", "fc2.weight", "word_embed.weight", "head.weight"), ()),
    ("tiny-mar", "float32", "out.npz", "logits|images", ("z_proj.bias",), ("--sampling", "steps=4"))])
def test_output_that_is_not_finite(
        model: str, dtype: str, file: str, what: str, loud: tuple[str, ...], more: tuple[str, ...], tmp_path: Path) -> None:
    """In a number format that is too small, and with NaN in the weights."""
    state = load_file(packaged(f"{model}.safetensors"))
    chosen = [name for name in state if name.endswith(loud)]
    assert chosen
    factor = 3e4 if dtype == "float16" else float("nan")
    weights = tmp_path / "loud.safetensors"
    save_file({name: tensor * factor if name in chosen else tensor for name, tensor in state.items()}, weights)
    done = call("generate", model, "--images", "2", "--dtype", dtype, "--weights", weights, "-o", tmp_path / file, *more)
    assert done.exit_code == 2, done.output
    assert re.search(f"The ({what}) of {model} full in {dtype} hold NaN or infinity", done.output)
    assert not (tmp_path / file).exists()
