"""What the page begins with: the verdict, the figures it rests on, what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.demo_comparison import images_per_second
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds
from mmgpu_hooks.show.html.panel import each_run, render_table, words
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.reported_run import ReportedRun

Figure = tuple[str, str, str]
"""Name, value with its unit, what it rests on."""

_SETTINGS = ('num_workers', 'persistent_workers', 'prefetch_factor', 'batch_size')


def render_verdict(runs: Sequence[ReportedRun]) -> Markup:
    """One sentence first; then, for several runs, each one's own beside the others'."""
    if len(runs) == 1:
        run = runs[0]
        body = join(
            _headline(run.answer.diagnosis.verdict.sentence),
            _basis(run),
            _key_figures(run),
        )
    else:
        body = join(
            _headline(compare_runs(runs)),
            _differences(runs),
            each_run(runs, lambda run: join(_sentence(run), _basis(run))),
            _side_by_side(runs),
        )
    return tag('section', body, id='verdict', aria_label='Verdict')


def _headline(sentence: str) -> Markup:
    """The verdict's name stands out from what it rests on."""
    name, colon, why = sentence.partition(': ')
    if not colon:
        return tag('h1', words(sentence))
    return tag('h1', tag('strong', f'{name}:'), ' ', words(why))


def compare_runs(runs: Sequence[ReportedRun]) -> str:
    """How many times as fast the fastest run is as the slowest, if that can be said."""
    rates = [
        (images_per_second(run.answer.summary), run)
        for run in runs
        if run.answer.summary is not None
    ]
    known = [(rate, run.label) for rate, run in rates if rate]
    if len(known) < 2:
        return f'{len(runs)} runs side by side; their speeds cannot be compared.'
    (least, slow), (most, fast) = min(known), max(known)
    if most < 1.02 * least:
        return f'{len(runs)} runs side by side: all at about {most:.1f} images/s.'
    return (
        f'“{fast}” trains {most / least:.2f} times as fast as “{slow}”: '
        f'{least:.1f} → {most:.1f} images/s over the whole training.'
    )


def _differences(runs: Sequence[ReportedRun]) -> Markup | None:
    """A caution where the runs did not train the same thing."""
    told = [run.answer.summary.run for run in runs if run.answer.summary is not None]
    compared: dict[str, list[object]] = {
        'the length of the data set': [run.loader.dataset_length for run in told],
        'the batch size': [run.loader.batch_size for run in told],
        'the number of ranks': [run.world_size for run in told],
        'the device': [run.gpu.name if run.gpu else run.device for run in told],
        'the config': [run.config_path for run in told],
    }
    differing = [name for name, values in compared.items() if len(set(values)) > 1]
    if not differing:
        return None
    return tag('p', f'They differ in {", ".join(differing)}.', class_='basis')


def _sentence(run: ReportedRun) -> Markup:
    return tag('p', words(run.answer.diagnosis.verdict.sentence), class_='sentence')


def _basis(run: ReportedRun) -> Markup:
    """How sure it is, and what it rests on."""
    verdict, summary = run.answer.diagnosis.verdict, run.answer.summary
    said = [f'{verdict.confidence} confidence']
    if summary is not None:
        said.append(f'{summary.steady_iterations} steady iterations')
        said.append(f'{summary.status} after {summary.iterations} iterations')
        if summary.run.world_size > 1:
            said.append(f'rank {summary.run.rank} of {summary.run.world_size}')
    elif run.plain is not None:
        said.append(f"{run.plain.lines} lines of MMEngine's own log")
    return tag('p', words(' · '.join(said)), class_='basis')


def _key_figures(run: ReportedRun) -> Markup | None:
    figures = list(list_figures(run))
    if not figures:
        return None
    groups = (
        tag('div', tag('dt', name), tag('dd', words(value), tag('small', words(note))))
        for name, value, note in figures
    )
    return tag('dl', *groups, class_='key')


def list_figures(run: ReportedRun) -> Iterator[Figure]:
    """The few figures that tell a run from another; unknown ones say so."""
    summary = run.answer.summary
    if summary is None:
        if run.plain is not None:
            note = f'median of {run.plain.lines} log lines'
            yield 'Iteration', format_seconds(run.plain.time_s), note
            yield 'data_time', format_seconds(run.plain.data_time_s), note
        return
    steady = f'mean of {summary.steady_iterations} iterations'
    yield 'Iteration', format_seconds(summary.iter_s), steady
    yield 'Data wait', format_seconds(summary.data_wait_s), _share_of_iteration(summary)
    yield 'Step', format_seconds(summary.step_s), steady
    rate = images_per_second(summary)
    yield (
        'Speed',
        'unknown' if rate is None else f'{rate:.1f} images/s',
        'whole training, per rank' if summary.run.world_size > 1 else 'whole training',
    )
    yield _utilisation(summary)
    yield _peak(summary)
    yield 'Training', format_seconds(summary.duration_s), f'{summary.saves} save(s)'


def _share_of_iteration(summary: Run) -> str:
    if summary.data_wait_s is None or not summary.iter_s:
        return 'per iteration'
    share = format_pct(100 * summary.data_wait_s / summary.iter_s)
    return f'{share} of an iteration'


def _utilisation(summary: Run) -> Figure:
    gpu = summary.gpu
    if gpu is None or gpu.util_pct is None:
        return 'GPU', 'unknown', summary.why_no_gpu_util
    zero = '' if gpu.zero_pct is None else f', {format_pct(gpu.zero_pct)} at zero'
    return 'GPU', f'{gpu.util_pct:.0f} %', f'utilisation{zero}, {gpu.samples} samples'


def _peak(summary: Run) -> Figure:
    name = 'Peak memory'
    if summary.gpu_mem_peak_bytes is None:
        held = summary.process_rss_bytes
        note = summary.unknown.get('GPU memory') or (
            f'training runs on the {summary.run.device.upper()}'
        )
        if held is not None:
            note = f'{note}; the process holds {format_bytes(held)}'
        return name, 'unknown', note
    note = f'{format_bytes(summary.gpu_mem_reserved_bytes)} reserved'
    return name, format_bytes(summary.gpu_mem_peak_bytes), note


def _side_by_side(runs: Sequence[ReportedRun]) -> Markup:
    by_run = [{name: value for name, value, _ in list_figures(run)} for run in runs]
    names = list(dict.fromkeys(name for figures in by_run for name in figures))
    settings = [(name, [_setting(run, name) for run in runs]) for name in _SETTINGS]
    rows = [(name, *values) for name, values in settings]
    rows += [(name, *(f.get(name, 'unknown') for f in by_run)) for name in names]
    labels = [run.label for run in runs]
    return render_table('The runs side by side', ['figure', *labels], rows)


def _setting(run: ReportedRun, name: str) -> str:
    if run.answer.summary is None:
        return 'unknown'
    value = getattr(run.answer.summary.run.loader, name)
    return 'none' if value is None else str(value)
