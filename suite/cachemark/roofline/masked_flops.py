"""FLOPs and bytes of a masked generation, from a method's declared work in each block of each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ..cache.codec import NATIVE, Codec
from ..cache.layout import Load, Site
from ..cache.masked_layout import MaskedLayout, MaskedStep, masked_steps
from ..contract.method import Method
from .operations import Op

FREQUENCIES = 256  # channels of the sinusoid that a timestep becomes
MLP = 4  # width of a block's MLP, in widths of the block
HEAD_BETWEEN = (4, 6)  # numbers per token and channel around the modulation and the MLP of a block of the diffusion head


def work(method: Method, layout: MaskedLayout) -> dict[str, int]:
    """Return the FLOPs of one image by part (encoder, decoder, head) under a method.

    A multiplication and an addition are two; matrix products and attention alone are counted, without a method's scores. The head includes
    the constants computed once for all passes. Raises the errors of :meth:`Method.resolve`.
    """
    method.resolve(layout)
    flops: Counter[str] = Counter()
    for op in masked_ops(method, layout):
        flops[op.part.partition(" ")[0]] += op.flops * op.times
    read = 2 * layout.batch * layout.channels * layout.dim * sum(step.first for step in _steps(method, layout))  # by the encoder
    parts = {"encoder": flops["encoder"] + read, "decoder": flops["decoder"] + flops["input"] - read, "head": flops["head"]}
    return {part: count // layout.batch for part, count in parts.items()}


def _steps(method: Method, layout: MaskedLayout) -> list[MaskedStep]:
    paced = method.paced(layout)
    return masked_steps(paced, paced.steps)


# -- operations -------------------------------------------------------------------------------------------------------
def masked_ops(method: Method, layout: MaskedLayout, weights: int = 0, between: int = 0, codec: Codec = NATIVE) -> Iterator[Op]:
    """Yield the operations of a generation, after :meth:`Method.resolve`.

    Equal blocks of a pass come together. ``weights`` of a block; numbers per token ``between`` its products.
    """
    steps, rows, places = _steps(method, layout), layout.rows, layout.places
    head_loads = cache(lambda passes: _head_loads(method, layout, steps[0], passes))
    head = cache(lambda part: tuple(_head(head_loads(part.passes), layout, part.tokens)))
    block = cache(lambda stack, load, blocks: tuple(op.repeated(blocks) for op in _block(stack, load, layout, weights, between, codec)))
    encoder, decoder = ([Site(stack, layer) for layer in range(depth)]
                        for stack, depth in (("encoder", layout.encoder), ("decoder", layout.layers)))
    width, dim, denoised = layout.dtype.itemsize, layout.dim, set[tuple[int, tuple[int, ...]]]()
    for step in steps:
        visible, known_tokens = layout.buffer + step.first, layout.batch * step.first
        yield Op("input", 2 * dim * (known_tokens * layout.channels + rows * visible * dim), dim * (dim + layout.channels) * width,
                 activations=2 * rows * visible * dim * width)
        for sites, tokens in ((encoder, visible), (decoder, places)):
            plain = Load(rows, tokens, tokens, tokens)
            alike = Counter((method.computes(site, step, plain), method.overhead(layout, site, step)) for site in sites)
            for (load, own), blocks in alike.items():
                yield from block(sites[0].stack, load, blocks)
                if any(own):
                    yield Op("method", 2 * rows * own.products, own=rows * own.numbers * width, times=blocks)
        for part in method.denoising(step, layout.diffusion):
            denoised.add(part[1:])
            yield from head(part)
    timesteps = sum(passes for passes, _ in denoised)
    embedding = layout.head_width * (FREQUENCIES + layout.head_width)
    yield Op("head", 2 * timesteps * embedding, embedding * layout.dtype.itemsize)


def _block(stack: str, load: Load, layout: MaskedLayout, weights: int, between: int, codec: Codec) -> Iterator[Op]:
    """Yield projections and MLP of a block, which may see fewer tokens, and its attention."""
    dim, width = layout.dim, layout.dtype.itemsize
    entry = layout.kv_heads * codec.pair_bytes(layout.head_dim, layout.dtype)
    tokens, mlp = load.rows * load.tokens, load.rows * load.mlp
    share = 4 / (4 + 2 * MLP)  # of a block's weights, those around its attention
    around = round(between * share)
    yield Op(stack, 2 * dim**2 * (4 * tokens + 2 * MLP * mlp), weights * width if tokens or mlp else 0,
             activations=(tokens * around + mlp * (between - around)) * width)
    read = load.rows * load.keys * entry if tokens else 0
    yield Op(f"{stack} attention", 4 * tokens * dim * load.keys, read=read, written=tokens * entry)


def _head_loads(method: Method, layout: MaskedLayout, step: MaskedStep, passes: int) -> Counter[tuple[Load, ...]]:
    """Count the loads of the head's blocks for one token that it draws in so many passes.

    Equal in any pass of the transformer.
    """
    plain = Load(layout.rows, 1, 0, 1)
    loads: Counter[tuple[Load, ...]] = Counter()
    for inner in range(passes):
        at = replace(step, inner=inner, inners=passes)
        loads[tuple(method.computes(Site("head", layer), at, plain) for layer in range(layout.head))] += 1
    return loads


def head_weights(layout: MaskedLayout) -> int:
    """Return the weights that :func:`_head` reads at most, and the weights of the time embedding."""
    inside = layout.head_width
    return inside * (layout.dim + 5 * inside * layout.head + 3 * layout.channels + 2 * inside + FREQUENCIES + inside)


def _head(loads: Counter[tuple[Load, ...]], layout: MaskedLayout, count: int) -> Iterator[Op]:
    """Yield the operations of the diffusion head for ``count`` tokens of every sample."""
    inside, width = layout.head_width, layout.dtype.itemsize
    yield Op("head", 2 * count * layout.rows * layout.dim * inside, layout.dim * inside * width)
    for blocks, times in loads.items():
        for load, alike in Counter(blocks).items():
            tokens, mlp = count * load.rows * load.tokens, count * load.rows * load.mlp
            weights = inside**2 * (3 * bool(tokens) + 2 * bool(mlp)) * width
            moved = (HEAD_BETWEEN[0] * tokens + HEAD_BETWEEN[1] * mlp) * inside * width
            yield Op("head", 2 * inside**2 * (3 * tokens + 2 * mlp), weights, activations=moved, times=times * alike)
        rows = blocks[-1].rows if blocks else layout.rows
        ends = inside * layout.channels, 2 * inside * (inside + layout.channels)
        yield Op("head", 2 * count * (layout.batch * ends[0] + rows * ends[1]), sum(ends) * width, times=times)
