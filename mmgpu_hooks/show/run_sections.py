"""A run as sections: the page has them below the verdict, ``--details`` as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mmgpu_hooks.judge.card_memory import find_card_figures
from mmgpu_hooks.judge.holders import find_shares
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation_parts import find_costs
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.predicted import predict_asked
from mmgpu_hooks.recommend.settings import BY_NAME, SETTINGS
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
    format_sum,
    plural,
)
from mmgpu_hooks.schema.recorded import PART_NAMES, UNATTRIBUTED, SaveRecord
from mmgpu_hooks.show import charts
from mmgpu_hooks.show.document import (
    Fact,
    Item,
    KeyFigure,
    Section,
    Table,
    TableColumn,
    list_facts,
    listing,
    tabulate,
)
from mmgpu_hooks.show.forecasts import tabulate_predictions
from mmgpu_hooks.show.recommendation import (
    describe_changes,
    describe_host_overhead,
    describe_hours,
    describe_mended,
    describe_next_job,
    describe_settings,
    describe_verdict,
    list_commands,
    sentence_of,
)
from mmgpu_hooks.show.start import list_start
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.validation import describe_validations, list_parts

_HOOKS_NAMED = 3
_SHOWN = 12
"""Rows at most: transforms, saves."""
_SHOWN_SHARE = 0.0005
"""Share of the run: a part that took less is not worth a line."""
_USUAL_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

_LOADER: Sequence[TableColumn] = (
    TableColumn('a batch takes', 'figures.loader.occupancy_s', format_seconds),
    TableColumn('CPU of it', 'figures.loader.batch_cpu_s', format_seconds),
    TableColumn('memory of all workers', 'figures.loader.pss_bytes', format_bytes),
)
_MEMORY: Sequence[TableColumn] = (
    TableColumn('allocated, peak', 'figures.gpu_mem_peak_bytes', format_bytes),
    TableColumn('reserved, peak', 'figures.gpu_mem_reserved_bytes', format_bytes),
    TableColumn('in use on the GPU', 'figures.gpu.mem_used_bytes', format_bytes),
    TableColumn('size of the GPU', 'meta.gpu.memory_total_bytes', format_bytes),
    TableColumn('training process', 'figures.process_rss_bytes', format_bytes),
    TableColumn('largest batch, pixels', 'figures.largest_batch_pixels', format_count),
    TableColumn('most boxes in a batch', 'figures.most_boxes', str),
)
_HOST: Sequence[TableColumn] = (
    TableColumn(
        'cores of other programs', 'figures.external_cpu_cores', '{:.1f}'.format
    ),
    TableColumn('usable cores', 'meta.host.usable_cores', '{:g}'.format),
    TableColumn('/dev/shm free, least', 'figures.shm_free_bytes', format_bytes),
    TableColumn('GPU idle in an iteration', 'figures.gpu_idle_pct', format_pct),
    TableColumn('GPU clock', 'figures.gpu.sm_clock_mhz', '{:.0f} MHz'.format),
    TableColumn(
        'GPU temperature, most', 'figures.gpu.temperature_c', '{:.0f} C'.format
    ),
    TableColumn('SMs active', 'figures.gpu.sm_active_pct', format_pct),
    TableColumn('clocks held down', 'figures.gpu.throttled_pct', format_pct),
    TableColumn('held down by', 'figures.gpu.throttle_reasons', ', '.join),
)


def _phrase_start(parts_s: Mapping[str, float]) -> str:
    """``13.4 s: imports 6.1 s, config 0.9 s, model 6.4 s``."""
    parts = (f'{part} {format_seconds(spent_s)}' for part, spent_s in parts_s.items())
    return f'{format_seconds(sum(parts_s.values()))}: {", ".join(parts)}'


_SETTINGS: Sequence[TableColumn] = (
    TableColumn('device', 'meta.device', str),
    TableColumn('GPU', 'meta.gpu.name', str),
    TableColumn('ranks', 'meta.world_size', str),
    TableColumn('config', 'meta.config_path', str),
    TableColumn('hook switched on by', 'meta.hook_added_by', str),
    TableColumn('start, before the hook', 'meta.before_hook_s', _phrase_start),
    TableColumn('evidence', 'path', str),
)


def describe_page(answer: Answer) -> list[Section]:
    """The sections of a page: the verdict with its figures in large print first."""
    figures = list(_list_figures(answer.summary))
    verdict = replace(describe_verdict(answer), figures=figures)
    hours = describe_hours(answer)
    return [verdict, *describe_run(answer), *hours, *describe_next_job(answer)]


def describe_details(answer: Answer) -> list[Section]:
    """The answer for a terminal with all that is known of the run.

    Beside verdict and changes these are the time ledger, the loader, memory, saves,
    ranks, the host, every finding and all advice.
    """
    commands = Section(code=list_commands(answer, details=True))
    sections = [*describe_run(answer), commands, *describe_hours(answer)]
    sections += describe_next_job(answer)
    # a chart alone, and that nothing is known of a part, is for the page
    shown = [section for section in sections if _has_words(section)]
    return [describe_verdict(answer), *shown]


def _has_words(section: Section) -> bool:
    return bool(
        (section.table is not None and section.table.rows)
        or section.sentences
        or section.facts
        or section.items
        or section.code
    )


def describe_run(answer: Answer) -> list[Section]:
    """Every section of a run below its verdict."""
    run, found = answer.summary, answer.recommendation
    cures = [sentence_of(cure.sentence) for cure in found.save_cures]
    advice = list(found.advice)
    if found.validation is not None:
        advice.append(f"Validation's loader: {found.validation.sentence}")
    versions = ', '.join(
        f'{name} {version}' for name, version in run.meta.versions.items()
    )
    settings = [*list_facts(run, _SETTINGS), Fact('versions', versions)]
    unknown = [f'{name} unknown: {why}' for name, why in run.figures.unknown.items()]
    memory, growth = list_facts(run, _MEMORY), charts.chart_growth(run)
    grows = [growth.description] if growth else []
    card, shares = find_card_figures(run), find_shares(run)
    if card is not None:
        grows.append(card.sentence)
    if shares is not None:
        grows.append(
            sentence_of(f"the host's memory when it was fullest, {shares.sentence}")
        )
    said = [describe_settings(run)]
    return [
        describe_changes(answer, 'What to change', every=True),
        *describe_mended(answer),
        *describe_host_overhead(answer, every=True),
        _time_section(run),
        *list_start(run),
        Section('Over time', 'over-time', chart=charts.chart_timeline(run)),
        _what_if_section(answer, run),
        _loader_section(run),
        *listing('Tuned while it trained', [*list_tuned(run.evidence)], 'tuned'),
        Section('Memory', 'memory', grows, facts=memory, chart=growth),
        *describe_validations(find_costs(run)),
        _saves_section(run),
        *_ranks_section(answer),
        Section('The host', 'host', facts=list_facts(run, _HOST)),
        _findings_section(answer),
        *listing('What would make saves cost less', cures, 'save-cures'),
        *listing('Advice, not applied', advice, 'advice'),
        Section('The run and its settings', 'settings', said, facts=settings),
        *listing('Notes', [*answer.notes, *unknown], 'notes'),
    ]


def _list_figures(run: Run) -> Iterator[KeyFigure]:
    """The few figures by which runs differ; unknown ones say so."""
    figures, parts = run.figures, run.figures.per_iteration
    steady = f'mean of {figures.steady_iterations} iterations'
    yield KeyFigure('Iteration', format_seconds(figures.iter_s), steady)
    share = steady
    if parts and parts.total_s:
        share = f'{format_pct(100 * parts.data_wait_share)} of an iteration'
    wait_s, step_s = (parts.data_wait_s, parts.step_s) if parts else (None, None)
    yield KeyFigure('Data wait', format_seconds(wait_s), share)
    yield KeyFigure('Step', format_seconds(step_s), steady)
    gpu = figures.gpu
    if gpu is None or gpu.util_pct is None:
        yield KeyFigure('GPU', 'unknown', figures.why_no_gpu_util)
    else:
        basis = f'utilisation, {gpu.samples} samples'
        yield KeyFigure('GPU', f'{gpu.util_pct:.0f} %', basis)
    if figures.gpu_mem_peak_bytes is not None:
        peak = format_bytes(figures.gpu_mem_peak_bytes)
        yield KeyFigure('GPU memory', peak, 'peak, allocated')
    ended = f'{run.status} after {plural(figures.iterations, "iteration")}'
    yield KeyFigure('Training', format_seconds(figures.duration_s), ended)


def _time_section(run: Run) -> Section:
    """The time ledger: every second of training."""
    # without an interval both are 0
    figures = run.figures
    whole_s, count = figures.duration_s, figures.iterations
    parts = sorted(figures.ledger_s.items(), key=lambda part: -part[1])
    hooks = [(name, s) for name, s in figures.by_hook_s.items() if name != UNATTRIBUTED]
    named = {
        'hooks': ', '.join(f'{n} {format_seconds(s)}' for n, s in hooks[:_HOOKS_NAMED])
    }
    costs = find_costs(run)
    if costs is not None:
        named['validation'] = ', '.join(list_parts(costs, format_sum))
    rows = [
        (
            PART_NAMES.get(part, part),
            format_seconds(seconds),
            f'{100 * seconds / whole_s:.1f} %' if whole_s else 'unknown',
            format_seconds(seconds / count if count else None),
            named.get(part, ''),
        )
        for part, seconds in [*parts, ('all', whole_s)]
        if seconds >= _SHOWN_SHARE * whole_s
    ]
    head = ['part', 'time', 'share', 'per iteration', '']
    caption = f'The whole training by part, {figures.iterations} iterations'
    chart, table = charts.chart_ledger(run), Table(head, rows, caption)
    return Section('Where the time went', 'time', table=table, chart=chart)


def _what_if_section(answer: Answer, run: Run) -> Section:
    """What `mmgpu predict` says of each number of workers."""
    workload, workers = run.workload, BY_NAME['num_workers']
    title = 'Other numbers of workers'
    if workload is None:
        return Section(title, 'what-if', [run.why_no_workload])
    marked = {workers.read(run): 'now'}
    for change in answer.recommendation.changes:
        if change.key == workers.key():
            marked[change.new] = 'new'
    usual = {n for n in _USUAL_WORKERS if n < workload.usable_cores + 1}
    job = Job.of(run, workload, SETTINGS)
    points = predict_asked(job, {workers.name: sorted(usual | {*marked})}).predictions
    table = tabulate_predictions(points, workload.batch_size, marked)
    chart = charts.chart_forecast(points, marked, run.figures.iter_s)
    return Section(title, 'what-if', table=table, chart=chart)


def _loader_section(run: Run) -> Section:
    """The cost of a batch, and of each transform."""
    costs = run.transforms[:_SHOWN]
    rows = [(cost.name, format_seconds(cost.image_s)) for cost in costs]
    table = Table(['transform', 'per image'], rows, 'Mean time per timed image')
    facts = list_facts(run, _LOADER)
    return Section('Inside the loader', 'loader', facts=facts, table=table)


def _saves_section(run: Run) -> Section:
    """Table of the saves and their waits, the longest first."""
    figures = run.figures
    if not figures.saves and not run.save_records:
        return Section('Checkpoint saves', 'saves', ['No checkpoint was saved.'])
    whole = format_seconds(figures.ledger_s.get('checkpoint_save'))
    said = [f'{plural(figures.saves, "save")} took {whole} in all.']
    failed = [save.error for save in run.save_records if save.error is not None]
    if failed:
        said.append(f'{len(failed)} failed, the last with {failed[-1]}.')
    longest = sorted(run.save_records, key=lambda save: -save.wall_s)[:_SHOWN]
    columns: Sequence[TableColumn] = (
        TableColumn('save', '', _name_save),
        TableColumn('took', 'wall_s', format_seconds),
        TableColumn('on a core', 'cpu_s', format_seconds),
        TableColumn('waits for one', 'run_delay_s', format_seconds),
        TableColumn('blocked', 'blocked_s', format_seconds),
    )
    table = tabulate(longest, columns, f'The {len(longest)} longest saves', 1)
    return Section('Checkpoint saves', 'saves', said, table=table)


def _name_save(save: SaveRecord) -> str:
    return save.name or f'iteration {save.iteration}'


def _ranks_section(answer: Answer) -> list[Section]:
    """An iteration of each rank by part, and which one the others wait for."""
    ranks = answer.ranks
    if ranks is None:
        return []

    def name_rank(number: int) -> str:
        return f'{number} (slowest)' if number == ranks.slowest else str(number)

    columns: Sequence[TableColumn] = (
        TableColumn('rank', 'rank', name_rank),
        TableColumn('data wait', 'data_wait_s', format_seconds),
        TableColumn('start-up', 'startup_s', format_seconds),
        TableColumn('hooks', 'hooks_s', format_seconds),
        TableColumn('saves', 'save_s', format_seconds),
        TableColumn('step', 'step_s', format_seconds),
        TableColumn('its own', 'own_s', format_seconds),
        TableColumn('GPU', 'gpu_util_pct', format_pct),
    )
    caption = f'Per iteration, mean of {ranks.iterations}'
    table = tabulate(ranks.rows, columns, caption, 1)
    return [Section('Ranks', 'ranks', [ranks.why], table=table)]


def _findings_section(answer: Answer) -> Section:
    """Each judgement with its numbers; ``mmgpu explain`` has what its rule says."""
    items = []
    for finding in answer.diagnosis.findings:
        basis = finding.code
        if finding.share is not None:
            basis += f' · {format_pct(100 * finding.share)} of the time'
        items.append(Item(finding.detail, finding.title, basis, finding.severity))
    more = (
        ['What a rule looks for and what helps: mmgpu explain CODE.'] if items else []
    )
    return Section('Findings', 'findings', more, items=items)
