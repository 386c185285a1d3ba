"""The bundled text-to-image model, as it can be named in a plan. Importing this file registers it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from ...cache.layout import Layout
from ...core.errors import BadPlan, UnknownName
from ...core.spec import Sampling
from ...core.units import METRICS
from .. import checkpoints, costs, janus, prompt_lists
from ..janus import Janus, JanusConfig
from ..llama import LlamaConfig, frequencies
from ..prompts import Prompts
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..tiny import tiny_vq
from ..tiny.captions import CAPTION, VOCABULARY, WordTokenizer, asked
from ..weights import identity, packaged, transformer
from .family import register, with_greedy
from .text_to_image import labels_of

NAME = "tiny-t2i"
LIST = "captions256"
TINY = JanusConfig(LlamaConfig(6, 5, 160, 432, len(VOCABULARY), rope_base=500.0), codes=512, code_dim=8, grid=16)
TEXTS = prompt_lists.packaged(LIST)
CFG = 2.0
FILE = PublishedFile("weights", f"{NAME}.safetensors", "the package", partial(Janus, TINY, Prompts()))


@dataclass(frozen=True)
class BundledCaptioned:
    """The model, and the captions that it is asked for."""

    texts: tuple[str, ...] = TEXTS

    @cached_property
    def prompts(self) -> Prompts:
        """The captions as ids."""
        return janus.prompts_of(self.texts, WordTokenizer(), form=CAPTION)

    def load(self, request: Request) -> Loaded:
        """The transformer and the image tokenizer, ready to run."""
        request = complete(request)
        tokenizer = tiny_vq.load(request.decoder_weights, device=request.device)
        model = transformer(partial(Janus, TINY, self.prompts), request)
        turns = frequencies(TINY.decoder.head_dim, TINY.decoder.rope_base, model.gen_embed.weight.device)
        return Loaded(model, tokenizer.decode, known(request), [*model.parameters(), turns, *tokenizer.parameters()], prompted=True)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        """Shape of a generation."""
        labels = labels_of(batch, len(self.texts))
        return janus.layout(TINY, self.prompts, labels, range(batch), sampling, torch.float32, "cpu")

    def asking(self, texts: tuple[str, ...]) -> ModelEntry:
        """The entry for other captions. Raises BadPlan for a text that is none."""
        for text in texts:
            try:
                asked(text)
            except (ValueError, UnknownName) as error:
                problem = getattr(error, "message", str(error)).rstrip(".")
                raise BadPlan(f"{NAME} reads only captions of its own procedural scenes. {problem}.",
                              remedy=f"Use a caption such as {', '.join(TEXTS[:3])}.") from error
        return replace(self, texts=texts).entry

    @property
    def entry(self) -> ModelEntry:
        return ModelEntry(
            NAME, "janus", Janus.paradigm, (TINY.grid, TINY.grid), len(self.texts), self.shape, self.load, known,
            with_greedy(Sampling(cfg_scale=CFG)), quality=tuple(name for name, of in METRICS.items() if of.of_model and of.prompted),
            prompts=self.texts, asking=self.asking,
            parameter_counts=partial(costs.janus, TINY, lambda: tiny_vq.TinyVQ().decode),
            summary="A Janus of 2 M parameters trained on captioned procedural scenes, with its weights",
        )


def complete(request: Request) -> Request:
    """A request that names the package's files where it named none."""
    return replace(request, weights=request.weights or str(packaged(FILE.name)),
                   decoder_weights=request.decoder_weights or str(packaged(f"{tiny_vq.files.name}.safetensors")))


def known(request: Request) -> str:
    """Hashes of the transformer and of the image tokenizer; refuses files that do not fit."""
    request = complete(request)
    tiny_vq.files.check(request.decoder_weights)
    return f"{identity(FILE, request)}/{checkpoints.sha256(request.decoder_weights)}"


register(BundledCaptioned().entry)
