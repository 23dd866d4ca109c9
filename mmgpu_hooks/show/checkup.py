"""``mmgpu doctor``: a line for each thing that was examined, its cure below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from mmgpu_hooks.judge.doctor import count_problems
from mmgpu_hooks.schema.checkup import Checked, Machine
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.show.document import SIGNS, Fact, Section, to_json

_UNSIGNED = {**SIGNS, 'ok': ' '}
"""Signs of the levels; a line that is in order has none."""


def describe_checkup(rows: Sequence[Checked]) -> list[Section]:
    """The number of things that are wrong; then all lines in order."""
    wrong = [row.name for row in rows if row.level == 'problem']
    unknown = [row.name for row in rows if row.level == 'unknown']
    title = 'Nothing is wrong'
    if unknown:
        title += f'; unknown: {", ".join(unknown)}'
    if wrong:
        count = plural(len(wrong), 'thing')
        verb = 'is' if len(wrong) == 1 else 'are'
        title = f'{count} {verb} wrong: {", ".join(dict.fromkeys(wrong))}'
    facts: list[Fact] = []
    for row in rows:
        facts.append(Fact(f'{_UNSIGNED[row.level]} {row.name}', row.text))
        if row.cure is not None:
            facts.append(Fact('', f'-> {row.cure}'))
    return [Section(title, facts=facts)]


def render_checkup_json(machine: Machine, rows: Sequence[Checked]) -> str:
    """The same lines with stable keys, and the facts behind them."""
    return to_json(
        problems=count_problems(rows),
        rows=[asdict(row) for row in rows],
        machine=machine,
    )
