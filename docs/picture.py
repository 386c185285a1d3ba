"""Pictures of the first screen of a report in both themes, as README shows it: ``python docs/picture.py reports/demo.html``."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "assets"
WIDTH, HEIGHT, QUALITY = 1280, 860, 70


def take(report: Path, theme: str, chromium: str) -> Path:
    """One picture of a report as it opens, in a ``theme``."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
        page.goto(report.resolve().as_uri())
        to = FOLDER / f"answer-{theme}.webp"
        with Image.open(io.BytesIO(page.screenshot())) as picture:
            picture.convert("RGB").save(to, quality=QUALITY, method=6)
        browser.close()
    return to


def main() -> None:
    """Take both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    report = parser.parse_args().report
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("No chromium here. `apt-get install chromium` gives one.")
    for theme in ("light", "dark"):
        to = take(report, theme, chromium)
        print(f"{to}: {to.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
