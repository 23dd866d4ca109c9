"""Where the time went: the ledger, its hooks, the run over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.figures import PART_NAMES, format_pct, format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars
from mmgpu_hooks.show.pictures.shapes import Picture
from mmgpu_hooks.show.pictures.timeline import Timeline
from mmgpu_hooks.show.pictures.timeline_picture import draw_timeline, shown_tracks

_HOOKS_SHOWN = 6
_SMALL_PCT = 0.005


def chart_ledger(runs: Sequence[tuple[str, Run]]) -> Chart | NoChart:
    """One bar a run, as long as any other: shares of its time."""
    name, title = 'ledger', 'Where the time went'
    measured = [(label, summary) for label, summary in runs if summary.duration_s > 0]
    if not measured:
        return NoChart(name, title, 'No time of training was measured.')
    bars, said = [], []
    for label, summary in measured:
        segments = tuple(
            Segment(
                PART_NAMES[part],
                seconds,
                f'{format_seconds(seconds)}{_share(seconds, summary.duration_s)}',
                part,
            )
            for part in PARTS
            if (seconds := summary.ledger_s.get(part, 0.0)) > 0
        )
        shown = label if len(measured) > 1 else ''
        bars.append(Bar(shown, segments, format_seconds(summary.duration_s)))
        parts = '; '.join(f'{part.name} {part.text}' for part in segments)
        said.append(f'{shown or "Of all"}: {parts}.')
    return chart_bars(name, title, ' '.join(said), bars, is_share=True)


def chart_hooks(summary: Run) -> Chart | NoChart:
    """Seconds in hooks by class, most expensive first."""
    name, title = 'hooks', 'Hooks by class'
    if not summary.hooks:
        reason = 'This evidence does not split the time in hooks by class.'
        return NoChart(name, title, reason)
    whole_s = summary.duration_s
    costs = [(hook, cost.seconds) for hook, cost in summary.hooks.items()]
    rest_s = sum(seconds for _, seconds in costs[_HOOKS_SHOWN:])
    rows = costs[:_HOOKS_SHOWN]
    if rest_s > 0:
        rows.append((f'{len(costs) - _HOOKS_SHOWN} others', rest_s))
    own_s = summary.ledger_s.get('hooks', 0.0) - sum(seconds for _, seconds in costs)
    if own_s > 0:
        rows.append(("MMEngine's own calling", own_s))
    bars = [
        _bar(hook, seconds, f'{format_seconds(seconds)}{_share(seconds, whole_s)}')
        for hook, seconds in rows
    ]
    said = '; '.join(f'{bar.label} {bar.text}' for bar in bars)
    return chart_bars(name, title, f'{said}.', bars)


def _bar(label: str, seconds: float, text: str) -> Bar:
    return Bar(label, (Segment('seconds', seconds, text, 'hooks'),), text)


def _share(seconds: float, whole_s: float) -> str:
    share = 100 * seconds / whole_s if whole_s > 0 else 0.0
    return f', {format_pct(share)}' if share >= _SMALL_PCT else ''


def chart_timeline(
    timeline: Timeline | None, reaches: Mapping[str, float], reason: str = ''
) -> Chart | NoChart:
    """A run over time.

    Args:
        timeline: What is drawn.
        reaches: Up to where the axis of each track goes.
        reason: Why there is none.
    """
    name, title = 'timeline', 'Over time'
    if timeline is None:
        return NoChart(name, title, reason or 'No interval was recorded.')
    tracks = shown_tracks(timeline)
    if not tracks:
        return NoChart(name, title, 'No interval has a figure to draw.')
    description = describe_timeline(timeline)

    def draw(width: float) -> Picture:
        return draw_timeline(timeline, reaches, name, title, description, width)

    return Chart(name, title, description, draw)


def describe_timeline(timeline: Timeline) -> str:
    """How far each quantity ranges, and how much happened in between."""
    said = []
    for track in shown_tracks(timeline):
        cells = [cell for cell in track.cells if cell is not None]
        low, high = min(c.low for c in cells), max(c.high for c in cells)
        if track.unit == '%':
            said.append(f'{track.title} from {low:.0f} to {high:.0f} %')
        else:
            least, most = format_seconds(low), format_seconds(high)
            said.append(f'{track.title} from {least} to {most} per iteration')
    count = len(timeline.starts_s)
    unit = 'interval(s)'
    if timeline.merged > 1:
        unit = f'groups of up to {timeline.merged} intervals'
    counted = [
        f'{sum(m.kind == kind for m in timeline.moments)} {words}'
        for kind, words in (
            ('save', 'save(s)'),
            ('validation', 'validation(s)'),
            ('epoch', 'further epoch(s)'),
        )
    ]
    return f'{"; ".join(said)}, over {count} {unit}. {", ".join(counted)} marked.'
