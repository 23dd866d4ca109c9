"""Is the report of a long run small, and open at once?

A run of 100,000 intervals is made up: waits with a heavy tail, steps, utilisation that
swings, an epoch every 1000 intervals with a validation and a save. ``mmgpu report``
writes it, and Chromium opens it several times, each time without anything kept.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.browser import open_browser
from benchmarks.harness import Benchmark, Figure
from benchmarks.machine import StrangerLoad, read_tree_cpu_s
from mmgpu_hooks.schema import (
    DurationStats,
    EndRecord,
    GpuWindow,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    SaveRecord,
)
from mmgpu_hooks.schema.lines import encode_line

MOST_MB, MOST_OPEN_S, MOST_ZOOM_S = 6.0, 3.0, 0.2
_ITERATIONS = 10
_EPOCH = 1000
"""Intervals of one."""
_OPENED = 5


def make_lines(intervals: int, seed: int = 1) -> Iterator[bytes]:
    """The evidence of a made-up run, line by line."""
    draw = random.Random(seed)
    loader = LoaderSettings(
        num_workers=8,
        persistent_workers=True,
        prefetch_factor=2,
        pin_memory=True,
        batch_size=4,
        batches_per_epoch=_EPOCH * _ITERATIONS,
        dataset_length=40_000,
        start_method='fork',
    )
    yield encode_line(
        RunRecord(
            run_id='a1',
            started_unix_s=1.7e9,
            loop='epoch',
            device='cuda',
            loader=loader,
        )
    )
    elapsed_s, ledger = 0.0, dict.fromkeys(('data_wait', 'step'), 0.0)
    for number in range(1, intervals + 1):
        wait_s, step_s = draw.lognormvariate(-4, 1.2), draw.gauss(0.2, 0.01)
        is_end = number % _EPOCH == 0
        seconds = {
            'data_wait': wait_s * _ITERATIONS,
            'step': step_s * _ITERATIONS,
            'checkpoint_save': 2.0 if is_end else 0.0,
            'validation': 60.0 if is_end else 0.0,
        }
        elapsed_s += sum(seconds.values())
        for part, more_s in seconds.items():
            ledger[part] = ledger.get(part, 0.0) + more_s
        if is_end:
            name, save_s = f'epoch_{number // _EPOCH}.pth', seconds['checkpoint_save']
            record = SaveRecord(
                iteration=number * _ITERATIONS,
                epoch=number // _EPOCH,
                wall_s=save_s,
                name=name,
            )
            yield encode_line(record)
        yield encode_line(
            IntervalRecord(
                iteration=number * _ITERATIONS,
                epoch=1 + (number - 1) // _EPOCH,
                iterations=_ITERATIONS,
                elapsed_s=elapsed_s,
                duration_s=sum(seconds.values()),
                data_wait=_durations(wait_s),
                step=_durations(step_s),
                iter=_durations(wait_s + step_s),
                ledger_s=seconds,
                gpu=GpuWindow(samples=12, util_pct=draw.uniform(0, 100)),
            )
        )
    yield encode_line(
        EndRecord(
            status='completed',
            iterations=intervals * _ITERATIONS,
            duration_s=elapsed_s,
            ledger_s=ledger,
        )
    )


def _durations(seconds: float) -> DurationStats:
    whole_s = seconds * _ITERATIONS
    return DurationStats(
        count=_ITERATIONS,
        total_s=whole_s,
        mean_s=seconds,
        p50_s=seconds,
        p95_s=seconds,
    )


def write_report(evidence: Path, output: Path) -> float:
    """Run the command; the seconds it took."""
    command = [sys.executable, '-m', 'mmgpu_hooks', 'report', str(evidence)]
    begin = time.perf_counter()
    subprocess.run([*command, '-o', str(output)], check=True, capture_output=True)
    return time.perf_counter() - begin


def open_once(browser: Any, page: Path) -> tuple[float, float]:
    """Seconds until all of a page is there and its script done, and until it is zoomed.

    Both last until the browser has drawn a frame.
    """
    context = browser.new_context(viewport={'width': 1280, 'height': 900})
    tab = context.new_page()
    begin = time.perf_counter()
    tab.goto(page.as_uri(), wait_until='load')
    tab.evaluate(_NEXT_FRAME)
    assert tab.locator('[data-plot][role=application]').count() == 1
    opened_s = time.perf_counter() - begin
    tab.locator('[data-plot]').scroll_into_view_if_needed()
    zoomed_ms = tab.evaluate(
        """async () => {
            const button = (name) => document.querySelector(`[data-do=${name}]`);
            button('in').click();
            const begin = performance.now();
            button('whole').click();
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            return performance.now() - begin;
        }"""
    )
    context.close()
    return opened_s, zoomed_ms / 1000


_NEXT_FRAME = (
    '() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))'
)


class OwnCpu:
    """CPU of this benchmark, the browser's processes that nobody waits for included."""

    def __init__(self) -> None:
        self.lost_s = 0.0

    def read_s(self) -> float:
        """Seconds up to now."""
        return read_tree_cpu_s() + self.lost_s


def open_often(page: Path, own: OwnCpu) -> tuple[list[tuple[float, float]], str]:
    """Seconds of each opening, or why there is none."""
    opened, before_s = [], 0.0
    with open_browser() as browser:
        if isinstance(browser, str):
            return [], browser
        open_once(browser, page)  # the browser's own warm-up
        opened = [open_once(browser, page) for _ in range(_OPENED)]
        before_s = own.read_s()
    own.lost_s += max(before_s - own.read_s(), 0.0)
    return opened, ''


def main(argv: Sequence[str] | None = None) -> int:
    """Make the run, write its report, open it, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--intervals', type=int, default=100_000)
    own = OwnCpu()
    load = StrangerLoad(own_s=own.read_s)
    benchmark = Benchmark('report', __doc__ or '', argv, parser=parser, load=load)
    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
        evidence, page = Path(folder, 'gpu_efficiency.jsonl'), Path(folder, 'r.html')
        with evidence.open('w') as file:
            file.writelines(make_lines(benchmark.options.intervals))
        written_s = write_report(evidence, page)
        size_mb = page.stat().st_size / 1e6
        opened, why = open_often(page, own)
    opened_s = statistics.median(one for one, _ in opened) if opened else None
    zoomed_s = statistics.median(two for _, two in opened) if opened else None
    note = why or f'median of {_OPENED}, largest {max(one for one, _ in opened):.2f} s'
    for figure in (
        Figure('intervals', benchmark.options.intervals),
        Figure('mmgpu report', written_s, 's', note='reading the evidence included'),
        Figure('size', size_mb, 'MB', f'< {MOST_MB:g}', size_mb < MOST_MB),
        _limited('open', opened_s, MOST_OPEN_S, note),
        _limited('draw the whole run anew', zoomed_s, MOST_ZOOM_S, why),
    ):
        benchmark.add(figure)
    return benchmark.finish()


def _limited(name: str, value: float | None, most: float, note: str) -> Figure:
    is_met = value is not None and value < most
    return Figure(name, value, 's', f'< {most:g}', is_met, note)


if __name__ == '__main__':
    sys.exit(main())
