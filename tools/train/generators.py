"""Training of the bundled token predictors on tokens of fresh scenes.

Matrices inside blocks are updated by Muon, everything else by AdamW. Scenes are rendered and encoded in chunks, each seen once, so the
model cannot overfit. One label in ten is replaced by the null class for classifier-free guidance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.models.catalogue import next_scale
from cachemark.models.catalogue.next_token import TINY, TINY_NAME
from cachemark.models.janus import Janus
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.mar import MAR
from cachemark.models.tiny.tokenizers import MSVQ_WEIGHTS, VQ_WEIGHTS
from cachemark.models.var import VAR, VARConfig

from .loops import TrainingTask
from .muon import Muon
from .scene import scenes, stream

MUON_RATE = 0.02
ADAM_RATE = 3e-3
BATCH = 16
CHUNK = 32  # steps whose scenes are rendered and encoded at once
DROPOUT = 0.1
HELD_OUT = 128


class PredictorTask(TrainingTask):
    """A model trained on the tokens of a tokenizer.

    ``inner``: matrices updated by Muon; ``rates``: peak learning rates of Muon and AdamW.
    """

    warmup = 40
    rates = (MUON_RATE, ADAM_RATE)

    def __init__(
        self, model: LlamaGen | VAR | MAR | Janus, tokenizer: nn.Module, inner: Iterable[nn.Parameter], seed: int, device: str, batch: int
    ) -> None:
        self.seed, self.device, self.batch = seed, device, batch
        self.model = model.to(device)
        self.tokenizer: Any = tokenizer
        matrices = list(inner)
        chosen = {id(p) for p in matrices}
        outer = [p for p in self.model.parameters() if id(p) not in chosen]
        muon, adam = self.rates
        self.muon = Muon([{"params": matrices, "peak": muon}], lr=muon)
        self.adam = torch.optim.AdamW([{"params": outer, "peak": adam}], lr=adam, betas=(0.9, 0.95), weight_decay=0.0)
        self.parts = {"model": self.model, "muon": self.muon, "adam": self.adam}
        self._chunk = -1
        self._batches: list[tuple[Tensor, Tensor]] = []

    def metadata(self) -> dict[str, str]:
        config = json.dumps(asdict(self.model.config), sort_keys=True)
        return {"model": self.name, "config": config, "language": self.tokenizer.language}

    def tokens(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the tokens of images (B, 3, 64, 64), one row each."""
        return self.tokenizer.encode(images)

    def fresh(self, step: int) -> tuple[Tensor, Tensor]:
        """Return labels (B,) and tokens (B, N, …) of a training step, determined by seed and step."""
        if step // CHUNK != self._chunk:
            self._chunk = step // CHUNK
            self._batches = self._encoded(CHUNK * self.batch, stream(self.seed, "generator", self._chunk))
        return self._batches[step % CHUNK]

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        """Yield true labels and tokens of held-out scenes."""
        return self._encoded(HELD_OUT, stream(self.seed, "held out"))

    @torch.no_grad()
    def _encoded(self, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        scene, draws = scenes(count, seed, device=self.device), torch.Generator().manual_seed(stream(seed, "tokens"))
        tokens = torch.cat([self.tokens(part, draws) for part in scene.images.split(64)])
        return list(zip(scene.classes.split(self.batch), tokens.split(self.batch), strict=True))


class CodesPredictorTask(PredictorTask):
    """A model of codes, trained by cross-entropy and validated in nats per token."""

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Return the mean cross-entropy of a batch in nats per token, dropping labels at random."""
        labels, codes = self.fresh(step)
        dropped = (torch.rand(len(labels), generator=generator) < DROPOUT).to(labels.device)
        return self._entropy(self.without(labels, dropped), codes)

    def without(self, labels: Tensor, dropped: Tensor) -> Tensor:
        """Replace ``dropped`` (B,) labels by the null class."""
        return labels.masked_fill(dropped, self.model.config.classes)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return nats per token of held-out scenes with their true labels."""
        total = sum(float(self._entropy(labels, codes)) * len(labels) for labels, codes in self.held_out())
        return {"nats_per_token": round(total / HELD_OUT, 4)}

    def _entropy(self, labels: Tensor, codes: Tensor) -> Tensor:
        return F.cross_entropy(self.model.teacher(labels, codes).flatten(0, 1), codes.flatten())


class GeneratorTask(CodesPredictorTask):
    """The next-token model, on codes of the tokenizer at ``tokenizer``."""

    name = TINY_NAME
    steps = 2400

    def __init__(self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", config: LlamaGenConfig = TINY, batch: int = BATCH) -> None:
        model = LlamaGen(config).initialise(stream(seed, "initial weights"))
        nn.init.zeros_(model.output.weight)  # as the authors do: training starts from uniform predictions
        inner = [p for p in model.layers.parameters() if p.dim() == 2]
        super().__init__(model, VQ_WEIGHTS.load(tokenizer, device=device), inner, seed, device, batch)


class ScalesTask(CodesPredictorTask):
    """A next-scale model, on codes of the multi-scale tokenizer at ``tokenizer``."""

    steps = 2200

    def __init__(
        self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", name: str = next_scale.TINY_NAME,
        config: VARConfig | None = None, batch: int = BATCH,
    ) -> None:
        self.name, config = name, config or next_scale.TINY_SIZES[name]
        coder = MSVQ_WEIGHTS.load(tokenizer, device=device)
        model = VAR(config, coder.quantizer).initialise(stream(seed, "initial weights"))
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        for name, bias in model.blocks.named_parameters():
            if name.endswith("ada_lin.1.bias"):  # gates start open; the authors' start near 0, which costs a short training much
                bias.data.view(6, -1)[:2] = 1
        blocks = [p for name, p in model.blocks.named_parameters() if p.dim() == 2 and "ada_lin" not in name]
        super().__init__(model, coder, blocks, seed, device, batch)
