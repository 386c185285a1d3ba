"""Object detectors and color classifiers for GenEval, by networks in local folders.

The authors' detector is a Mask2Former (facebook/mask2former-swin-small-coco-instance on Hugging Face), which gives masks. Any other
detection network of transformers gives boxes only; the background then stays in the crop whose color is classified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.files import read_json
from ...models.prompt_lists import COLOURS
from .pretrained import DETECTOR, Clip, toolkit

NAMES = {  # class names in other lists of COCO, and in GenEval
    "mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard", "aeroplane": "airplane", "motorbike": "motorcycle",
    "sofa": "couch", "pottedplant": "potted plant", "diningtable": "dining table", "tvmonitor": "tv",
}
TEMPLATES = ("a photo of a {color} {name}", "a photo of a {color}-colored {name}", "a photo of a {color} object")
GREY = 0x99  # replaces the background
THRESHOLD = 0.3  # least confidence of an object


@dataclass(frozen=True)
class Detection:
    """A detected object: class, confidence, ``box`` (left, top, right, bottom) in pixels, mask (H, W)."""

    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: Tensor | None = None


def classes(folder: str) -> set[str]:
    """Return the detector's class names as in GenEval; empty if its configuration is unreadable."""
    try:
        names_by_id = read_json(Path(folder) / "config.json")["id2label"]
        return {NAMES.get(name, name) for name in names_by_id.values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


class PretrainedDetector:
    """A detector from a folder. Raises Unsupported for missing files, BadCheckpoint for inconsistent ones."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        DETECTOR.identity(folder)
        config = DETECTOR.part(folder, "AutoConfig")
        self._masks = type(config) in toolkit().AutoModelForUniversalSegmentation._model_mapping
        kind = "AutoModelForUniversalSegmentation" if self._masks else "AutoModelForObjectDetection"
        self._model = DETECTOR.part(folder, kind, use_safetensors=True).to(device).eval()
        self._ready = DETECTOR.part(folder, "AutoImageProcessor")
        self._device, self._names = device, config.id2label

    @torch.inference_mode()
    def __call__(self, image: Tensor) -> list[Detection]:
        """Return all objects in bytes (3, H, W) with at least the confidence THRESHOLD."""
        size = (image.size(1), image.size(2))
        inputs = self._ready([image.numpy()], input_data_format="channels_first", return_tensors="pt").to(self._device)
        outputs = self._model(**inputs)
        return self._outlined(outputs, size) if self._masks else self._boxed(outputs, size)

    def _boxed(self, outputs: Any, size: tuple[int, int]) -> list[Detection]:
        boxes = self._ready.post_process_object_detection(outputs, threshold=THRESHOLD, target_sizes=torch.tensor([size]))[0]
        return [Detection(self._name(label), score, (box[0], box[1], box[2], box[3]))
                for label, score, box in zip(*(boxes[key].tolist() for key in ("labels", "scores", "boxes")), strict=True)]

    def _outlined(self, outputs: Any, size: tuple[int, int]) -> list[Detection]:
        outlines = self._ready.post_process_instance_segmentation(
            outputs, threshold=THRESHOLD, target_sizes=[size], return_binary_maps=True)[0]
        if not outlines["segments_info"]:
            return []
        objects = []
        for segment, mask in zip(outlines["segments_info"], outlines["segmentation"].bool().cpu(), strict=True):
            if mask.any():
                down, across = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
                box = (float(across[0]), float(down[0]), float(across[-1] + 1), float(down[-1] + 1))
                objects.append(Detection(self._name(segment["label_id"]), float(segment["score"]), box, mask))
        return objects

    def _name(self, label: int) -> str:
        name = str(self._names[int(label)])
        return NAMES.get(name, name)


class ClipColors:
    """Classifies colors of objects by CLIP, on a crop with a gray background if masks are known."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._texts: dict[str, Tensor] = {}

    def __call__(self, image: Tensor, objects: Sequence[Detection], name: str) -> list[str]:
        """Return the most likely color of each object, all called ``name``, in bytes (3, H, W)."""
        if name not in self._texts:
            texts = [template.format(color=color, name=name) for color in COLOURS for template in TEMPLATES]
            each = self._clip.of_texts(texts).unflatten(0, (len(COLOURS), len(TEMPLATES)))
            self._texts[name] = F.normalize(each.mean(1), dim=-1)
        parts = [_crop(image, detection).numpy() for detection in objects]
        return [COLOURS[best] for best in (self._clip.of_images(parts) @ self._texts[name].T).argmax(1).tolist()]


def _crop(image: Tensor, detection: Detection) -> Tensor:
    """Return the crop of an object, bytes (3, h, w) of at least one pixel."""
    x0, y0, x1, y1 = (round(end) for end in detection.box)
    if detection.mask is not None:
        image = torch.where(detection.mask, image, GREY)
    height, width = image.shape[1:]
    x0, y0 = min(max(x0, 0), width - 1), min(max(y0, 0), height - 1)
    return image[:, y0 : max(min(y1, height), y0 + 1), x0 : max(min(x1, width), x0 + 1)].contiguous()
