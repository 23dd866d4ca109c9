"""Renders a sweep as sections of a page: best settings, four charts, table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.schema.figures import format_bytes
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import MemoryLine, Sweep
from mmgpu_hooks.show import sweep_charts as charts
from mmgpu_hooks.show.document import KeyFigure, Section, Table
from mmgpu_hooks.show.experiments import describe_sweep


def describe_sweep_page(sweep: Sweep) -> list[Section]:
    """Makes the sections of a sweep's page; best settings and key figures first."""
    title, *below = describe_sweep(sweep)
    figures = list(_list_figures(sweep))
    verdict = Section(title.title, 'verdict', title.sentences, figures)
    notes = [replace(section, name='notes') for section in below if section.items]
    if not sweep.rows:
        return [verdict, *notes]
    table, basis = below[:2]
    return [
        verdict,
        *_memory_sections(sweep),
        _utilisation_section(sweep),
        _speed_section(sweep),
        _saves_section(sweep),
        Section(phrase('All trials'), 'trials', basis.sentences, table=table.table),
        *notes,
    ]


def _list_figures(sweep: Sweep) -> Iterator[KeyFigure]:
    rows = {row.setting: row for row in sweep.rows}
    trained = phrase(
        'of {settings}, {whole_s}', settings=sweep.asked, whole_s=sweep.seconds
    )
    yield KeyFigure(phrase('Trained'), str(len(sweep.rows)), trained)
    for setting in sweep.best[:3]:
        row = rows[setting]
        assert row.iter_s is not None  # only measured ones are best
        name = phrase('Best')
        if setting.batch_size is not None:
            name = phrase('Best of {group}', setting)
        basis = phrase('{iterations}', row)
        if row.images_per_s:
            basis = phrase('{images_per_s:.1f} images/s, {iterations}', row)
        workers = phrase('{workers}', workers=setting.num_workers)
        yield KeyFigure(name, workers, basis)


def _memory_sections(sweep: Sweep) -> Iterator[Section]:
    title = phrase('Memory against batch size')
    if not sweep.memory_lines:
        why = phrase(
            'A line needs two batch sizes whose memory was measured: add others with '
            '--batch-size.'
        )
        yield Section(title, 'memory', [why])
        return
    for number, line in enumerate(sweep.memory_lines):
        failed = sorted(
            {
                row.setting.batch_size
                for row in sweep.rows
                if row.status == 'out_of_memory' and row.setting.batch_size is not None
            }
            - {point.batch_size for point in line.points}
        )
        name = f'memory-{number}' if number else 'memory'
        yield Section(
            phrase('Memory against batch size ({group})', line)
            if line.group
            else title,
            name,
            list(_say_memory(line)),
            table=_tabulate_memory(line),
            chart=charts.chart_memory(line, failed),
        )


def _say_memory(line: MemoryLine) -> Iterator[Text]:
    yield phrase(
        'Parameters, gradients and optimizer state are there for one image as for a '
        'hundred; only activations grow with the batch. So memory is a line that does '
        'not begin at zero.'
    )
    if line.source == 'host':
        yield phrase(
            "No CUDA here: this is the training process in the host's memory, which "
            'also holds Python and its libraries. For a card, see mmgpu '
            'estimate-memory.'
        )
    else:
        yield phrase(
            "The peak of CUDA's allocator; the CUDA context (300 to 600 MiB) comes on "
            'top of it, so nvidia-smi shows more.'
        )


def _tabulate_memory(line: MemoryLine) -> Table:
    rows = []
    for point in line.points:
        model = point.model_bytes
        parts: tuple[str, ...] = ('-',) * 3
        if model is not None:
            counted = (model.parameters, model.gradients, model.optimizer_state)
            parts = tuple(map(format_bytes, counted))
        rest = point.total_bytes - (model.total if model else 0)
        sizes = format_bytes(max(rest, 0)), format_bytes(point.total_bytes)
        rows.append((str(point.batch_size), *parts, *sizes))
    head = [
        phrase('batch'),
        phrase('parameters'),
        phrase('gradients'),
        phrase('optimizer state'),
        phrase('the rest'),
        phrase('all'),
    ]
    return Table(head, rows, phrase('Memory by batch size, the most of its trials'), 0)


def _utilisation_section(sweep: Sweep) -> Section:
    title, name = phrase('GPU utilisation over time'), 'utilisation'
    chart = charts.chart_timelines(sweep)
    if chart is None:
        known = (row.gpu_unknown for row in sweep.rows if row.gpu_unknown)
        why = next(known, phrase('no trial recorded a sample'))
        return Section(title, name, [phrase('Unknown: {reason}.', reason=why)])
    said = phrase(
        'Each panel is a trial, at the same scale. The figures leave warm-up out; n '
        'counts samples of NVML.'
    )
    return Section(title, name, [said], chart=chart)


def _speed_section(sweep: Sweep) -> Section:
    title, name = phrase('Speed against workers'), 'speed'
    chart = charts.chart_speed(sweep)
    if chart is None:
        return Section(title, name, [phrase('Unknown: no trial was measured.')])
    said = phrase(
        'The workers are spaced evenly. Best: the fewest workers within 2 % of the '
        'fastest that this host carries, for each batch size.'
    )
    return Section(title, name, [said], chart=chart)


def _saves_section(sweep: Sweep) -> Section:
    title, name = phrase('Checkpoint saves against workers'), 'saves'
    chart = charts.chart_saves(sweep)
    if chart is None:
        known = (row.save_unknown for row in sweep.rows if row.save_unknown)
        why = next(known, phrase('no checkpoint was saved (--saves 0)'))
        return Section(title, name, [phrase('Unknown: {reason}.', reason=why)])
    said = phrase(
        'Made at the end of each trial while its workers run, a full queue apart. More '
        'of them, and what they cost the job: mmgpu save-bench.'
    )
    return Section(title, name, [said], chart=chart)
