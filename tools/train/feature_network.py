"""Training of the feature network: the content of a scene, and whether it was corrupted.

Half of each batch is corrupted: the hues of a rectangle are rotated, or the image restarts further down, as from a generator without its
first lines. Labels of the corruption come from :func:`cachemark.metrics.color_consistency.matching_colors`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cachemark.core.errors import Unsupported
from cachemark.metrics.color_consistency import SIZE, matching_colors
from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.image_bytes import as_bytes
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.metrics.compute.quality_intervals import QualityInterval, intervals
from cachemark.models import checkpoints
from cachemark.models.tiny.networks import CONSISTENT, FEATURE_WEIGHTS, HEADS

from .scene import HUES, VERSION, Scene, scenes, stream
from .tokenizers import WholeTask

BATCH = 64
RESTARTS = 0.25  # share of corrupted pictures that restart, instead of having a rectangle in other colors
HELD_OUT = 512
ATTRIBUTES = tuple(HEADS)
REAL, KEPT = 10_000, 3_000  # scenes for the reference statistics, and scenes whose features are stored: together less than 1 MB
FLOORS = (500, 1000, 2000)  # numbers of other scenes whose FID is stored with it
CHUNK = 500


class FeaturesTask(WholeTask):
    """A :class:`~cachemark.models.tiny.networks.TinyFeatures` on fresh scenes.

    Statistics of its features follow by moving averages over uncorrupted images.
    """

    name = FEATURE_WEIGHTS.name
    steps = 1400
    stored = FEATURE_WEIGHTS
    size = BATCH

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """Return the mean cross-entropy of attributes (uncorrupted images) plus consistency (all)."""
        scene, half = scenes(self.batch, stream(self.seed, "features", step), device=self.device), self.batch // 2
        images = torch.cat((scene.images[:half], corrupted(scene.images[half:], generator)))
        embedded = self.model.embed(images).float()
        self.follow(embedded[:half].detach(), (0,))
        logits = self.model.judge(embedded)
        targets = attributes(scene)
        named = [F.cross_entropy(logits[name][:half].float(), targets[name][:half]) for name in ATTRIBUTES]
        named.append(F.cross_entropy(logits["class"][half:].float(), targets["class"][half:]))
        consistent = F.binary_cross_entropy_with_logits(logits["consistent"].float(), consistency(images, half))
        return torch.stack(named).mean() + consistent

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the accuracy on held-out scenes by attribute, and of consistency on a balanced set."""
        draws = torch.Generator().manual_seed(stream(self.seed, "held out spoils"))
        scene = scenes(HELD_OUT, stream(self.seed, "held out"), device=self.device)
        images = torch.cat((scene.images, corrupted(scene.images, draws)))
        logits, targets = self.model.judge(self.model.embed(images)), attributes(scene)
        accuracies = {name: (logits[name][:HELD_OUT].argmax(1) == targets[name]).float().mean() for name in ATTRIBUTES}
        right = (logits["consistent"] > 0) == (consistency(images, HELD_OUT) > 0)
        accuracies |= {f"consistent_{name.replace(' ', '_')}": right[:, i].float().mean() for i, name in enumerate(CONSISTENT)}
        return {name: round(float(share), 4) for name, share in accuracies.items()}


def attributes(scene: Scene) -> dict[str, Tensor]:
    """Return the attributes of scenes by head, as an index (B,) int64."""
    hues = {name: (getattr(scene, name) * HUES).round().long() % HUES for name in ("object_hue", "sky_hue", "ground_hue")}
    return {"class": scene.classes, **hues, "object_texture": scene.textures[:, 0], "ground_texture": scene.textures[:, 1]}


def consistency(images: Tensor, untouched: int) -> Tensor:
    """Return targets (B, 5) of the consistency head: :func:`matching_colors`, and "untouched"."""
    whole = torch.arange(len(images), device=images.device) < untouched
    return torch.cat((matching_colors(images), whole[:, None]), 1).float()


def corrupted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Corrupt images (B, 3, 64, 64): rotate the hues of a rectangle by a multiple of 60°, or restart."""
    n, device = len(images), images.device

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, (n, *shape), generator=generator).to(device)

    line = torch.arange(SIZE, device=device)
    top, height, left, width, full = whole(0, 61), whole(4, 49), whole(0, 33), whole(16, 49), whole(0, 2)
    left, width = left * (1 - full), torch.where(full > 0, SIZE, width)
    rows = (line >= top[:, None]) & (line < (top + height)[:, None])
    columns = (line >= left[:, None]) & (line < (left + width)[:, None])
    inside = (rows[:, :, None] & columns[:, None, :])[:, None]
    recoloured = torch.where(inside, turned(images, whole(1, HUES)), images)
    anew = torch.rand(n, generator=generator).to(device) < RESTARTS
    return torch.where(anew[:, None, None, None], _restarted(images, whole(16, 57), whole(8, 33)), recoloured)


def _restarted(images: Tensor, first: Tensor, back: Tensor) -> Tensor:
    """Replace rows from ``first`` (B,) on by those ``back`` (B,) rows higher."""
    line = torch.arange(SIZE, device=images.device)
    source = torch.where(line >= first[:, None], (line - back[:, None]).clamp(min=0), line)
    return images.gather(2, source[:, None, :, None].expand_as(images))


def turned(images: Tensor, sixths: Tensor) -> Tensor:
    """Rotate the hues of images (B, 3, H, W) by ``sixths`` (B,) of the circle, exactly as in HSV.

    A cyclic permutation of channels is a third of the circle; mirroring each pixel between its largest and smallest channel is a half.
    """
    odd = sixths % 2
    order = (torch.arange(3, device=images.device) - ((sixths - 3 * odd) // 2)[:, None]) % 3
    moved = images.gather(1, order[:, :, None, None].expand_as(images))
    mirrored = moved.amax(1, keepdim=True) + moved.amin(1, keepdim=True) - moved
    return torch.where(odd[:, None, None, None] > 0, mirrored, moved)


def write_reference(weights: Path, seed: int = 0, *, device: str = "cpu", count: int = REAL) -> Path:
    """Write reference statistics of ``count`` unseen scenes next to the network's weights.

    Raises Infrastructure if torch-fidelity is missing.
    """
    extractor = Extractor(checkpoints.sha256(weights), partial(FEATURE_WEIGHTS.load, weights))
    reference = RealImages.of(ImageFeatures.of(real_scenes(count, seed), extractor, device=device))
    fresh = ImageFeatures.of(real_scenes(max(FLOORS), seed, "floor"), extractor, device=device)
    reference = replace(reference, floors={size: real_floor(fresh, reference, size)[:3] for size in FLOORS})
    path = weights.with_suffix(".reference.safetensors")
    reference.save(path, keep=KEPT, about=f"{VERSION}, seed {seed}")
    return path


def real_floor(real: ImageFeatures, reference: RealImages, count: int) -> QualityInterval:
    """Return the FID of ``count`` real images outside the reference, a perfect generator's.

    Raises Unsupported if ``real`` are fewer, or are images of the reference.
    """
    chosen = real.first(count)
    reference.expect(chosen.extractor)
    stored_rows = [{row.tobytes() for row in x.half().numpy()} for x in (reference.features, chosen.features)]  # as files store them
    repeated = len(stored_rows[0] & stored_rows[1])
    if repeated > count // 2:
        raise Unsupported(f"{repeated} of {count} images are in the reference itself, so their FID does not apply to other real images.",
                          remedy="Pass real images that are not in the reference.")
    return intervals(chosen, reference, kid=False, isc=False, prc=False)["fid"]


def real_scenes(count: int, seed: int = 0, purpose: str = "reference") -> Tensor:
    """Return the first ``count`` scenes of a purpose as bytes (count, 3, 64, 64)."""
    parts = [as_bytes(scenes(CHUNK, stream(seed, purpose, i)).images) for i in range(-(-count // CHUNK))]
    return torch.cat(parts)[:count]
