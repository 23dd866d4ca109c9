"""Renders ``mmgpu doctor``: a line for each check, followed by what to do."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.judge.doctor import count_problems
from mmgpu_hooks.schema.checkup import Checked, Machine
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.document import BLANK, SIGNS, Fact, Section, to_json

_UNSIGNED = {**SIGNS, 'ok': ' '}
"""Sign printed before a check's line, by severity; blank for a passed check."""


def describe_checkup(rows: Sequence[Checked]) -> list[Section]:
    """Makes sections of ``mmgpu doctor``: number of problems, and a line per check."""
    wrong = [row.name for row in rows if row.level == 'problem']
    unknown = [row.name for row in rows if row.level == 'unknown']
    title = phrase('Nothing is wrong')
    if unknown:
        title = phrase('Nothing is wrong; unknown: {names}', names=tuple(unknown))
    if wrong:
        names = tuple(dict.fromkeys(wrong))
        title = phrase('1 thing is wrong: {names}', names=names)
        if len(wrong) > 1:
            title = phrase(
                '{count} things are wrong: {names}', count=len(wrong), names=names
            )
    facts: list[Fact] = []
    for row in rows:
        sign = _UNSIGNED[row.level]
        facts.append(Fact(phrase('{sign} {name}', sign=sign, name=row.name), row.text))
        if row.cure is not None:
            facts.append(Fact(BLANK, phrase('-> {cure}', row)))
    return [Section(title, facts=facts)]


def render_checkup_json(machine: Machine, rows: Sequence[Checked]) -> str:
    """Renders ``mmgpu doctor`` as JSON: its checks, and the facts about the machine.

    Keys:
        problems (int): How many things are wrong.
        rows (Tuple[Checked]): The lines in order.
        machine (Machine): The facts behind them.
    """
    return to_json(
        problems=count_problems(rows),
        rows=rows,
        machine=machine,
    )
