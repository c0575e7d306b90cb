"""A headless Chromium for a session: TUNELIGHT_BROWSER, one that is installed, or playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Start the browser; skip where playwright or a browser is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = os.environ.get("TUNELIGHT_BROWSER") or next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium: `make browser` fetches one, or set TUNELIGHT_BROWSER")
        # Without a sandbox, for a container's root cannot have one; WebGL is drawn by the processor.
        args = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()
