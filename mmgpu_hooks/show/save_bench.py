"""What ``mmgpu save-bench`` answers: for a terminal, as JSON, as a chart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from msgspec import structs

from mmgpu_hooks.schema import SaveBench, SaveBenchRow, SavePlan
from mmgpu_hooks.show.charts import Chart
from mmgpu_hooks.show.document import Section, Table, listing
from mmgpu_hooks.show.figures import format_bytes, format_seconds
from mmgpu_hooks.show.run_charts import WAITS, stack
from mmgpu_hooks.show.run_text import CAUSE_NAMES
from mmgpu_hooks.show.sweep import OTHERS_CORES, STATUS_WORDS
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

_COLUMNS = (
    'save\ns',
    'on a\ncore, s',
    'wants a\ncore, s',
    'blocked\ns',
    'workers\nbusy',
    'data\nwait, s',
    'gross\ns',
    'net\ns',
)


def render_save_bench_json(bench: SaveBench, config: str) -> str:
    """The answer as one JSON object; see ``docs/en/slow-saves.md``."""
    body = {'version': JSON_VERSION, 'config': config, **asdict(bench)}
    return json.dumps(body, indent=2, default=structs.asdict)


def render_save_bench(
    bench: SaveBench, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal.

    Args:
        bench: What was measured.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    title, *more = _sentences(bench)
    sections = [Section(title, sentences=more)]
    if bench.rows:
        sections += [Section(table=_table(bench)), Section(sentences=[_basis(bench)])]
    sections += listing('Notes', _notes(bench))
    return render(sections, width=width, color=color)


def render_save_plan(
    plans: Sequence[SavePlan],
    *,
    time_limit_s: float,
    checkpoint_bytes: int,
    folder: str,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """What would be run, and for how long.

    Args:
        plans: Of each setting.
        time_limit_s: Of each training.
        checkpoint_bytes: Estimated.
        folder: Where checkpoints would go.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    rows = [
        (plan.setting.name, plan.saves + 1, plan.interval, plan.iterations)
        for plan in plans
    ]
    whole = sum(plan.iterations for plan in plans)
    size = format_bytes(checkpoint_bytes)
    head = ['', 'saves', 'iterations between', 'iterations in all']
    title = f'Would train {len(plans)} setting(s), in random order:'
    sentence = (
        f'{whole} iterations and {len(plans)} starts, at most '
        f'{format_seconds(len(plans) * time_limit_s)} (--time-limit times '
        f'{len(plans)}). Checkpoints of about {size}, one at a time, in a temporary '
        f'folder in {folder}. Nothing was trained.'
    )
    sections = [Section(title, table=Table(head, rows)), Section(sentences=[sentence])]
    return render(sections, width=width, color=color)


def _sentences(bench: SaveBench) -> Iterator[str]:
    """The answer, then what belongs to it."""
    if bench.is_interrupted:
        done, asked = len(bench.rows), len(bench.order)
        yield f'Stopped when {done} of {asked} settings were trained.'
    reference = next((r for r in bench.rows if r.setting == bench.reference), None)
    if reference is None or reference.save_s is None:
        yield 'Cannot tell which number of workers is harmful: too few saves.'
        return
    beside = f'beside {reference.setting.name}'
    plain = [row for row in bench.rows if row.setting.worker_nice is None]
    compared = [row for row in plain if row.gross_s is not None]
    if bench.harmful_workers is not None:
        row = next(r for r in plain if r.setting.num_workers == bench.harmful_workers)
        yield (
            f'From {row.setting.name} on, saves are harmed: '
            f'{format_seconds(row.save_s)} instead of '
            f'{format_seconds(reference.save_s)} {beside}.'
        )
        yield f'{_delay(row)}{_held(row)}'
    elif compared and bench.is_told:
        longest = max(compared, key=lambda row: row.gross_s or 0.0)
        unknown = [row for row in plain if row.remark and row is not reference]
        none = 'No number of workers that could be judged' if unknown else 'None'
        yield (
            f'{none} was harmful: the longest saves, {_beside(longest)}, took '
            f'{format_seconds(longest.save_s)}, those {beside} '
            f'{format_seconds(reference.save_s)}.'
        )
    else:
        yield (
            f'Saves {beside} took {format_seconds(reference.save_s)}; there is nothing '
            'to set that against.'
        )
    yield from _niced(bench)


def _beside(row: SaveBenchRow) -> str:
    """``beside 8 workers``."""
    return f'beside {row.setting.name}'


def _delay(row: SaveBenchRow) -> str:
    gross_s, save_s = row.gross_s or 0.0, row.save_s or 0.0
    usual_s = save_s - gross_s
    pct = f' (+{100 * gross_s / usual_s:.0f} %)' if usual_s > 0 else ''
    text = (
        f'Training stood still {format_seconds(gross_s)}{pct} longer for each (gross)'
    )
    if row.net_s is None:
        return f'{text}; what the job lost (net) is not known.'
    return (
        f'{text}; the workers went on meanwhile, so the job lost '
        f'{format_seconds(row.net_s)} (net).'
    )


def _held(row: SaveBenchRow) -> str:
    if row.cause is None:
        return ''
    return f' {row.slow} of {len(row.saves)} were slow: {CAUSE_NAMES[row.cause]}.'


def _niced(bench: SaveBench) -> Iterator[str]:
    """What a nice value gave where it matters most."""
    plain = {r.setting.num_workers: r for r in bench.rows if not r.setting.worker_nice}
    niced = [r for r in bench.rows if r.setting.worker_nice and r.save_s is not None]
    pairs = [
        (plain[row.setting.num_workers], row)
        for row in niced
        if row.setting.num_workers in plain
    ]
    known = [(old, new) for old, new in pairs if old.save_s is not None]
    if not known:
        return
    old, new = max(known, key=lambda pair: pair[0].save_s or 0.0)
    yield (
        f'With worker_nice={new.setting.worker_nice}, a save {_beside(old)} took '
        f'{format_seconds(new.save_s)} instead of {format_seconds(old.save_s)}.'
    )


def _table(bench: SaveBench) -> Table:
    longest_s = max((row.save_s or 0.0 for row in bench.rows), default=0.0)
    digits = 3 if longest_s < 1 else 2

    def seconds(value: float | None) -> str:
        # a zero has no sign
        return '-' if value is None else f'{round(value, digits) + 0.0:.{digits}f}'

    rows = []
    for row in bench.rows:
        workers, nice = row.setting.num_workers, row.setting.worker_nice
        rows.append(
            (
                workers if nice is None else f'{workers} nice {nice}',
                *map(seconds, (row.save_s, row.cpu_s, row.run_delay_s, row.blocked_s)),
                '-' if row.workers_busy is None else f'{row.workers_busy:.1f}',
                *map(seconds, (row.data_wait_s, row.gross_s, row.net_s)),
                _verdict(row, bench),
            )
        )
    strong = [n for n, row in enumerate(bench.rows) if row.is_harmful]
    return Table(['workers', *_COLUMNS, ''], rows, strong=strong)


def _verdict(row: SaveBenchRow, bench: SaveBench) -> str:
    if row.setting == bench.reference:
        return 'reference'
    if row.is_harmful is not None:
        return 'harmful' if row.is_harmful else 'harmless'
    if not row.saves:
        return STATUS_WORDS.get(row.status, 'no saves')
    return 'cannot tell'


def _basis(bench: SaveBench) -> str:
    counts = [len(row.saves) for row in bench.rows if row.saves]
    few, many = min(counts, default=0), max(counts, default=0)
    count = str(many) if few == many else f'{few} to {many}'
    sizes = [row.bytes for row in bench.rows if row.bytes is not None]
    size = f' of {format_bytes(max(sizes))}' if sizes else ''
    return (
        f'Medians of {count} saves{size}, the first of each training left out. Gross '
        'is how much longer than the reference, net what the job lost of that; data '
        f'wait is per iteration. {len(bench.rows)} training(s) in random order, '
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
    busy = [row.strangers_cores for row in bench.rows if row.strangers_cores]
    if busy and max(busy) >= OTHERS_CORES:
        yield (
            f'Other programs used up to {max(busy):.1f} cores of the host during '
            'saves; repeat it when the host is calm.'
        )


def chart_save_bench(bench: SaveBench) -> Chart | None:
    """One bar a setting: the median save, by what the saving thread waited for."""
    bars = []
    for row in bench.rows:
        if row.save_s is None:
            continue
        known = [(words, role, getattr(row, field)) for words, field, role in WAITS]
        parts = [(words, role, value) for words, role, value in known if value]
        # medians of the parts need not add up to that of the whole
        whole_s = sum(value for _, _, value in parts)
        scale = row.save_s / whole_s if whole_s else 1.0
        parts = [(words, role, scale * value) for words, role, value in parts]
        parts = parts or [('unknown', 'other', row.save_s)]
        bars.append((row.setting.name, parts, format_seconds(row.save_s)))
    title = 'A save beside other numbers of workers'
    return stack('save-bench', title, bars, 'Medians: ')
