"""What every benchmark prints, writes and returns.

The last line printed is a summary of one line. Exit codes: 0 every target is met,
1 one is missed, 3 strangers used too much of the machine to judge. Figures that
fall short are printed and written as they are.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import StrangerLoad, describe_machine
from mmgpu_hooks.config.write import write_atomic

OK, MISSED, TOO_BUSY = 0, 1, 3

BUSY_LIMIT_PCT = 4.0
"""Of the machine: with more in the hands of strangers, nothing is judged."""

RESULTS = Path(__file__).resolve().parent / 'results'


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark's table."""

    name: str
    value: float | None
    """``None`` when it could not be measured; ``note`` says why."""
    unit: str = ''
    target: str = ''
    """Such as ``<= 20``; empty for what is only shown."""
    is_met: bool | None = None
    """``None`` without a target. With one, a figure that was not measured misses."""
    note: str = ''

    @property
    def verdict(self) -> str:
        """``met``, ``missed``, or nothing without a target."""
        if not self.target:
            return ''
        return 'met' if self.is_met and self.value is not None else 'missed'


class Benchmark:
    """Collects the figures of one run and ends it.

    Args:
        name: The module's name, which names the file of results too.
        description: What it measures; the first sentence is the title.
        argv: Arguments. Defaults to those of the command line.
        parser: With options of its own. Its values are in :attr:`options`.
        load: Measures what strangers use, from now on.
        is_timed: Whether strangers can change the figures; bytes they cannot.
    """

    def __init__(
        self,
        name: str,
        description: str,
        argv: Sequence[str] | None = None,
        *,
        parser: argparse.ArgumentParser | None = None,
        load: StrangerLoad | None = None,
        is_timed: bool = True,
    ) -> None:
        self.name = name
        self.title = ' '.join(description.split('\n\n')[0].split())
        parser = parser or argparse.ArgumentParser()
        parser.prog = f'python -m benchmarks.{name}'
        parser.description = description
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument(
            '--output',
            nargs='?',
            type=Path,
            const=RESULTS / f'{name}.md',
            metavar='FILE',
            help=f'write the table as Markdown (benchmarks/results/{name}.md)',
        )
        self.options = parser.parse_args(argv)
        self.figures: list[Figure] = []
        self._load = load or StrangerLoad()
        self._is_timed = is_timed

    def add(self, figure: Figure) -> None:
        """Add a line to the table."""
        self.figures.append(figure)

    def finish(self) -> int:
        """Print everything, write it when asked to, and judge.

        Returns:
            The exit code.
        """
        strangers_pct = self._load.read_pct()
        code = judge(self.figures, strangers_pct if self._is_timed else 0.0)
        page = self._render(describe_machine(), strangers_pct, code)
        if self.options.output is not None:
            write_atomically(self.options.output, page)
        print(page, end='')
        return code

    def _render(
        self, machine: Mapping[str, str], strangers_pct: float, code: int
    ) -> str:
        facts = {
            'date': datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            **machine,
            'used by strangers meanwhile': f'{strangers_pct:.1f} % of the machine '
            + (f'(limit {BUSY_LIMIT_PCT:g} %)' if self._is_timed else '(no matter)'),
        }
        parts = [
            f'# {self.title}',
            render_figures(self.figures),
            '\n'.join(f'- {name}: {value}' for name, value in facts.items()),
            summarise(self.name, self.figures, strangers_pct, code),
        ]
        return '\n\n'.join(parts) + '\n'


def judge(figures: Sequence[Figure], strangers_pct: float) -> int:
    """Exit code of a run; a benchmark without any target judged nothing: missed."""
    if strangers_pct > BUSY_LIMIT_PCT:
        return TOO_BUSY
    verdicts = {figure.verdict for figure in figures}
    return OK if 'met' in verdicts and 'missed' not in verdicts else MISSED


def summarise(
    name: str, figures: Sequence[Figure], strangers_pct: float, code: int
) -> str:
    """The run in one line."""
    judged = [figure for figure in figures if figure.verdict]
    missed = [figure.name for figure in judged if figure.verdict == 'missed']
    text = f'{name}: {len(judged) - len(missed)} of {len(judged)} targets met'
    if code == TOO_BUSY:
        text += f'; not judged: strangers used {strangers_pct:.1f} % of the machine'
    elif missed:
        text += f'; missed: {", ".join(missed)}'
    return text


def render_figures(figures: Sequence[Figure]) -> str:
    """The table of the figures; columns that are empty all along are left out."""
    header = ('figure', 'value', 'unit', 'target', 'verdict', 'note')
    rows = [
        (f.name, render_value(f.value), f.unit, f.target, f.verdict, f.note)
        for f in figures
    ]
    used = [i for i in range(len(header)) if i < 2 or any(row[i] for row in rows)]
    return render_table(
        [header[i] for i in used], [[row[i] for i in used] for row in rows]
    )


def render_value(value: float | None) -> str:
    """Four significant digits, thousands separated; ``unknown`` for ``None``."""
    if value is None:
        return 'unknown'
    if not math.isfinite(value) or value == 0.0:
        return f'{value:g}'
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f'{value:,.{digits}f}'
    return text.rstrip('0').rstrip('.') if '.' in text else text


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    lines = [[cell.replace('|', '\\|') for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in lines)) for i in range(len(header))]
    lines.insert(1, ['-' * width for width in widths])
    return '\n'.join(
        '| ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths)) + ' |'
        for row in lines
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
