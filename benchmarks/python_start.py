"""Benchmark: extra seconds that Python takes to start under ``mmgpu run``.

A part of `benchmarks.start`.

Processes that never import MMEngine's Runner are started with and without the
environment of ``mmgpu run``, in pairs of random order: one that does nothing, and one
that imports hundreds of modules, since our finder is asked for each. From the start
to the exit, by the clock and in CPU time.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import Figure, at_most, say
from mmgpu_hooks.config.switches import SWITCHES, compile_injected, switch_on

PROGRAMS = {
    'python -c pass': 'pass',
    'a program of many modules': (
        'import asyncio, concurrent.futures, ctypes, decimal, email.message, '
        'http.client, json, logging.config, multiprocessing.pool, numpy, '
        'unittest, urllib.request, xml.dom.minidom'
    ),
}
PAIRS, QUICK_PAIRS = 400, 20
MAX_LONGER_MS = 2.0


@dataclass(frozen=True)
class Spent:
    """Wall clock and CPU seconds of one process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Starts:
    """Start times of one program without and with ``mmgpu run``."""

    plain: Spent
    below: Spent
    """Wall clock and CPU seconds of the program started under ``mmgpu run``."""


def measure_python(is_quick: bool) -> Iterator[Figure]:
    """Returns figures on Python's start time under ``mmgpu run``, for each program."""
    count = QUICK_PAIRS if is_quick else PAIRS
    for name, code in PROGRAMS.items():
        say(name)
        yield from list_figures(name, measure_pairs(code, count))


def measure_pairs(code: str, count: int) -> list[Starts]:
    """Starts a program alternately without and with ``mmgpu run``; returns the times.

    Args:
        code: Of the program.
        count: Number of pairs.
    """
    without = {name: text for name, text in os.environ.items() if name not in SWITCHES}
    environs = {'plain': without, 'below': switch_on(without, {})}
    # as the command does, and what is compiled on the way is compiled before
    compile_injected()
    for environ in environs.values():
        start(code, environ)
    pairs = []
    chance = random.Random(0)
    for _ in range(count):
        order = chance.sample(list(environs), len(environs))
        pairs.append(Starts(**{which: start(code, environs[which]) for which in order}))
    return pairs


def start(code: str, environ: Mapping[str, str]) -> Spent:
    """Starts Python, waits for its end, and returns its wall clock and CPU seconds.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    words = [sys.executable, '-c', code]
    begin_s = time.perf_counter()
    pid = os.posix_spawn(sys.executable, words, environ)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - begin_s
    if status:
        exit_code = os.waitstatus_to_exitcode(status)
        raise subprocess.CalledProcessError(exit_code, words)
    return Spent(wall_s, used.ru_utime + used.ru_stime)


def list_figures(name: str, pairs: Sequence[Starts]) -> Iterator[Figure]:
    """Returns figures on one program's start: medians over the pairs of starts."""
    without_ms = 1000 * statistics.median(pair.plain.wall_s for pair in pairs)
    longer_ms = [1000 * (pair.below.wall_s - pair.plain.wall_s) for pair in pairs]
    cpu_ms = [1000 * (pair.below.cpu_s - pair.plain.cpu_s) for pair in pairs]
    low, high = find_interval(longer_ms)
    note = f'95 % CI {low:+.2f} to {high:+.2f}; {len(pairs)} pairs'
    yield Figure(f'{name}: without', without_ms, 'ms')
    longer = statistics.median(longer_ms)
    yield at_most(f'{name}: longer below mmgpu run', longer, MAX_LONGER_MS, 'ms', note)
    low, high = find_interval(cpu_ms)
    note = f'95 % CI {low:+.2f} to {high:+.2f}'
    yield Figure(f'{name}: CPU of that', statistics.median(cpu_ms), 'ms', note=note)


def find_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a median, by order statistics."""
    ordered, count = sorted(values), len(values)
    half_width = 1.96 * math.sqrt(count) / 2
    first = max(math.floor(count / 2 - half_width), 0)
    last = min(math.ceil(count / 2 + half_width), count - 1)
    return ordered[first], ordered[last]
