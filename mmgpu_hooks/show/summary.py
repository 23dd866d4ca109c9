"""The summary that training ends with."""

from __future__ import annotations

import os
import textwrap

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Diagnosis, RanksSummary
from mmgpu_hooks.show.description import describe_run
from mmgpu_hooks.show.figures import bind_figures, unbind_figures

_WIDTH = 100
_INDENT = '  '
_LABEL = 10
_MOST_RANKS = 2


def render_training_summary(
    summary: Run, diagnosis: Diagnosis, ranks: RanksSummary | None = None
) -> str:
    """About 25 lines of ASCII: the verdict first, the command to run next last.

    It takes about 1 ms, and no more for a long run.

    Args:
        summary: The figures of the rank that writes it.
        diagnosis: What is judged of them; of the slowest rank, where there is one.
        ranks: All ranks, when there is more than one.
    """
    verdict = diagnosis.verdict
    sentence = f'{verdict.sentence} ({verdict.confidence} confidence)'
    if ranks is not None and ranks.slowest not in (None, summary.run.rank):
        sentence = f'Rank {ranks.slowest}: {sentence}'
    described = describe_run(summary, ranks, _MOST_RANKS, diagnosis.saves)
    rows = [('verdict', sentence), *described]
    if ranks is not None and ranks.notes:
        rows.append(('notes', '\n'.join(ranks.notes)))
    lines = [line for label, text in rows for line in _wrap(label, text)]
    # a command that is broken into two lines is none
    ended_well = summary.end is None or summary.end.status == 'completed'
    for label, name in (('next', 'recommend'), ('', 'why'))[: 2 - ended_well]:
        command = f'mmgpu {name} {_shown(summary.run.work_dir)}'
        lines.append(f'{_INDENT}{label:<{_LABEL}} {command}')
    text = '\n'.join(['GPUEfficiencyHook summary', *lines])
    # paths of images may hold anything, and a log file or terminal may not take it
    return text.encode('ascii', 'backslashreplace').decode('ascii')


def _wrap(label: str, text: str) -> list[str]:
    """Lines that all begin with two spaces, the text in a column of its own."""
    width = _WIDTH - len(_INDENT) - _LABEL - 1
    wrapped = []
    for line in bind_figures(text).split('\n'):
        # a line of a table is kept as it is
        fits = len(line) <= width
        wrapped += (
            [line]
            if fits
            else textwrap.wrap(
                line, width, break_long_words=False, break_on_hyphens=False
            )
        )
    return [
        f'{_INDENT}{"" if number else label:<{_LABEL}} {unbind_figures(line)}'.rstrip()
        for number, line in enumerate(wrapped)
    ]


def _shown(path: str | None) -> str:
    if path is None:
        return '<work_dir>'
    relative = os.path.relpath(path)
    return path if relative.startswith('..') else relative
