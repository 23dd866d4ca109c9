"""What ``mmgpu save-bench`` answers: for a terminal, as JSON, as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mmgpu_hooks.schema import SaveBench, SaveBenchRow, SavePlan, SaveSetting
from mmgpu_hooks.show.document import (
    Column,
    Section,
    Table,
    listing,
    tabulate,
    to_json,
)
from mmgpu_hooks.show.figures import format_bytes, format_seconds, format_signed
from mmgpu_hooks.show.run_sections import CAUSE_NAMES
from mmgpu_hooks.show.sweep import OTHERS_CORES, STATUS_WORDS
from mmgpu_hooks.show.terminal import render


def render_save_bench_json(bench: SaveBench, config: str) -> str:
    """The answer as one JSON object; see ``docs/en/slow-saves.md``."""
    return to_json(config=config, **vars(bench))


def render_save_bench(bench: SaveBench, **layout: Any) -> str:
    """The answer for a terminal.

    Args:
        bench: What was measured.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    title, *more = _sentences(bench)
    sections = [Section(title, sentences=more)]
    if bench.rows:
        sections += [Section(table=_table(bench)), Section(sentences=[_basis(bench)])]
    sections += listing('Notes', _notes(bench))
    return render(sections, **layout)


def render_save_plan(
    plans: Sequence[SavePlan],
    *,
    time_limit_s: float,
    checkpoint_bytes: int,
    folder: str,
    **layout: Any,
) -> str:
    """What would be run, and for how long.

    Args:
        plans: Of each setting.
        time_limit_s: Of each training.
        checkpoint_bytes: Estimated.
        folder: Where checkpoints would go.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    rows = [
        (plan.setting.name, plan.saves + 1, plan.interval, plan.iterations)
        for plan in plans
    ]
    head = ['', 'saves', 'iterations between', 'iterations in all']
    title = f'Would train {len(plans)} setting(s), in random order:'
    sentence = (
        f'{sum(plan.iterations for plan in plans)} iterations and {len(plans)} starts, '
        f'at most {format_seconds(len(plans) * time_limit_s)} (--time-limit times '
        f'{len(plans)}). Checkpoints of about {format_bytes(checkpoint_bytes)}, one at '
        f'a time, in a temporary folder in {folder}. Nothing was trained.'
    )
    sections = [Section(title, table=Table(head, rows)), Section(sentences=[sentence])]
    return render(sections, **layout)


def _sentences(bench: SaveBench) -> Iterator[str]:
    """The answer, then what belongs to it."""
    if bench.is_interrupted:
        yield f'Stopped when {len(bench.rows)} of {bench.asked} settings were trained.'
    reference = next((r for r in bench.rows if r.setting == bench.reference), None)
    if reference is None or reference.save_s is None:
        yield 'Cannot tell which number of workers is harmful: too few saves.'
        return
    plain = [row for row in bench.rows if row.setting.worker_nice is None]
    compared = [row for row in plain if row.gross_s is not None]
    usual = f'{format_seconds(reference.save_s)} beside {reference.setting.name}'
    if bench.harmful_workers is not None:
        row = next(r for r in plain if r.setting.num_workers == bench.harmful_workers)
        took = format_seconds(row.save_s)
        yield f'From {row.setting.name} on, saves are harmed: {took}, not {usual}.'
        held = CAUSE_NAMES[row.cause] or 'not proven'
        yield (
            f'Training stood still {format_seconds(row.gross_s)} longer for each '
            f'(gross), and the job lost {format_seconds(row.net_s)} (net). '
            f'{row.slow} of {len(row.saves)} were slow; cause: {held}.'
        )
    elif compared and bench.is_told:
        longest = max(compared, key=lambda row: row.gross_s or 0.0)
        is_whole = all(row.remark is None for row in plain if row is not reference)
        none = 'None' if is_whole else 'No number of workers that could be judged'
        took = f'{longest.setting.name}, took {format_seconds(longest.save_s)}'
        yield f'{none} was harmful: the longest saves, beside {took}, not {usual}.'
    else:
        yield f'Saves took {usual}; there is nothing to set that against.'


def _table(bench: SaveBench) -> Table:
    columns: Sequence[Column] = (
        ('workers', 'setting', _name),
        ('save', 'save_s', format_seconds),
        ('on a\ncore', 'cpu_s', format_seconds),
        ('waits\nfor one', 'run_delay_s', format_seconds),
        ('blocked', 'blocked_s', format_seconds),
        ('data\nwait', 'data_wait_s', format_seconds),
        ('gross', 'gross_s', format_signed),
        ('net', 'net_s', format_signed),
        ('', '', lambda row: _verdict(row, bench)),
    )
    strong = [n for n, row in enumerate(bench.rows) if row.is_harmful]
    return tabulate(bench.rows, columns, strong=strong)


def _name(setting: SaveSetting) -> str:
    nice = '' if setting.worker_nice is None else f' nice {setting.worker_nice}'
    return f'{setting.num_workers}{nice}'


def _verdict(row: SaveBenchRow, bench: SaveBench) -> str:
    if row.setting == bench.reference:
        return 'reference'
    if row.is_harmful is not None:
        return 'harmful' if row.is_harmful else 'harmless'
    return 'cannot tell' if row.saves else STATUS_WORDS.get(row.status, 'no saves')


def _basis(bench: SaveBench) -> str:
    counts = [len(row.saves) for row in bench.rows if row.saves]
    few, many = min(counts, default=0), max(counts, default=0)
    count = f'{many}' if few == many else f'{few} to {many}'
    return (
        f'Medians of {count} saves, the first of each training left out. Gross is how '
        'much longer than the reference, net what the job lost of that; data wait is '
        f'per iteration. {len(bench.rows)} training(s) in random order, '
        f'{format_seconds(bench.seconds)} in all.'
    )


def _notes(bench: SaveBench) -> Iterator[str]:
    for row in bench.rows:
        name = row.setting.name.capitalize()
        if row.status != 'completed':
            words = STATUS_WORDS.get(row.status, row.status)
            why = f' ({row.error})' if row.error else ''
            yield f'{name}: {words}{why}, {len(row.saves)} save(s) measured until then.'
        elif row.remark is not None:
            yield f'{name}: {row.remark}.'
    others = max((row.strangers_cores or 0.0 for row in bench.rows), default=0.0)
    if others >= OTHERS_CORES:
        yield (
            f'Other programs used up to {others:.1f} cores of the host during saves; '
            'repeat it when the host is calm.'
        )
