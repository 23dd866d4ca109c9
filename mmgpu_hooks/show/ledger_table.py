"""The time ledger as a table."""

from __future__ import annotations

import textwrap

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.parts import PARTS, UNATTRIBUTED
from mmgpu_hooks.show.figures import (
    PART_NAMES,
    bind_figures,
    format_seconds,
    unbind_figures,
)

_SHOWN_SHARE = 0.0005
_HOOKS_NAMED = 3
_NAMED_SHARE = 0.001
"""Of the run: a hook that took less is not worth its name."""
_REMARK_COLUMN = 45
_REMARK_WIDTH = 42


def format_ledger(summary: Run) -> str:
    """One line per part, largest first, with ``other`` and the whole at the end.

    Parts that took nothing are left out; ``other`` never is.
    """
    whole_s = summary.duration_s
    if whole_s <= 0:
        return f'nothing was measured; {_ending(summary)}'
    named = [part for part in PARTS if part != 'other']
    named.sort(key=lambda part: -summary.ledger_s.get(part, 0.0))
    rows = [
        _row(part, summary.ledger_s.get(part, 0.0), summary)
        for part in named
        if summary.ledger_s.get(part, 0.0) >= _SHOWN_SHARE * whole_s
    ]
    other = _row('other', summary.ledger_s.get('other', 0.0), summary)
    return '\n'.join(
        [
            f'{"part":<15}{"seconds":>9}{"share":>9}{"per iter.":>10}{_whose(summary)}',
            *rows,
            other,
            _line('all', whole_s, 100.0, summary.iterations, _ending(summary)),
        ]
    )


def _whose(summary: Run) -> str:
    run = summary.run
    return f'  rank {run.rank} of {run.world_size}' if run.world_size > 1 else ''


def _ending(summary: Run) -> str:
    return f'{summary.status} after {summary.iterations} iterations'


def _row(part: str, seconds: float, summary: Run) -> str:
    share = 100 * seconds / summary.duration_s
    name, remark = PART_NAMES[part], _remark(part, summary)
    return _line(name, seconds, share, summary.iterations, remark)


def _line(name: str, seconds: float, share: float, iterations: int, remark: str) -> str:
    mean_s = seconds / iterations if iterations else None
    figures = (
        f'{name:<15}{format_seconds(seconds):>9}{share:>7.1f} %'
        f'{format_seconds(mean_s):>10}'
    )
    first, *more = textwrap.wrap(bind_figures(remark), _REMARK_WIDTH) or ['']
    lines = [f'{figures:<{_REMARK_COLUMN}}{first}'.rstrip()]
    lines += [' ' * _REMARK_COLUMN + line for line in more]
    return unbind_figures('\n'.join(lines))


def _remark(part: str, summary: Run) -> str:
    if part == 'hooks':
        return _name_hooks(summary)
    if part == 'startup' and summary.epoch_starts:
        return f'{summary.epoch_starts} start(s) of the loader'
    if part == 'loop' and summary.run.loop == 'iter' and summary.epoch_starts:
        return 'MMEngine pauses 2 s before each start of the loader but the first'
    if part == 'resume':
        return f'{summary.run.start_iteration} batches of before are drawn again'
    if part == 'checkpoint_save':
        return f'{summary.saves} save(s)'
    return 'in none of the parts above' if part == 'other' else ''


def _name_hooks(summary: Run) -> str:
    """The most expensive hooks, and what the others and the calling took."""
    seconds = {name: cost.seconds for name, cost in summary.hooks.items()}
    untold_s = seconds.pop(UNATTRIBUTED, 0.0)
    least_s = _NAMED_SHARE * summary.duration_s
    costs = list(seconds.items())[:_HOOKS_NAMED]
    named = [cost for cost in costs if cost[1] >= least_s]
    if untold_s >= least_s:
        named.append((UNATTRIBUTED, untold_s))
    rest_s = summary.ledger_s.get('hooks', 0.0) - sum(cost[1] for cost in named)
    if named and rest_s >= least_s:
        named.append(('rest', rest_s))
    return ', '.join(f'{name} {format_seconds(cost_s)}' for name, cost_s in named)
