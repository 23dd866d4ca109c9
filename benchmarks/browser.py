"""Chromium of the machine, driven over its DevTools protocol."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser without a window, or the sentence that says what to install.

    ``CHROMIUM`` names another executable.
    """
    asked = os.environ.get('CHROMIUM')
    found = [path for name in (asked, *_NAMES) if name and (path := shutil.which(name))]
    if not found:
        yield 'no Chromium: install it (Debian: apt install chromium) or set CHROMIUM'
        return
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield 'no playwright: pip install -r requirements/test.txt'
        return
    with sync_playwright() as playwright:
        # its sandbox needs privileges that containers lack; only our own page is opened
        browser = playwright.chromium.launch(
            executable_path=found[0], args=['--no-sandbox']
        )
        yield browser
        browser.close()
