"""Training on captioned scenes: the text-to-image model, and the network that reads images."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.models import janus
from cachemark.models.catalogue.text_to_image import TINY_NAME, TINY_T2I
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.prompts import Prompts
from cachemark.models.tiny.captions import AXES, CAPTION, WordTokenizer
from cachemark.models.tiny.networks import READER_WEIGHTS
from cachemark.models.tiny.tokenizers import VQ_WEIGHTS

from .caption_scene import VERSION, caption_scenes, stream
from .generators import BATCH, CodesPredictorTask
from .tokenizers import WholeTask

BEHIND = -1  # in place of ids after the end of a shorter caption
READ = 512  # held-out pictures for the reader


class CaptionedTask(CodesPredictorTask):
    """The text-to-image model, on codes of the tokenizer at ``tokenizer``.

    Labels are ids of captions, one row each.
    """

    name = TINY_NAME
    steps = 2200
    data = VERSION

    def __init__(self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", config: JanusConfig = TINY_T2I, batch: int = BATCH) -> None:
        model, coder = Janus(config, Prompts()).initialise(stream(seed, "initial weights")), VQ_WEIGHTS.load(tokenizer, device="cpu")
        nn.init.zeros_(model.get_parameter("gen_head.vision_head.weight"))  # training starts from uniform predictions
        model.gen_embed.weight.data.copy_(coder.codebook / coder.codebook.std())  # and from the appearance of the codes
        inner = [p for p in model.blocks.parameters() if p.dim() == 2]
        super().__init__(model, coder.to(device), inner, seed, device, batch)
        self.pad = WordTokenizer().special(janus.PAD)

    def without(self, labels: Tensor, dropped: Tensor) -> Tensor:
        """Replace the words of ``dropped`` (B,) captions by padding."""
        last = (labels != BEHIND).sum(1, keepdim=True) - 1
        place = torch.arange(labels.size(1))
        return labels.masked_fill(dropped[:, None] & (place > 0) & (place < last), self.pad)

    def _entropy(self, labels: Tensor, codes: Tensor) -> Tensor:
        rows = [tuple(row[row != BEHIND].tolist()) for row in labels]
        return F.cross_entropy(self.model.teacher(rows, codes).flatten(0, 1), codes.flatten())

    @torch.no_grad()
    def _encoded(self, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        scene = caption_scenes(count, stream(seed, "pictures"), device=self.device)
        tokens = torch.cat([self.tokenizer.encode(part) for part in scene.images.split(64)])
        prompts = janus.prompts_of(scene.captions(stream(seed, "captions")), WordTokenizer(), form=CAPTION).conditional
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in prompts], batch_first=True, padding_value=BEHIND)
        return list(zip(ids.split(self.batch), tokens.split(self.batch), strict=True))


class ReaderTask(WholeTask):
    """A :class:`~cachemark.models.tiny.networks.TinyReader` on fresh images.

    Half of them are reconstructed by the tokenizer, the best that a model of its codes can generate.
    """

    name = READER_WEIGHTS.name
    steps = 800
    stored = READER_WEIGHTS
    size = 64
    data = VERSION

    def __init__(self, tokenizer: Path, seed: int = 0, *, device: str = "cpu", batch: int | None = None) -> None:
        super().__init__(seed, device=device, batch=batch)
        self.tokenizer = VQ_WEIGHTS.load(tokenizer, device=device)

    def metadata(self) -> dict[str, str]:
        return {**super().metadata(), "language": self.tokenizer.language}

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Return the mean cross-entropy over the axes of a caption."""
        scene, half = caption_scenes(self.batch, stream(self.seed, "reader", step), device=self.device), self.batch // 2
        logits = self.model(torch.cat((scene.images[:half], self._made_again(scene.images[half:]))))
        return torch.stack([F.cross_entropy(logits[axis].float(), scene.shown[axis]) for axis in AXES]).mean()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the accuracy by axis on held-out images and on their reconstructions."""
        scene = caption_scenes(READ, stream(self.seed, "held out"), device=self.device)
        accuracies: dict[str, float] = {}
        for kind, images in (("", scene.images), ("_made_again", self._made_again(scene.images))):
            read = self.model.read(images)
            accuracies |= {f"{axis}{kind}": round(float((read[axis] == scene.shown[axis]).float().mean()), 4) for axis in AXES}
        return accuracies

    @torch.no_grad()
    def _made_again(self, images: Tensor) -> Tensor:
        return torch.cat([self.tokenizer.decode(self.tokenizer.encode(part)).clamp(-1, 1) for part in images.split(64)])
