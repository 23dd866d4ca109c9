"""A run as sections: the page has all of them, ``--details`` those that explain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.policy import WORKERS_KEY
from mmgpu_hooks.schema.parts import UNATTRIBUTED
from mmgpu_hooks.schema.recorded import SaveRecord
from mmgpu_hooks.show import run_charts
from mmgpu_hooks.show.comparison import images_per_second
from mmgpu_hooks.show.document import (
    Column,
    Item,
    Section,
    Table,
    list_facts,
    listing,
    tabulate,
)
from mmgpu_hooks.show.experiments import CAUSE_NAMES
from mmgpu_hooks.show.figures import (
    PART_NAMES,
    format_bytes,
    format_count,
    format_interval,
    format_pct,
    format_seconds,
    plural,
)
from mmgpu_hooks.show.recommendation import (
    Answer,
    describe_fitted,
    describe_settings,
    sentence_of,
    value_of,
)

_HOOKS_NAMED = 3
_SHOWN = 12
"""Rows at most: transforms, saves."""
_SHOWN_SHARE = 0.0005
"""Of the run: a part that took less is not worth a line."""


def describe_run(answer: Answer) -> list[Section]:
    """Every section of a run, in the order of the page."""
    run = answer.summary
    time, *others = _measured_sections(answer, run)
    over_time = Section('Over time', 'over-time', chart=run_charts.chart_timeline(run))
    growth = run_charts.chart_growth(run)
    if growth is not None:
        said = [growth.description]
        others.append(Section(growth.title, 'memory-growth', said, chart=growth))
    versions = ', '.join(f'{name} {one}' for name, one in run.run.versions.items())
    facts = [*list_facts(run, _SETTINGS), ('versions', versions)]
    title = 'The run and its settings'
    return [
        _verdict_section(answer, run),
        _changes_section(answer, run),
        time,
        over_time,
        _what_if_section(answer, run),
        *others,
        _findings_section(answer),
        Section(title, 'settings', [describe_settings(run)], facts=facts),
        *listing('Notes', list_notes(answer), 'notes'),
    ]


def list_notes(answer: Answer) -> list[str]:
    """What was odd, and why figures are missing."""
    unknown = answer.summary.unknown.items()
    return [*answer.notes, *(f'{name} unknown: {why}' for name, why in unknown)]


def detail_sections(answer: Answer) -> Iterator[Section]:
    """What ``mmgpu recommend --details`` adds."""
    yield from _measured_sections(answer, answer.summary)
    yield _findings_section(answer)
    cures = answer.recommendation.save_cures
    said = [sentence_of(cure.sentence) for cure in cures]
    yield from listing('What would make saves cost less', said)
    yield from listing('Advice, nothing of which is applied', _list_advice(answer))
    facts = [('evidence', answer.run_path), *describe_fitted(answer.fitted)]
    yield Section('Notes', facts=facts, items=[*map(Item, list_notes(answer))])


def _measured_sections(answer: Answer, run: Run) -> list[Section]:
    return [
        _time_section(run),
        _loader_section(run),
        Section('Memory', 'memory', facts=list(list_facts(run, _MEMORY))),
        _saves_section(answer, run),
        *_ranks_section(answer),
        Section('The host', 'host', facts=list(list_facts(run, _HOST))),
    ]


def _verdict_section(answer: Answer, run: Run) -> Section:
    """The answer first: in a sentence, how sure it is, the figures it rests on."""
    verdict = answer.diagnosis.verdict
    basis = [
        f'{verdict.confidence} confidence',
        f'{run.steady_iterations} steady iterations',
        f'{run.status} after {run.iterations} iterations',
    ]
    if run.run.world_size > 1:
        basis.append(f'rank {run.run.rank} of {run.run.world_size}')
    figures = list(_list_figures(run))
    return Section(verdict.sentence, 'verdict', [' · '.join(basis)], figures)


def _list_figures(run: Run) -> Iterator[tuple[str, str, str]]:
    """The few figures by which runs differ; unknown ones say so."""
    steady = f'mean of {run.steady_iterations} iterations'
    yield 'Iteration', format_seconds(run.iter_s), steady
    share = 'per iteration'
    if run.data_wait_s is not None and run.iter_s:
        share = f'{format_pct(100 * run.data_wait_s / run.iter_s)} of an iteration'
    yield 'Data wait', format_seconds(run.data_wait_s), share
    yield 'Step', format_seconds(run.step_s), steady
    rate = images_per_second(run)
    words = 'unknown' if rate is None else f'{rate:.1f} images/s'
    ranks = ', per rank' if run.run.world_size > 1 else ''
    yield 'Speed', words, f'whole training{ranks}'
    gpu = run.gpu
    if gpu is None or gpu.util_pct is None:
        yield 'GPU', 'unknown', run.why_no_gpu_util
    else:
        zero = '' if gpu.zero_pct is None else f', {format_pct(gpu.zero_pct)} at zero'
        note = f'utilisation{zero}, {gpu.samples} samples'
        yield 'GPU', f'{gpu.util_pct:.0f} %', note
    if run.gpu_mem_peak_bytes is not None:
        reserved = f'{format_bytes(run.gpu_mem_reserved_bytes)} reserved'
        yield 'Peak memory', format_bytes(run.gpu_mem_peak_bytes), reserved
    yield 'Training', format_seconds(run.duration_s), plural(run.saves, 'save')


def _changes_section(answer: Answer, run: Run) -> Section:
    """Each recommended setting with its reason."""
    found = answer.recommendation
    items, said, code = [], [], ''
    for change in found.changes:
        basis = [f'{change.confidence} confidence', *change.rules]
        if change.predicted_iter_s is not None:
            predicted = format_seconds(change.predicted_iter_s)
            basis.insert(1, f'{predicted} per iteration predicted with all changes')
        title = f'{change.key}: {value_of(change.old)} → {value_of(change.new)}'
        reason = sentence_of(change.reason)
        items.append(Item(reason, title, ' · '.join(basis), 'change'))
    if not found.changes:
        said = [f'Nothing to change. {found.reason or ""}'.rstrip()]
    elif run.run.work_dir is not None:
        code = f'mmgpu recommend {shlex.quote(run.run.work_dir)}'
    items += map(Item, _list_advice(answer))
    return Section('What to change', 'changes', said, items=items, code=code)


def _list_advice(answer: Answer) -> list[str]:
    validation = answer.recommendation.validation
    said = [f"Validation's loader: {validation.sentence}"] if validation else []
    return [*answer.recommendation.advice, *said]


def _time_section(run: Run) -> Section:
    """The time ledger: every second of training."""
    whole_s, count = run.duration_s, run.iterations
    costs = [(name, s) for name, s in run.hooks.items() if name != UNATTRIBUTED]
    named = ', '.join(f'{n} {format_seconds(s)}' for n, s in costs[:_HOOKS_NAMED])
    parts = [
        (part, seconds)
        for part, seconds in sorted(run.ledger_s.items(), key=lambda one: -one[1])
        if seconds >= _SHOWN_SHARE * whole_s
    ]
    rows = [
        (
            PART_NAMES.get(part, part),
            format_seconds(part_s),
            f'{100 * part_s / whole_s:.1f} %' if whole_s > 0 else 'unknown',
            format_seconds(part_s / count if count else None),
            named if part == 'hooks' else '',
        )
        for part, part_s in (*parts, ('all', whole_s))
    ]
    head = ['part', 'time', 'share', 'per iteration', '']
    caption = f'The whole training by part, {count} iterations'
    return Section(
        'Where the time went',
        'time',
        table=Table(head, rows, caption),
        chart=run_charts.chart_ledger(run),
    )


def _what_if_section(answer: Answer, run: Run) -> Section:
    """The prediction for each number of workers."""
    points = answer.predictions
    marked = {run.run.loader.num_workers or 0: 'now'}
    for change in answer.recommendation.changes:
        if change.key == WORKERS_KEY and isinstance(change.new, int):
            marked[change.new] = 'recommended'
    columns: Sequence[Column] = (
        ('num_workers', 'num_workers', str),
        ('which', 'num_workers', lambda workers: marked.get(workers, '')),
        ('iteration', 'iter_time_s', format_seconds),
        ('9 in 10 within', '', format_interval),
        ('images/s', 'images_per_s', '{:.1f}'.format),
    )
    return Section(
        'Other numbers of workers',
        'what-if',
        [] if points else [run.why_no_workload],
        table=tabulate(points, columns, 'Predicted with other settings', 2),
        chart=run_charts.chart_what_if(run, points, marked),
    )


_LOADER: Sequence[Column] = (
    ('a batch takes', 'loader.occupancy_s', format_seconds),
    ('95th percentile', 'loader.occupancy_p95_s', format_seconds),
    ('CPU of it', 'loader.batch_cpu_s', format_seconds),
    ('memory of all workers', 'loader.pss_bytes', format_bytes),
)
_MEMORY: Sequence[Column] = (
    ('allocated, peak', 'gpu_mem_peak_bytes', format_bytes),
    ('reserved, peak', 'gpu_mem_reserved_bytes', format_bytes),
    ('in use on the GPU', 'gpu.mem_used_bytes', format_bytes),
    ('size of the GPU', 'run.gpu.memory_total_bytes', format_bytes),
    ('training process', 'process_rss_bytes', format_bytes),
    ('largest batch, pixels', 'largest_batch_pixels', format_count),
    ('most boxes in a batch', 'most_boxes', str),
)
_HOST: Sequence[Column] = (
    ('cores of the training process', 'process_cpu_cores', '{:.2f}'.format),
    ('cores of other programs', 'external_cpu_cores', '{:.1f}'.format),
    ('usable cores', 'run.host.usable_cores', '{:g}'.format),
    ('memory', 'run.host.ram_total_bytes', format_bytes),
    ('memory free, least', 'host.ram_available_bytes', format_bytes),
    ('/dev/shm', 'run.host.shm_total_bytes', format_bytes),
    ('/dev/shm free, least', 'host.shm_free_bytes', format_bytes),
    ('GPU idle in an iteration', 'gpu_idle_pct', format_pct),
    ('GPU clock', 'gpu.sm_clock_mhz', '{:.0f} MHz'.format),
    ('GPU temperature, most', 'gpu.temperature_c', '{:.0f} C'.format),
    ('SMs active', 'gpu.sm_active_pct', format_pct),
    ('clocks held down', 'gpu.throttled_pct', format_pct),
    ('held down by', 'gpu.throttle_reasons_pct', ', '.join),
)
_SETTINGS: Sequence[Column] = (
    ('start of workers', 'run.loader.start_method', str),
    ('samples', 'run.loader.dataset_length', str),
    ('epochs', 'run.max_epochs', str),
    ('iterations', 'run.max_iters', str),
    ('device', 'run.device', str),
    ('GPU', 'run.gpu.name', str),
    ('ranks', 'run.world_size', str),
    ('config', 'run.config_path', str),
    ('work_dir', 'run.work_dir', str),
    ('evidence', 'path', str),
)


def _loader_section(run: Run) -> Section:
    """What making a batch costs, and by transform."""
    loader = run.loader
    costs, said = [], []
    if loader is not None and loader.timed_samples:
        costs = [(t.name, t.image_s) for t in loader.transforms if t.image_s]
    if loader is not None and loader.slowest:
        slow = loader.slowest
        image = f', image {slow.image}' if slow.image else ''
        took = format_seconds(slow.seconds)
        said = [f'Slowest sample {took}: index {slow.index}{image}.']
    rows = [(name, format_seconds(seconds)) for name, seconds in costs[:_SHOWN]]
    return Section(
        'Inside the loader',
        'loader',
        said,
        facts=list(list_facts(run, _LOADER)),
        table=Table(['transform', 'per image'], rows, 'Mean time per timed image'),
    )


def _saves_section(answer: Answer, run: Run) -> Section:
    """How long saves took and waited, the longest first; slow ones with their cause."""
    saves, judged = run.save_records, answer.diagnosis.saves
    if not run.saves and not saves:
        return Section('Checkpoint saves', 'saves', ['No checkpoint was saved.'])
    whole = format_seconds(run.ledger_s.get('checkpoint_save'))
    said = [f'{plural(run.saves, "save")} took {whole} in all.']
    failed = [save.error for save in saves if save.error is not None]
    if failed:
        said.append(f'{len(failed)} failed, the last with {failed[-1]}.')
    longest = sorted(saves, key=lambda save: -save.wall_s)[:_SHOWN]
    held = {}
    # judgements may be those of another rank's saves
    for save, one in zip(saves, judged if len(judged) == len(saves) else ()):
        if one.is_slow:
            delay = format_seconds(one.gross_delay_s)
            held[id(save)] = f'{delay} {CAUSE_NAMES[one.cause]}'
    columns: Sequence[Column] = (
        ('save', '', _name_save),
        ('took', 'wall_s', format_seconds),
        ('on a core', 'cpu_s', format_seconds),
        ('waits for one', 'run_delay_s', format_seconds),
        ('blocked', 'blocked_s', format_seconds),
        ('held up', '', lambda save: held.get(id(save), '')),
    )
    table = tabulate(longest, columns, f'The {len(longest)} longest saves', 1)
    return Section('Checkpoint saves', 'saves', said, table=table)


def _name_save(save: SaveRecord) -> str:
    return save.name or f'{save.occasion}, iteration {save.iteration}'


def _ranks_section(answer: Answer) -> list[Section]:
    """An iteration of each rank by part, and which one the others wait for."""
    ranks = answer.ranks
    if ranks is None:
        return []
    columns: Sequence[Column] = (
        ('rank', 'rank', lambda n: f'{n}{" (slowest)" if n == ranks.slowest else ""}'),
        ('data wait', 'data_wait_s', format_seconds),
        ('start-up', 'startup_s', format_seconds),
        ('hooks', 'hooks_s', format_seconds),
        ('saves', 'save_s', format_seconds),
        ('step', 'step_s', format_seconds),
        ('its own', 'own_s', format_seconds),
        ('GPU', 'gpu_util_pct', format_pct),
    )
    caption = f'Per iteration, mean of {ranks.iterations}'
    table = tabulate(ranks.rows, columns, caption, 1)
    return [Section('Ranks', 'ranks', [ranks.why], table=table)]


def _findings_section(answer: Answer) -> Section:
    """Each judgement with its numbers, and the text of its rule behind it."""
    items = []
    for one in answer.diagnosis.findings:
        share = one.share
        basis = '' if share is None else f' · {format_pct(100 * share)} of the time'
        rule = RULES.get(one.code)
        more = rule.explanation.split('\n\n') if rule else ()
        items.append(Item(one.detail, one.title, one.code + basis, one.severity, more))
    return Section('Findings', 'findings', items=items)
