"""Renders one run as sections, for its HTML page and ``mmgpu recommend --details``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mmgpu_hooks.judge.card_memory import find_card_figures
from mmgpu_hooks.judge.holders import find_shares
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation_parts import find_costs, list_parts
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.predicted import predict_asked
from mmgpu_hooks.recommend.settings import BY_NAME, SETTINGS
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
)
from mmgpu_hooks.schema.recorded import PART_NAMES, UNATTRIBUTED, SaveRecord
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted
from mmgpu_hooks.show import charts
from mmgpu_hooks.show.document import (
    BLANK,
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
)
from mmgpu_hooks.show.start import list_start
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.validation import describe_validations
from mmgpu_hooks.show.words import phrase_status

_HOOKS_NAMED = 3
_SHOWN = 12
"""Maximum number of rows in the tables of transforms and of saves."""
_SHOWN_SHARE = 0.0005
"""Smallest share (0 to 1) of the run's time at which a ledger part is shown."""
_USUAL_WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

_LOADER: Sequence[TableColumn] = (
    TableColumn(phrase('a batch takes'), 'figures.loader.batch_time_s', format_seconds),
    TableColumn(phrase('CPU of it'), 'figures.loader.batch_cpu_s', format_seconds),
    TableColumn(
        phrase('memory of all workers'), 'figures.loader.pss_bytes', format_bytes
    ),
)
_MEMORY: Sequence[TableColumn] = (
    TableColumn(phrase('allocated, peak'), 'figures.gpu_mem_peak_bytes', format_bytes),
    TableColumn(
        phrase('reserved, peak'), 'figures.gpu_mem_reserved_bytes', format_bytes
    ),
    TableColumn(
        phrase('in use on the GPU'), 'figures.gpu.mem_used_bytes', format_bytes
    ),
    TableColumn(phrase('size of the GPU'), 'meta.gpu.memory_total_bytes', format_bytes),
    TableColumn(phrase('training process'), 'figures.process_rss_bytes', format_bytes),
    TableColumn(
        phrase('largest batch, pixels'), 'figures.largest_batch_pixels', format_count
    ),
    TableColumn(phrase('most boxes in a batch'), 'figures.most_boxes', str),
)
_HOST: Sequence[TableColumn] = (
    TableColumn(
        phrase('cores of other programs'), 'figures.external_cpu_cores', '{:.1f}'.format
    ),
    TableColumn(phrase('usable cores'), 'meta.host.usable_cores', '{:g}'.format),
    TableColumn(phrase('/dev/shm free, least'), 'figures.shm_free_bytes', format_bytes),
    TableColumn(phrase('GPU idle in an iteration'), 'figures.gpu_idle_pct', format_pct),
    TableColumn(phrase('GPU clock'), 'figures.gpu.sm_clock_mhz', '{:.0f} MHz'.format),
    TableColumn(
        phrase('GPU temperature, most'), 'figures.gpu.temperature_c', '{:.0f} C'.format
    ),
    TableColumn(phrase('SMs active'), 'figures.gpu.sm_active_pct', format_pct),
    TableColumn(phrase('clocks held down'), 'figures.gpu.throttled_pct', format_pct),
    TableColumn(phrase('held down by'), 'figures.gpu.throttle_reasons', ', '.join),
)


def _phrase_start(parts_s: Mapping[str, float]) -> Text:
    """Phrases a start's seconds by part: ``13.4 s: imports 6.1 s, model 6.4 s``."""
    return phrase(
        '{whole_s}: {parts}',
        whole_s=sum(parts_s.values()),
        parts=tuple(
            f'{part} {format_seconds(spent_s)}' for part, spent_s in parts_s.items()
        ),
    )


_SETTINGS: Sequence[TableColumn] = (
    TableColumn(phrase('device'), 'meta.device', str),
    TableColumn(phrase('GPU'), 'meta.gpu.name', str),
    TableColumn(phrase('ranks'), 'meta.world_size', str),
    TableColumn(phrase('config'), 'meta.config_path', str),
    TableColumn(phrase('hook switched on by'), 'meta.hook_added_by', str),
    TableColumn(phrase('start, before the hook'), 'meta.before_hook_s', _phrase_start),
    TableColumn(phrase('evidence'), 'path', str),
)


def describe_page(answer: Answer) -> list[Section]:
    """Makes the sections of a run's page, beginning with verdict and key figures."""
    figures = list(_list_figures(answer.summary))
    verdict = replace(describe_verdict(answer), figures=figures)
    hours = describe_hours(answer)
    return [verdict, *describe_run(answer), *hours, *describe_next_job(answer)]


def describe_details(answer: Answer) -> list[Section]:
    """Makes terminal sections with every measurement and judgement of the run.

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
    """Makes all sections of a run except for the verdict."""
    run, found = answer.summary, answer.recommendation
    cures = [cure.sentence for cure in found.save_cures]
    advice = list(found.advice)
    if found.validation is not None:
        advice.append(phrase("Validation's loader: {sentence}", found.validation))
    versions = listed(
        f'{name} {version}' for name, version in run.meta.versions.items()
    )
    settings = [*list_facts(run, _SETTINGS), Fact(phrase('versions'), versions)]
    unknown = [
        phrase('{figure} unknown: {reason}', figure=name, reason=why)
        for name, why in run.figures.unknown.items()
    ]
    memory, growth = list_facts(run, _MEMORY), charts.chart_growth(run)
    grows: list[Text] = [growth.description] if growth else []
    card, shares = find_card_figures(run), find_shares(run)
    if card is not None:
        grows.append(card.sentence)
    if shares is not None:
        grows.append(
            phrase("The host's memory when it was fullest, of {shares}.", shares)
        )
    said = [describe_settings(run)]
    return [
        describe_changes(answer, phrase('What to change'), every=True),
        *describe_mended(answer),
        *describe_host_overhead(answer, every=True),
        _time_section(run),
        *list_start(run),
        Section(phrase('Over time'), 'over-time', chart=charts.chart_timeline(run)),
        _what_if_section(answer, run),
        _loader_section(run),
        *listing(
            phrase('Tuned while it trained'), [*list_tuned(run.evidence)], 'tuned'
        ),
        Section(phrase('Memory'), 'memory', grows, facts=memory, chart=growth),
        *describe_validations(find_costs(run)),
        _saves_section(run),
        *_ranks_section(answer),
        Section(phrase('The host'), 'host', facts=list_facts(run, _HOST)),
        _findings_section(answer),
        *listing(phrase('What would make saves cost less'), cures, 'save-cures'),
        *listing(phrase('Advice, not applied'), advice, 'advice'),
        Section(phrase('The run and its settings'), 'settings', said, facts=settings),
        *listing(phrase('Notes'), [*answer.notes, *unknown], 'notes'),
    ]


def _list_figures(run: Run) -> Iterator[KeyFigure]:
    """Yields key figures of a run's page; unknown ones are shown as unknown."""
    figures, parts = run.figures, run.figures.per_iteration
    steady = phrase('mean of {steady_iterations}', figures)
    yield KeyFigure(phrase('Iteration'), format_seconds(figures.iter_s), steady)
    share = steady
    if parts and parts.total_s:
        share = phrase(
            '{data_wait_pct:exact} of an iteration',
            data_wait_pct=100 * parts.data_wait_share,
        )
    wait_s, step_s = (parts.data_wait_s, parts.step_s) if parts else (None, None)
    yield KeyFigure(phrase('Data wait'), format_seconds(wait_s), share)
    yield KeyFigure(phrase('Step'), format_seconds(step_s), steady)
    gpu = figures.gpu
    if gpu is None or gpu.util_pct is None:
        yield KeyFigure(phrase('GPU'), phrase('unknown'), figures.why_no_gpu_util)
    else:
        basis = phrase('utilisation, {samples}', gpu)
        yield KeyFigure(phrase('GPU'), f'{gpu.util_pct:.0f} %', basis)
    if figures.gpu_mem_peak_bytes is not None:
        peak = format_bytes(figures.gpu_mem_peak_bytes)
        yield KeyFigure(phrase('GPU memory'), peak, phrase('peak, allocated'))
    ended = phrase(
        '{status} after {iterations}', figures, status=phrase_status(run.status)
    )
    yield KeyFigure(phrase('Training'), format_seconds(figures.duration_s), ended)


def _time_section(run: Run) -> Section:
    """Makes the section with the time ledger: the run's seconds by part."""
    # without an interval both are 0
    figures = run.figures
    whole_s, count = figures.duration_s, figures.iterations
    parts = sorted(figures.ledger_s.items(), key=lambda part: -part[1])
    hooks = [(name, s) for name, s in figures.by_hook_s.items() if name != UNATTRIBUTED]
    named: dict[str, str] = {
        'hooks': ', '.join(f'{n} {format_seconds(s)}' for n, s in hooks[:_HOOKS_NAMED])
    }
    costs = find_costs(run)
    if costs is not None:
        named['validation'] = listed(list_parts(costs))
    rows = [
        (
            PART_NAMES.get(part, part),
            format_seconds(seconds),
            f'{100 * seconds / whole_s:.1f} %' if whole_s else phrase('unknown'),
            format_seconds(seconds / count if count else None),
            named.get(part, ''),
        )
        for part, seconds in [*parts, (phrase('all'), whole_s)]
        if seconds >= _SHOWN_SHARE * whole_s
    ]
    head = [
        phrase('part'),
        phrase('time'),
        phrase('share'),
        phrase('per iteration'),
        BLANK,
    ]
    caption = phrase('The whole training by part, {iterations}', figures)
    chart, table = charts.chart_ledger(run), Table(head, rows, caption)
    return Section(phrase('Where the time went'), 'time', table=table, chart=chart)


def _what_if_section(answer: Answer, run: Run) -> Section:
    """Makes the section of predicted iteration times for other numbers of workers."""
    workload, workers = run.workload, BY_NAME['num_workers']
    title = phrase('Other numbers of workers')
    if workload is None:
        return Section(title, 'what-if', [run.why_no_workload])
    marked = {workers.read(run): phrase('now')}
    for change in answer.recommendation.changes:
        if change.key == workers.key():
            marked[change.new] = phrase('new')
    usual = {n for n in _USUAL_WORKERS if n < workload.usable_cores + 1}
    job = Job.of(run, workload, SETTINGS)
    points = predict_asked(job, {workers.name: sorted(usual | {*marked})}).predictions
    table = tabulate_predictions(points, workload.batch_size, marked)
    chart = charts.chart_forecast(points, marked, run.figures.iter_s)
    return Section(title, 'what-if', table=table, chart=chart)


def _loader_section(run: Run) -> Section:
    """Makes the section with the seconds of loading a batch, and of each transform."""
    costs = run.transforms[:_SHOWN]
    rows = [(cost.name, format_seconds(cost.image_s)) for cost in costs]
    head = [phrase('transform'), phrase('per image')]
    table = Table(head, rows, phrase('Mean time per timed image'))
    facts = list_facts(run, _LOADER)
    return Section(phrase('Inside the loader'), 'loader', facts=facts, table=table)


def _saves_section(run: Run) -> Section:
    """Makes the section of checkpoint saves and their waits, longest save first."""
    figures = run.figures
    if not figures.saves and not run.save_records:
        nothing = phrase('No checkpoint was saved.')
        return Section(phrase('Checkpoint saves'), 'saves', [nothing])
    said = [
        phrase(
            '{saves} took {whole_s} in all.',
            saves=figures.saves,
            whole_s=figures.ledger_s.get('checkpoint_save'),
        )
    ]
    failed = [save.error for save in run.save_records if save.error is not None]
    if failed:
        said.append(
            phrase(
                '{failed} failed, the last with {error}.',
                failed=len(failed),
                error=failed[-1],
            )
        )
    longest = sorted(run.save_records, key=lambda save: -save.wall_s)[:_SHOWN]
    columns: Sequence[TableColumn] = (
        TableColumn(phrase('save'), '', _name_save),
        TableColumn(phrase('took'), 'wall_s', format_seconds),
        TableColumn(phrase('on a core'), 'cpu_s', format_seconds),
        TableColumn(phrase('waits for one'), 'run_delay_s', format_seconds),
        TableColumn(phrase('blocked'), 'blocked_s', format_seconds),
    )
    caption = phrase('The {shown_saves:d} longest saves', shown_saves=len(longest))
    table = tabulate(longest, columns, caption, 1)
    return Section(phrase('Checkpoint saves'), 'saves', said, table=table)


def _name_save(save: SaveRecord) -> Text:
    return quoted(save.name) if save.name else phrase('iteration {iteration}', save)


def _ranks_section(answer: Answer) -> list[Section]:
    """Makes the section of iteration seconds by part and rank, and the slowest rank."""
    ranks = answer.ranks
    if ranks is None:
        return []

    def name_rank(number: int) -> Text:
        if number == ranks.slowest:
            return phrase('{rank} (slowest)', rank=number)
        return quoted(str(number))

    columns: Sequence[TableColumn] = (
        TableColumn(phrase('rank'), 'rank', name_rank),
        TableColumn(phrase('data wait'), 'data_wait_s', format_seconds),
        TableColumn(phrase('start-up'), 'startup_s', format_seconds),
        TableColumn(phrase('hooks'), 'hooks_s', format_seconds),
        TableColumn(phrase('saves'), 'save_s', format_seconds),
        TableColumn(phrase('step'), 'step_s', format_seconds),
        TableColumn(phrase('its own'), 'own_s', format_seconds),
        TableColumn(phrase('GPU'), 'gpu_util_pct', format_pct),
    )
    caption = phrase('Per iteration, mean of {iterations:d}', ranks)
    table = tabulate(ranks.rows, columns, caption, 1)
    return [Section(phrase('Ranks'), 'ranks', [ranks.why], table=table)]


def _findings_section(answer: Answer) -> Section:
    """Makes the section of findings: share of training time, rule code and sentence."""
    items = []
    for finding in answer.diagnosis.findings:
        basis = quoted(finding.code)
        if finding.share is not None:
            basis = phrase(
                '{code} · {share_pct:exact} of the time',
                code=finding.code,
                share_pct=100 * finding.share,
            )
        items.append(Item(finding.detail, finding.title, basis, finding.severity))
    more = [phrase('What a rule looks for and what helps: mmgpu explain CODE.')]
    return Section(phrase('Findings'), 'findings', more if items else (), items=items)
