"""Object detectors and the colours of objects for GenEval, by networks in folders of this machine.

The authors' detector is a Mask2Former (facebook/mask2former-swin-small-coco-instance on Hugging Face), which says which pixels are an
object's. Any other network for detection that transformers knows gives boxes alone, and the ground around an object is left in its picture
when its colour is named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.prompt_lists import COLOURS
from .clip import CHUNK, Clip
from .geneval import THRESHOLD, Found
from .pretrained import built, folder_identity, toolkit

FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
PUBLISHED = "facebook/mask2former-swin-small-coco-instance"
NAMES = {  # of classes in other lists of COCO's, and what GenEval calls them
    "mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard", "aeroplane": "airplane", "motorbike": "motorcycle",
    "sofa": "couch", "pottedplant": "potted plant", "diningtable": "dining table", "tvmonitor": "tv",
}
TEMPLATES = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}", "a photo of a {colour} object")
GREY = 0x99  # in the place of what is not the object


def identity(folder: str) -> str:
    """The part of a case's identity that the detector decides. Raises Unsupported, with how to get it, for what is lacking."""
    return folder_identity(folder, FILES, (), PUBLISHED)


def classes(folder: str) -> set[str]:
    """The names of all classes that a detector knows, as GenEval has them; none where its configuration cannot be read."""
    try:
        names_by_id = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["id2label"]
        return {NAMES.get(name, name) for name in names_by_id.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


class PretrainedDetector:
    """A detector from a folder. Raises what :func:`identity` raises, and BadCheckpoint for files that do not fit together."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        identity(folder)
        known, own = toolkit(), {"local_files_only": True}
        config = built(folder, "detector", lambda: known.AutoConfig.from_pretrained(folder, **own))
        self._masks = type(config) in known.AutoModelForUniversalSegmentation._model_mapping
        kind = known.AutoModelForUniversalSegmentation if self._masks else known.AutoModelForObjectDetection
        self._model: Any = built(folder, "detector", lambda: kind.from_pretrained(folder, use_safetensors=True, **own).to(device).eval())
        self._ready: Any = built(folder, "detector", lambda: known.AutoImageProcessor.from_pretrained(folder, **own))
        self._device, self._names = device, config.id2label

    @torch.inference_mode()
    def __call__(self, image: Tensor) -> list[Found]:
        """Every object in bytes (3, H, W) of at least the confidence :data:`~cachemark.metrics.compute.geneval.THRESHOLD`."""
        size = (image.size(1), image.size(2))
        given = self._ready([image.numpy()], input_data_format="channels_first", return_tensors="pt").to(self._device)
        seen = self._model(**given)
        return self._outlined(seen, size) if self._masks else self._boxed(seen, size)

    def _boxed(self, outputs: Any, size: tuple[int, int]) -> list[Found]:
        boxes = self._ready.post_process_object_detection(outputs, threshold=THRESHOLD, target_sizes=torch.tensor([size]))[0]
        return [Found(self._name(label), score, (box[0], box[1], box[2], box[3]))
                for label, score, box in zip(*(boxes[key].tolist() for key in ("labels", "scores", "boxes")), strict=True)]

    def _outlined(self, outputs: Any, size: tuple[int, int]) -> list[Found]:
        outlines = self._ready.post_process_instance_segmentation(
            outputs, threshold=THRESHOLD, target_sizes=[size], return_binary_maps=True)[0]
        if not outlines["segments_info"]:
            return []
        objects = []
        for segment, mask in zip(outlines["segments_info"], outlines["segmentation"].bool().cpu(), strict=True):
            if mask.any():
                down, across = (mask.any(axis).nonzero().flatten() for axis in (1, 0))
                box = (float(across[0]), float(down[0]), float(across[-1] + 1), float(down[-1] + 1))
                objects.append(Found(self._name(segment["label_id"]), float(segment["score"]), box, mask))
        return objects

    def _name(self, label: int) -> str:
        name = str(self._names[int(label)])
        return NAMES.get(name, name)


class ClipColours:
    """Names the colours of objects by CLIP: the ground is grey where it is known, and the picture is cut to the object's box."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._known: dict[str, Tensor] = {}

    def __call__(self, image: Tensor, objects: Sequence[Found], name: str) -> list[str]:
        """The likeliest of GenEval's colours of each object, all called ``name``, in bytes (3, H, W)."""
        if name not in self._known:
            texts = [template.format(colour=colour, name=name) for colour in COLOURS for template in TEMPLATES]
            each = self._clip.of_texts(texts).unflatten(0, (len(COLOURS), len(TEMPLATES)))
            self._known[name] = F.normalize(each.mean(1), dim=-1)
        parts = [_alone(image, one).numpy() for one in objects]
        seen = torch.cat([self._clip.of_images(parts[at : at + CHUNK]) for at in range(0, len(parts), CHUNK)])
        return [COLOURS[best] for best in (seen @ self._known[name].T).argmax(1).tolist()]


def _alone(image: Tensor, detection: Found) -> Tensor:
    """The picture of an object, bytes (3, h, w) of at least one pixel."""
    left, top, right, bottom = (round(end) for end in detection.box)
    if detection.mask is not None:
        image = torch.where(detection.mask, image, GREY)
    height, width = image.shape[1:]
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    return image[:, top : max(min(bottom, height), top + 1), left : max(min(right, width), left + 1)].contiguous()
