"""Weights files: every official layout loads, and unfit files are rejected with the reason."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from official import sharded
from safetensors.torch import save_file
from torch import Tensor, nn

from cachemark.core.errors import BadCheckpoint
from cachemark.models import checkpoints
from cachemark.models.checkpoints import fitted, load, sha256
from cachemark.trial.request import TrialRequest

State = dict[str, Tensor]
MEMORY = """
import sys, torch
from torch import nn
from cachemark.models.checkpoints import load

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def touch(module):
    return sum(float(p.float().sum()) for p in module.parameters())

def build():
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(24)))

torch.set_num_threads(1)
small, path = sys.argv[1:]
touch(load(lambda: nn.Linear(4, 4, bias=False), small))  # whatever the first use loads is not what is measured
before = status("VmHWM"), status("RssAnon")
module = load(build, path)
total = touch(module)
print(status("VmHWM") - before[0], status("RssAnon") - before[1], total)
module = load(build, path, dtype=torch.bfloat16)
print(status("RssAnon") - before[1], int("torch._dynamo" in sys.modules))
"""


class Net(nn.Module):
    def __init__(self, layers: int = 3, dim: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))


def weights(layers: int = 3, dim: int = 4) -> State:
    torch.manual_seed(layers * 100 + dim)
    return Net(layers, dim).state_dict()


def equal(module: nn.Module, state: State) -> bool:
    own = module.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[name], state[name]) for name in state)


def other(state: State) -> State:
    return {name: tensor * 0 for name, tensor in state.items()}


def wrapped(state: State, part: str, at: int) -> State:
    """Put the part that a wrapper leaves into every name, after ``at`` others."""
    return {".".join([*name.split(".")[:at], part, *name.split(".")[at:]]): tensor for name, tensor in state.items()}


OPTIMIZER = {"state": {0: {"step": torch.tensor(9.0), "exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
LAYOUTS: dict[str, Callable[[State], Any]] = {
    "bare": lambda state: state, "module": lambda state: {"epoch": 3, "module": state},
    "state_dict": lambda state: {"state_dict": state, "hyper": "x"},
    "distributed": lambda state: {"model": other(state), "ema": state, "optimizer": OPTIMIZER, "steps": 50,
                                  "args": argparse.Namespace(lr=1e-4, model="GPT-B", stage=None)},
    "the entry that fits": lambda state: {"state_dict": {"x": torch.zeros(1)}, "model": {"y": torch.zeros(1)}, "module": state},
    "VAR's trainer": lambda state: {"epoch": 9, "trainer": {"config": {}, "vae_local": {"q": torch.zeros(1)}, "var_wo_ddp": state}},
    "Infinity's trainer": lambda state: {"trainer": {"gpt_fsdp": other(state), "gpt_ema_fsdp": state}},
    "an average beside it": lambda state: {**other(state), "model_ema": state},
    "averages under a prefix": lambda state: {"state_dict": {**wrapped(other(state), "model", 0), **wrapped(state, "model_ema", 0)}},
    "of a wrapped average": lambda state: {"ema": {"decay": 0.9, "state_dict": wrapped(state, "module", 0)}, "model": other(state)},
    "two copies in an average": lambda state: {"ema": {**wrapped(other(state), "online_model", 0), **wrapped(state, "ema_model", 0)}},
    "averages inside": lambda state: {**other(state), **wrapped(state, "ema_model", 0)},
    "one prefix": lambda state: {"state_dict": wrapped(state, "net", 0), "callbacks": {}, "loss": np.float64(0.3)},
    "fully sharded": lambda state: {"model": wrapped(wrapped(state, "_fsdp_wrapped_module", 0), "_checkpoint_wrapped_module", 2)},
    "compiled": lambda state: wrapped(wrapped(state, "_orig_mod", 0), "module", 0),
    "compiled blocks": lambda state: {name: t for old, t in state.items() for name in wrapped({old: t}, "_orig_mod", old.count(".") and 2)},
    "name instead of weights": lambda state: {"model": "GPT-B", "state_dict": state},
    "bare beside others": lambda state: {**state, "optimizer": {"lr": torch.zeros(1)}, "steps": 3}}


def test_every_layout_of_a_torch_file_loads_and_a_choice_is_stated(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        state = weights()
        for name in ("net.pt", "net.safetensors", "net.ckpt.tmp"):
            torch.save(LAYOUTS[layout](state), tmp_path / name)
            assert equal(load(Net, tmp_path / name), state)
    for content, chosen, note in (
        (lambda state: {"model": state}, "", ""), (lambda state: {"model": state, "again": state}, "", ""),
        (lambda state: {"model": state, "model_ema": other(state)}, "model_ema", "the averaged ones under 'model_ema' are used, not those"),
        (lambda state: {"model": state, "best": other(state)}, "model", "the raw ones under 'model' are used, not those under best"),
        (lambda state: {**state, "best": other(state)}, "top", "the raw ones under 'top' are used, not those under best. To use others: w"),
    ):
        fit = fitted(Net, saved(tmp_path / "net.pt", content(weights())))
        assert fit.entry == chosen
        assert note in " ".join(fit.notes)
        assert bool(fit.notes) is bool(chosen)


def test_an_entry_is_selected_by_its_name_and_copies_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    state, path = weights(), tmp_path / "net.pt"
    torch.save({"model": state, "trainer": {"ema": other(state)}, "opt": {"a": torch.zeros(1)}}, path)
    assert equal(load(Net, f"{path}#model"), state)
    assert equal(load(Net, f"{path}#trainer.ema"), other(state))
    assert equal(load(Net, path), other(state))
    assert sha256(f"{path}#model") == sha256(path)
    assert "has no entry 'best' that holds tensors. Name one of: model, opt, trainer.ema" in refusal(f"{path}#best")
    odd = path.rename(tmp_path / "net#ema")  # a name as people write them
    assert equal(load(Net, odd), other(state))
    state = weights()
    path = saved(tmp_path / "net.pt", {"ema_0.999": state, "ema_0.9999": other(state), "model": other(state)})
    assert "holds several copies of the weights (ema_0.999, ema_0.9999)" in refusal(path)
    assert equal(load(Net, f"{path}#ema_0.999"), state)
    assert equal(load(Net, saved(path, {"student": state, "teacher": dict(state)})), state)  # the same tensors twice


def test_extras_are_passed_over_and_safetensors_are_known_by_their_content(tmp_path: Path) -> None:
    """A pattern never drops a weight of the module, and changing a loaded weight leaves the file alone."""
    for write in (torch.save, save_file):
        write(weights(), tmp_path / "net")
        before = (tmp_path / "net").read_bytes()
        load(Net, tmp_path / "net").embed.weight.data.fill_(7)
        assert (tmp_path / "net").read_bytes() == before
    for extra, ignore in (("freqs_cis", ()), ("layers.0.attention.kv_cache.k_cache", ()), ("head.scale", ("head.*",)), ("", ("*",))):
        state = weights()
        path = saved(tmp_path / "net.pt", {"model": state | ({extra: torch.zeros(3)} if extra else {})})
        assert equal(load(Net, path, ignore=ignore), state)
        with pytest.raises(BadCheckpoint, match=r"missing \(embed\.weight\)"):
            load(Net, saved(path, without("embed.weight")), ignore=("embed.*", *ignore))
    save_file(weights(), tmp_path / "net.bin")
    assert equal(load(Net, tmp_path / "net.bin"), weights())
    module = load(Net, tmp_path / "net.bin", dtype=torch.bfloat16)
    assert not module.training
    assert not any(p.requires_grad or p.is_meta for p in module.parameters())
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert module.seen.dtype == torch.int64
    assert torch.equal(module.embed.weight, weights()["embed.weight"].bfloat16())


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        load(Net, path, **options)
    assert caught.value.remedy
    return str(caught.value)


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def without(name: str) -> State:
    return {key: tensor for key, tensor in weights().items() if key != name}


def truncated(path: Path, save: Callable[[State, Path], None], keep: int) -> Path:
    save(weights(), path)
    path.write_bytes(path.read_bytes()[:keep])
    return path


def letter(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter/data.txt", "hello")
    return path


def holding(folder: Path, name: str, text: str = "") -> Path:
    """Return a folder with this file, beside a shard if it is an index."""
    if text:
        (sharded(folder, weights()) / name).write_text(text)
        return folder
    folder.mkdir()
    (folder / name).touch()
    return folder


REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {  # what is saved, or a function that writes to a path, and what the error says
    "missing": (without("layers.1.bias"), ("does not fit Net", "1 of 8 tensors missing (layers.1.bias)")),
    "unexpected": ({**weights(), **{f"ema_{i}": torch.zeros(1) for i in range(5)}}, ("5 unexpected (ema_0, ema_1, ema_2, …)",)),
    "deeper": (weights(layers=6), ("6 unexpected (layers.3.", "Use the weights file of this model")),
    "shallower": (weights(layers=2), ("2 of 8 tensors missing (layers.2.", "Use the weights file of this model")),
    "wider": (weights(dim=6), ("checkpoint of another size: embed.weight 5×6 != 5×4", "7 of another shape")),
    "integers": ({**weights(), "layers.1.bias": torch.zeros(4).int()}, ("1 of another kind of number (layers.1.bias int32)",)),
    "bytes": ({**weights(), "layers.1.bias": torch.zeros(4).to(torch.float8_e4m3fn)}, ("(layers.1.bias float8_e4m3fn)",)),
    "prefix": ({**wrapped(without("embed.weight"), "net", 0), "net.x": torch.zeros(1)}, ("of 8 tensors missing",)),
    "two names for one": ({**wrapped(weights(), "module", 0), "_orig_mod.embed.weight": torch.zeros(5, 4)}, ("8 of 8 tensors missing",)),
    "an adapter": ({"layers.0.lora_A.weight": torch.zeros(2, 4), "layers.0.lora_B.weight": torch.zeros(4, 2)}, ("a LoRA adapter",)),
    "another model": ({"conv.weight": torch.zeros(2)}, ("8 of 8 tensors missing", "Use the weights file of this model")),
    "a list": ([torch.zeros(2)], ("no tensors by name",)),
    "no weights": ({"model": "GPT-B", "ema": [torch.zeros(2)]}, ("holds the entries model, ema and no tensors by name",)),
    "an object": ({"model": weights(), "out": PurePosixPath("x")}, ("pathlib.",)),
    "cut": (lambda path: truncated(path, torch.save, -1000), ("damaged",)),
    "cut header": (lambda path: truncated(path, save_file, 20), ("damaged",)),
    "cut tensors": (lambda path: truncated(path, save_file, -8), ("damaged",)),
    "nothing": (lambda path: truncated(path, torch.save, 0), ("neither safetensors nor the zip",)),
    "zeros": (lambda path: path.write_bytes(bytes(100)) and path, ("neither safetensors nor the zip",)),
    "a letter": (letter, ("not a checkpoint",)), "no file": (lambda path: path, ("is not a file",)),
    "empty folder": (lambda path: holding(path, "notes"), ("holds no weights",)),
    "half a folder": (lambda path: (sharded(path, weights()) / "part-1.safetensors").unlink() or path, ("1 of the 2 files", "part-1.safe")),
    **{name: (lambda path, name=name: holding(path, name), (words,)) for name, words in {
        "zero_to_fp32.py": "DeepSpeed", ".metadata": "dcp_to_torch", "adapter_config.json": "LoRA adapter",
        "model-00001-of-00002.safetensors": "have no index"}.items()},
    **{f"index {text}": (lambda path, text=text: holding(path, "model.safetensors.index.json", text), ("is not an index of weights",))
       for text in ("{", "[]", '{"weight_map": 3}')}}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_or_is_no_checkpoint_is_named(tmp_path: Path, case: str) -> None:
    content, words = REFUSED[case]
    path = tmp_path / "net.pt"
    message = refusal(content(path) if callable(content) else saved(path, content))
    assert all(word in message for word in words), message
    assert ("another size" in message) == (case == "wider")


class Intruder:
    """Its pickle creates a file when loaded without protection."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = saved(tmp_path / "net.pt", {"model": weights(), "args": Intruder(mark)})
    text = refusal(path)
    assert not mark.exists()
    assert "could run code" in text
    assert "weights_only" not in text  # no advice to switch the protection off
    torch.load(path, weights_only=False)
    assert mark.exists()  # the file is as harmful as this test needs it to be


def test_a_folder_is_read_as_what_it_holds(tmp_path: Path) -> None:
    state = weights()
    single, many = tmp_path / "one", sharded(tmp_path / "many", state)
    single.mkdir()
    torch.save(state, single / "pytorch_model.bin")
    for path in (single, many, many / "model.safetensors.index.json"):
        assert all(torch.equal(tensor, state[name]) for name, tensor in load(Net, path).state_dict().items())
    content = (single / "pytorch_model.bin").read_bytes()
    assert sha256(single) == sha256(single / "pytorch_model.bin") == hashlib.sha256(content).hexdigest()
    assert sha256(many) == sha256(many / "model.safetensors.index.json")
    (many / "part-1.safetensors").write_bytes((many / "part-0.safetensors").read_bytes())
    assert sha256(many) != sha256(sharded(tmp_path / "again", state)), "the hash of a folder is that of all its files"


def test_an_index_decides_which_file_has_a_tensor(tmp_path: Path) -> None:
    state, folder = weights(), sharded(tmp_path / "many", weights())
    first, last = ({**dict(list(state.items())[i::2])} for i in range(2))
    save_file({**last, **other(first)}, folder / "part-1.safetensors")
    assert equal(fit := load(Net, folder), state), fit
    assert "does not assign 4 tensors to the files that hold them" in " ".join(fitted(Net, folder).notes)
    torch.save(other(state), folder / "pytorch_model.bin")
    assert "model.safetensors.index.json is used, not pytorch_model.bin" in " ".join(fitted(Net, folder).notes)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict(list(json.loads(index.read_text())["weight_map"].items())[1:])}))
    assert "1 of 8 tensors missing" in (text := refusal(index))
    assert "does not assign" in text
    folder = sharded(tmp_path / "again", state)
    save_file(dict(list(first.items())[1:]), folder / "part-0.safetensors")
    assert "is stale: part-0.safetensors lacks 1 of the tensors" in refusal(folder)


@pytest.mark.fresh_process  # another process has imported the compiler already
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("write", [pytest.param(torch.save, marks=pytest.mark.slow), save_file])
def test_the_peak_is_the_file_itself(tmp_path: Path, write: Callable[[State, Path], None]) -> None:
    write({f"{i}.weight": torch.full((1024, 1024), float(i)) for i in range(24)}, tmp_path / "net")
    write({"weight": torch.zeros(4, 4)}, tmp_path / "small")
    done = subprocess.run([sys.executable, "-c", MEMORY, tmp_path / "small", tmp_path / "net"], capture_output=True, text=True, check=True)
    size = (tmp_path / "net").stat().st_size
    peak, own, total, copied, compiler = map(float, done.stdout.split())
    assert total == sum(range(24)) * 1024**2  # every weight has been read
    assert peak < 1.2 * size
    assert own < 0.1 * size  # the weights are the file's own pages
    assert copied < 0.7 * size  # the bf16 copy is half of the file
    assert not compiler  # building on the meta device has not imported it


def test_a_large_file_is_read_once_for_a_run_and_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 20 GB; the hash of a process of a trial comes with its request."""
    reads: list[str] = []
    monkeypatch.setattr(checkpoints.hashlib, "file_digest", lambda stream, kind: reads.append(stream.name) or hashlib.sha256(b"20 GB"))
    monkeypatch.setattr(checkpoints, "HASHED", {})
    monkeypatch.setattr("cachemark.trial.request.HASHED", checkpoints.HASHED)
    file = tmp_path / "model.safetensors"
    file.touch()
    os.truncate(file, 20_000_000_000)
    os.utime(file, (1e9, 1e9))
    assert sha256(file) == sha256(tmp_path) == hashlib.sha256(b"20 GB").hexdigest()
    request = json.loads(json.dumps(TrialRequest().to_json()))
    checkpoints.HASHED.clear()  # as in a new process
    TrialRequest.from_json(request).take_hashes()
    assert sha256(file) == hashlib.sha256(b"20 GB").hexdigest()
    assert len(reads) == 1
    os.utime(file)
    assert (sha256(file), sha256(file), len(reads)) == (*[hashlib.sha256(b"20 GB").hexdigest()] * 2, 3), "it may be changing now"
