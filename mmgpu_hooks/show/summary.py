"""Renders the summary of a training, of at most ten lines, for its end."""

from __future__ import annotations

import io
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
from mmgpu_hooks.schema.figures import format_change
from mmgpu_hooks.schema.judged import Diagnosis, Recommendation, RunAdvice
from mmgpu_hooks.schema.recorded import PART_NAMES
from mmgpu_hooks.schema.run import RanksSummary
from mmgpu_hooks.schema.text import Text, listed, phrase
from mmgpu_hooks.show.recommendation import title_verdict
from mmgpu_hooks.show.start import phrase_start
from mmgpu_hooks.show.text import (
    BOUND,
    BREAK,
    bind_units,
    break_wide,
    shell_path,
    visible,
    widen,
)
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.validation import summarize_validations
from mmgpu_hooks.show.words import is_english, phrase_status, say

_WIDTH, _LABEL, _MOST_LINES = 80, 13, 10
_WORTH_PCT = 1.0
"""Smallest share of a run's time, in per cent, at which a part gets a summary row."""
_SPARED = ('why', 'rest', 'loader', 'validation', 'machine', 'start')
"""Names of summary rows, in the order in which a too long summary drops them."""


def render_training_summary(
    run: Run,
    diagnosis: Diagnosis,
    ranks: RanksSummary | None = None,
    advice: RunAdvice | None = None,
    program: Sequence[str] = (),
    judged: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Renders the summary of a training: verdict first, next command last.

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
    title = title_verdict(verdict)
    if judged not in (None, run.meta.rank):
        title = phrase('Rank {rank}: {verdict}', rank=judged, verdict=title)
    rows = {
        'verdict': say(title),
        'why': say(verdict.why),
        'iteration': _join(_iteration(run)),
        'loader': _join(_loader(run)),
        'machine': _join(_machine(run)),
        'GPU': _join(_gpu(run)),
        'memory': _shorten(say(_memory(diagnosis))),
        'start': say(phrase_start(run)),
        'rest': _join(_outside(run)),
        'validation': _shorten(say(_validations(run))),
        'optimized': ', '.join(_optimized(run)),
        'tuned': '; '.join(map(say, list_tuned(run.evidence))),
        'ranks': _shorten(say(ranks.why) if ranks and ranks.world_size > 1 else ''),
    }
    end, recorded = run.evidence.end, run.figures.iterations
    done = recorded if end is None else max(end.iterations, recorded)
    last = list(_next(run, advice, program, arguments))
    begin = say(_phrase_end(run, done))
    for spared in _order_spared(run, ranks):
        rows.pop(spared, None)
        lines = [line for label, text in rows.items() for line in _wrap(label, text)]
        if len(lines) < _MOST_LINES - len(last):
            break
    whole = '\n'.join([begin, *lines, *last]).replace(BOUND, ' ')
    return _fit_logs(visible(whole))


def _order_spared(run: Run, ranks: RanksSummary | None) -> list[str]:
    """Returns the names of summary rows in the order in which they are dropped."""
    order = ['', *_SPARED]
    are_alike = ranks is not None and ranks.slowest is None
    if are_alike and run.meta.is_model_wrapped is not False:
        # lines without news: no rank holds the others up, or none is known to. Ranks
        # that train apart are news
        order.insert(1, 'ranks')
    if run.is_busy_host:
        # what other programs use is why a start is slow, too
        order.append(order.pop(order.index('machine')))
    return order


def _fit_logs(text: str) -> str:
    """Escapes characters that the log file or the console cannot encode.

    Paths may hold anything. Those that the logs take stay as they are, so that the
    command can be typed.
    """
    console = getattr(sys.stdout, 'encoding', None)
    for encoding in (locale.getpreferredencoding(False), console or 'ascii'):
        text = text.encode(encoding, 'backslashreplace').decode(encoding)
    return text


def _phrase_end(run: Run, done: int) -> Text:
    """Phrases how training ended, after how many iterations and seconds."""
    recorded = run.figures.iterations
    facts = {
        'status': phrase_status(run.status),
        'iterations': done,
        'duration_s': run.figures.duration_s,
    }
    head = phrase(
        'GPUEfficiencyHook: {status} after {iterations}, {duration_s}', **facts
    )
    if recorded < done:
        # where the disk was full, say
        head = phrase(
            'GPUEfficiencyHook: {status} after {iterations}, {duration_s}, {recorded} '
            'of them recorded',
            recorded=recorded,
            **facts,
        )
    return head


def _next(
    run: Run,
    advice: RunAdvice | None,
    program: Sequence[str],
    arguments: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yields rows with the command to run next, and its predicted gain."""
    label, indent = _label(phrase('next')), ' ' * _LABEL
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
        line = ' '.join(say(sentence).split())
        yield indent + textwrap.shorten(line, _WIDTH - _LABEL, placeholder=' ...')


def _describe_advice(advice: RunAdvice) -> Iterator[Text]:
    """Phrases the recommended config's predicted gain, and changes left out of it."""
    gain = _phrase_gain(advice.recommendation)
    if advice.config and gain:
        yield phrase('predicted: {gain}', gain=gain)
    if advice.left_out:
        yield phrase('left out: {left_out}', advice)
    if advice.reason is not None:
        yield phrase('no recommended config: {reason}', advice)
    elif not advice.config and advice.worker_nice:
        yield phrase('niced workers give way to the thread that saves')
    elif not advice.config:
        yield phrase('it says why nothing is to change')


def _train_command(
    run: Run,
    config: str | None,
    program: Sequence[str],
    arguments: Mapping[str, Any] | None,
) -> str:
    """Returns the command that repeats this training with another config.

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
    facts = {'config': shell_path(config) or phrase('it again'), 'starter': starter}
    if arguments:
        return say(phrase('train {config} with {starter}', **facts))
    return say(phrase('train {config}', config=facts['config']))


def _phrase_gain(found: Recommendation) -> Text | None:
    """Phrases per cent of time saved by changes to training, or else to validation."""
    for change in found.changes:
        gain = change.predicted_gain_pct
        low, high = change.predicted_gain_low_pct, change.predicted_gain_high_pct
        if gain is None or low is None or high is None:
            continue
        if gain < 0.0:
            return phrase(
                '{loss_pct} more time ({low_pct:.0f} to {high_pct})',
                loss_pct=-gain,
                low_pct=-high,
                high_pct=-low,
            )
        return phrase(
            '{gain_pct} less time ({low_pct:.0f} to {high_pct})',
            gain_pct=gain,
            low_pct=low,
            high_pct=high,
        )
    validation = found.validation
    if validation is None or validation.run_gain_pct is None:
        return None
    return phrase('{run_gain_pct:.1f} % less time, in validation', validation)


def _join(parts: Iterator[Text]) -> str:
    return say(listed(parts))


def _shorten(text: str) -> str:
    """Cuts a text to the width of two lines of the summary."""
    return textwrap.shorten(text, 2 * (_WIDTH - _LABEL), placeholder=' ...')


def _label(label: Text) -> str:
    """Formats a summary row's label, padded to a common width in terminal cells."""
    said = say(label)
    return f'  {said}{" " * (_LABEL - 2 - len(widen(said)))}'


def _wrap(name: str, text: str) -> list[str]:
    if not text:
        return []
    label, indent = _label(_LABELS[name]), ' ' * _LABEL
    if is_english():
        return textwrap.wrap(
            bind_units(text), _WIDTH, initial_indent=label, subsequent_indent=indent
        )
    # late: most summaries are in English; rich knows how wide a character is
    from rich.console import Console
    from rich.text import Text as RichText

    console = Console(width=_WIDTH - _LABEL, file=io.StringIO())
    wrapped = RichText(break_wide(bind_units(text))).wrap(console, _WIDTH - _LABEL)
    lines = [line.plain.replace(BREAK, '').rstrip() for line in wrapped]
    labels = [label, *[indent] * len(lines)]
    return [f'{label}{line}' for label, line in zip(labels, lines)]


_LABELS: dict[str, Text] = {
    'verdict': phrase('verdict'),
    'why': Text(''),
    'iteration': phrase('iteration'),
    'loader': phrase('loader'),
    'machine': phrase('machine'),
    'GPU': phrase('GPU'),
    'memory': phrase('memory'),
    'start': phrase('start'),
    'rest': phrase('rest'),
    'validation': phrase('validation'),
    'optimized': phrase('optimized'),
    'tuned': phrase('tuned'),
    'ranks': phrase('ranks'),
}
"""Label of each row of the summary, by the row's name."""


def _iteration(run: Run) -> Iterator[Text]:
    figures, parts = run.figures, run.figures.per_iteration
    if parts is None or not parts.total_s:
        yield phrase('unknown: no steady iteration was measured')
        return
    yield phrase('{iter_s}', figures)
    for part in ('data_wait', 'step', 'hooks'):
        share = getattr(parts, f'{part}_s') / parts.total_s
        yield phrase('{part} {share}', part=PART_NAMES[part], share=share)
    if figures.images_per_s is not None:
        yield phrase('{images_per_s:.1f} images/s', figures)


def _loader(run: Run) -> Iterator[Text]:
    workers, loader = run.meta.loader.num_workers, run.figures.loader
    yield phrase('num_workers={num_workers:d}', num_workers=workers)
    if loader is None or loader.batch_time_s is None:
        return
    yield phrase('{batch_time_s} per batch', loader)
    if run.transforms:
        costliest = run.transforms[0]
        whole_s = sum(cost.image_s for cost in run.transforms)
        share = costliest.image_s / whole_s
        yield phrase('{share} of it {transform}', share=share, transform=costliest.name)


def _machine(run: Run) -> Iterator[Text]:
    figures = run.figures
    host = run.meta.host
    process = host.affinity_cpus
    before = host.unbound_cpus or host.wider_thread_cpus
    if process and before and process < before:
        yield phrase(
            'bound to {own_cores:d} of {unbound_cores} (mmgpu explain MG113)',
            own_cores=process,
            unbound_cores=before,
        )
    narrow = find_narrow_start(host)
    if narrow is not None:
        yield phrase(
            'bound by srun to {bound_cpus:d} of {given_cpus:d} cores (mmgpu explain '
            'MG117)',
            narrow,
        )
    used = run.used_cores
    if used is not None:
        yield phrase(
            '{used_cores:.1f} of {usable_cores:g} cores busy',
            used_cores=used,
            usable_cores=host.usable_cores,
        )
    if figures.external_cpu_cores is not None:
        yield phrase('other programs {external_cpu_cores:.1f}', figures)
    if figures.process_rss_bytes is not None and host.ram_total_bytes:
        yield phrase('memory {process_rss_bytes} of {ram_total_bytes}', figures, host)
    elif figures.process_rss_bytes is not None:
        yield phrase('memory {process_rss_bytes}', figures)


def _gpu(run: Run) -> Iterator[Text]:
    figures = run.figures
    gpu = figures.gpu
    if gpu is not None and gpu.util_pct is not None:
        utilisation = phrase('utilisation {util_pct}', gpu)
        if gpu.zero_pct is not None:
            utilisation = phrase('utilisation {util_pct} (0 % for {zero_pct})', gpu)
        if figures.gpu_last_iteration is not None:
            utilisation = phrase(
                '{utilisation} until iteration {gpu_last_iteration}',
                figures,
                utilisation=utilisation,
            )
        yield utilisation
    elif run.meta.device == 'cpu':
        yield phrase('not used')
        return
    else:
        yield phrase('utilisation unknown: {why_no_gpu_util}', figures)
    if figures.gpu_idle_pct is not None:
        yield phrase('idle {gpu_idle_pct}', figures)
    if figures.gpu_mem_peak_bytes is not None:
        total = run.meta.gpu.memory_total_bytes if run.meta.gpu else None
        if total:
            yield phrase(
                'peak {gpu_mem_peak_bytes} of {total_bytes}', figures, total_bytes=total
            )
        else:
            yield phrase('peak {gpu_mem_peak_bytes}', figures)


def _optimized(run: Run) -> Iterator[str]:
    """Phrases active optimisations with CPU time per call: ``ema 1.2 -> 0.3 ms``."""
    spared = {} if run.end is None else run.end.spared
    for name in run.meta.optimized:
        found = spared.get(name)
        change = format_change(found.plain_s, found.ours_s) if found else ''
        yield f'{name} {change}'.rstrip()


def _memory(diagnosis: Diagnosis) -> Text:
    """Phrases the summary's row on the most severe memory finding; may be empty."""
    for finding in diagnosis.findings:
        is_found = finding.severity in ('problem', 'notice')
        if finding.code.startswith('MG4') and is_found:
            return phrase('{code}: {detail}', finding)
    return Text('')


def _validations(run: Run) -> Text:
    """Phrases the summary's row on validations; empty if they took little time."""
    costs = find_costs(run)
    if costs is None or 100 * run.figures.part_share('validation') < _WORTH_PCT:
        return Text('')
    return summarize_validations(costs)


def _outside(run: Run) -> Iterator[Text]:
    """Phrases time spent outside of iterations, by part, with its share of the run."""
    figures = run.figures
    for part, seconds in figures.ledger_s.items():
        share = 100 * seconds / figures.duration_s if figures.duration_s > 0 else 0.0
        is_save = part == 'checkpoint_save' and figures.saves
        is_inside = part in ('data_wait', 'step', 'hooks')
        if not is_inside and (share >= _WORTH_PCT or is_save):
            name = PART_NAMES[part]
            if is_save:
                name = phrase('{saves}', figures)
            yield phrase(
                '{part} {spent_s} ({run_pct:exact})',
                part=name,
                spent_s=seconds,
                run_pct=share,
            )
