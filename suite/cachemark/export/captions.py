"""Captions below the columns of a picture."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

HEIGHT, LARGEST, SMALLEST = 16, 11, 7  # pixels of the strip, and sizes of its font
WHITE, BLACK = (255, 255, 255), (0, 0, 0)


def captioned(picture: Image.Image, captions: Sequence[str]) -> Image.Image:
    """Return a picture with a caption centered below each of its equally wide columns; long ones are cut."""
    made = Image.new("RGB", (picture.width, picture.height + HEIGHT), WHITE)
    made.paste(picture, (0, 0))
    draw, width = ImageDraw.Draw(made), picture.width / len(captions)
    for number, caption in enumerate(captions):
        text, font = _fitting(draw, caption.encode(errors="replace").decode(), width - 4)
        draw.text(((number + 0.5) * width, picture.height + HEIGHT / 2), text, BLACK, font, anchor="mm")
    return made


def _fitting(draw: ImageDraw.ImageDraw, text: str, width: float) -> tuple[str, ImageFont.FreeTypeFont | ImageFont.ImageFont]:
    """Return the text and the largest font in which it fits, shortened if none does."""
    for size in range(LARGEST, SMALLEST - 1, -1):
        font = ImageFont.load_default(size)
        if draw.textlength(text, font) <= width:
            return text, font
    while text and draw.textlength(f"{text}…", font) > width:
        text = text[:-1]
    return f"{text}…", font
