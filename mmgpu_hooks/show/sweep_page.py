"""A sweep as sections of a page: an answer, four questions with pictures, the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.schema.figures import format_bytes, format_seconds, plural
from mmgpu_hooks.schema.tried import MemoryLine, Sweep
from mmgpu_hooks.show import sweep_charts as charts
from mmgpu_hooks.show.document import KeyFigure, Section, Table
from mmgpu_hooks.show.experiments import describe_sweep


def describe_sweep_page(sweep: Sweep) -> list[Section]:
    """The verdict with its figures in large print first."""
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
        Section('All trials', 'trials', basis.sentences, table=table.table),
        *notes,
    ]


def _list_figures(sweep: Sweep) -> Iterator[KeyFigure]:
    rows = {row.setting: row for row in sweep.rows}
    trained = f'of {sweep.asked} settings, {format_seconds(sweep.seconds)}'
    yield KeyFigure('Trained', str(len(sweep.rows)), trained)
    for setting in sweep.best[:3]:
        row = rows[setting]
        assert row.iter_s is not None  # only measured ones are best
        name = 'Best' if setting.batch_size is None else f'Best of {setting.group}'
        count = f'{row.iterations} iterations'
        speed = f'{row.images_per_s:.1f} images/s, ' if row.images_per_s else ''
        workers = plural(setting.num_workers, 'worker')
        yield KeyFigure(name, workers, f'{speed}{count}')


def _memory_sections(sweep: Sweep) -> Iterator[Section]:
    title = 'Memory against batch size'
    if not sweep.memory_lines:
        why = 'A line needs two batch sizes whose memory was measured: add others with '
        yield Section(title, 'memory', [f'{why}--batch-size.'])
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
        group = f' ({line.group})' if line.group else ''
        name = f'memory-{number}' if number else 'memory'
        yield Section(
            f'{title}{group}',
            name,
            list(_say_memory(line)),
            table=_tabulate_memory(line),
            chart=charts.chart_memory(line, failed),
        )


def _say_memory(line: MemoryLine) -> Iterator[str]:
    yield (
        'Parameters, gradients and optimizer state are there for one image as for a '
        'hundred; only activations grow with the batch. So memory is a line that does '
        'not begin at zero.'
    )
    if line.source == 'host':
        yield (
            "No CUDA here: this is the training process in the host's memory, which "
            'also holds Python and its libraries. For a card, see mmgpu '
            'estimate-memory.'
        )
    else:
        yield (
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
    head = ['batch', 'parameters', 'gradients', 'optimizer state', 'the rest', 'all']
    return Table(head, rows, 'Memory by batch size, the most of its trials', 0)


def _utilisation_section(sweep: Sweep) -> Section:
    title, name = 'GPU utilisation over time', 'utilisation'
    chart = charts.chart_timelines(sweep)
    if chart is None:
        known = (row.gpu_unknown for row in sweep.rows if row.gpu_unknown)
        why = next(known, 'no trial recorded a sample')
        return Section(title, name, [f'Unknown: {why}.'])
    said = 'Each panel is a trial, at the same scale. The figures leave warm-up out; n '
    said += 'counts samples of NVML.'
    return Section(title, name, [said], chart=chart)


def _speed_section(sweep: Sweep) -> Section:
    title, name = 'Speed against workers', 'speed'
    chart = charts.chart_speed(sweep)
    if chart is None:
        return Section(title, name, ['Unknown: no trial was measured.'])
    said = 'The workers are spaced evenly. Best: the fewest workers within 2 % of the '
    said += 'fastest that this host carries, for each batch size.'
    return Section(title, name, [said], chart=chart)


def _saves_section(sweep: Sweep) -> Section:
    title, name = 'Checkpoint saves against workers', 'saves'
    chart = charts.chart_saves(sweep)
    if chart is None:
        known = (row.save_unknown for row in sweep.rows if row.save_unknown)
        why = next(known, 'no checkpoint was saved (--saves 0)')
        return Section(title, name, [f'Unknown: {why}.'])
    said = 'Made at the end of each trial while its workers run, a full queue apart. '
    said += 'More of them, and what they cost the job: mmgpu save-bench.'
    return Section(title, name, [said], chart=chart)
