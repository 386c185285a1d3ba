"""``cachemark train``: make the weights of an embedded model anew."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Choice(["tiny-vq", "tiny-llamagen"]))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("weights"), show_default=True,
              help="Folder for weights, description, log and checkpoint.")
@click.option("--steps", type=click.IntRange(min=1),
              help="Optimiser steps; tiny-vq adds half as many for its decoder.  [default: those of the embedded weights]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of data, weights and dropped labels.")
@click.option("--threads", type=click.IntRange(min=0), default=0, show_default=True, help="CPU threads; 0 leaves it to torch.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to train.")
@click.option("--tokenizer", type=click.Path(dir_okay=False, path_type=Path),
              help="tiny-vq weights that make the tokens of tiny-llamagen.  [default: those of OUT, else the embedded ones]")
@click.option("--resume/--fresh", default=True, show_default=True, help="Continue from the checkpoint in OUT, or start again.")
def train(
    model: str, out: Path, steps: int | None, seed: int, threads: int, device: str, tokenizer: Path | None, resume: bool
) -> None:
    """Train MODEL, one of the two small models that come with cachemark.

    No data is needed: the pictures are computed. A killed run continues where its last checkpoint stands. On one CPU core the
    tokenizer takes about a quarter of an hour and the generator about an hour.
    """
    import torch

    from ..errors import Unsupported
    from ..models.catalogue import TINY_DECODER, packaged
    from ..train import loops
    from ..train.generators import GeneratorTask
    from ..train.tokenizers import CodesTask, DecoderTask

    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("--device cuda was given, but torch sees no CUDA device.", remedy="Use --device cpu, or see `cachemark doctor`.")
    loops.keep_memory(device)

    def go(task: loops.Task, steps: int) -> Path:
        run = loops.Run(out, steps, seed=seed, device=device, threads=threads, resume=resume, warmup=task.warmup)
        return loops.train(task, run)

    if model == DecoderTask.name:
        codes = go(CodesTask(seed, device=device), steps or CodesTask.steps)
        weights = go(DecoderTask(codes, seed, device=device), max(1, steps // 2) if steps else DecoderTask.steps)
    else:
        own = out / f"{DecoderTask.name}.safetensors"
        chosen = tokenizer or (own if own.is_file() else packaged(TINY_DECODER))
        weights = go(GeneratorTask(chosen, seed, device=device), steps or GeneratorTask.steps)
    click.echo(str(weights))
