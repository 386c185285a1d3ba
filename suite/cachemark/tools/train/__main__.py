"""``python -m cachemark.tools.train``: train the weights of an embedded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import torch

from ...core.errors import Unsupported
from ...models.catalogue import packaged
from ..command import run_command
from . import feature_network as features
from . import loops
from .continuous import LatentsTask, MaskedTask
from .feature_network import FeaturesTask
from .generators import GeneratorTask, ScalesTask
from .scales import ScaleCodesTask
from .tokenizers import CodesTask, DecoderTask

MODELS = ("tiny-vq", "tiny-llamagen", "tiny-msvq", "tiny-var", "tiny-kl", "tiny-mar", "tiny-features")


@click.command()
@click.argument("model", type=click.Choice(MODELS))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("weights"), show_default=True,
              help="Folder for weights, description, log and checkpoint.")
@click.option("--steps", type=click.IntRange(min=1),
              help="Optimiser steps; tiny-vq adds half as many for its decoder.  [default: those of the embedded weights]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of data, weights and dropped labels.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="CPU threads; 0 leaves it to torch.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
@click.option("--tokenizer", type=click.Path(dir_okay=False, path_type=Path),
              help="Weights that make the tokens: of tiny-vq for tiny-llamagen, tiny-msvq for tiny-var, tiny-kl for tiny-mar.  "
                   "[default: those of OUT, else the embedded ones]")
@click.option("--resume/--fresh", default=True, show_default=True, help="Continue from the checkpoint in OUT, or start again.")
def train(
    model: str, out: Path, steps: int | None, seed: int, threads: int, device: str, tokenizer: Path | None, resume: bool
) -> None:
    """Train MODEL, one of the small models that come with cachemark.

    No data is needed: the pictures are computed. A killed run continues where its last checkpoint stands. On one CPU core a
    tokenizer takes about half an hour and a generator about an hour.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("--device cuda was given, but torch sees no CUDA device.", remedy="Use --device cpu, or see `cachemark doctor`.")
    loops.keep_memory(device)
    loops.flush_denormals(device)
    weights = out
    for make, share in _stages(model, out, tokenizer, seed, device):
        task = make(weights)
        count = max(1, int(steps * share)) if steps else task.steps
        run = loops.TrainingRun(out, count, seed=seed, device=device, threads=threads, resume=resume, warmup=task.warmup, decay=task.decay)
        weights = loops.train(task, run)
    if model == "tiny-features":
        features.write_reference(weights, seed, device=device)
    click.echo(str(weights))


def _stages(
    model: str, out: Path, tokenizer: Path | None, seed: int, device: str
) -> Iterator[tuple[Callable[[Path], loops.TrainingTask], float]]:
    """The tasks of a model in their order, each made from the weights of the one before, and its share of ``--steps``."""

    def coder(name: str) -> Path:
        own = out / f"{name}.safetensors"
        return tokenizer or (own if own.is_file() else packaged(f"{name}.safetensors"))

    networks: dict[str, Callable[..., loops.TrainingTask]]
    networks = {"tiny-vq": CodesTask, "tiny-msvq": ScaleCodesTask, "tiny-features": FeaturesTask, "tiny-kl": LatentsTask}
    predictors = {"tiny-llamagen": (GeneratorTask, "tiny-vq"), "tiny-var": (ScalesTask, "tiny-msvq"), "tiny-mar": (MaskedTask, "tiny-kl")}
    if model in networks:
        yield lambda _: networks[model](seed, device=device), 1
    else:
        predictor, tokens = predictors[model]
        yield lambda _: predictor(coder(tokens), seed, device=device), 1
    if model == "tiny-vq":
        yield lambda codes: DecoderTask(codes, seed, device=device), 0.5


if __name__ == "__main__":
    run_command(train)
