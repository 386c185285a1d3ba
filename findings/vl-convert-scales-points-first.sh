#!/usr/bin/env bash
# vl-convert turns an SVG's points into pixels at 96 per inch before its scale, so "points at 300 per inch" is a third too large.
#
# Guess: svg_to_png(svg, scale=300 / 72) of a figure that is 234 pt wide (3.25 inches, a column of a paper) has 975 pixels, which is
# 3.25 inches at 300 per inch: the user unit of the figure is the point.
# Seen with vl-convert-python 1.9.0.post1 on Python 3.11: 1300 pixels. Points become CSS pixels (312) first, then scale multiplies
# them; 300 per inch needs scale 300 / 96. An SVG whose width has no unit is not touched: 234 gives 974 pixels (975 less one for rounding down).
# So one factor is right for figures of Vega, which have no unit, and wrong for those of Matplotlib, which are in points.
#
# Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check vl-convert-python==1.9.0.post1
"$folder/env/bin/python" - <<'PYTHON'
import struct
import sys

import vl_convert


def pixels(width: str, height: str, scale: float) -> tuple[int, int]:
    """Width and height of the PNG, from its header."""
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 234 144"><rect width="234" height="144"/></svg>'
    return struct.unpack(">II", vl_convert.svg_to_png(svg, scale=scale)[16:24])


in_points, without_unit = pixels("234pt", "144pt", 300 / 72), pixels("234", "144", 300 / 72)
print("234pt × 144pt at 300/72:", in_points, "| 234 × 144 at 300/72:", without_unit, "| 234pt × 144pt at 300/96:",
      pixels("234pt", "144pt", 300 / 96))
sys.exit((in_points, without_unit) != ((1300, 800), (974, 600)))
PYTHON
