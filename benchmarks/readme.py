"""Writes figures from kept benchmark results into README and docs.

    python -m benchmarks.readme

A page has them between ``<!-- NAME -->`` and ``<!-- end -->``, which do not show; the
tables are those in ``benchmarks/results``. A text whose table was not kept yet stays.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import RESULTS
from benchmarks.markdown import render_table

ROOT = RESULTS.parents[1]
PAGES = (ROOT / 'README.md', *sorted((ROOT / 'docs').glob('[ez]*/*.md')))
_WIDTH = 120
_MARKED = re.compile(r'(?P<begin><!-- ([a-z-]+) -->)(?P<text>.*?)<!-- end -->', re.S)


@dataclass(frozen=True)
class Row:
    """Row of a result table in ``benchmarks/results``: value and note of one figure."""

    value: str
    note: str

    @property
    def number(self) -> float:
        """Value of the figure as a number, without thousands separators."""
        return float(self.value.replace(',', ''))


@dataclass(frozen=True)
class Kept:
    """Parsed result page of a benchmark in ``benchmarks/results``.

    Attributes:
        rows: Its figures by name.
        cases: Its second table, row by row, heading left out.
        code: Its block of code; empty without.
    """

    rows: Mapping[str, Row]
    cases: Sequence[Sequence[str]] = ()
    code: str = ''


def parse_kept(page: str) -> Kept:
    """Parses a result page of ``benchmarks/results``."""
    tables = re.findall(r'(?:^\|.*\n)+', page, re.MULTILINE)
    cells = [
        [
            [cell.strip() for cell in line.split('|')[1:-1]]
            for line in table.splitlines()
        ]
        for table in tables
    ]
    head, _, *lines = cells[0]
    # a column without a cell is left out
    note = head.index('note') if 'note' in head else None
    rows = {line[0]: Row(line[1], '' if note is None else line[note]) for line in lines}
    code = re.search(r'```text\n(.*?)\n```', page, re.DOTALL)
    cases = cells[1][2:] if len(cells) > 1 else []
    return Kept(rows, cases, code[1] if code else '')


def phrase_overhead(kept: Kept) -> str:
    """Returns the README's sentence on the hook's overhead, from kept results."""
    (name,) = (row for row in kept.rows if row.endswith('with the hook over without'))
    whole, each = kept.rows[name], kept.rows['iteration, mean']
    interval = kept.rows['interval, beyond an iteration']
    iteration = re.search(r'iteration of (\d+ ms)', name)
    ends = re.search(r'CI \+?(-?[\d.]+) to \+?(-?[\d.]+)', whole.note)
    assert iteration and ends
    return (
        f'{whole.number:.2f} % ({ends[1]} to {ends[2]}) of an iteration of '
        f'{iteration[1]} on two busy cores: {each.number:.0f} us per iteration, and '
        f'{interval.number:.1f} ms per log line more.'
    )


def phrase_predictions(kept: Kept) -> str:
    """Returns the README's sentence on prediction errors, from kept results."""
    median, high, inside = (
        kept.rows[f'all planted: {name}']
        for name in (
            'error, median',
            'error, 90th percentile',
            'intervals that hold the truth',
        )
    )
    others = kept.rows['planted by others: intervals that hold the truth']
    return (
        f'half of {median.note} are within {median.number:.1f} % of the truth, nine '
        f'in ten within {high.number:.1f} %; {inside.number:.0f} % of the intervals '
        'that are to hold nine in ten hold the truth. Of pipelines planted by people '
        f'who did not write the model, {others.number:.0f} % do: steps that work on '
        "several of torch's threads beside workers are the weak spot."
    )


def phrase_whole(kept: Kept) -> str:
    """Returns the README's sentence on training time saved by advice in benchmarks."""
    less = [int(case[3].split()[0]) for case in kept.cases if case[2]]
    quiet = len(kept.cases) - len(less)

    def count(figure: str) -> int:
        return sum(
            int(row.number) for name, row in kept.rows.items() if name.endswith(figure)
        )

    bad_ends = [name for name in kept.rows if name.endswith(': cause right')]
    return (
        f'**Of {len(kept.cases)} ordinary trainings** '
        '([the table](benchmarks/results/whole.md)), '
        f'{len(less)} took {min(less)} to {max(less)} % less time after doing what '
        f'their summary or `mmgpu recommend` said; in {quiet} nothing was changed. Of '
        f'{len(bad_ends)} more, which die or hang, `mmgpu why` named the cause of '
        f'{count(": cause right")} and the cure of {count(": the cure is named")}; '
        f'with it {count(": trains to its end with it")} trained to the end.'
    )


def phrase_demo(kept: Kept) -> str:
    """Returns the output of ``mmgpu demo`` from the kept results, as a code block."""
    return f'\n```text\n{kept.code}\n```\n'


def phrase_demo_gain(kept: Kept) -> str:
    """Returns the README's sentence on demo time saved by advice and by tuning."""
    _, before, after, less, tuned, *_ = kept.cases[0]
    gain = f'{before} before, {after} after: {less} less time.'
    if not tuned.endswith(' s'):
        return gain
    return (
        f'{gain} With `tune=True` in the place of a second training: {tuned} '
        '([it tunes itself](docs/en/tune.md)).'
    )


def phrase_host(kept: Kept) -> str:
    """Returns the README's sentence on host CPU time saved by ``optimize``."""

    def span(name: str) -> str:
        ratios = [
            row.number for key, row in kept.rows.items() if key.endswith(f': {name}')
        ]
        return f'{min(ratios):.2f} to {max(ratios):.2f}'

    batch = kept.rows['batch of 8 in the training process, ratio']
    history = kept.rows['13 scalars after 300,000 iterations, ratio']
    return (
        f"an optimizer's step takes {span('step, ratio')} times the host CPU (lists of "
        f'tensors, as on a card), an average {span("average, ratio")}, a batch of 8 in '
        f'the training process {batch.number:.2f}, histories after 300,000 iterations '
        f'{history.number:.3f}; [the table](benchmarks/results/host.md).'
    )


def phrase_masks(kept: Kept) -> str:
    """Returns text on CPU time to encode masks by CocoMetric and by FastCocoMetric."""
    plain, fast = (
        kept.rows[f'100 masks of 1333 x 800 encoded, {metric}, CPU'].number
        for metric in ('CocoMetric', 'FastCocoMetric')
    )
    return f'{plain:.0f} ms of CPU, and take {fast:.0f} ms'


ZOO_HEAD = (
    'model',
    'its loader',
    'iteration',
    'verdict',
    'recommended',
    'predicted',
    'measured',
)
ZOO_HEAD_ZH = ('模型', '自带的 loader 设置', '每次迭代', '结论', '推荐', '预测', '实测')


def render_zoo(kept: Kept) -> str:
    """Returns the table of gains for four MMDetection configs, in English."""
    return f'\n\n{render_table(ZOO_HEAD, kept.cases)}\n\n'


def render_zoo_zh(kept: Kept) -> str:
    """Returns the table of gains for four MMDetection configs, in Chinese."""
    rows = [
        [cell.replace('nothing', '不用改').replace(' to ', ' 到 ') for cell in row]
        for row in kept.cases
    ]
    return f'\n\n{render_table(ZOO_HEAD_ZH, rows)}\n\n'


class KeptText(NamedTuple):
    """Text in README or docs that is generated from a benchmark's kept results."""

    benchmark: str
    phrase: Callable[[Kept], str]


TEXTS = {
    'overhead': KeptText('overhead', phrase_overhead),
    'predictions': KeptText('predict', phrase_predictions),
    'whole': KeptText('whole', phrase_whole),
    'demo': KeptText('whole', phrase_demo),
    'demo-gain': KeptText('whole', phrase_demo_gain),
    'host': KeptText('host', phrase_host),
    'masks': KeptText('metric', phrase_masks),
    'zoo': KeptText('zoo', render_zoo),
    'zoo-zh': KeptText('zoo', render_zoo_zh),
}


def render_page(page: str, results: Path = RESULTS) -> str:
    """Returns a page of docs with its generated texts brought up to date.

    Args:
        page: With its marks.
        results: Folder of the tables.

    Raises:
        KeyError: If a mark has a name that is unknown.
    """

    def fill(match: re.Match[str]) -> str:
        kept = TEXTS[match[2]]
        path = results / f'{kept.benchmark}.md'
        if not path.exists():
            return match[0]
        text = kept.phrase(parse_kept(path.read_text()))
        if '\n' not in text:
            line = page[page.rfind('\n', 0, match.start()) + 1 : match.end('begin')]
            indent = '  ' * line.startswith('- ')
            text = textwrap.fill(
                text,
                _WIDTH,
                initial_indent='x' * len(line),
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )[len(line) :]
        return f'{match["begin"]}{text}<!-- end -->'

    return _MARKED.sub(fill, page)


def main() -> None:
    """Rewrites those pages of README and docs whose benchmark figures have changed."""
    for path in PAGES:
        page = path.read_text()
        if (new := render_page(page)) != page:
            path.write_text(new)
            print(f'written: {path.relative_to(ROOT)}')


if __name__ == '__main__':
    main()
