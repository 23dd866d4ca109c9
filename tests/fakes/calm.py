"""Finds if the machine was calm enough for a test that measures times."""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import textwrap
import time

from benchmarks.harness import BUSY_LIMIT_PCT, OtherLoad

SLEEP_S = 0.03
"""Seconds of a train step in the test trainings."""

MOST_COLD_S = 0.0015
"""Maximum seconds of a small piece of work right after a sleep, on a calm machine.

0.2 ms without a sleep, 0.7 ms after one on a calm 2-core VM, more if other guests use
the host."""

ARITHMETIC_S = 0.0036
"""CPU seconds of a fixed piece of arithmetic on the core that time limits refer to."""

MOST_LATE_S = 0.001
"""Limit in seconds by which a sleep may last too long (0.1 ms is usual)."""


def find_disturbance(load: OtherLoad) -> str | None:
    """Returns why times measured just now are unreliable; ``None`` if they are not.

    Args:
        load: Began to measure before the test did.
    """
    other_pct = load.read_pct()
    if other_pct > BUSY_LIMIT_PCT:
        return f'other programs used {other_pct:.0f} % of the machine'
    late_s, cold_s = [], []
    for _ in range(20):
        began = time.perf_counter()
        time.sleep(SLEEP_S)
        woke = time.perf_counter()
        _work()
        late_s.append(woke - began - SLEEP_S)
        cold_s.append(time.perf_counter() - woke)
    late, cold = statistics.median(late_s), statistics.median(cold_s)
    if late > MOST_LATE_S:
        return f'a sleep lasts {1000 * late:.1f} ms too long'
    if cold > MOST_COLD_S:
        return f'what takes 0.2 ms at once takes {1000 * cold:.1f} ms after a sleep'
    return None


def time_arithmetic_s() -> float:
    """Returns the CPU seconds of a fixed piece of arithmetic, to compare cores."""
    began = time.process_time()
    total = 0
    for number in range(60_000):
        total += number * number
    return time.process_time() - began


def _work() -> None:
    """Runs code of many modules, like the work between two train steps."""
    values = {'one': [1, 2, {'two': 3.5}], 'three': 'x' * 50}
    json.loads(json.dumps(copy.deepcopy(values)))
    re.sub('a+', 'b', 'caaandaab')
    textwrap.fill('loader ' * 40, 40)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument('--number', type=int)
    parser.parse_args(['--number', '3'])
