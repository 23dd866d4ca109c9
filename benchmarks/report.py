"""Is the report of a long run small, and open at once?

    python -m benchmarks.report [--quick] [--output]

A run of 100,000 intervals is made of a short real one. ``mmgpu report`` writes its
page, and Chromium opens it several times, each time without anything kept. About 2
minutes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Figure, at_most
from benchmarks.recommend import train_lines, write_run

MOST_MB, MOST_OPEN_S = 6.0, 3.0
INTERVALS, OPENED = 100_000, 5
NEXT_FRAME = (
    '() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))'
)
_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')


@contextmanager
def open_browser() -> Iterator[Any]:
    """A Chromium without a window, or the sentence that says what to install.

    ``CHROMIUM`` names another executable.
    """
    names = (os.environ.get('CHROMIUM'), *_BROWSERS)
    found = [path for name in names if name and (path := shutil.which(name))]
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


def open_once(browser: Any, page: Path) -> float:
    """Seconds until all of a page is there, its script done and a frame drawn."""
    context = browser.new_context(viewport={'width': 1280, 'height': 900})
    tab = context.new_page()
    begin = time.perf_counter()
    tab.goto(page.as_uri(), wait_until='load')
    tab.evaluate(NEXT_FRAME)
    opened_s = time.perf_counter() - begin
    context.close()
    return opened_s


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run, write its report, open it, print the table."""
    # the browser's processes would count as other programs
    benchmark = Benchmark('report', __doc__ or '', argv, is_timed=False)
    intervals = 5000 if benchmark.is_quick else INTERVALS
    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
        page = Path(folder, 'report.html')
        write_run(Path(folder, 'run'), train_lines(), intervals)
        command = [sys.executable, '-m', 'mmgpu_hooks', 'report', f'{folder}/run']
        begin = time.perf_counter()
        subprocess.run([*command, '-o', str(page)], check=True, capture_output=True)
        written_s = time.perf_counter() - begin
        size_mb = page.stat().st_size / 1e6
        with open_browser() as browser:
            opened_s, note = None, browser
            if not isinstance(browser, str):
                open_once(browser, page)  # the browser's own warm-up
                opened = [open_once(browser, page) for _ in range(OPENED)]
                opened_s = statistics.median(opened)
                note = f'median of {OPENED}, largest {max(opened):.2f} s'
    benchmark.add(
        Figure('intervals', intervals),
        Figure('mmgpu report', written_s, 's', note='reading the evidence included'),
        at_most('size', size_mb, MOST_MB, 'MB'),
        at_most('open', opened_s, MOST_OPEN_S, 's', note),
    )
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
