"""``python -m tools.train``: train the weights of a bundled model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import torch

from cachemark.core.errors import Unsupported
from cachemark.models.catalogue.next_scale import TINY_SIZES
from cachemark.models.weights import packaged

from ..command import run_command
from . import feature_network as features, loops
from .captioned import CaptionedTask, ReaderTask
from .continuous import LatentsTask, MaskedTask
from .feature_network import FeaturesTask
from .generators import GeneratorTask, ScalesTask
from .tokenizers import CodesTask, DecoderTask, ScaleCodesTask

TASKS: dict[str, Callable[..., loops.TrainingTask]] = {
    "tiny-vq": CodesTask, "tiny-llamagen": GeneratorTask, "tiny-msvq": ScaleCodesTask, "tiny-kl": LatentsTask,
    "tiny-mar": MaskedTask, "tiny-features": FeaturesTask, "tiny-t2i": CaptionedTask, "tiny-reader": ReaderTask,
    **{name: partial(ScalesTask, name=name) for name in TINY_SIZES},
}
TOKENIZERS = {  # by the model that learns their tokens
    "tiny-llamagen": "tiny-vq", "tiny-mar": "tiny-kl", "tiny-t2i": "tiny-vq", "tiny-reader": "tiny-vq",
    **dict.fromkeys(TINY_SIZES, "tiny-msvq"),
}


@click.command()
@click.argument("model", type=click.Choice(list(TASKS)))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("weights"), show_default=True,
              help="Folder for weights, description, log and checkpoint.")
@click.option("--steps", type=click.IntRange(min=1),
              help="Optimiser steps; tiny-vq adds half as many for its decoder.  [default: as for the bundled weights]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of data, weights and dropped labels.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="CPU threads; 0 leaves it to torch.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
@click.option("--tokenizer", type=click.Path(dir_okay=False, path_type=Path),
              help="Weights that make the tokens: of tiny-vq for tiny-llamagen, tiny-msvq for tiny-var, tiny-kl for tiny-mar.  "
                   "[default: weights in OUT, else the bundled ones]")
@click.option("--resume/--fresh", default=True, show_default=True, help="Continue from the checkpoint in OUT, or start again.")
def train(model: str, out: Path, steps: int | None, seed: int, threads: int, device: str, tokenizer: Path | None, resume: bool) -> None:
    """Train MODEL, one of the small models that come with cachemark.

    No data is needed: the pictures are computed. A killed run continues from its last checkpoint. On one CPU core a
    tokenizer takes about half an hour and a generator about an hour.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("--device cuda was given, but torch sees no CUDA device.", remedy="Use --device cpu, or see `cachemark doctor`.")
    loops.keep_memory(device)
    loops.flush_denormals(device)

    def trained(task: loops.TrainingTask, count: int | None) -> Path:
        run = loops.TrainingRun(out, count or task.steps, seed=seed, device=device, threads=threads, resume=resume,
                                warmup=task.warmup, decay=task.decay)
        return loops.train(task, run)

    coder = [tokenizer or _tokenizer(TOKENIZERS[model], out)] if model in TOKENIZERS else []
    weights = trained(TASKS[model](*coder, seed, device=device), steps)
    if model == "tiny-vq":
        weights = trained(DecoderTask(weights, seed, device=device), steps and max(1, steps // 2))
    if model == "tiny-features":
        features.write_reference(weights, seed, device=device)
    click.echo(str(weights))


def _tokenizer(name: str, out: Path) -> Path:
    """Return the tokenizer's weights in ``out``, else the bundled ones."""
    own = out / f"{name}.safetensors"
    return own if own.is_file() else packaged(own.name)


if __name__ == "__main__":
    run_command(train)
