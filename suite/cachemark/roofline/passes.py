"""Operations of one forward pass of a next-token or next-scale model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from ..cache.codec import Codec
from ..cache.layout import Layout, Load, Site, Step, raster_steps, scale_steps
from ..contract.method import Method
from .operations import Op


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of weights (one multiplication per use each) and of numbers.

    ``block``: weights of one block's products. ``between``: numbers per token and block that its products pass through memory if
    elementwise operations are fused. ``logits``: weights between a hidden state and its ``vocab`` logits. ``fed``: weights that embed a
    drawn token, once for all branches of guidance. ``row``: multiplications of a row once per generation, by ``row_weights`` (0: as many
    weights; entries of a text share theirs). ``row_pass``: weights that a row uses once per pass. ``scale``: multiplications per image in
    every pass but the last, between its output and the next input. ``text``: text entries that every token attends to in every block, and
    ``text_block``: weights of a block for each of them in every pass. ``drafter``: counts of a composite model's drafter. ``image()``
    decodes one image to count its FLOPs, with the decoder of a published model on the meta device, which computes nothing.
    """

    block: int
    between: int
    image: Callable[[], object]
    logits: int = 0
    vocab: int = 0
    fed: int = 0
    row: int = 0
    row_weights: int = 0
    row_pass: int = 0
    scale: int = 0
    text: int = 0
    text_block: int = 0
    drafter: ParameterCounts | None = None


def steps_of(method: Method, layout: Layout) -> list[Step]:
    """Return the passes of a generation, after :meth:`Method.resolve`."""
    return scale_steps(layout, method.scales(layout)) if layout.scales else raster_steps(layout)


def load_of(method: Method, layout: Layout, site: Site, step: Step) -> Load:
    """Return the work of a block in a pass; ``keys`` is the mean over K/V heads, rounded up."""
    tokens, keys = step.count or layout.longest_condition, method.attended(layout, site, step)
    if not step.scale:
        return Load(layout.rows, tokens, keys, tokens)
    return method.computes(site, step, Load(method.computed_rows(layout, step.index), tokens, keys, tokens))


def layers_alike(method: Method, layout: Layout) -> list[tuple[Site, int]]:
    """Return one layer of each kind, with the number of layers of that kind."""
    kinds: dict[tuple[Hashable, ...], list[Site]] = {}
    steps = steps_of(method, layout) if layout.scales else ()
    for layer in range(layout.layers):
        site = Site("decoder", layer)
        by_scale = ((method.attended_by_heads(layout, site, step), load_of(method, layout, site, step).tokens) for step in steps)
        kinds.setdefault((method.capacity(layout, site), method.kind(layout, site), *by_scale), []).append(site)
    return [(sites[0], len(sites)) for sites in kinds.values()]


def pass_ops(
    method: Method, layout: Layout, counts: ParameterCounts, codec: Codec, step: Step, alike: Sequence[tuple[Site, int]],
) -> Iterator[Op]:
    """Yield the operations of one pass; operations of a block count for each of the ``alike`` layers."""
    rows, width, across = layout.rows, layout.dtype.itemsize, layout.heads * layout.head_dim
    for site, times in alike:
        load = load_of(method, layout, site, step)
        rows, fed = load.rows, load.rows * load.tokens
        yield Op("matmul", 2 * fed * counts.block, counts.block * width, activations=fed * counts.between * width, times=times)
        if counts.text:
            read = rows * counts.text
            yield Op("matmul", 2 * read * counts.text_block, counts.text_block * width, times=times)
            yield Op("attention", 4 * fed * across * counts.text, activations=2 * read * across * width, times=times)
        read_by_heads, entry = method.attended_by_heads(layout, site, step), rows * codec.pair_bytes(layout.head_dim, layout.dtype)
        shared = codec.shared_bytes(layout.head_dim, layout.dtype, read_by_heads // layout.kv_heads)  # 0 where heads differ
        yield Op("attention", 4 * fed * layout.heads // layout.kv_heads * layout.head_dim * read_by_heads,
                 read=entry * read_by_heads + rows * layout.kv_heads * shared, written=entry * layout.kv_heads * load.tokens, times=times)
        own = method.overhead(layout, site, step)
        yield Op("method", 2 * rows * own.products, own=rows * own.numbers * width, times=times)
    tokens = step.count or layout.longest_condition
    drawn = rows * max(step.count, 1)
    yield Op("logits", 2 * (drawn * counts.logits + rows * counts.row_pass), (counts.logits + counts.row_pass) * width,
             activations=2 * drawn * counts.vocab * width)
    if step.index:
        yield Op("input", 2 * layout.batch * (tokens * counts.fed + counts.scale), counts.fed * width)
