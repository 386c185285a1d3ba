"""Codecs on the bundled models by bytes of a vector: error of keys and values, and KL from the full cache without a codec.

    python -m studies.codec_errors --images 8 --threads 1 --json FILE

Errors are means over layers and, for the codecs that rotate, over three rotations. KL in nat per token is teacher-forced along the tokens
of the full cache. Values and their differences from ``rot4``, at the same images, have 95 % intervals over images. ``turbo4.5`` has
exactly the bytes of ``rot4`` in heads of 32 channels: half of the rotated channels have 5 bits, half have 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cachemark.cache import rotated
from cachemark.cache.arena import Memory
from cachemark.cache.codec import NATIVE, Codec, Parts
from cachemark.cache.codecs import CODECS
from cachemark.cache.layout import Site, Step
from cachemark.cache.rotated import direction_codes, pack_bits, table, unpack_bits
from cachemark.core import seeds
from cachemark.core.seeds import Subset
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.metrics.tokens import kl_divergence
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.stats.intervals import mean_over_seeds

from .origin import Origin

MODEL_NAMES = ("tiny-llamagen", "tiny-t2i", "tiny-var")
NAMES = ("int8", "int4", "rot4", "turbo4.5", "turbo4", "turbo3", "turbo2")
RIVAL = "rot4"
SEEDS = (rotated.SEED, 1, 2)
FORCED = ("rot4", "turbo4.5", "turbo4")  # codecs with a KL


def _encode(x: Tensor) -> Parts:
    half = x.size(-1) // 2
    (five, length), (four, _) = (direction_codes(x, table(x.size(-1), bits, x.device)) for bits in (5, 4))
    return pack_bits(torch.cat((five[..., :half] & 15, four[..., half:]), -1), 4), pack_bits(five[..., :half] >> 4, 1), length.half()


def _decode(parts: Parts, dtype: torch.dtype) -> Tensor:
    packed, upper, length = parts
    codes, half = unpack_bits(packed, 4).int(), packed.size(-1)
    five, four = (table(2 * half, bits, packed.device) for bits in (5, 4))
    turned = torch.cat((five.centroids[codes[..., :half] + 16 * unpack_bits(upper, 1).int()], four.centroids[codes[..., half:]]), -1)
    return (turned * (length.float() / turned.norm(dim=-1, keepdim=True)) @ four.back).to(dtype)


TURBO45 = Codec("turbo4.5", lambda width, dtype: ((width // 2, torch.uint8), (width // 16, torch.uint8), (1, torch.float16)), _encode,
                _decode, constants=lambda width, device: (*table(width, 5, device), *table(width, 4, device)))


@dataclass
class Recording(Full):
    """The full cache, which keeps a copy of all keys and values by layer."""

    def begin(self, *arguments: object) -> None:
        super().begin(*arguments)  # type: ignore[arg-type]
        self.vectors: dict[tuple[str, int], list[Tensor]] = {}

    def attend(self, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for name, x in (("keys", k), ("values", v)):
            self.vectors.setdefault((name, site.layer), []).append(x.clone())
        return super().attend(site, step, q, k, v)


def of_seed(seed: int) -> None:
    """Draw all rotations from another seed."""
    rotated.SEED = seed
    rotated._tables.clear()


def errors(vectors: Mapping[tuple[str, int], Sequence[Tensor]], codec: Codec, part: str, images: int) -> Tensor:
    """Return Σ‖x − x̃‖² / Σ‖x‖² of each image, (images,): means over layers, of both rows of guidance."""
    by_layer = list[Tensor]()
    for (kind, _), recorded in vectors.items():
        if kind == part:
            x = torch.cat(list(recorded), 2).double()
            off = codec.decode(codec.encode(x.float()), torch.float32) - x
            sums = [each.square().sum((1, 2, 3)).unflatten(0, (-1, images)).sum(0) for each in (off, x)]
            by_layer.append(sums[0] / sums[1])
    return torch.stack(by_layer).mean(0)


def generated(
    model: Any, sampling: Sampling, subset: Subset, count: int, method: Full, codec: Codec = NATIVE, forced: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return tokens (count, N) of the first seeds, and log probabilities (count, N, vocab)."""
    seen, chosen = list[Tensor](), subset.first(count)
    tokens = model.generate(torch.tensor(chosen.labels), chosen.seeds, method, sampling, Memory("cpu", codec), forced=forced,
                            see=lambda first, logits: seen.append(logits.log_softmax(-1)))
    return tokens, torch.cat(seen, 1)


@torch.inference_mode()
def measured(models: Sequence[str], images: int, forced_images: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, codec and part, and for each model and codec with a KL."""
    codecs = {**CODECS, TURBO45.name: TURBO45}
    for name in models:
        entry = MODELS.get(name)
        model, sampling = entry.load(Request()).generator, entry.presets["paper"]
        run = partial(generated, model, sampling, seeds.subset("s64", entry.classes))
        method = Recording()
        run(images, method)
        width = method.layout.head_dim
        sizes = {each: codecs[each].entry_bytes(width, torch.float32) for each in NAMES}
        for part in ("keys", "values"):
            found: dict[str, Tensor] = {}
            for each in NAMES:
                by_seed = []
                for seed in SEEDS if each.startswith(("rot", "turbo")) else SEEDS[:1]:
                    of_seed(seed)
                    by_seed.append(errors(method.vectors, codecs[each], part, images))
                found[each] = torch.stack(by_seed).mean(0)
            of_seed(SEEDS[0])
            yield from ({"model": name, "part": part, "codec": each, "bytes": sizes[each], **stated("error", found[each], found[RIVAL])}
                        for each in NAMES)
        del method
        tokens, exact = run(forced_images, Full())
        apart = {each: kl_divergence(exact, run(forced_images, Full(), codecs[each], tokens)[1]).flatten(1).mean(1) for each in FORCED}
        yield from ({"model": name, "codec": each, "bytes": sizes[each], **stated("KL", apart[each], apart[RIVAL])} for each in FORCED)


def stated(name: str, values: Tensor, rival: Tensor) -> dict[str, Any]:
    """Return means with 95 % intervals over images, of values and of their differences from the rival's."""
    named = {name: values, f"{name} less {RIVAL}'s": values - rival}
    means = {each: mean_over_seeds(numbers.double().tolist()) for each, numbers in named.items()}
    return {each: [float(f"{number:.4g}") for number in (mean.value, mean.low, mean.high)] for each, mean in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODEL_NAMES)
    parser.add_argument("--images", type=int, default=8, help="for errors")
    parser.add_argument("--forced", type=int, default=32, help="images for KL")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    origin, rows = Origin(options.threads), list[dict[str, Any]]()
    print(origin, flush=True)
    for row in measured(options.models, options.images, options.forced):
        rows.append(row)
        print(row, flush=True)
    origin.write(options.json, images=options.images, forced=options.forced, rows=rows)


if __name__ == "__main__":
    main()
