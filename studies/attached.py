"""Speed of a transformers model with attached caches, compared with the library's own caches in one process.

A Janus of random weights generates images through ``generate``; every round runs each cache once, in another order. A speedup is the time
with the cache of transformers divided by the time with the attached one in the same round: the median of the rounds, with the smallest and
largest. On a CPU it is the CPU time of the process, which other processes affect least, so one thread is best.

    python -m studies.attached [--layers 2] [--dim 512] [--grid 24] [--batch 8] [--rounds 3] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import transformers as hf

import cachemark as cm
from cachemark.machine.timer import clock

from .origin import Origin

METHODS = (("full", "1"), ("window", "1/4"), ("linear", "1/4"))
REFERENCES = ("DynamicCache", "StaticCache")
PROMPT, HEAD_DIM, CODES, WORDS = 24, 64, 16384, 1024
BEGIN, PAD, IMAGE = 1, 0, 2


def random_janus(layers: int, dim: int, grid: int) -> Any:
    """Build the decoder, embedding and head of Janus-Pro, with tiny image encoder and decoder."""
    heads = dim // HEAD_DIM
    text = hf.LlamaConfig(hidden_size=dim, intermediate_size=dim * 11 // 4, num_hidden_layers=layers, num_attention_heads=heads,
                          num_key_value_heads=heads, vocab_size=WORDS)
    vision = hf.JanusVisionConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, image_size=grid * 16, projection_dim=dim,
                                  num_image_tokens=grid**2)
    vq = hf.JanusVQVAEConfig(num_embeddings=CODES, latent_channels=8, base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1,
                             projection_dim=dim, image_token_embed_dim=dim)
    model = hf.JanusForConditionalGeneration(hf.JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=WORDS - 1))
    settings = model.generation_config
    settings.pad_token_id, settings.bos_token_id, settings.generation_kwargs = PAD, BEGIN, {"boi_token_id": IMAGE}
    return model.eval()


def theirs(model: Any, name: str) -> Any:
    """Return a new cache of transformers, as ``generate`` makes it for an image."""
    if name == "DynamicCache":
        return nullcontext(hf.DynamicCache(config=model.config.text_config))
    length = PROMPT + model.config.vision_config.num_image_tokens
    return nullcontext(hf.StaticCache(config=model.config.text_config, max_cache_len=length))


def caches(model: Any) -> dict[str, Callable[[], Any]]:
    """Return what makes the context of each cache."""
    attached = {f"{name} {budget}": partial(cm.attach, model, name, budget) for name, budget in METHODS}
    return {**{name: partial(theirs, model, name) for name in REFERENCES}, **attached}


@contextmanager
def timed(device: str, seconds: list[float]) -> Iterator[None]:
    """Append the seconds of the block."""
    watch, start = clock(device, ()), time.process_time()
    watch.start()
    yield
    elapsed = watch.stop()
    seconds.append(time.process_time() - start if device == "cpu" else elapsed)


def measured(model: Any, batch: int, rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of each round by cache, after one warm-up round."""
    ids = torch.randint(3, WORDS - 1, (batch, PROMPT), generator=torch.Generator().manual_seed(0)).to(device)
    ids[:, 0], ids[:, -1] = BEGIN, IMAGE
    seconds: dict[str, list[float]] = {name: [] for name in caches(model)}
    for number in range(rounds + 1):
        names = [*seconds][number % len(seconds) :] + [*seconds][: number % len(seconds)]
        for name in names:
            with caches(model)[name]() as cache, timed(device, seconds[name]):
                model.generate(ids, attention_mask=torch.ones_like(ids), generation_mode="image", guidance_scale=5.0, do_sample=False,
                               past_key_values=cache)
    return {name: values[1:] for name, values in seconds.items()}


def ratio(reference: list[float], candidate: list[float]) -> str:
    """Return the speedup with its range over rounds."""
    ratios = [a / b for a, b in zip(reference, candidate, strict=True)]
    return f"{statistics.median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"


def main() -> None:
    """Print seconds and speedups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 2), ("dim", 512), ("grid", 24), ("batch", 8), ("rounds", 3), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", help="write everything measured to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    origin = Origin(arguments.threads)
    print(f"{origin}, transformers {hf.__version__}, {arguments.device} {arguments.dtype}")
    model = random_janus(arguments.layers, arguments.dim, arguments.grid).to(arguments.device, getattr(torch, arguments.dtype))
    seconds = measured(model, arguments.batch, arguments.rounds, arguments.device)
    for name, values in seconds.items():
        against = ", ".join(f"{ratio(seconds[reference], values)} over {reference}" for reference in REFERENCES if name not in REFERENCES)
        print(f"  {name:<13} {statistics.median(values):6.2f} s  {against}".rstrip(), flush=True)
    origin.write(arguments.json, arguments=vars(arguments), seconds=seconds)


if __name__ == "__main__":
    main()
