"""A run as sections: the page has all of them, ``--details`` those without pictures."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Change, Finding, PlainRun, Prediction
from mmgpu_hooks.schema.parts import PARTS, UNATTRIBUTED
from mmgpu_hooks.show import run_charts
from mmgpu_hooks.show.document import Item, Section, Table, listing
from mmgpu_hooks.show.figures import (
    PART_NAMES,
    format_bytes,
    format_pct,
    format_seconds,
)
from mmgpu_hooks.show.recommendation import Answer, sentence_of
from mmgpu_hooks.show.run_text import (
    CAUSE_NAMES,
    describe_gpu,
    describe_host,
    describe_imbalance,
    describe_loader,
    describe_memory,
    describe_saves,
)

_HOOKS_NAMED = 3
_SHOWN_SHARE = 0.0005
"""Of the run: a part that took less is not worth a line."""


@dataclass(frozen=True)
class ReportedRun:
    """A run, judged; its answer has a summary, or it has a plain log, never both."""

    label: str
    """Short, and different from those of the runs beside it."""
    answer: Answer
    plain: PlainRun | None = None
    predictions: tuple[Prediction, ...] = ()
    """Of settings of the loader, the run's own among them."""
    why_no_predictions: str = ''


def label_runs(paths: list[str]) -> list[str]:
    """The last parts of the paths, as many as tell them apart.

    Args:
        paths: Folders or files, in the order of the runs.
    """
    parts = [path.rstrip('/').split('/') for path in paths]
    for depth in range(1, max((len(part) for part in parts), default=0) + 1):
        labels = ['/'.join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f'{number}: {path}' for number, path in enumerate(paths, start=1)]


def describe_run(reported: ReportedRun) -> list[Section]:
    """Every section of a run, in the order of the page."""
    answer, run = reported.answer, reported.answer.summary
    measured: list[Section | None] = []
    if run is not None:
        changes = answer.recommendation.changes
        measured = [
            time_section(run),
            Section('Over time', 'over-time', chart=run_charts.chart_timeline(run)),
            Section(
                'Other numbers of workers',
                'what-if',
                [reported.why_no_predictions] if not reported.predictions else (),
                table=_what_if_table(run, reported.predictions, changes),
                chart=run_charts.chart_what_if(run, reported.predictions, changes),
            ),
            loader_section(run),
            Section(
                'Memory',
                'memory',
                describe_memory(run),
                table=_memory_table(run),
                chart=run_charts.chart_memory(run),
            ),
            saves_section(answer, run),
            ranks_section(answer),
            host_section(run),
        ]
    sections: list[Section | None] = [
        _verdict_section(reported),
        changes_section(answer),
        *measured,
        findings_section(answer),
        *([_settings_section(answer, run.run)] if run is not None else []),
        *listing('Notes', list_notes(answer), 'notes'),
    ]
    return [section for section in sections if section is not None]


def detail_sections(answer: Answer) -> Iterator[Section]:
    """What ``mmgpu recommend --details`` adds."""
    run = answer.summary
    if run is not None:
        yield time_section(run)
        yield loader_section(run)
        yield Section('Memory', sentences=describe_memory(run))
        yield saves_section(answer, run)
        ranks = ranks_section(answer)
        if ranks is not None:
            yield ranks
        yield Section('Host', sentences=[describe_host(run), *describe_gpu(run)])
    findings = findings_section(answer)
    if findings is not None:
        yield findings
    cures = answer.recommendation.save_cures
    said = [sentence_of(cure.sentence) for cure in cures]
    yield from listing('What would make saves cost less', said)
    yield from listing('Advice, nothing of which is applied', list_advice(answer))


def list_advice(answer: Answer) -> list[str]:
    """What else would help."""
    validation = answer.recommendation.validation
    said = [f"Validation's loader: {validation.sentence}"] if validation else []
    return [*answer.recommendation.advice, *said]


def list_notes(answer: Answer) -> list[str]:
    """What was odd, and why figures are missing."""
    unknown = answer.summary.unknown.items() if answer.summary is not None else ()
    return [*answer.notes, *(f'{name} unknown: {why}' for name, why in unknown)]


def _verdict_section(reported: ReportedRun) -> Section:
    """The answer first: in a sentence, how sure it is, the figures it rests on."""
    verdict, run = reported.answer.diagnosis.verdict, reported.answer.summary
    basis = [f'{verdict.confidence} confidence']
    if run is not None:
        basis.append(f'{run.steady_iterations} steady iterations')
        basis.append(f'{run.status} after {run.iterations} iterations')
        if run.run.world_size > 1:
            basis.append(f'rank {run.run.rank} of {run.run.world_size}')
    elif reported.plain is not None:
        basis.append(f"{reported.plain.lines} lines of MMEngine's own log")
    return Section(
        verdict.sentence,
        'verdict',
        [' · '.join(basis)],
        figures=list(list_figures(reported)),
    )


def images_per_second(run: Run) -> float | None:
    """Images over the whole training, worker starts and everything else included."""
    batch = run.run.loader.batch_size
    if batch is None or run.duration_s <= 0:
        return None
    return run.iterations * batch / run.duration_s


def list_figures(reported: ReportedRun) -> Iterator[tuple[str, str, str]]:
    """The few figures that tell a run from another; unknown ones say so."""
    run, plain = reported.answer.summary, reported.plain
    if run is None:
        if plain is not None:
            note = f'median of {plain.lines} log lines'
            yield 'Iteration', format_seconds(plain.time_s), note
            yield 'data_time', format_seconds(plain.data_time_s), note
        return
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
    yield 'Training', format_seconds(run.duration_s), f'{run.saves} save(s)'


def changes_section(answer: Answer) -> Section:
    """Each recommended setting with its reason."""
    recommendation, run = answer.recommendation, answer.summary
    said, code = [], ''
    if not recommendation.changes:
        said.append(f'Nothing to change. {recommendation.reason or ""}'.rstrip())
    elif run is not None and run.run.work_dir is not None:
        code = f'mmgpu recommend {shlex.quote(run.run.work_dir)}'
    return Section(
        'What to change',
        'changes',
        said,
        items=[
            *(_change(change) for change in recommendation.changes),
            *(Item(sentence) for sentence in list_advice(answer)),
        ],
        code=code,
    )


def _change(change: Change) -> Item:
    facts = [f'{change.confidence} confidence', *change.rules]
    if change.predicted_iter_s is not None:
        predicted = format_seconds(change.predicted_iter_s)
        facts.insert(1, f'{predicted} per iteration predicted with all changes')
    old = 'not set' if change.old is None else change.old
    new = 'not set' if change.new is None else change.new
    return Item(
        sentence_of(change.reason),
        f'{change.key}: {old} → {new}',
        ' · '.join(facts),
        'change',
    )


def time_section(run: Run) -> Section:
    """The time ledger: every second of training, and hooks by class."""
    whole_s, count = run.duration_s, run.iterations

    def row(name: str, seconds: float, remark: str = '') -> tuple[str, ...]:
        share = f'{100 * seconds / whole_s:.1f} %' if whole_s > 0 else 'unknown'
        mean = format_seconds(seconds / count if count else None)
        return name, format_seconds(seconds), share, mean, remark

    seconds = {part: run.ledger_s.get(part, 0.0) for part in PARTS}
    rows = [
        row(PART_NAMES[part], seconds[part], _remark(part, run))
        for part in sorted(PARTS, key=lambda part: -seconds[part])
        if seconds[part] >= _SHOWN_SHARE * whole_s or part == 'other'
    ]
    rows.append(row('all', whole_s, f'{run.status} after {count} iterations'))
    hooks = [
        (name, format_seconds(cost.seconds), format_seconds(cost.iteration_s))
        for name, cost in run.hooks.items()
    ]
    rank = ''
    if run.run.world_size > 1:
        rank = f', rank {run.run.rank} of {run.run.world_size}'
    return Section(
        'Where the time went',
        'time',
        table=Table(
            ['part', 'time', 'share', 'per iteration', ''],
            rows,
            f'The whole training by part, {count} iterations{rank}',
        ),
        chart=run_charts.chart_ledger([('', run)]),
        parts=[
            Section(
                'Hooks by class',
                table=Table(
                    ['hook', 'whole run', 'per steady iteration'],
                    hooks,
                    'Hooks by class',
                ),
                chart=run_charts.chart_hooks(run),
            )
        ],
    )


def _remark(part: str, run: Run) -> str:
    if part == 'hooks':
        costs = [(n, c.seconds) for n, c in run.hooks.items() if n != UNATTRIBUTED]
        named = [f'{n} {format_seconds(s)}' for n, s in costs[:_HOOKS_NAMED]]
        return ', '.join(named)
    if part == 'loop' and run.run.loop == 'iter' and run.epoch_starts:
        return 'MMEngine pauses 2 s before each start of the loader but the first'
    return {
        'startup': f'{run.epoch_starts} start(s) of the loader',
        'resume': f'{run.run.start_iteration} batches of before are drawn again',
        'checkpoint_save': f'{run.saves} save(s)',
        'other': 'in none of the parts above',
    }.get(part, '')


def _what_if_table(
    run: Run, predictions: Sequence[Prediction], changes: Sequence[Change]
) -> Table:
    marked = run_charts.marked_workers(run, changes)
    rows = [
        (
            point.num_workers,
            marked.get(point.num_workers, ''),
            'none' if point.prefetch_factor is None else point.prefetch_factor,
            format_seconds(point.iter_time_s),
            f'{format_seconds(point.iter_time_low_s)} to '
            f'{format_seconds(point.iter_time_high_s)}',
            'unknown'
            if point.images_per_s is None
            else f'{point.images_per_s:.1f} images/s',
        )
        for point in run_charts.pick_points(predictions)
    ]
    head = ['num_workers', 'which', 'prefetch_factor', 'iteration', '9 times in 10']
    return Table([*head, 'speed'], rows, 'Predicted with other settings', texts=2)


def loader_section(run: Run) -> Section:
    """What making a batch costs."""
    loader, parts = run.loader, []
    if loader is not None and loader.transforms:
        rows = [(t.name, format_seconds(t.image_s), t.calls) for t in loader.transforms]
        caption = f'Time per image, {loader.timed_samples} timed samples'
        head = ['transform', 'per image', 'calls timed']
        parts.append(
            Section(
                'Transforms by cost',
                table=Table(head, rows, caption),
                chart=run_charts.chart_transforms(run),
            )
        )
    if loader is not None and loader.slowest:
        slow = [
            (str(one.index), one.image or 'unknown', format_seconds(one.seconds))
            for one in loader.slowest
        ]
        head = ['index in the data set', 'image', 'time to make']
        table = Table(head, slow, 'Slowest samples seen', texts=2)
        parts.append(Section('Slowest samples', table=table))
    title = 'Inside the loader'
    return Section(title, 'loader', describe_loader(run), parts=parts)


def _memory_table(run: Run) -> Table:
    rows = [
        (name, why, format_bytes(size))
        for name, _, size, why in run_charts.split_memory(run)
    ]
    return Table(['part', 'how it is known', 'size'], rows, 'Memory by part', texts=2)


def saves_section(answer: Answer, run: Run) -> Section:
    """Why saves took as long as they did."""
    judged = answer.diagnosis.saves
    slow = run_charts.list_slow_saves(run, judged)
    rows = [
        (
            run_charts.name_save(save),
            CAUSE_NAMES[entry.cause],
            *(
                format_seconds(seconds)
                for seconds in (
                    *(save.wall_s, entry.uncontended_s),
                    *(entry.gross_delay_s, entry.net_delay_s),
                )
            ),
        )
        for save, entry in slow
    ]
    head = ['save', 'cause', 'took', 'uncontended', 'longer (gross)', 'lost (net)']
    longest = [
        (
            run_charts.name_save(save),
            save.iteration,
            *map(
                format_seconds,
                (save.wall_s, save.cpu_s, save.run_delay_s, save.blocked_s),
            ),
            format_bytes(save.bytes),
        )
        for save in run_charts.longest_saves(run)
    ]
    heads = ['save', 'iteration', 'took', 'on a core', 'waiting for a core', 'blocked']
    parts = [
        Section(
            'Slow saves by cause',
            table=Table(head, rows, 'Slow saves', texts=2),
            chart=run_charts.chart_slow_saves(run, judged),
            items=[Item(entry.sentence) for _, entry in slow],
        ),
        Section(
            'Saves by what they waited for',
            table=Table([*heads, 'size'], longest, f'The {len(longest)} longest saves'),
            chart=run_charts.chart_save_waits(run),
        ),
    ]
    return Section(
        'Checkpoint saves',
        'saves',
        describe_saves(run, judged),
        parts=[part for part in parts if part.chart is not None],
    )


def ranks_section(answer: Answer) -> Section | None:
    """All ranks, and which one the others wait for; ``None`` of one."""
    ranks = answer.ranks
    if ranks is None:
        return None
    rows = []
    for row in run_charts.shown_ranks(ranks):
        slowest = ' (slowest)' if row.rank == ranks.slowest else ''
        parts = run_charts.rank_parts(row)
        seconds = map(format_seconds, (*parts.values(), row.own_s))
        rows.append((f'{row.rank}{slowest}', *seconds))
    head = ['rank', 'data wait', 'start-up', 'hooks', 'saves', 'step', 'its own']
    caption = f'Per iteration over {ranks.iterations}: {len(rows)} of {len(ranks.rows)}'
    return Section(
        'Ranks',
        'ranks',
        [ranks.why, *map(describe_imbalance, ranks.imbalance)],
        table=Table(head, rows, caption),
        chart=run_charts.chart_ranks(ranks),
    )


def host_section(run: Run) -> Section:
    """What the host allows, and what it went through."""
    host = run.run.host
    limits: list[tuple[str, Any]] = [
        ('logical CPUs', host.logical_cpus),
        ('CPUs by affinity', host.affinity_cpus),
        ('CPUs by cpuset', host.cpuset_cpus),
        ('CPUs by SLURM', host.slurm_cpus),
        ('CPU quota of the group, cores', host.cgroup_cpu_cores),
        ('usable cores', host.usable_cores),
        ('ranks on the host', host.ranks_on_host),
        ('memory', format_bytes(host.ram_total_bytes)),
        ('memory free at the start', format_bytes(host.ram_available_bytes)),
        ('memory limit of the group', format_bytes(host.cgroup_memory_bytes)),
        ('/dev/shm', format_bytes(host.shm_total_bytes)),
        ('/dev/shm free at the start', format_bytes(host.shm_free_bytes)),
        ('open files', host.open_files_soft),
    ]
    said = [describe_host(run), *describe_gpu(run)]
    parts = [_facts_part('What one rank may use', limits)]
    seen = run.host
    if seen is None:
        why = run.unknown.get('host', 'no interval has it')
        said.append(f'What the host went through is unknown: {why}.')
    else:
        shares = {
            'waiting for a core, some task': seen.cpu_pressure_pct,
            'waiting for storage, some task': seen.io_pressure_pct,
            'waiting for memory, some task': seen.memory_pressure_pct,
            'held back by the CPU quota': seen.throttled_pct,
        }
        rows: list[tuple[str, Any]] = [
            (name, None if share is None else format_pct(share))
            for name, share in shares.items()
        ]
        rows += [
            ('swapped in', format_bytes(seen.swap_in_bytes)),
            ('swapped out', format_bytes(seen.swap_out_bytes)),
            ('least memory free', format_bytes(seen.ram_available_bytes)),
            ('least of /dev/shm free', format_bytes(seen.shm_free_bytes)),
            ('most open files', seen.open_files),
        ]
        title = (
            f'What it went through, {format_seconds(seen.seconds)} of steady training'
        )
        parts.append(_facts_part(title, rows))
    return Section('The host', 'host', said, parts=parts)


def _facts_part(title: str, facts: Sequence[tuple[str, Any]]) -> Section:
    rows = [
        (name, f'{value:g}' if isinstance(value, float) else value)
        for name, value in facts
        if value not in (None, 'unknown')
    ]
    return Section(title, table=Table(['what', 'value'], rows, title))


def findings_section(answer: Answer) -> Section | None:
    """Each judgement with its numbers, and the text of its rule behind it."""
    findings = answer.diagnosis.findings
    items = [_finding(finding) for finding in findings]
    return Section('Findings', 'findings', items=items) if items else None


def _finding(finding: Finding) -> Item:
    share = ''
    if finding.share is not None:
        share = f' · {format_pct(100 * finding.share)} of the time'
    rule = RULES.get(finding.code)
    return Item(
        finding.detail,
        finding.title,
        f'{finding.code}{share}',
        finding.severity,
        rule.explanation.split('\n\n') if rule else (),
    )


def _settings_section(answer: Answer, run: Any) -> Section:
    """What the run was started with, as it was when it ran."""
    loader = run.loader
    rows = [
        ('num_workers', loader.num_workers),
        ('persistent_workers', loader.persistent_workers),
        ('prefetch_factor', loader.prefetch_factor),
        ('pin_memory', loader.pin_memory),
        ('batch_size per rank', loader.batch_size),
        ('batches per epoch', loader.batches_per_epoch),
        ('samples in the data set', loader.dataset_length),
        ('start method of workers', loader.start_method),
        ('loop', run.loop),
        ('epochs', run.max_epochs),
        ('iterations', run.max_iters),
        ('iterations before this run', run.start_iteration),
        ('gradients accumulated over', run.accumulative_counts),
        ('optimizer wrapper', run.optim_wrapper),
        ('device', run.gpu.name if run.gpu and run.gpu.name else run.device),
        ('ranks', run.world_size),
        ('config', run.config_path),
        ('work_dir', run.work_dir),
        ('versions', ', '.join(f'{n} {v}' for n, v in run.versions.items())),
        ('evidence', answer.run_path),
    ]
    shown = [(name, 'none' if value is None else value) for name, value in rows]
    caption = 'As the loader and the runner had them'
    table = Table(['setting', 'value'], shown, caption, texts=2)
    return Section('The run and its settings', 'settings', table=table)
