"""README's strip: images of each case of the demo at the same seeds, with the seconds and bytes of an accepted baseline.

Run it with ``python -m tools.pages.strip STORE`` on a store whose newest run is the demo. Times are of the baseline, measured without load.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import cachemark as cm
from cachemark.core import formatting as fmt
from cachemark.core.result import Outcome
from cachemark.core.spec import shown_share
from cachemark.core.units import KV, STATE, TIME
from cachemark.gate import baselines

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "baselines" / "accepted" / "amd-epyc-1-threads" / "demo.json"
TARGET = ROOT / "docs" / "assets" / "strip.webp"
SEEDS, LABEL, QUALITY = 4, 330, 80  # the last images of a sprite have the same seeds in every case
INK, PAPER = (20, 24, 28), (255, 255, 255)


def words(outcome: Outcome) -> str:
    """Return model and method, and below them seconds per batch and bytes that are kept."""
    case, kept = outcome.case, (outcome.median(KV) or 0.0) + (outcome.median(STATE) or 0.0)
    name = "full cache" if case.method == "full" else f"{fmt.display_name(case.method)} at {shown_share(case.stated_budget)}"
    return f"{case.model}, {name}\n{fmt.seconds(outcome.median(TIME) or 0.0)} per batch of {case.batch}, {fmt.size(kept)} kept"


def row(outcome: Outcome, sprite: bytes) -> Image.Image:
    """Return the label of a case beside its images: the lower row of a sprite, the upper one for the full cache."""
    with Image.open(io.BytesIO(sprite)) as images:
        side = images.height // 2
        top = 0 if outcome.case.method == "full" else side
        part = images.convert("RGB").crop((images.width - SEEDS * side, top, images.width, top + side))
    line = Image.new("RGB", (LABEL + part.width, side), PAPER)
    ImageDraw.Draw(line).multiline_text((6, side // 2 - 18), words(outcome), fill=INK, font=ImageFont.load_default(13), spacing=4)
    line.paste(part, (LABEL, 0))
    return line


def main(store: str) -> None:
    """Write the strip."""
    run = cm.open(store)
    sprites = {(each.case.model, each.case.label): image for each in run.cases if (image := each.images())}
    any_of = {model: image for (model, _), image in sprites.items()}  # the full cache is above every method
    cases = [o for o in baselines.load(BASELINE).outcomes if o.case.role in ("baseline", "candidate")]
    models = list(dict.fromkeys(o.case.model for o in run.outcomes))
    rows = [row(o, sprites.get((o.case.model, o.case.label), any_of[o.case.model]))
            for o in sorted(cases, key=lambda o: (models.index(o.case.model), o.case.role != "baseline", o.case.method))]
    sheet = Image.new("RGB", (rows[0].width, sum(line.height + 2 for line in rows)), PAPER)
    for k, line in enumerate(rows):
        sheet.paste(line, (0, k * (line.height + 2)))
    sheet.save(TARGET, quality=QUALITY, method=6)
    print(f"{TARGET}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1])
