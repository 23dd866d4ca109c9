"""One run or several as a page: one file, no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count
from typing import Any

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show import run_charts
from mmgpu_hooks.show.charts import COLORS, Chart, can_draw, draw_inline
from mmgpu_hooks.show.comparison import images_per_second
from mmgpu_hooks.show.document import SIGNS, Section, Table
from mmgpu_hooks.show.escaping import visible
from mmgpu_hooks.show.figures import bind_units
from mmgpu_hooks.show.run_sections import (
    ReportedRun,
    describe_run,
    list_figures,
)
from mmgpu_hooks.version import __version__

GENERATOR = 'mmgpu_hooks'
"""By which a page is known as one of ours."""

_NO_BREAK = '\u00a0'
_SETTINGS = ('num_workers', 'persistent_workers', 'prefetch_factor', 'batch_size')


def is_page(beginning: bytes) -> bool:
    """Whether a file that begins so is a page of ours.

    Args:
        beginning: Some kilobytes of it.
    """
    return f'name="generator" content="{GENERATOR} '.encode() in beginning


def render_page(runs: Sequence[ReportedRun]) -> str:
    """The page of one run, or of several side by side.

    Args:
        runs: At least one; their labels differ.
    """
    # late, because no other command needs it
    from jinja2 import Environment
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        """Text without control characters, not broken before a unit."""
        if hasattr(value, '__html__'):
            return value
        return bind_units(visible(value), _NO_BREAK)

    numbers = count(1)

    def draw(chart: Chart) -> Markup:
        # what is drawn is escaped already
        return Markup(draw_inline(chart, f'c{next(numbers)}'))

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    template = environment.from_string(_read_own('page.html'))
    return template.render(
        can_draw=can_draw(),
        draw=draw,
        generator=f'{GENERATOR} {__version__}',
        groups=list(_group(runs)),
        signs=SIGNS,
        several=len(runs) > 1,
        style=Markup(_style()),
        title=', '.join(run.label for run in runs),
        verdict=_open_page(runs),
        version=__version__,
    )


def list_charts(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, Chart]]:
    """Every chart of the page with the name of its file, without an ending."""
    for number, run in enumerate(runs, start=1):
        label = ''.join(c if c.isalnum() or c in '._' else '-' for c in run.label)
        prefix = f'{number}-{label.strip("-.")}-' if len(runs) > 1 else ''
        for section in describe_run(run):
            if section.chart is not None:
                yield f'{prefix}{section.chart.name}', section.chart


def _open_page(runs: Sequence[ReportedRun]) -> Section:
    """The first section: a run's verdict, or how several compare."""
    if len(runs) == 1:
        return describe_run(runs[0])[0]
    known = [(run.label, run.answer.summary) for run in runs]
    rows = [
        (name, *(_setting(run.answer.summary, name) for run in runs))
        for name in _SETTINGS
    ]
    by_run = [{name: value for name, value, _ in list_figures(run)} for run in runs]
    for name in dict.fromkeys(name for figures in by_run for name in figures):
        rows.append((name, *(figures.get(name, 'unknown') for figures in by_run)))
    head = ['figure', *(run.label for run in runs)]
    return Section(
        _compare_speeds(known),
        'verdict',
        ['Whether they trained the same, and how sure that is: mmgpu compare.'],
        table=Table(head, rows, 'The runs side by side'),
        chart=run_charts.chart_ledger(known),
    )


def _setting(run: Run, name: str) -> str:
    value = getattr(run.run.loader, name)
    return 'none' if value is None else str(value)


def _compare_speeds(runs: Sequence[tuple[str, Run]]) -> str:
    """How many times as fast the fastest run is as the slowest, if that can be said."""
    rates = [(images_per_second(run), label) for label, run in runs]
    known = [(rate, label) for rate, label in rates if rate]
    if len(known) < 2:
        return 'The speeds of the runs cannot be compared.'
    (least, slow), (most, fast) = min(known), max(known)
    if most < 1.02 * least:
        return f'{len(runs)} runs side by side: all at about {most:.1f} images/s.'
    return (
        f'“{fast}” trains {most / least:.2f} times as fast as “{slow}”: '
        f'{least:.1f} → {most:.1f} images/s over the whole training.'
    )


def _group(runs: Sequence[ReportedRun]) -> Iterator[list[tuple[str, Section]]]:
    """The same section of each run with the run's label, in the order of the page."""
    described = [(run.label, describe_run(run)) for run in runs]
    for name in dict.fromkeys(s.name for _, sections in described for s in sections):
        group = [(label, s) for label, ss in described for s in ss if s.name == name]
        if name != 'verdict':
            yield group
        elif len(runs) > 1:
            # the figures of several runs stand in the first table
            yield [
                (label, Section('Verdicts', 'verdicts', [s.title, *s.sentences]))
                for label, s in group
            ]


def _style() -> str:
    light, dark = (
        ''.join(f'--{role}:{pair[is_dark]};' for role, pair in COLORS.items())
        for is_dark in (False, True)
    )
    return (
        f':root{{{light}}}\n'
        f'@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n'
        f'{_read_own("page.css")}'
    )


def _read_own(name: str) -> str:
    """A part of the page that is kept in its own language."""
    return files('mmgpu_hooks.show').joinpath(name).read_text(encoding='utf-8')
