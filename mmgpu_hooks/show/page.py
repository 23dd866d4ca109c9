"""One run or several as a page: one file, no script, no request to anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show import run_charts
from mmgpu_hooks.show.charts import COLORS, Chart, can_draw, draw_inline
from mmgpu_hooks.show.document import Section, Table
from mmgpu_hooks.show.escaping import visible
from mmgpu_hooks.show.figures import bind_units
from mmgpu_hooks.show.run_sections import (
    ReportedRun,
    describe_run,
    images_per_second,
    list_figures,
)
from mmgpu_hooks.show.terminal import SIGNS
from mmgpu_hooks.version import __version__

GENERATOR = 'mmgpu_hooks'
"""By which a page is known as one of ours."""

_NO_BREAK = '\u00a0'
_SETTINGS = ('num_workers', 'persistent_workers', 'prefetch_factor', 'batch_size')
_NO_CHARTS = (
    'Charts are left out, because matplotlib is not installed: their figures stand in '
    "tables. To have them: pip install 'mmgpu_hooks[plots]'"
)

Group = list[tuple[str, Section]]
"""The same section of each run, with the runs' labels."""


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

    numbers = iter(range(1, 10_000))

    def draw(chart: Chart) -> Markup:
        # matplotlib escapes what it writes
        return Markup(draw_inline(chart, f'c{next(numbers)}'))

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    style = _style()
    digest = hashlib.sha256(style.encode()).digest()
    template = environment.from_string(_read_own('page.html'))
    return template.render(
        can_draw=can_draw(),
        digest=base64.b64encode(digest).decode('ascii'),
        draw=draw,
        generator=f'{GENERATOR} {__version__}',
        groups=list(_group(runs)),
        no_charts=_NO_CHARTS,
        signs=SIGNS,
        several=len(runs) > 1,
        style=Markup(style),
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
            for part in (section, *section.parts):
                if part.chart is not None:
                    yield f'{prefix}{part.chart.name}', part.chart


def _open_page(runs: Sequence[ReportedRun]) -> Section:
    """The first section: a run's verdict, or how several compare."""
    if len(runs) == 1:
        return describe_run(runs[0])[0]
    known = [(r.label, r.answer.summary) for r in runs if r.answer.summary is not None]
    rows = [
        (name, *(_setting(run.answer.summary, name) for run in runs))
        for name in _SETTINGS
    ]
    by_run = [{name: value for name, value, _ in list_figures(run)} for run in runs]
    for name in dict.fromkeys(name for figures in by_run for name in figures):
        rows.append((name, *(figures.get(name, 'unknown') for figures in by_run)))
    head = ['figure', *(run.label for run in runs)]
    return Section(
        compare_runs(runs),
        'verdict',
        _differences([run for _, run in known]),
        table=Table(head, rows, 'The runs side by side'),
        chart=run_charts.chart_ledger(known),
    )


def _setting(run: Run | None, name: str) -> str:
    value = getattr(run.run.loader, name) if run is not None else 'unknown'
    return 'none' if value is None else str(value)


def compare_runs(runs: Sequence[ReportedRun]) -> str:
    """How many times as fast the fastest run is as the slowest, if that can be said."""
    rates = [
        (images_per_second(run.answer.summary), run.label)
        for run in runs
        if run.answer.summary is not None
    ]
    known = [(rate, label) for rate, label in rates if rate]
    if len(known) < 2:
        return f'{len(runs)} runs side by side; their speeds cannot be compared.'
    (least, slow), (most, fast) = min(known), max(known)
    if most < 1.02 * least:
        return f'{len(runs)} runs side by side: all at about {most:.1f} images/s.'
    return (
        f'“{fast}” trains {most / least:.2f} times as fast as “{slow}”: '
        f'{least:.1f} → {most:.1f} images/s over the whole training.'
    )


def _differences(runs: Sequence[Run]) -> list[str]:
    """A caution where the runs did not train the same thing."""
    compared: dict[str, list[object]] = {
        'the length of the data set': [run.run.loader.dataset_length for run in runs],
        'the batch size': [run.run.loader.batch_size for run in runs],
        'the number of ranks': [run.run.world_size for run in runs],
        'the device': [r.run.gpu.name if r.run.gpu else r.run.device for r in runs],
        'the config': [run.run.config_path for run in runs],
    }
    differing = [name for name, values in compared.items() if len(set(values)) > 1]
    return [f'They differ in {", ".join(differing)}.'] if differing else []


def _group(runs: Sequence[ReportedRun]) -> Iterator[Group]:
    """Sections of the same name together, in the order of the page."""
    described = [(run.label, describe_run(run)) for run in runs]
    names = dict.fromkeys(s.name for _, sections in described for s in sections)
    if len(runs) == 1:
        names.pop('verdict')
    for name in names:
        group = [(label, s) for label, ss in described for s in ss if s.name == name]
        if name == 'verdict':
            # the figures of several runs stand in the first table
            group = [
                (label, replace(s, title='Verdicts', name='verdicts', figures=(),
                                sentences=[s.title, *s.sentences]))
                for label, s in group
            ]  # fmt: skip
        yield group


@cache
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
