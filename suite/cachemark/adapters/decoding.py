"""Attention of another library's decoder under a cache method, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.attention import attend
from ..cache.kernels.record import ROWS, Entries, Part
from ..cache.layout import HeadSite, Layout, Site, Step, guided_rows, window_step
from ..contract.heads import query_heads, select_heads
from ..contract.method import Method
from ..core.errors import Unsupported

STACK = "decoder"


@dataclass
class MethodDecoding:
    """One generation at a time under a method: the prompt, then image tokens one by one.

    ``layout`` describes the model and its images; rows, condition, dtype and device are set by each generation. ``branches``: guidance rows
    of a batch, 2 if its second half is unconditional. ``branch``: 1 if all rows are unconditional. ``closing``: most tokens that the model
    is fed after the last but one image token; they are attended to, but the method does not see them. ``fed`` counts the tokens of each
    row that earlier passes were fed, padding included.
    """

    build: Callable[[], Method]
    layout: Layout
    branches: int = 1
    branch: int = 0
    closing: int = 0
    method: Method | None = field(default=None, init=False)
    memory: Memory | None = field(default=None, init=False)
    fed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._closing: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of closing tokens by layer
        self.reset()

    @property
    def sites(self) -> list[Site]:
        """The attention layers."""
        return [Site(STACK, layer) for layer in range(self.layout.layers)]

    @property
    def length(self) -> int:
        """Number of tokens in each row so far, which a model uses as positions; 0 when the image is complete."""
        return self.fed if self._tokens or self._visual < self.layout.visual - 1 else 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of live keys and values at the fullest pass of the latest generation."""
        return self.method.logical_bytes if self.method else 0

    def reset(self) -> None:
        """Forget the current generation; its storage is reused by the next one of the same shape."""
        self.method, self.fed = None, 0
        self._visual = 0  # tokens that passes after the prompt were fed
        self._tokens = 0  # tokens of the current pass, 0 between passes
        self._lengths: list[int] = []  # of the prompts, until the first layer has run
        self._padding: Tensor | None = None  # tokens before each prompt, (rows, 1), if any
        self._closing.clear()

    # -- passes ---------------------------------------------------------------------------------------------------------
    def start_pass(self, rows: int, tokens: int, mask: Tensor | None) -> Tensor | None:
        """Start a pass with tokens (rows, tokens).

        Return positions (rows, tokens) of its tokens, None if they are equal in all rows.

        ``mask`` (rows, tokens so far) is 0 for padding. A mask as long as the pass starts a generation. Raises Unsupported for padding on
        the right, masks of another shape, a pass that does not continue the current generation, and tokens after the image.
        """
        if mask is not None and mask.dim() != 2:
            raise Unsupported(f"An attached cache cannot use an attention mask of shape {tuple(mask.shape)}.",
                              remedy="Pass the tokenizer's mask, (rows, tokens).")
        if mask.size(1) == tokens if mask is not None else not self.length and (tokens > 1 or not self.fed):
            self._start(rows, tokens, mask)
        elif not self.fed or self._tokens or tokens != 1 or rows != self.layout.rows or (mask is not None and mask.size(1) != self.fed + 1):
            raise Unsupported(f"The cache contains an unfinished image ({self._visual} of {self.layout.visual} tokens were fed).",
                              remedy="Call reset() on the cache before the next prompt, and feed each prompt in one pass.")
        elif self._visual >= self.layout.visual - 1 + self.closing:
            raise Unsupported(f"The model was fed more than the {self.layout.visual} tokens of an image.",
                              remedy="Generate images, of the size that was passed to attach: grid = (height, width) in tokens.")
        self._tokens = tokens
        if self._padding is None:
            return None
        place = torch.arange(self.fed, self.fed + tokens, device=self._padding.device)
        return (place - self._padding).clamp_min(0)

    def _start(self, rows: int, tokens: int, mask: Tensor | None) -> None:
        if rows % self.branches:
            raise Unsupported(f"A batch of {rows} rows has no unconditional half.", remedy="Call generate, which adds these rows.")
        self.reset()
        self._lengths = [tokens] * rows
        if mask is None or bool(mask.all()):
            return
        self._lengths = mask.sum(1).tolist()
        if not min(self._lengths) or bool((mask[:, 1:] < mask[:, :-1]).any()):
            raise Unsupported("A prompt is padded on the right or empty.", remedy="Pad on the left: tokenizer.padding_side = \"left\".")
        self._padding = tokens - mask.sum(1, keepdim=True)

    def _begin(self, q: Tensor, k: Tensor) -> Method:
        """Allocate the method's storage for this generation."""
        rows = len(self._lengths)
        seeds, branches = guided_rows(range(rows // self.branches), self.branches == 2)
        layout = replace(self.layout, condition=tuple(self._lengths), seeds=seeds, dtype=k.dtype, device=str(k.device),
                         branches=tuple(branch + self.branch for branch in branches))
        if self.memory is None or layout != self.layout:
            self.memory = Memory(k.device)
        self.layout, self._lengths, self.method = layout, [], self.build()
        with torch.inference_mode(False):  # later generations may run outside of inference mode
            self.method.begin(layout, self.sites, self.memory)
        return self.method

    @torch.no_grad()
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer of the current pass, and end the pass after the last layer.

        ``q`` (rows, heads, tokens, head_dim); ``k``, ``v`` with kv_heads, as they are without a cache.
        """
        method = self._begin(q, k) if self._lengths else self.method
        assert method is not None, "a pass runs without its first layer"
        step = self._step()
        if step is None:
            out = self._attend_closing(layer, method, q, k, v)
        elif step.count or self._padding is None:
            out = method.attend(Site(STACK, layer), step, q, k, v)
        else:  # methods expect padding after the tokens of shorter prompts
            place = torch.arange(q.size(2), device=q.device)
            to, back = (place + self._padding) % q.size(2), (place - self._padding) % q.size(2)
            out = _take(method.attend(Site(STACK, layer), step, _take(q, to), _take(k, to), _take(v, to)), back)
        if layer == self.layout.layers - 1:
            self._end_pass(method, step)
        return out

    def _step(self) -> Step | None:
        """Return the current step, None after the last token that the method sees."""
        if not self.fed:
            return Step(0, self.layout.visual)
        return window_step(self.layout, self._visual, 1) if self._visual < self.layout.visual - 1 else None

    def _end_pass(self, method: Method, step: Step | None) -> None:
        self._visual += 1 if self.fed else 0
        self.fed, self._tokens = self.fed + self._tokens, 0
        if step is not None:
            method.end_step(step)

    def _attend_closing(self, layer: int, method: Method, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to the live entries and to the closing tokens so far."""
        if layer in self._closing:
            k, v = (torch.cat(parts, 2) for parts in zip(self._closing[layer], (k, v), strict=True))
        self._closing[layer] = k, v
        out, every = torch.empty_like(q), tuple(range(k.size(1)))
        for site, slot in method.slots.items():
            if site[:2] != (STACK, layer):
                continue
            heads = site.heads if isinstance(site, HeadSite) else every
            asking = query_heads(heads, q.size(1) // k.size(1))
            own_q, own_k, own_v = select_heads(q, asking), select_heads(k, heads), select_heads(v, heads)
            parts = list[Part]()
            for run, n in zip(slot.bank.runs, slot.live, strict=True):
                keys, values = (torch.cat((live, new[run.rows]), 2) for live, new in zip(slot.read(run, n), (own_k, own_v), strict=True))
                parts.append(Part(run.rows, None, keys, values))
            out[:, asking] = attend(own_q, Entries(len(heads), parts.copy, lengths=ROWS))[0]
        return out


def _take(x: Tensor, place: Tensor) -> Tensor:
    """Reorder tokens of x (rows, heads, tokens, head_dim) by ``place`` (rows, tokens)."""
    return x.gather(2, place[:, None, :, None].expand_as(x))
