"""Runs all tests as ``make test`` does: ``python tests/side_by_side.py``.

Most tests wait for a single process, so two halves of them run side by side. Those that
measure times run after them, alone. Options, but for ``-m``, are passed on to pytest.
Not pytest-xdist: its workers have a thread of their own, beside which a fork may hang.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

TESTS = Path(__file__).resolve().parent

LONG_ROOMS = ('training',)
"""Their tests take about as long as those of all the other rooms."""

_NOTHING_CHOSEN = 5
"""Pytest's exit code where options leave no test of a part."""


def list_parts(options: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Arguments of pytest: for each of two halves, and for what measures times.

    Args:
        options: Of all of them.
    """
    files = sorted(TESTS.glob('*/**/test_*.py'))
    rooms = sorted({file.relative_to(TESTS).parts[0] for file in files})
    long = [str(TESTS / room) for room in rooms if room in LONG_ROOMS]
    others = [str(TESTS / room) for room in rooms if room not in LONG_ROOMS]
    untimed = ['-m', 'not timing', *options]
    # to import the others takes seconds
    timed = [str(file) for file in files if 'mark.timing' in file.read_text()]
    return (
        [*others, *untimed],
        [*long, *untimed],
        [*timed, '-m', 'timing', *options],
    )


def count_outcomes(last_line: str) -> Counter[str]:
    """Numbers by outcome, of pytest's last line: ``2 failed, 9 passed in 3.40s``."""
    found = re.findall(r'(\d+) (\w+)', last_line)
    return Counter({word: int(number) for number, word in found})


def main(options: list[str]) -> int:
    """Run all of them; the exit code is that of the first that fails."""
    began_s = time.monotonic()
    shown, beside, timed = map(_command, list_parts(options))
    outcomes: Counter[str] = Counter()
    codes = []

    def show(lines: Iterable[str]) -> None:
        line = ''
        for line in lines:
            print(line, end='', flush=True)
        outcomes.update(count_outcomes(line))

    with tempfile.TemporaryFile('w+') as log:
        other = subprocess.Popen(beside, stdout=log, stderr=subprocess.STDOUT)
        codes.append(_follow(shown, show))
        codes.append(other.wait())
        log.seek(0)
        show(log)
    codes.append(_follow(timed, show))
    names = ('failed', 'errors', 'error', 'passed', 'skipped')
    words = [f'{outcomes[name]} {name}' for name in names if outcomes[name]]
    print(f'In all: {", ".join(words)} in {time.monotonic() - began_s:.0f} s')
    return next((code for code in codes if code not in (0, _NOTHING_CHOSEN)), 0)


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, '-m', 'pytest', f'--rootdir={TESTS.parent}', *arguments]


def _follow(command: list[str], show: Callable[[Iterable[str]], None]) -> int:
    """Show what it prints as it comes."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        show(process.stdout)
    return process.returncode


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
