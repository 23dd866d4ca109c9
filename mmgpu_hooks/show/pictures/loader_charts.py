"""Inside the loader: transforms by cost, the slowest samples."""

from __future__ import annotations

from mmgpu_hooks.judge.figures import LoaderFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import SlowSample
from mmgpu_hooks.show.figures import format_pct, format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars

_SHOWN = 12


def chart_transforms(summary: Run) -> Chart | NoChart:
    """Seconds per image in each transform."""
    name, title = 'transforms', 'Transforms by cost'
    loader = summary.loader
    if loader is None or not loader.transforms or not loader.timed_samples:
        return NoChart(name, title, f'No transform was timed{_why(summary)}.')
    costs = [
        (transform.name, transform.image_s, transform.calls)
        for transform in loader.transforms
        if transform.image_s is not None
    ]
    whole_s = sum(seconds for _, seconds, _ in costs) or 1.0
    bars = [
        _bar(
            transform,
            seconds,
            f'{format_seconds(seconds)}, {format_pct(100 * seconds / whole_s)}',
        )
        for transform, seconds, _ in costs[:_SHOWN]
    ]
    if len(costs) > _SHOWN:
        rest_s = sum(seconds for _, seconds, _ in costs[_SHOWN:])
        words = f'{format_seconds(rest_s)}, {format_pct(100 * rest_s / whole_s)}'
        bars.append(_bar(f'{len(costs) - _SHOWN} others', rest_s, words))
    said = '; '.join(f'{bar.label} {bar.text}' for bar in bars)
    return chart_bars(
        name,
        title,
        f'Mean time per image over {loader.timed_samples} timed samples: {said}.',
        bars,
    )


def chart_slowest(summary: Run) -> Chart | NoChart:
    """The samples that took longest to make."""
    name, title = 'slowest-samples', 'Slowest samples'
    loader = summary.loader
    if loader is None or not loader.slowest:
        return NoChart(name, title, f'No sample was timed{_why(summary)}.')
    bars = [
        Bar(
            name_sample(sample),
            (_segment(sample.seconds),),
            format_seconds(sample.seconds),
        )
        for sample in loader.slowest
    ]
    said = '; '.join(f'{bar.label} {bar.text}' for bar in bars)
    return chart_bars(name, title, f'{_usual(loader)}{said}.', bars)


def name_sample(sample: SlowSample) -> str:
    """Its index, and its image as far as that is known."""
    return f'{sample.index}' + (f': {sample.image}' if sample.image else '')


def _usual(loader: LoaderFigures) -> str:
    costs = [t.image_s for t in loader.transforms if t.image_s is not None]
    if not costs:
        return ''
    return f'A usual image takes {format_seconds(sum(costs))}. '


def _why(summary: Run) -> str:
    for source in ('loader inside', 'loader workers'):
        if source in summary.unknown:
            return f': {summary.unknown[source]}'
    return ''


def _bar(label: str, seconds: float, text: str) -> Bar:
    return Bar(label, (_segment(seconds),), text)


def _segment(seconds: float) -> Segment:
    return Segment('seconds', seconds, format_seconds(seconds), 'step')
