"""``make bench-quick``: runs the quick form of each benchmark, one after another.

    python -m benchmarks.quick [--only NAME,...]

A benchmark that fails does not keep the others from running. The closing table has the
seconds and the result of each; nothing is kept. Exit codes: 0 all passed or do not run
here, 1 one failed, 3 none failed but other programs used too much of the machine to
judge one. About 25 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.gpu_check.table import EXIT_NO_CUDA, EXIT_SKIPPED
from benchmarks.harness import MISSED, OK, RESULTS, TOO_BUSY, say
from benchmarks.markdown import render_table

PACKAGE = 'benchmarks'
BENCHMARKS = (
    'drift',
    'end',
    'gpu_check',
    'holders',
    'host',
    'ledger',
    'memory',
    'memory_causes',
    'metric',
    'overhead',
    'predict',
    'regret',
    'rewrite',
    'rewrite_projects',
    'runs',
    'saves',
    'setup_time',
    'start',
    'tune',
    'validation',
    'whole',
    'why',
    'zoo',
)
LIMIT_S = 600.0
"""Seconds after which a benchmark's quick run is killed and counts as failed."""

PASSED, FAILED, NOT_JUDGED, SKIPPED = 'passed', 'failed', 'too busy to judge', 'skipped'
_RESULTS = {OK: PASSED, TOO_BUSY: NOT_JUDGED}
_GPU_RESULTS = {**_RESULTS, EXIT_NO_CUDA: SKIPPED, EXIT_SKIPPED: SKIPPED}
"""Outcome by exit code of ``gpu_check``; any other code is a failure."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one benchmark's quick run.

    Attributes:
        name: Its module.
        seconds: Wall clock.
        result: ``passed``, ``failed``, ``too busy to judge`` or ``skipped``.
        note: The line that it ended with, or how it ended without one.
    """

    name: str
    seconds: float
    result: str
    note: str


def run_quick(name: str) -> Outcome:
    """Runs the quick form of a benchmark in a child process and prints its table.

    Args:
        name: Its module in :data:`PACKAGE`.
    """
    say(f'{name} ...')
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, '-m', f'{PACKAGE}.{name}', '--quick'],
        cwd=RESULTS.parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    is_too_long = False
    try:
        page, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        is_too_long = True
        kill_family(process.pid)
        page, _ = process.communicate()
    seconds = time.monotonic() - began_s
    print(page, end='', flush=True)
    code, lines = process.returncode, page.split('\n')
    results = _GPU_RESULTS if name == 'gpu_check' else _RESULTS
    last_line = next((line for line in reversed(lines) if line), '')
    if is_too_long:
        note = f'ended, since it took longer than {LIMIT_S:g} s'
    elif code in (OK, MISSED, TOO_BUSY) and last_line:
        note = last_line
    else:
        note = f'exit code {code}, see above'
    return Outcome(name, seconds, results.get(code, FAILED), note)


def kill_family(leader: int) -> None:
    """Kills a process and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(leader)
        for member in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def render_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Renders a table of all benchmarks' outcomes, with a summary line."""
    rows = [
        (outcome.name, f'{outcome.seconds:.0f}', outcome.result, outcome.note)
        for outcome in outcomes
    ]
    counts = {
        result: sum(outcome.result == result for outcome in outcomes)
        for result in (PASSED, FAILED, NOT_JUDGED, SKIPPED)
    }
    counted = ', '.join(
        f'{count} {result}' for result, count in counts.items() if count
    )
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    table = render_table(('benchmark', 'seconds', 'result', 'last line'), rows)
    return f'{table}\n\nbench-quick: {counted}, in {minutes:.1f} minutes'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the quick form of all benchmarks, prints outcomes, returns the exit code."""
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.quick',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--only',
        type=lambda text: text.split(','),
        default=BENCHMARKS,
        metavar='NAME,...',
        help=f'only these of: {", ".join(BENCHMARKS)}',
    )
    names: Sequence[str] = parser.parse_args(argv).only
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ', '.join(BENCHMARKS)
        parser.error(f'argument --only: expected some of {known}; found {unknown}')
    outcomes = [run_quick(name) for name in names]
    print(f'\n{render_outcomes(outcomes)}')
    results = {outcome.result for outcome in outcomes}
    if FAILED in results:
        return MISSED
    return TOO_BUSY if NOT_JUDGED in results else OK


if __name__ == '__main__':
    sys.exit(main())
