"""The browser tests share a browser and the synthetic run of the report's tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, or the reason why there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here; `pip install playwright` gives one")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here; `apt-get install chromium` gives one")
    with sync_api.sync_playwright() as play:
        chromium_browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page from disk; ``said`` collects what it says on the console and ``asked`` what it asks of a network."""
    contexts = []

    def opens(where: Path | str, tab: str = "", theme: str = "light", width: int = 1280) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        context.set_default_timeout(8000)
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"{Path(where).as_uri()}{'#' + tab if tab else ''}")
        return page

    yield opens
    for context in contexts:
        context.close()
