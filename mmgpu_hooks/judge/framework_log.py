"""Judges a run without GPUEfficiencyHook by ``time`` and ``data_time`` in its log.

The confidence is always low: ``data_time`` holds more than waiting for data, and no
figure of the host, the card or the loader stands beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.framework_log import MMCV, FrameworkLog, LoggedLine
from mmgpu_hooks.schema.judged import EvidenceCounts, FirstAnswer, LogFigures, Verdict
from mmgpu_hooks.schema.text import Text, phrase, sentences

_SWITCH_ON = 'mmgpu run tools/train.py CONFIG'
_CONFIDENCE = 'low'
_LOADERS = {
    'train_dataloader': ('num_workers', 'batch_size'),
    # of MMDetection 2.x: the second since 2.18, over the first
    'data': ('workers_per_gpu', 'samples_per_gpu'),
}
"""Config variables of the train loader, with their keys for workers and batch size."""


class _Means(NamedTuple):
    """Mean seconds of ``time`` and ``data_time`` over the log lines after the first."""

    iterations: int
    lines: int
    iter_s: float
    data_s: float
    data_share: float
    median_share: float
    """Median over the log lines of ``data_time`` as a share (0 to 1) of ``time``."""
    most_share: float
    start_share: float
    """Share (0 to 1) of all time by which epoch-start waits exceed the usual wait."""


def judge_framework_log(
    log: FrameworkLog, older_evidence: str | None = None
) -> FirstAnswer:
    """Judges a training by the share of ``data_time`` in its log, and gives advice.

    Args:
        log: With one train line at least.
        older_evidence: Evidence of an older run in the same folder.
    """
    means = _average(log.lines)
    loader = parse_loader(log.config or '')
    workers = loader.get('num_workers')
    verdict = _judge(log, means, workers)
    notes = list(log.notes)
    if older_evidence is not None:
        notes.append(
            phrase(
                'An older run has evidence of GPUEfficiencyHook: mmgpu recommend '
                '{older_evidence}',
                older_evidence=older_evidence,
            )
        )
    memory = (line.memory_bytes for line in log.lines)
    return FirstAnswer(
        log=log.path,
        source=log.writer,
        verdict=verdict,
        evidence=EvidenceCounts(
            iterations=sum(_count_each(log.lines[1:], log.lines[0])),
            steady_iterations=means.iterations if means else 0,
        ),
        no_change_reason=phrase(
            'No setting is recommended on a log alone: train with the hook on for that.'
        ),
        figures=LogFigures(
            lines=len(log.lines),
            iter_s=means.iter_s if means else None,
            data_time_s=means.data_s if means else None,
            data_time_share=means.data_share if means else None,
            peak_memory_bytes=max(filter(None, memory), default=None),
            num_workers=workers,
            batch_size=loader.get('batch_size'),
            switch_on=_SWITCH_ON,
        ),
        advice=tuple(_advise(log, verdict)),
        notes=tuple(notes),
    )


def _judge(log: FrameworkLog, means: _Means | None, workers: int | None) -> Verdict:
    if means is None:
        why = phrase(
            'Lines of training with time and data_time in the log: {known_lines:d}. A '
            'first answer needs 2, with {needed_iterations} from the first to the '
            'last.',
            known_lines=sum(line.data_s is not None for line in log.lines),
            needed_iterations=thresholds.MIN_ITERATIONS,
        )
        return _make_verdict('not_enough_evidence', why)
    if means.data_share < thresholds.DATA_WAIT_PROBLEM:
        why = phrase(
            'data_time is {data_share} of an iteration ({data_s} of {iter_s}, mean of '
            '{iterations} in {lines} of the log), so the step sets the speed.',
            means,
        )
        return _make_verdict('compute_bound', why)
    why = phrase(
        'data_time is {data_share} of an iteration ({data_s} of {iter_s}, mean of '
        '{iterations} in {lines} of the log). At most so much is waiting for data: '
        'saves, hooks, starts of workers and, in iteration-based training, validations '
        'are in it, too.',
        means,
    )
    headspace_pct = 100 * means.data_share / (1 - means.data_share)
    if means.median_share < thresholds.DATA_WAIT_PROBLEM:
        return _judge_uneven(means, why, workers, headspace_pct)
    if workers == 0:
        loads = phrase('The training process loads every batch itself (no workers).')
        why = sentences(why, loads)
        return _make_verdict('data_bound_workers', why, headspace_pct)
    if workers is not None:
        why = sentences(why, phrase('The config has {workers}.', workers=workers))
    return _make_verdict('data_bound', why, headspace_pct)


def _judge_uneven(
    means: _Means, why: Text, workers: int | None, headspace_pct: float
) -> Verdict:
    """Returns the verdict on a log in which few lines hold most of ``data_time``."""
    uneven = phrase(
        'Few lines have most of it: half of them have at most {median_share}, one has '
        '{most_share}.',
        means,
    )
    if means.start_share >= thresholds.STARTUP_PROBLEM and workers != 0:
        starts = phrase(
            'They are the first lines of epochs ({start_share} of the time): workers '
            'start anew, and no batch is made yet. persistent_workers=True of the '
            'train loader keeps them.',
            means,
        )
        why = sentences(why, uneven, starts)
        return _make_verdict('startup_bound', why, headspace_pct)
    open_end = phrase(
        'Saves, validations and rare stalls look so; the log does not say which.'
    )
    why = sentences(why, uneven, open_end)
    return _make_verdict('not_enough_evidence', why, headspace_pct)


def _make_verdict(name: str, why: Text, headspace_pct: float | None = None) -> Verdict:
    sentence = phrase('{title}: {why}', title=VERDICTS[name], why=why)
    return Verdict(name, sentence, _CONFIDENCE, headspace_pct)


def _average(lines: Sequence[LoggedLine]) -> _Means | None:
    """Averages the times of all log lines except the first; ``None`` if too few."""
    known = [line for line in lines if line.data_s is not None]
    weights = [*_count_each(known[1:], known[0])] if known else []
    iterations = sum(weights)
    if iterations < thresholds.MIN_ITERATIONS:
        return None
    waits = [line.data_s or 0.0 for line in known[1:]]
    shares = [wait_s / line.iter_s for wait_s, line in zip(waits, known[1:])]
    whole_s = sum(line.iter_s * weight for line, weight in zip(known[1:], weights))
    data_s = sum(wait_s * weight for wait_s, weight in zip(waits, weights))
    usual_s = median(waits)
    start_s = sum(
        max(wait_s - usual_s, 0.0) * weight
        for before, line, wait_s, weight in zip(known, known[1:], waits, weights)
        if _begins_epoch(line, before)
    )
    return _Means(
        iterations=iterations,
        lines=len(weights),
        iter_s=whole_s / iterations,
        data_s=data_s / iterations,
        # all of it would leave nothing to divide by
        data_share=min(data_s / whole_s, 0.999),
        median_share=median(shares),
        most_share=max(shares),
        start_share=start_s / whole_s,
    )


def _begins_epoch(line: LoggedLine, before: LoggedLine) -> bool:
    return (line.epoch or 0) > (before.epoch or 0)


def _count_each(lines: Sequence[LoggedLine], first: LoggedLine) -> Iterator[int]:
    """Yields the number of iterations from each log line to the next.

    MMCV's numbers begin anew with each epoch. Where numbers go back otherwise, a
    training was resumed: the line then stands for as many as the one before it.
    """
    before, usual = first, first.iteration
    for line in lines:
        count = line.iteration - before.iteration
        if count <= 0:
            count = line.iteration if _begins_epoch(line, before) else usual
        yield count
        before, usual = line, count


def _advise(log: FrameworkLog, verdict: Verdict) -> Iterator[Text]:
    """Yields advice for a training in which GPUEfficiencyHook cannot be switched on."""
    if log.writer != MMCV:
        return
    if verdict.name.startswith('data_bound'):
        yield phrase(
            'Try more workers: --cfg-options data.workers_per_gpu=N, up to the usable '
            'cores of a rank ("mmgpu doctor" counts them), and compare data_time.'
        )
    yield phrase(
        'GPUEfficiencyHook is for MMEngine (MMDetection 3.x), and cannot be switched '
        'on in MMDetection 2.x.'
    )


def parse_loader(config: str) -> dict[str, int]:
    """Reads the train loader's workers and batch size from the text of a config.

    Args:
        config: As MMEngine and MMCV dump it: assignments of literals.

    Returns:
        ``num_workers`` and ``batch_size``, each where it is known.

    Examples:
        >>> parse_loader('data = dict(samples_per_gpu=2, workers_per_gpu=4)')
        {'num_workers': 4, 'batch_size': 2}
    """
    try:
        body = ast.parse(config).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = dict[str, int]()
    for statement in body:
        if not isinstance(statement, ast.Assign):
            continue
        names = [getattr(target, 'id', '') for target in statement.targets]
        for name in names:
            if name in _LOADERS:
                values = _list_values(statement.value)
                own = values.get('train_dataloader')
                inner = {} if own is None else _list_values(own)
                both = {**values, **inner}
                for key, spelled in zip(('num_workers', 'batch_size'), _LOADERS[name]):
                    number = getattr(both.get(spelled), 'value', None)
                    if type(number) is int and number >= 0:
                        found[key] = number
    return found


def _list_values(node: ast.AST) -> Mapping[str, Any]:
    """Maps the keys of a ``dict(...)`` or ``{...}`` expression to their value nodes."""
    if isinstance(node, ast.Call):
        return {word.arg: word.value for word in node.keywords if word.arg}
    if isinstance(node, ast.Dict):
        keys = (getattr(key, 'value', None) for key in node.keys)
        return {key: value for key, value in zip(keys, node.values) if key}
    return {}
