"""Answers of short trainings: sweeps, benches of saves, verifications, profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.saves import DELAY_CAUSES
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_pct,
    format_seconds,
    format_signed,
    format_sum,
    plural,
)
from mmgpu_hooks.schema.judged import Estimate, MetricCheck, Verification
from mmgpu_hooks.schema.tried import (
    SIDES,
    Profile,
    SaveBench,
    SaveBenchRow,
    Sweep,
    SweepRow,
)
from mmgpu_hooks.show.document import (
    Fact,
    Section,
    Table,
    TableColumn,
    compose,
    listing,
    tabulate,
    tabulate_setting,
)
from mmgpu_hooks.show.text import short_path

_OTHERS_CORES = 0.25
"""Cores that other programs used, from which a note says so."""


def _show_half_width(iter_s: Estimate) -> str:
    """Half of the interval in per cent of the mean."""
    return f'{100 * iter_s.half_width / iter_s.value:.1f}'


_SWEEP_COLUMNS: Sequence[TableColumn] = (
    TableColumn('workers', 'setting.num_workers', str),
    TableColumn('batch', 'setting.batch_size', str),
    TableColumn('iteration', 'iter_s.value', format_seconds),
    TableColumn('+-\n%', 'iter_s', _show_half_width),
    TableColumn('data\nwait', 'data_wait_s', format_seconds),
    TableColumn('images\n/s', 'images_per_s', '{:.1f}'.format),
    TableColumn('GPU\n%', 'gpu_util_pct', '{:.0f}'.format),
    TableColumn('memory', 'memory_peak_bytes', format_bytes),
    TableColumn('CPU\ncores', 'cpu_cores', '{:.1f}'.format),
)


def describe_sweep(sweep: Sweep) -> list[Section]:
    """The fastest setting, then a line a trial; the best stand out."""
    rows = sweep.rows

    def judge(row: SweepRow) -> str:
        """The best, or why a trial cannot be it."""
        if row.is_measured and row.exceeds_host:
            return 'beyond the host'
        if row.status != 'completed' or not row.is_measured:
            return 'too short' if row.status == 'completed' else _status(row)
        return 'best' * (row.setting in sweep.best)

    best = [n for n, row in enumerate(rows) if row.setting in sweep.best]
    workers, batch, *figures = _SWEEP_COLUMNS
    varied = [tabulate_setting(name, 'setting.values') for name in _list_varied(rows)]
    columns = [workers, batch, *varied, *figures, TableColumn('', '', judge)]
    table = tabulate(rows, columns, strong=best)
    took, count = format_seconds(sweep.seconds), plural(len(rows), 'trial')
    basis = f'{count} in random order, {took}. +-: 95 % interval of the mean.'
    return compose(_sweep_sentences(sweep), table, [basis], _sweep_notes(sweep))


def _list_varied(rows: Sequence[SweepRow]) -> list[str]:
    """Settings of which there are several values, but those of every table."""
    others = dict.fromkeys(name for row in rows for name in row.setting.others)
    return [
        name
        for name in ('prefetch_factor', 'pin_memory', *others)
        if len({row.setting.values.get(name) for row in rows} - {None}) > 1
    ]


def _status(row: SweepRow | SaveBenchRow) -> str:
    return row.status.replace('_', ' ')


def _sweep_sentences(sweep: Sweep) -> Iterator[str]:
    """The answer, then what belongs to it."""
    if sweep.is_interrupted:
        yield f'Stopped when {len(sweep.rows)} of {sweep.asked} settings were trained.'
    elif not sweep.best:
        yield 'No setting can be recommended: none that this host carries was measured.'
    rows = {row.setting: row for row in sweep.rows}
    for word, setting in zip(('Fastest that this host carries', 'Next'), sweep.best):
        row = rows[setting]
        assert row.iter_s is not None  # only measured ones are best
        value, half = map(format_seconds, (row.iter_s.value, row.iter_s.half_width))
        speed = f'{row.images_per_s:.1f} images/s, ' if row.images_per_s else ''
        yield f'{word}: {setting.name}: {speed}{value} +- {half} per iteration.'
    if sweep.best and (rivals := sweep.find_rivals(rows[sweep.best[0]])):
        names = ', '.join(rival.setting.name for rival in rivals)
        unsure = f'Not sure: its interval overlaps that of {names}'
        yield f'{unsure}; measure for longer with --seconds.'
    if len(sweep.best) > 1:
        recipe = 'The batch size belongs to the recipe (learning rate, schedule)'
        yield f'{recipe}: choose it first, then its fastest setting.'


def _sweep_notes(sweep: Sweep) -> Iterator[str]:
    rows = sweep.rows
    for row in rows:
        if row.error is not None:
            yield f'{row.setting.name}: {_status(row)} ({row.error}).'
    # what others used differs from trial to trial: one reason is enough
    beyond = {
        row.most_workers: row.most_workers_reason for row in rows if row.exceeds_host
    }
    for most, reason in beyond.items():
        count = plural(most or 0, 'worker')
        yield f'More than {count} are more than this host carries: {reason}.'
    yield from _others_cores([row.external_cpu_cores for row in rows])
    yield from sweep.notes


def _others_cores(used: Sequence[float | None]) -> Iterator[str]:
    most = max((cores for cores in used if cores is not None), default=0.0)
    if most >= _OTHERS_CORES:
        beside = f'Other programs used up to {most:.1f} cores of the host meanwhile'
        yield f'{beside}; repeat it with --fresh when the host is calm.'


_SAVE_COLUMNS: Sequence[TableColumn] = (
    TableColumn('workers', 'num_workers', str),
    TableColumn('saves', 'saves', lambda saves: str(len(saves))),
    TableColumn('save', 'save_s', format_seconds),
    TableColumn('on a\ncore', 'cpu_s', format_seconds),
    TableColumn('waits\nfor one', 'run_delay_s', format_seconds),
    TableColumn('blocked', 'blocked_s', format_seconds),
    TableColumn('gross', 'gross_s', format_signed),
    TableColumn('net', 'net_s', format_signed),
)


def describe_save_bench(bench: SaveBench) -> list[Section]:
    """From which number of workers on saves are harmed, then a line a setting."""
    rows = bench.rows

    def judge(row: SaveBenchRow) -> str:
        if row.num_workers == bench.reference:
            return 'reference'
        if row.is_harmful is not None:
            return 'harmful' if row.is_harmful else 'harmless'
        return 'cannot tell' if row.saves else _status(row)

    harmful = [n for n, row in enumerate(rows) if row.is_harmful]
    table = tabulate(rows, [*_SAVE_COLUMNS, TableColumn('', '', judge)], strong=harmful)
    took, count = format_seconds(bench.seconds), plural(len(rows), 'training')
    basis = 'Medians. Gross: longer than the reference; net: what the job lost of it. '
    basis += f'{count} in random order, {took}.'
    return compose(_save_sentences(bench), table, [basis], _save_notes(bench))


def _save_sentences(bench: SaveBench) -> Iterator[str]:
    """The answer, then what belongs to it."""
    if bench.is_interrupted:
        yield f'Stopped when {len(bench.rows)} of {bench.asked} settings were trained.'
    found = {row.num_workers: row for row in bench.rows}
    reference = found.get(-1 if bench.reference is None else bench.reference)
    if reference is None or all(row.is_harmful is None for row in bench.rows):
        yield 'Cannot tell which number of workers is harmful: too few saves.'
        return
    usual = f'{format_seconds(reference.save_s)} beside {reference.name}'
    if bench.harmful_workers is None:
        yield f'No number of workers is known to be harmful: saves took {usual}.'
        return
    row = found[bench.harmful_workers]
    took = format_seconds(row.save_s)
    why = f', {DELAY_CAUSES[row.cause].why}' if row.cause else ''
    yield f'From {row.name} on, saves are harmed: {took}, not {usual}.'
    gross, net = map(format_seconds, (row.gross_s, row.net_s))
    lost = f'{gross} longer for each (gross), and the job lost {net} (net)'
    yield f'Training stood still {lost}.'
    yield f'{row.slow} of {len(row.saves)} were slow{why}.'


def _save_notes(bench: SaveBench) -> Iterator[str]:
    for row in bench.rows:
        if row.error is not None:
            yield f'{row.name}: {_status(row)} ({row.error}).'
        elif row.remark is not None:
            yield f'{row.name}: {row.remark}.'
    yield from _others_cores([row.other_cores for row in bench.rows])


_MOST_SETTINGS = 12
"""Settings that are listed in a terminal."""
_LONGEST_VALUE, _LONGEST_KEY = 18, 34
_OF_LOADER = 'train_dataloader.'


def describe_metric_check(path: str, check: MetricCheck) -> str:
    """What a comparison of the COCO metrics showed, as a sentence.

    Args:
        path: Of the results.
        check: The comparison.
    """
    of = f'{path} ({plural(check.images, "image")}, {plural(check.rows, "result")})'
    if check.plain_reason is not None:
        return (
            f'{of}: FastCocoMetric evaluates as CocoMetric does: {check.plain_reason}.'
        )
    took = f'{format_sum(check.fast_cpu_s)} of CPU for {format_sum(check.plain_cpu_s)}'
    if check.differing:
        names = ', '.join(check.differing)
        return (
            f'{of}: FastCocoMetric differs from CocoMetric in {names}; keep '
            'CocoMetric, and report it.'
        )
    return f'{of}: FastCocoMetric gives every array of CocoMetric, {took}.'


def describe_verify(measured: Verification) -> list[Section]:
    """The measured gain beside the predicted one, and what differs between both."""
    keys = [*{**measured.before, **measured.after}]
    rows: list[Sequence[object]] = [
        (
            _cut_left(key.removeprefix(_OF_LOADER), _LONGEST_KEY),
            *(
                _cut(str(side[key]), _LONGEST_VALUE) if key in side else '-'
                for side in (measured.before, measured.after)
            ),
        )
        for key in keys[:_MOST_SETTINGS]
    ]
    means = map(format_seconds, (measured.before_s, measured.after_s))
    rows.append(('iteration, mean', *means))
    rates = (measured.before_images_per_s, measured.after_images_per_s)
    if any(rates):
        rows.append(('images/s', *('-' if r is None else f'{r:.1f}' for r in rates)))
    starts = (measured.before_start_s, measured.after_start_s)
    added = (
        'unknown' if start_s is None else format_signed(start_s) for start_s in starts
    )
    rows.append(('an epoch start adds', *added))
    basis = f'{measured.gain.count} pairs of blocks in turns, {measured.iterations} '
    basis += f'measured iterations of each, {format_seconds(measured.seconds)} in all; '
    basis += f'{measured.ending}.'
    table = Table(['', *SIDES], rows)
    sections = compose(_verify_sentences(measured), table, [basis])
    before, after = measured.before_config, measured.after_config
    if before != after:
        first, second = SIDES
        named = [Fact(first, short_path(before)), Fact(second, short_path(after))]
        sections.insert(2, Section(facts=named))
    return [*sections, *listing('Notes', _verify_notes(measured))]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f'{text[: most - 3]}...'


def _cut_left(text: str, most: int) -> str:
    """The end of a dotted key says most."""
    return text if len(text) <= most else f'...{text[3 - most :]}'


def _verify_sentences(measured: Verification) -> Iterator[str]:
    """Sentences on what was measured and predicted; the gain over whole epochs, too,
    where those were measured."""
    predicted, gain = measured.predicted_gain, measured.gain
    of_which = 'config'
    if measured.before_config == measured.after_config:
        of_which = 'setting'
    words = 'no difference beyond noise'
    if gain.low > 0 or gain.high < 0:
        words = f'the second {of_which} is {"faster" if gain.low > 0 else "slower"}'
    rates = (measured.before_images_per_s, measured.after_images_per_s)
    unit = 'iterations/s' if None in rates else 'images/s'
    yield f'Measured: {_phrase_change(gain)} {unit}; {words}.'
    if predicted is not None:
        words = 'inside' if gain.low <= predicted <= gain.high else 'outside'
        yield f'Predicted: {100 * predicted:+.1f} %, {words} the measured interval.'
    if measured.iteration_change is not None:
        yield f'Time per iteration: {_phrase_change(measured.iteration_change)}.'
    yield from _phrase_epochs(measured)


def _phrase_change(change: Estimate) -> str:
    """``+20.0 % (+16.4 to +23.9 %)``."""
    interval = f'({100 * change.low:+.1f} to {100 * change.high:+.1f} %)'
    return f'{100 * change.value:+.1f} % {interval}'


def _phrase_epochs(measured: Verification) -> Iterator[str]:
    """The gain over whole epochs, where their starts were measured."""
    before_s, after_s = measured.before_start_s, measured.after_start_s
    before = measured.batches_per_epoch
    after = measured.after_batches_per_epoch or before
    if not before or not after or before_s is None or after_s is None:
        return
    starts = 1 + before_s / before / measured.before_s
    starts /= 1 + after_s / after / measured.after_s
    whole_pct = 100 * ((1 + measured.gain.value) * starts - 1)
    count = f'{before}' if before == after else f'{before} and {after}'
    yield f'Over epochs of {count} iterations, with starts: {whole_pct:+.1f} %.'


def _verify_notes(measured: Verification) -> Iterator[str]:
    keys = {**measured.before, **measured.after}
    if work := measured.other_work:
        parts = ' and '.join(filter(None, (', '.join(work[:-1]), work[-1])))
        yield (
            f'Not the same work: {parts} differ{"s" * (len(work) == 1)}. Images per '
            'second are compared all the same; the faster one need not train better.'
        )
    if not keys:
        yield 'Nothing differs between both: what was measured is noise.'
    if len(keys) > _MOST_SETTINGS:
        more = f'{len(keys) - _MOST_SETTINGS} more settings differ'
        yield f'{more}; --format json lists them all.'
    if measured.untrained:
        only = ', '.join(measured.untrained[:3])
        left = len(measured.untrained) - 3
        only += f' and {left} more' if left > 0 else ''
        yield (
            f'These differ, too, and nothing of them is measured, as such a training '
            f'neither validates nor saves nor resumes: {only}.'
        )
    yield from _others_cores([measured.external_cpu_cores])
    yield from measured.notes


_BOUNDS = {
    'launches': (
        'Launch-bound: the card waits for the host, which launches kernels one by one.',
        'Larger batches, or compile=True in the config, give it more work per launch.',
    ),
    'kernels': (
        'Kernel-bound: the card computes most of the time.',
        'Cheaper arithmetic shortens such a step: AMP, TF32, smaller images.',
    ),
}
_CLOSES_WITHIN_PCT = 5.0
"""Share of the step that its parts may be off before a note says so."""
_FEW_PRODUCTS_PCT = 30.0
"""Share of the busy time in matrix products below which AMP gains little."""
_MANY_LOSSES_PCT = 30.0
"""Share of the busy time in losses, from which they are why AMP brings little."""
_TF32 = (8, 0)
"""Compute capability of the first cards with it."""
_TENSOR_CORES = (7, 0)
"""Compute capability of the first cards with tensor cores."""


def describe_profile(profile: Profile) -> list[Section]:
    """Sections of a profile: what decides, the parts of a step, the modules, flags."""
    whole_s = sum(profile.parts.values())

    tables = [
        Table(
            [head, 'time', 'of the step'],
            [
                (
                    name or '(the model itself)',
                    format_seconds(seconds),
                    format_pct(100 * seconds / profile.step_s),
                )
                for name, seconds in spent.items()
            ],
        )
        for head, spent in (('part', profile.parts), ('module', profile.modules))
    ]
    title, more = _BOUNDS.get(profile.bound or '') or (
        f'Launch-bound or kernel-bound: unknown, as {profile.bound_reason}.',
        'Idle is where no operator of torch ran: Python and other libraries.',
    )
    took = (
        f'A step took {format_seconds(profile.step_s)}, mean of {profile.iterations} '
        f'under the profiler, and {format_seconds(profile.plain_step_s)} without it'
    )
    if profile.kernels:
        busy_s = whole_s - profile.parts['idle']
        each = format_seconds(busy_s / profile.kernels)
        took += f'; it has {profile.kernels:.0f} kernels of {each} on average'
    notes, gap_pct = [_say_amp(profile)], 100 * abs(whole_s / profile.step_s - 1)
    if gap_pct > _CLOSES_WITHIN_PCT:
        notes.append(f'The parts are {format_pct(gap_pct)} off the step by the clock.')
    trace = f'{short_path(profile.folder)}/trace.json.gz (open it in ui.perfetto.dev)'
    flags = ', '.join(f'{name} {value}' for name, value in profile.flags.items())
    fills, uncovered_s = profile.fills, profile.uncovered_s
    if uncovered_s is not None:
        share = format_pct(100 * uncovered_s / profile.plain_step_s)
        took += f'. No kernel ran for {format_seconds(uncovered_s)} of it ({share})'
    if fills is not None:
        notes.append(
            f'It fills {fills:.0f} new tensors in a step for determinism (MG607).'
        )
    notes += [f'optimize={name}: {why}.' for name, why in profile.refused.items()]
    facts = [
        Fact('device', profile.device),
        Fact('torch', flags),
        Fact('trace', trace),
    ]
    return [
        Section(title, sentences=[more, f'{took}.']),
        *(Section(table=table) for table in tables),
        *_describe_host_parts(profile),
        Section(facts=facts),
        *listing('Notes', notes),
    ]


def _describe_host_parts(profile: Profile) -> list[Section]:
    """The parts of an iteration on the host, plain and with ``optimize``."""
    parts = profile.host_parts
    if not parts:
        return []
    rows = [
        (
            name,
            format_seconds(part.plain_s),
            '' if part.optimized_s is None else format_seconds(part.optimized_s),
        )
        for name, part in parts.items()
    ]
    caption = 'CPU of the training thread in an iteration (batch sent: of a worker)'
    return [Section(table=Table(['on the host', 'plain', 'optimize'], rows, caption))]


def _computes_in_tf32(profile: Profile) -> bool:
    is_ampere = tuple(profile.capability or ()) >= _TF32
    return is_ampere and bool(profile.flags.get('cudnn_allow_tf32'))


def _say_amp(profile: Profile) -> str:
    """Says if AMP is on, and why it brings little where that shows."""
    said, share = f'AMP is {f"on ({profile.amp})" if profile.amp else "off"}', ''
    products_pct, why = profile.products_pct, ''
    if products_pct is not None:
        share = ' Convolutions and matrix products take '
        share += f'{format_pct(products_pct)} of the busy time.'
    if profile.capability is not None:
        if tuple(profile.capability) < _TENSOR_CORES:
            why = 'this card has no tensor cores'
        elif profile.bound == 'launches':
            why = 'the card waits for launches, of which AMP adds some'
        elif (profile.losses_pct or 0.0) >= _MANY_LOSSES_PCT:
            why = (
                f'{format_pct(profile.losses_pct or 0.0)} of the busy time is in the '
                'losses, which stay in float32'
            )
        elif products_pct is not None and products_pct < _FEW_PRODUCTS_PCT:
            why = 'little of the busy time is in what it shortens'
        elif not profile.amp and _computes_in_tf32(profile):
            why = 'convolutions compute in TF32 already'
    if why:
        said += f', and {"brings" if profile.amp else "would bring"} little: {why}'
    return f'{said}.{share}'
