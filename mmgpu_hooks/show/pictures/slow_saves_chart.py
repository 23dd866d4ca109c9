"""Slow saves: what each would have taken, and what held it beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import SAVE_CAUSES, SaveJudgement, SaveRecord
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars
from mmgpu_hooks.show.pictures.save_charts import SAVES_SHOWN, name_save, why_no_saves

_CAUSES = {
    'workers': ('loader workers', 'data_wait'),
    'strangers': ('other programs', 'hooks'),
    'storage': ('storage', 'checkpoint_save'),
    'memory': ('memory', 'startup'),
    'size': ('histories', 'validation'),
    'remote': ('remote backend', 'gpu'),
}
"""Words and colour of each."""


def list_slow_saves(
    summary: Run, judged: Sequence[SaveJudgement]
) -> list[tuple[SaveRecord, SaveJudgement]]:
    """All slow saves, the longest delay first.

    Args:
        summary: Of the run.
        judged: Of its saves; without any of them, none is known to be slow.
    """
    pairs = zip(summary.save_records, judged)
    slow = [(save, entry) for save, entry in pairs if entry.is_slow]
    return sorted(slow, key=lambda pair: -(pair[1].gross_delay_s or 0.0))


def chart_slow_saves(summary: Run, judged: Sequence[SaveJudgement]) -> Chart | NoChart:
    """One bar a slow save, the longest delay first."""
    name, title = 'slow-saves-by-cause', 'Slow saves by cause'
    slow = list_slow_saves(summary, judged)
    if not slow:
        return NoChart(name, title, _why_none(summary, judged))
    bars = [
        Bar(name_save(save), tuple(_split(save, entry)), format_seconds(save.wall_s))
        for save, entry in slow[:SAVES_SHOWN]
    ]
    said = '; '.join(
        f'{bar.label} {bar.text} ('
        + ', '.join(f'{part.name} {part.text}' for part in bar.segments)
        + ')'
        for bar in bars
    )
    description = f'{len(bars)} of {len(slow)} slow save(s): {said}.'
    return chart_bars(name, title, description, bars)


def _split(save: SaveRecord, judged: SaveJudgement) -> Iterator[Segment]:
    """Its length: uncontended, held by each proven cause, and what is not proven."""
    parts = [('uncontended', judged.uncontended_s or 0.0, 'step')]
    for cause in SAVE_CAUSES:
        words, role = _CAUSES[cause]
        parts.append((words, judged.held_s.get(cause, 0.0), role))
    proven_s = sum(seconds for _, seconds, _ in parts)
    parts.append(('not proven', max(save.wall_s - proven_s, 0.0), 'other'))
    for words, seconds, role in parts:
        # less than a hundredth is rounding, and a word in the legend for nothing
        if seconds >= 0.01 * save.wall_s:
            yield Segment(words, seconds, format_seconds(seconds), role)


def _why_none(summary: Run, judged: Sequence[SaveJudgement]) -> str:
    saves = len(summary.save_records)
    if not saves:
        return why_no_saves(summary)
    if len(judged) != saves:
        return f'The {saves} save(s) were not judged.'
    told = sum(entry.uncontended_s is not None for entry in judged)
    if not told:
        return f'Cannot tell: {judged[-1].sentence}'
    beside = f'; {saves - told} could not be judged' if told < saves else ''
    return f'None of {told} save(s) was slow{beside}.'
