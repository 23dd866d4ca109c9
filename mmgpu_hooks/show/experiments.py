"""Renders sweeps, save benchmarks, verifications and profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.saves import DELAY_CAUSES
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_pct,
    format_seconds,
    format_signed,
)
from mmgpu_hooks.schema.judged import Estimate, MetricCheck, Verification
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted, sentences
from mmgpu_hooks.schema.tried import (
    Profile,
    SaveBench,
    SaveBenchRow,
    Sweep,
    SweepRow,
)
from mmgpu_hooks.show.document import (
    BLANK,
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
from mmgpu_hooks.show.words import phrase_status

_OTHERS_CORES = 0.25
"""Smallest number of cores used by other programs that is mentioned in a note."""


def _show_half_width(iter_s: Estimate) -> str:
    """Formats half a confidence interval's width in % of the mean iteration time."""
    return f'{100 * iter_s.half_width / iter_s.value:.1f}'


_SWEEP_SETTINGS: Sequence[TableColumn] = (
    TableColumn(phrase('workers'), 'setting.num_workers', str),
    TableColumn(phrase('batch'), 'setting.batch_size', str),
)
_SWEEP_FIGURES: Sequence[TableColumn] = (
    TableColumn(phrase('iteration'), 'iter_s.value', format_seconds),
    TableColumn(phrase('+-\n%'), 'iter_s', _show_half_width),
    TableColumn(phrase('data\nwait'), 'data_wait_s', format_seconds),
    TableColumn(phrase('images\n/s'), 'images_per_s', '{:.1f}'.format),
    TableColumn(phrase('GPU\n%'), 'gpu_util_pct', '{:.0f}'.format),
    TableColumn(phrase('memory'), 'memory_peak_bytes', format_bytes),
    TableColumn(phrase('CPU\ncores'), 'cpu_cores', '{:.1f}'.format),
)


def describe_sweep(sweep: Sweep) -> list[Section]:
    """Makes the sections of a sweep: the fastest setting, and one row per trial."""
    rows = sweep.rows

    def judge(row: SweepRow) -> Text:
        """Marks the best trial, or says why a trial is excluded, for its table row."""
        if row.is_measured and row.exceeds_host:
            return phrase('beyond the host')
        if row.status != 'completed':
            return phrase_status(row.status)
        if not row.is_measured:
            return phrase('too short')
        return phrase('best') if row.setting in sweep.best else BLANK

    best = [n for n, row in enumerate(rows) if row.setting in sweep.best]
    varied = [tabulate_setting(name, 'setting.values') for name in _list_varied(rows)]
    verdict = TableColumn(BLANK, '', judge)
    columns = [*_SWEEP_SETTINGS, *varied, *_SWEEP_FIGURES, verdict]
    table = tabulate(rows, columns, strong=best)
    basis = phrase(
        '{trials} in random order, {whole_s}. +-: 95 % interval of the mean.',
        trials=len(rows),
        whole_s=sweep.seconds,
    )
    return compose(_sweep_sentences(sweep), table, [basis], _sweep_notes(sweep))


def _list_varied(rows: Sequence[SweepRow]) -> list[str]:
    """Lists settings that differ between a sweep's trials and have no column yet."""
    others = dict.fromkeys(name for row in rows for name in row.setting.others)
    return [
        name
        for name in ('prefetch_factor', 'pin_memory', *others)
        if len({row.setting.values.get(name) for row in rows} - {None}) > 1
    ]


def _phrase_failure(name: str, row: SweepRow | SaveBenchRow) -> Text:
    return phrase(
        '{name}: {status} ({error}).',
        row,
        name=name,
        status=phrase_status(row.status),
    )


def _phrase_stop(done: int, asked: int) -> Text:
    return phrase(
        'Stopped when {done} of {settings} were trained.', done=done, settings=asked
    )


def _sweep_sentences(sweep: Sweep) -> Iterator[Text]:
    """Phrases the result of a sweep: its best setting, then remarks."""
    if sweep.is_interrupted:
        yield _phrase_stop(len(sweep.rows), sweep.asked)
    elif not sweep.best:
        yield phrase(
            'No setting can be recommended: none that this host carries was measured.'
        )
    rows = {row.setting: row for row in sweep.rows}
    for number, setting in enumerate(sweep.best[:2]):
        speed = _phrase_speed(rows[setting])
        if number:
            yield phrase('Next: {setting}: {speed}.', setting=setting.name, speed=speed)
            continue
        yield phrase(
            'Fastest that this host carries: {setting}: {speed}.',
            setting=setting.name,
            speed=speed,
        )
    if sweep.best and (rivals := sweep.find_rivals(rows[sweep.best[0]])):
        yield phrase(
            'Not sure: its interval overlaps that of {rivals}; measure for longer with '
            '--seconds.',
            rivals=tuple(rival.setting.name for rival in rivals),
        )
    if len(sweep.best) > 1:
        yield phrase(
            'The batch size belongs to the recipe (learning rate, schedule): choose it '
            'first, then its fastest setting.'
        )


def _phrase_speed(row: SweepRow) -> Text:
    """Phrases a trial's speed: ``6.1 images/s, 0.412 s +- 3.1 ms per iteration``."""
    iter_s = row.iter_s
    assert iter_s is not None  # only measured ones are best
    facts = {'iter_s': iter_s.value, 'half_width_s': iter_s.half_width}
    if not row.images_per_s:
        return phrase('{iter_s} +- {half_width_s} per iteration', **facts)
    return phrase(
        '{images_per_s:.1f} images/s, {iter_s} +- {half_width_s} per iteration',
        images_per_s=row.images_per_s,
        **facts,
    )


def _sweep_notes(sweep: Sweep) -> Iterator[Text]:
    rows = sweep.rows
    for row in rows:
        if row.error is not None:
            yield _phrase_failure(row.setting.name, row)
    # what others used differs from trial to trial: one reason is enough
    beyond = {
        row.most_workers: row.most_workers_reason for row in rows if row.exceeds_host
    }
    for most, reason in beyond.items():
        yield phrase(
            'More than {workers} are more than this host carries: {reason}.',
            workers=most or 0,
            reason=reason,
        )
    yield from _others_cores([row.external_cpu_cores for row in rows])
    yield from map(quoted, sweep.notes)


def _others_cores(used: Sequence[float | None]) -> Iterator[Text]:
    most = max((cores for cores in used if cores is not None), default=0.0)
    if most >= _OTHERS_CORES:
        yield phrase(
            'Other programs used up to {others_cores:.1f} cores of the host meanwhile; '
            'repeat it with --fresh when the host is calm.',
            others_cores=most,
        )


_SAVE_COLUMNS: Sequence[TableColumn] = (
    TableColumn(phrase('workers'), 'num_workers', str),
    TableColumn(phrase('saves'), 'saves', lambda saves: str(len(saves))),
    TableColumn(phrase('save'), 'save_s', format_seconds),
    TableColumn(phrase('on a\ncore'), 'cpu_s', format_seconds),
    TableColumn(phrase('waits\nfor one'), 'run_delay_s', format_seconds),
    TableColumn(phrase('blocked'), 'blocked_s', format_seconds),
    TableColumn(phrase('gross'), 'gross_s', format_signed),
    TableColumn(phrase('net'), 'net_s', format_signed),
)


def describe_save_bench(bench: SaveBench) -> list[Section]:
    """Makes sections of a save benchmark: harmful worker counts, a row per trial."""
    rows = bench.rows

    def judge(row: SaveBenchRow) -> Text:
        if row.num_workers == bench.reference:
            return phrase('reference')
        if row.is_harmful is not None:
            return phrase('harmful') if row.is_harmful else phrase('harmless')
        return phrase('cannot tell') if row.saves else phrase_status(row.status)

    harmful = [n for n, row in enumerate(rows) if row.is_harmful]
    table = tabulate(
        rows, [*_SAVE_COLUMNS, TableColumn(BLANK, '', judge)], strong=harmful
    )
    basis = phrase(
        'Medians. Gross: longer than the reference; net: what the job lost of it. '
        '{trainings} in random order, {whole_s}.',
        trainings=len(rows),
        whole_s=bench.seconds,
    )
    return compose(_save_sentences(bench), table, [basis], _save_notes(bench))


def _save_sentences(bench: SaveBench) -> Iterator[Text]:
    """Phrases a save benchmark's result: harmful worker counts, then remarks."""
    if bench.is_interrupted:
        yield _phrase_stop(len(bench.rows), bench.asked)
    found = {row.num_workers: row for row in bench.rows}
    reference = found.get(-1 if bench.reference is None else bench.reference)
    if reference is None or all(row.is_harmful is None for row in bench.rows):
        yield phrase('Cannot tell which number of workers is harmful: too few saves.')
        return
    usual = {'usual_s': reference.save_s, 'reference': reference.name}
    if bench.harmful_workers is None:
        yield phrase(
            'No number of workers is known to be harmful: saves took {usual_s} beside '
            '{reference}.',
            **usual,
        )
        return
    row = found[bench.harmful_workers]
    yield phrase(
        'From {name} on, saves are harmed: {save_s}, not {usual_s} beside {reference}.',
        row,
        **usual,
    )
    yield phrase(
        'Training stood still {gross_s} longer for each (gross), and the job lost '
        '{net_s} (net).',
        row,
    )
    slow = {'slow_saves': row.slow, 'all_saves': len(row.saves)}
    yield phrase('{slow_saves:d} of {all_saves:d} were slow.', **slow)
    if row.cause:
        yield DELAY_CAUSES[row.cause].why


def _save_notes(bench: SaveBench) -> Iterator[Text]:
    for row in bench.rows:
        if row.error is not None:
            yield _phrase_failure(row.name, row)
        elif row.remark is not None:
            yield phrase('{name}: {remark}.', row)
    yield from _others_cores([row.other_cores for row in bench.rows])


_MOST_SETTINGS = 12
"""Maximum number of differing settings that ``mmgpu verify`` lists in a terminal."""
_LONGEST_VALUE, _LONGEST_KEY = 18, 34
_OF_LOADER = 'train_dataloader.'


def describe_metric_check(path: str, check: MetricCheck) -> Text:
    """Phrases the result of comparing FastCocoMetric with CocoMetric.

    Args:
        path: Of the results.
        check: The comparison.
    """
    of = phrase('{path} ({images}, {results})', check, path=path, results=check.rows)
    if check.plain_reason is not None:
        return phrase(
            '{of}: FastCocoMetric evaluates as CocoMetric does: {plain_reason}.',
            check,
            of=of,
        )
    if check.differing:
        return phrase(
            '{of}: FastCocoMetric differs from CocoMetric in {differing}; keep '
            'CocoMetric, and report it.',
            check,
            of=of,
        )
    return phrase(
        '{of}: FastCocoMetric gives every array of CocoMetric, {fast_cpu_s:sum} of CPU '
        'for {plain_cpu_s:sum}.',
        check,
        of=of,
    )


def describe_verify(measured: Verification) -> list[Section]:
    """Makes sections of ``mmgpu verify``: measured and predicted gain, settings."""
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
    rows.append((phrase('iteration, mean'), *means))
    rates = (measured.before_images_per_s, measured.after_images_per_s)
    if any(rates):
        rows.append(
            (phrase('images/s'), *('-' if r is None else f'{r:.1f}' for r in rates))
        )
    starts = (measured.before_start_s, measured.after_start_s)
    added = (
        phrase('unknown') if start_s is None else format_signed(start_s)
        for start_s in starts
    )
    rows.append((phrase('an epoch start adds'), *added))
    basis = phrase(
        '{pairs} of blocks in turns, {iterations:d} measured iterations of each, '
        '{whole_s} in all; {ending}.',
        measured,
        pairs=measured.gain.count,
        whole_s=measured.seconds,
    )
    first, second = phrase('first'), phrase('second')
    table = Table([BLANK, first, second], rows)
    sections = compose(_verify_sentences(measured), table, [basis])
    before, after = measured.before_config, measured.after_config
    if before != after:
        named = [Fact(first, short_path(before)), Fact(second, short_path(after))]
        sections.insert(2, Section(facts=named))
    return [*sections, *listing(phrase('Notes'), _verify_notes(measured))]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f'{text[: most - 3]}...'


def _cut_left(text: str, most: int) -> str:
    """Shortens a dotted key by cutting off its start."""
    return text if len(text) <= most else f'...{text[3 - most :]}'


def _verify_sentences(measured: Verification) -> Iterator[Text]:
    """Phrases the speed-up that ``mmgpu verify`` measured, and the predicted one."""
    predicted, gain = measured.predicted_gain, measured.gain
    is_setting = measured.before_config == measured.after_config
    rates = (measured.before_images_per_s, measured.after_images_per_s)
    change = _phrase_change(gain)
    speed = phrase('{change_share} images/s', change_share=change)
    if None in rates:
        speed = phrase('{change_share} iterations/s', change_share=change)
    if gain.low > 0:
        if is_setting:
            yield phrase(
                'Measured: {speed}; the second setting is faster.', speed=speed
            )
        else:
            yield phrase('Measured: {speed}; the second config is faster.', speed=speed)
    elif gain.high < 0:
        if is_setting:
            yield phrase(
                'Measured: {speed}; the second setting is slower.', speed=speed
            )
        else:
            yield phrase('Measured: {speed}; the second config is slower.', speed=speed)
    else:
        yield phrase('Measured: {speed}; no difference beyond noise.', speed=speed)
    if predicted is not None:
        if gain.low <= predicted <= gain.high:
            yield phrase(
                'Predicted: {gain_share:+.1%}, inside the measured interval.',
                gain_share=predicted,
            )
        else:
            yield phrase(
                'Predicted: {gain_share:+.1%}, outside the measured interval.',
                gain_share=predicted,
            )
    if measured.iteration_change is not None:
        yield phrase(
            'Time per iteration: {change_share}.',
            change_share=_phrase_change(measured.iteration_change),
        )
    yield from _phrase_epochs(measured)


def _phrase_change(change: Estimate) -> Text:
    """Phrases a relative change and its interval: ``+20.0 % (+16.4 to +23.9 %)``."""
    return phrase(
        '{change_share:+.1%} ({low_pct:+.1f} to {high_share:+.1%})',
        change_share=change.value,
        low_pct=100 * change.low,
        high_share=change.high,
    )


def _phrase_epochs(measured: Verification) -> Iterator[Text]:
    """Phrases the measured speed-up over whole epochs, if epoch starts were timed."""
    before_s, after_s = measured.before_start_s, measured.after_start_s
    before = measured.batches_per_epoch
    after = measured.after_batches_per_epoch or before
    if not before or not after or before_s is None or after_s is None:
        return
    starts = 1 + before_s / before / measured.before_s
    starts /= 1 + after_s / after / measured.after_s
    gain = (1 + measured.gain.value) * starts - 1
    if before == after:
        yield phrase(
            'Over epochs of {iterations}, with starts: {gain_share:+.1%}.',
            iterations=before,
            gain_share=gain,
        )
        return
    yield phrase(
        'Over epochs of {before_iterations:d} and {after_iterations:d} iterations, '
        'with starts: {gain_share:+.1%}.',
        before_iterations=before,
        after_iterations=after,
        gain_share=gain,
    )


def _verify_notes(measured: Verification) -> Iterator[Text]:
    keys = {**measured.before, **measured.after}
    if work := measured.other_work:
        *others, last = work
        if others:
            differ = phrase(
                'Not the same work: {others} and {last} differ.',
                others=tuple(others),
                last=last,
            )
        else:
            differ = phrase('Not the same work: {last} differs.', last=last)
        yield sentences(
            differ,
            phrase(
                'Images per second are compared all the same; the faster one need not '
                'train better.'
            ),
        )
    if not keys:
        yield phrase('Nothing differs between both: what was measured is noise.')
    if len(keys) > _MOST_SETTINGS:
        yield phrase(
            '{more} more settings differ; --format json lists them all.',
            more=len(keys) - _MOST_SETTINGS,
        )
    if measured.untrained:
        named = listed(measured.untrained[:3])
        if (left := len(measured.untrained) - 3) > 0:
            named = phrase('{keys} and {more} more', keys=named, more=left)
        yield phrase(
            'These differ, too, and nothing of them is measured, as such a training '
            'neither validates nor saves nor resumes: {keys}.',
            keys=named,
        )
    yield from _others_cores([measured.external_cpu_cores])
    yield from measured.notes


_BOUNDS = {
    'launches': (
        phrase(
            'Launch-bound: the card waits for the host, which launches kernels one by '
            'one.'
        ),
        phrase(
            'Larger batches, or compile=True in the config, give it more work per '
            'launch.'
        ),
    ),
    'kernels': (
        phrase('Kernel-bound: the card computes most of the time.'),
        phrase('Cheaper arithmetic shortens such a step: AMP, TF32, smaller images.'),
    ),
}
_CLOSES_WITHIN_PCT = 5.0
"""Largest gap in % between a step's time and its parts' sum that needs no note."""
_FEW_PRODUCTS_PCT = 30.0
"""Per cent of a GPU's busy time in matrix products below which AMP gains little."""
_MANY_LOSSES_PCT = 30.0
"""Per cent of a GPU's busy time in loss functions from which on AMP gains little."""
_TF32 = (8, 0)
"""Lowest CUDA compute capability of a GPU with TF32."""
_TENSOR_CORES = (7, 0)
"""Lowest CUDA compute capability of a GPU with tensor cores."""


_STEP_PARTS: dict[str, Text] = {
    'preprocessor': phrase('preprocessor'),
    'forward': phrase('forward'),
    'backward': phrase('backward'),
    'optimizer': phrase('optimizer'),
    'copies': phrase('copies'),
    'other': phrase('other'),
    'idle': phrase('idle'),
}
"""Display names of the parts of a profiled train step."""
_HOST_PARTS: dict[str, Text] = {
    'forward and backward': phrase('forward and backward'),
    'optimizer step': phrase('optimizer step'),
    'clipping': phrase('clipping'),
    'zeroing': phrase('zeroing'),
    'average': phrase('average'),
    'schedulers': phrase('schedulers'),
    'batch received': phrase('batch received'),
    'batch sent': phrase('batch sent'),
}
"""Display names of the parts of an iteration's host time, by names in `HOST_PARTS`."""


def describe_profile(profile: Profile) -> list[Section]:
    """Makes sections of a profile: its verdict, parts of the step, modules, flags."""
    whole_s = sum(profile.parts.values())
    title, more = _BOUNDS.get(profile.bound or '') or (
        phrase('Launch-bound or kernel-bound: unknown, as {bound_reason}.', profile),
        phrase('Idle is where no operator of torch ran: Python and other libraries.'),
    )
    took = phrase(
        'A step took {step_s}, mean of {iterations:d} under the profiler, and '
        '{plain_step_s} without it.',
        profile,
    )
    if profile.kernels:
        busy_s = whole_s - profile.parts['idle']
        took = phrase(
            'A step took {step_s}, mean of {iterations:d} under the profiler, and '
            '{plain_step_s} without it; it has {kernels:.0f} kernels of {kernel_s} on '
            'average.',
            profile,
            kernel_s=busy_s / profile.kernels,
        )
    notes, gap_pct = [_say_amp(profile)], 100 * abs(whole_s / profile.step_s - 1)
    if gap_pct > _CLOSES_WITHIN_PCT:
        notes.append(
            phrase(
                'The parts are {gap_pct:exact} off the step by the clock.',
                gap_pct=gap_pct,
            )
        )
    trace = phrase(
        '{path}/trace.json.gz (open it in ui.perfetto.dev)',
        path=short_path(profile.folder),
    )
    flags = listed(f'{name} {value}' for name, value in profile.flags.items())
    uncovered = None
    if profile.uncovered_s is not None:
        uncovered = phrase(
            'No kernel ran for {uncovered_s} of it ({uncovered_pct:exact}).',
            profile,
            uncovered_pct=100 * profile.uncovered_s / profile.plain_step_s,
        )
    took = sentences(took, uncovered)
    if profile.fills is not None:
        notes.append(
            phrase(
                'It fills {fills:.0f} new tensors in a step for determinism (MG607).',
                profile,
            )
        )
    notes += [
        phrase('optimize={name}: {reason}.', name=name, reason=why)
        for name, why in profile.refused.items()
    ]
    facts = [
        Fact(phrase('device'), profile.device),
        Fact(phrase('torch'), flags),
        Fact(phrase('trace'), trace),
    ]
    return [
        Section(title, sentences=[more, took]),
        *(Section(table=table) for table in _tabulate_parts(profile)),
        *_describe_host_parts(profile),
        Section(facts=facts),
        *listing(phrase('Notes'), notes),
    ]


def _tabulate_parts(profile: Profile) -> Iterator[Table]:
    """Tabulates a profiled train step: seconds by part, and seconds by module."""
    parts = {_STEP_PARTS.get(part, part): s for part, s in profile.parts.items()}
    modules = {
        name or phrase('(the model itself)'): s for name, s in profile.modules.items()
    }
    for head, spent in ((phrase('part'), parts), (phrase('module'), modules)):
        rows = [
            (
                name,
                format_seconds(seconds),
                format_pct(100 * seconds / profile.step_s),
            )
            for name, seconds in spent.items()
        ]
        yield Table([head, phrase('time'), phrase('of the step')], rows)


def _describe_host_parts(profile: Profile) -> list[Section]:
    """Tabulates an iteration's host CPU seconds by part, plain and optimised."""
    parts = profile.host_parts
    if not parts:
        return []
    rows = [
        (
            _HOST_PARTS.get(name, name),
            format_seconds(part.plain_s),
            '' if part.optimized_s is None else format_seconds(part.optimized_s),
        )
        for name, part in parts.items()
    ]
    caption = phrase(
        'CPU of the training thread in an iteration (batch sent: of a worker)'
    )
    head = [phrase('on the host'), phrase('plain'), quoted('optimize')]
    return [Section(table=Table(head, rows, caption))]


def _computes_in_tf32(profile: Profile) -> bool:
    is_ampere = tuple(profile.capability or ()) >= _TF32
    return is_ampere and bool(profile.flags.get('cudnn_allow_tf32'))


def _say_amp(profile: Profile) -> Text:
    """Phrases if mixed precision (AMP) is on, and why it would gain little."""
    products_pct, why, share = profile.products_pct, None, None
    if products_pct is not None:
        share = phrase(
            'Convolutions and matrix products take {products_pct:exact} of the busy '
            'time.',
            profile,
        )
    if profile.capability is not None:
        if tuple(profile.capability) < _TENSOR_CORES:
            why = phrase('this card has no tensor cores')
        elif profile.bound == 'launches':
            why = phrase('the card waits for launches, of which AMP adds some')
        elif (profile.losses_pct or 0.0) >= _MANY_LOSSES_PCT:
            why = phrase(
                '{losses_pct:exact} of the busy time is in the losses, which stay in '
                'float32',
                profile,
            )
        elif products_pct is not None and products_pct < _FEW_PRODUCTS_PCT:
            why = phrase('little of the busy time is in what it shortens')
        elif not profile.amp and _computes_in_tf32(profile):
            why = phrase('convolutions compute in TF32 already')
    if profile.amp and why:
        said = phrase(
            'AMP is on ({amp}), and brings little: {why}.', amp=profile.amp, why=why
        )
    elif profile.amp:
        said = phrase('AMP is on ({amp}).', amp=profile.amp)
    elif why:
        said = phrase('AMP is off, and would bring little: {why}.', why=why)
    else:
        said = phrase('AMP is off.')
    return sentences(said, share)
