"""Folders of image-scoring networks of the published layouts, with random weights and small sizes."""

import json
from pathlib import Path
from typing import Any

import torch

from .later import later

transformers = later("transformers")
SIDE, WIDTH = 32, 16
CLASSES = {0: "dog", 1: "mouse", 2: "cow"}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]", "yes", "no", "is", "it", "there", "a", "red", "dog", "?"]


def clip_folder(made: Path) -> Path:
    """CLIP with a tokenizer of single letters."""
    made.mkdir(exist_ok=True)
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"{c}</w>" for c in "abcdefghijklmnopqrstuvwxyz"), "<|startoftext|>", "<|endoftext|>"]
    (made / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(letters)}))
    (made / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer(str(made / "vocab.json"), str(made / "merges.txt")).save_pretrained(str(made))
    ends = {"bos_token_id": len(letters) - 2, "eos_token_id": len(letters) - 1, "pad_token_id": len(letters) - 1}
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "projection_dim": WIDTH}
    torch.manual_seed(0)
    transformers.CLIPModel(transformers.CLIPConfig(
        text_config={**sizes, **ends, "vocab_size": len(letters), "max_position_embeddings": 80},
        vision_config={**sizes, "image_size": SIDE, "patch_size": 8}, projection_dim=WIDTH)).save_pretrained(str(made))
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    transformers.CLIPImageProcessor(**size).save_pretrained(str(made))
    return made


def detector_folder(made: Path, *, masks: bool) -> Path:
    """A detector that knows :data:`CLASSES`: a Mask2Former, else a network of boxes."""
    made.mkdir(exist_ok=True)
    torch.manual_seed(0)
    size: dict[str, Any] = {"size": {"height": 64, "width": 64}, "do_resize": True}
    if masks:
        backbone = transformers.SwinConfig(image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
                                           out_features=["stage1", "stage2", "stage3", "stage4"])
        config = transformers.Mask2FormerConfig(
            backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16, encoder_layers=1,
            decoder_layers=2, num_attention_heads=2, dim_feedforward=16, num_queries=6, id2label=CLASSES)
        parts = transformers.Mask2FormerForUniversalSegmentation(config), transformers.Mask2FormerImageProcessor(**size, ignore_index=255)
    else:
        config = transformers.YolosConfig(hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=WIDTH,
                                          image_size=[64, 64], patch_size=16, num_detection_tokens=5, id2label=CLASSES)
        parts = transformers.YolosForObjectDetection(config), transformers.YolosImageProcessor(**size)
    for part in parts:
        part.save_pretrained(str(made))
    return made


def answerer_folder(made: Path, *, writes: bool) -> Path:
    """A network for visual questions: a BLIP, which writes its answer, else a ViLT, which chooses one."""
    made.mkdir(exist_ok=True)
    (made / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": WIDTH}
    tokenizer = transformers.BertTokenizer(str(made / "vocab.txt"), additional_special_tokens=["[DEC]", "[ENC]"])
    if writes:
        ends = {"pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 2, "sep_token_id": 3}
        text = {**sizes, **ends, "vocab_size": len(WORDS), "encoder_hidden_size": WIDTH, "max_position_embeddings": 40}
        config = transformers.BlipConfig(text_config=text, vision_config={**sizes, "image_size": SIDE, "patch_size": 8},
                                         projection_dim=WIDTH)
        images = transformers.BlipImageProcessor(size={"height": SIDE, "width": SIDE})
        parts = transformers.BlipForQuestionAnswering(config), transformers.BlipProcessor(images, tokenizer), images, tokenizer
    else:
        config = transformers.ViltConfig(**sizes, vocab_size=len(WORDS), image_size=SIDE, patch_size=8, max_position_embeddings=40,
                                         id2label={0: "yes", 1: "no", 2: "red"})
        images = transformers.ViltImageProcessor(size={"shortest_edge": SIDE})
        parts = transformers.ViltForQuestionAnswering(config), transformers.ViltProcessor(images, tokenizer), images, tokenizer
    for part in parts:
        part.save_pretrained(str(made))
    return made
