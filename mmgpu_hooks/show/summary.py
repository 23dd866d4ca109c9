"""The summary that training ends with: at most ten lines."""

from __future__ import annotations

import locale
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmgpu_hooks.config.switches import render_options
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.slurm import find_narrow_start
from mmgpu_hooks.judge.validation_parts import find_costs
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_change,
    format_pct,
    format_seconds,
    plural,
)
from mmgpu_hooks.schema.judged import Diagnosis, Recommendation, RunAdvice
from mmgpu_hooks.schema.recorded import PART_NAMES
from mmgpu_hooks.schema.run import RanksSummary
from mmgpu_hooks.show.start import phrase_start
from mmgpu_hooks.show.text import BOUND, bind_units, shell_path, visible
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.validation import summarize_validations

_WIDTH, _LABEL, _MOST_LINES = 80, 13, 10
_WORTH_PCT = 1.0
"""Share of the run from which on a part outside of iterations is named."""
_SPARED = ('why', 'rest', 'loader', 'validation', 'machine', 'start')
"""Rows that go, in this order, while there are too many lines: recommend has them."""


def render_training_summary(
    run: Run,
    diagnosis: Diagnosis,
    ranks: RanksSummary | None = None,
    advice: RunAdvice | None = None,
    program: Sequence[str] = (),
    judged: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """The verdict first, the command to run next last.

    It takes about 1 ms, and no more for a long run.

    Args:
        run: The figures of the rank that writes it.
        diagnosis: What is judged of the run.
        ranks: All ranks, when there is more than one.
        advice: Of a training that ended by itself, where it was asked for.
        program: What trained, as it is typed after ``python``.
        judged: The rank that is judged, where there are several.
        arguments: Of ``mmgpu run``; ``None`` where it did not start the training.
    """
    verdict = diagnosis.verdict
    name, _, why = verdict.sentence.partition(': ')
    rank = '' if judged in (None, run.meta.rank) else f'Rank {judged}: '
    rows = {
        'verdict': f'{rank}{name} ({verdict.confidence} confidence)',
        'why': why,
        'iteration': ', '.join(_iteration(run)),
        'loader': ', '.join(_loader(run)),
        'machine': ', '.join(_machine(run)),
        'GPU': ', '.join(_gpu(run)),
        'memory': _shorten(_memory(diagnosis)),
        'start': phrase_start(run),
        'rest': ', '.join(_outside(run)),
        'validation': _shorten(_validations(run)),
        'optimized': ', '.join(_optimized(run)),
        'tuned': '; '.join(list_tuned(run.evidence)),
        'ranks': _shorten(ranks.why if ranks and ranks.world_size > 1 else ''),
    }
    end, recorded = run.evidence.end, run.figures.iterations
    done = recorded if end is None else max(end.iterations, recorded)
    # where the disk was full, say
    part = f', {recorded} of them recorded' if recorded < done else ''
    head = f'GPUEfficiencyHook: {run.status} after {plural(done, "iteration")}, '
    last = list(_next(run, advice, program, arguments))
    begin = f'{head}{format_seconds(run.figures.duration_s)}{part}'
    for spared in ('', *_SPARED):
        rows.pop(spared, None)
        lines = [line for label, text in rows.items() for line in _wrap(label, text)]
        if len(lines) < _MOST_LINES - len(last):
            break
    whole = '\n'.join([begin, *lines, *last]).replace(BOUND, ' ')
    return _fit_logs(visible(whole))


def _fit_logs(text: str) -> str:
    """Write as ``\\u4e2d`` what a log file or the console here cannot take.

    Paths may hold anything. Those that the logs take stay as they are, so that the
    command can be typed.
    """
    console = getattr(sys.stdout, 'encoding', None)
    for encoding in (locale.getpreferredencoding(False), console or 'ascii'):
        text = text.encode(encoding, 'backslashreplace').decode(encoding)
    return text


def _next(
    run: Run,
    advice: RunAdvice | None,
    program: Sequence[str],
    arguments: Mapping[str, Any] | None,
) -> Iterator[str]:
    """The command that goes on from here, as long as it is, and what it gives."""
    label, indent = f'  {"next":<11}', ' ' * _LABEL
    if advice is not None and (advice.config or advice.worker_nice):
        if advice.worker_nice is not None:
            arguments = {**(arguments or {}), 'worker_nice': advice.worker_nice}
        config = advice.config or run.meta.config_path
        yield label + _train_command(run, config, program, arguments)
    else:
        has_ended = run.status in ('completed', 'interrupted')
        folder = shell_path(run.meta.work_dir) or '<work_dir>'
        yield f'{label}mmgpu {"recommend" if has_ended else "why"} {folder}'
    for sentence in () if advice is None else _describe_advice(advice):
        line = ' '.join(sentence.split())
        yield indent + textwrap.shorten(line, _WIDTH - _LABEL, placeholder=' ...')


def _describe_advice(advice: RunAdvice) -> Iterator[str]:
    """Lines on what the command gives, and on what is not in its config."""
    gain = _phrase_gain(advice.recommendation)
    if advice.config and gain:
        yield f'predicted: {gain}'
    if advice.left_out:
        yield f'left out: {", ".join(advice.left_out)}'
    if advice.reason is not None:
        yield f'no recommended config: {advice.reason}'
    elif not advice.config and advice.worker_nice:
        yield 'niced workers give way to the thread that saves'
    elif not advice.config:
        yield 'it says why nothing is to change'


def _train_command(
    run: Run,
    config: str | None,
    program: Sequence[str],
    arguments: Mapping[str, Any] | None,
) -> str:
    """The words that trained, where they can be typed again with another config.

    Args:
        run: Of the training.
        config: To train; ``None`` where it is in no file.
        program: What trained, as it is typed after ``python``.
        arguments: Of ``mmgpu run``; ``None`` where it did not start the training.
    """
    name, *given = *program, ''
    script = shell_path(name) if name.endswith('.py') else None
    if name == '-m':
        module, *given = given
        script = f'-m {module}'
    is_given = (run.meta.config_path or '') in map(os.path.abspath, given)
    starter = 'python'
    if arguments is not None:
        starter = ' '.join(['mmgpu run', *render_options(arguments)])
    # several ranks need a launcher, which is not in it
    if script and config and is_given and run.meta.world_size == 1:
        return f'{starter} {script} {shell_path(config)}'
    below = f' with {starter}' if arguments else ''
    return f'train {shell_path(config) or "it again"}{below}'


def _phrase_gain(found: Recommendation) -> str:
    """All changes of the train loader together; else those of validation's."""
    for change in found.changes:
        gain = change.predicted_gain_pct
        low, high = change.predicted_gain_low_pct, change.predicted_gain_high_pct
        if gain is None or low is None or high is None:
            continue
        if gain < 0.0:
            return f'{-gain:.0f} % more time ({-high:.0f} to {-low:.0f} %)'
        return f'{gain:.0f} % less time ({low:.0f} to {high:.0f} %)'
    validation = found.validation
    if validation is None or validation.run_gain_pct is None:
        return ''
    return f'{validation.run_gain_pct:.1f} % less time, in validation'


def _shorten(text: str) -> str:
    """To two lines."""
    return textwrap.shorten(text, 2 * (_WIDTH - _LABEL), placeholder=' ...')


def _wrap(label: str, text: str) -> list[str]:
    label = f'  {"" if label == "why" else label}'.ljust(_LABEL)
    text, indent = bind_units(text), ' ' * _LABEL
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=indent)


def _iteration(run: Run) -> Iterator[str]:
    figures, parts = run.figures, run.figures.per_iteration
    if parts is None or not parts.total_s:
        yield 'unknown: no steady iteration was measured'
        return
    yield format_seconds(parts.total_s)
    for part in ('data_wait', 'step', 'hooks'):
        share = getattr(parts, f'{part}_s') / parts.total_s
        yield f'{PART_NAMES[part]} {100 * share:.0f} %'
    if figures.images_per_s is not None:
        yield f'{figures.images_per_s:.1f} images/s'


def _loader(run: Run) -> Iterator[str]:
    workers, loader = run.meta.loader.num_workers, run.figures.loader
    yield f'num_workers={"unknown" if workers is None else workers}'
    if loader is None or loader.occupancy_s is None:
        return
    yield f'{format_seconds(loader.occupancy_s)} per batch'
    if run.transforms:
        costliest = run.transforms[0]
        whole_s = sum(cost.image_s for cost in run.transforms)
        share = costliest.image_s / whole_s
        yield f'{100 * share:.0f} % of it {costliest.name}'


def _machine(run: Run) -> Iterator[str]:
    figures = run.figures
    host = run.meta.host
    process = host.affinity_cpus
    before = host.unbound_cpus or host.wider_thread_cpus
    if process and before and process < before:
        yield f'bound to {process} of {before} cores (mmgpu explain MG113)'
    narrow = find_narrow_start(host)
    if narrow is not None:
        cores = f'{narrow.bound_cpus} of {narrow.given_cpus} cores'
        yield f'bound by srun to {cores} (mmgpu explain MG117)'
    used = run.used_cores
    if used is not None:
        cores = 'unknown' if host.usable_cores is None else f'{host.usable_cores:g}'
        yield f'{used:.1f} of {cores} cores busy'
    if figures.external_cpu_cores is not None:
        yield f'other programs {figures.external_cpu_cores:.1f}'
    if figures.process_rss_bytes is not None:
        of = f' of {format_bytes(host.ram_total_bytes)}' if host.ram_total_bytes else ''
        yield f'memory {format_bytes(figures.process_rss_bytes)}{of}'


def _gpu(run: Run) -> Iterator[str]:
    figures = run.figures
    gpu = figures.gpu
    if gpu is not None and gpu.util_pct is not None:
        zero = '' if gpu.zero_pct is None else f' (0 % for {gpu.zero_pct:.0f} %)'
        last = figures.gpu_last_iteration
        until = '' if last is None else f' until iteration {last}'
        yield f'utilisation {gpu.util_pct:.0f} %{zero}{until}'
    elif run.meta.device == 'cpu':
        yield 'not used'
        return
    else:
        yield f'utilisation unknown: {figures.why_no_gpu_util}'
    if figures.gpu_idle_pct is not None:
        yield f'idle {figures.gpu_idle_pct:.0f} %'
    if figures.gpu_mem_peak_bytes is not None:
        total = run.meta.gpu.memory_total_bytes if run.meta.gpu else None
        of = f' of {format_bytes(total)}' if total else ''
        yield f'peak {format_bytes(figures.gpu_mem_peak_bytes)}{of}'


def _optimized(run: Run) -> Iterator[str]:
    """Optimisations that were on, with what each made of a call, where it is known."""
    spared = {} if run.end is None else run.end.spared
    for name in run.meta.optimized:
        found = spared.get(name)
        change = format_change(found.plain_s, found.ours_s) if found else ''
        yield f'{name} {change}'.rstrip()


def _memory(diagnosis: Diagnosis) -> str:
    """What takes more than there may be of it, the worst."""
    for finding in diagnosis.findings:
        is_found = finding.severity in ('problem', 'notice')
        if finding.code.startswith('MG4') and is_found:
            return f'{finding.code}: {finding.detail}'
    return ''


def _validations(run: Run) -> str:
    """Parts of the validations, where those are a part of the run that is named."""
    costs = find_costs(run)
    if costs is None or 100 * run.figures.part_share('validation') < _WORTH_PCT:
        return ''
    return summarize_validations(costs)


def _outside(run: Run) -> Iterator[str]:
    """Parts of the time ledger that are in no iteration."""
    figures = run.figures
    for part, seconds in figures.ledger_s.items():
        share = 100 * seconds / figures.duration_s if figures.duration_s > 0 else 0.0
        is_save = part == 'checkpoint_save' and figures.saves
        is_inside = part in ('data_wait', 'step', 'hooks')
        if not is_inside and (share >= _WORTH_PCT or is_save):
            name = plural(figures.saves, 'save') if is_save else PART_NAMES[part]
            yield f'{name} {format_seconds(seconds)} ({format_pct(share)})'
