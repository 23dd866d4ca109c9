"""Applies all rules to one run, and chooses one of a fixed set of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import DELAY_CAUSES
from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.judged import Diagnosis, EvidenceCounts, Finding, Verdict
from mmgpu_hooks.schema.text import Text, phrase, sentences

_DATA = 'MG101'
_CAUSES = ('MG111', 'MG113', 'MG117', 'MG115', 'MG102', 'MG103')
"""Codes of the rules that explain why training waits for data, by precedence.

None of them stands alone.
"""

_ORDER = ('problem', 'notice', 'ok', 'unknown')


def diagnose_run(run: Run) -> Diagnosis:
    """Judges one rank's run: the verdict and the findings, worst first."""
    figures = run.figures
    judged = (rule.apply(run) for rule in RULES.values())
    findings = {finding.code: finding for finding in judged if finding is not None}
    worst = sorted(findings.values(), key=lambda f: (_ORDER.index(f.severity), f.code))
    counts = EvidenceCounts(
        iterations=figures.iterations,
        steady_iterations=figures.steady_iterations,
        gpu_samples=figures.gpu.samples if figures.gpu else 0,
        saves=figures.saves,
    )
    verdict = _choose_verdict(run, findings)
    return Diagnosis(verdict, tuple(worst), counts, run.judged_saves)


def _choose_verdict(run: Run, findings: Mapping[str, Finding]) -> Verdict:
    """Chooses the verdict: the problem with the largest share of the run's time."""
    figures, share = run.figures, run.figures.data_wait_share
    if share is None or not figures.is_enough:
        why = phrase(
            'Steady iterations recorded {steady_iterations:d}, needed '
            '{needed_iterations:d}; train at least {missing_iterations:d} more.',
            steady_iterations=figures.steady_iterations,
            needed_iterations=thresholds.MIN_ITERATIONS,
            missing_iterations=count_missing(run),
        )
        name = 'not_enough_evidence'
        return Verdict(name, _phrase_verdict(name, why), 'low')
    problems = {
        code: finding
        for code, finding in findings.items()
        if finding.severity == 'problem'
    }
    rivals = {
        code: finding.share
        for code, finding in problems.items()
        if code not in _CAUSES
        and finding.share is not None
        and finding.share >= thresholds.VERDICT_SHARE
    }
    if not rivals and run.is_data_bound:
        # a small share of the run, and yet the loader sets the speed of its iterations
        rivals = {_DATA: share}
    if not rivals:
        name = 'compute_bound'
        why = phrase(
            'Data is at hand when it is needed ({data_wait_share} of an iteration is '
            'waiting), so the step sets the speed.',
            data_wait_share=share,
        )
    else:
        largest = findings[max(rivals, key=rivals.__getitem__)]
        name, why = RULES[largest.code].verdict or '', largest.detail
        if largest.code == _DATA:
            wait = _explain_wait(run, problems)
            name, why = wait.verdict, sentences(why, wait.why)
        elif name == 'save_bound':
            why = sentences(why, _save_cause(run))
    sentence = _phrase_verdict(name, why)
    return Verdict(name, sentence, judge_confidence(run), run.headspace_pct)


def _phrase_verdict(name: str, why: Text) -> Text:
    return phrase('{title}: {why}', title=VERDICTS[name], why=why)


def count_missing(run: Run) -> int:
    """Counts the iterations that a run still needs before it is judged."""
    figures = run.figures
    more = thresholds.MIN_ITERATIONS - figures.steady_iterations
    if figures.steady_iterations == figures.iterations:
        # the only interval becomes the warm-up once there is another
        more += max(run.meta.interval_iterations, figures.iterations)
    return max(more, 1)


def judge_confidence(run: Run) -> str:
    """Rates confidence in a verdict, by iteration count and other load of the host."""
    if run.is_busy_host:
        return 'low'
    return (
        'high'
        if run.figures.steady_iterations >= thresholds.SURE_ITERATIONS
        else 'medium'
    )


class _Wait(NamedTuple):
    """Verdict on a data-bound run, with the cause of its waits."""

    verdict: str
    why: Text
    """Sentence on why a data-bound run waits for data."""


def _explain_wait(run: Run, problems: Mapping[str, Finding]) -> _Wait:
    """Returns the verdict on a data-bound run, with the cause of its waits."""
    cause = next((code for code in _CAUSES if code in problems), None)
    workers, cores = run.meta.loader.num_workers, run.meta.host.usable_cores
    # without workers the loading blocks the loop, whatever it waits for
    if cause and (cause != 'MG103' or workers):
        return _Wait(RULES[cause].verdict or '', problems[cause].detail)
    if run.wait_cause == 'stalls':
        why = phrase(
            'Stalls are rare: usually 95 % of the waits are below {data_wait_p95_s}.',
            run.figures,
        )
    elif run.wait_cause == 'fetching':
        why = phrase('Most of it is the training thread fetching ready batches.')
    elif workers is None:  # it is unknown what would help
        why = phrase('The settings of the loader are unknown.')
    elif workers == 0:
        why = phrase('The training process loads every batch itself (num_workers=0).')
        return _Wait('data_bound_workers', why)
    else:
        why = phrase(
            'It has num_workers={workers:d} on {cores:g} usable cores.',
            workers=workers,
            cores=cores,
        )
        if cores is None:
            why = phrase(
                'It has num_workers={workers:d} on an unknown number of usable cores.',
                workers=workers,
            )
        if cores is None or workers < max(int(cores), 1):
            return _Wait('data_bound_workers', why)
    return _Wait('data_bound', why)


def _save_cause(run: Run) -> Text | None:
    """Phrases the main proven cause of a run's slow saves; ``None`` if unproven."""
    held_s = Counter[str]()
    for save in run.judged_saves:
        held_s.update(save.held_s)
    known_s = (save.uncontended_s for save in run.judged_saves)
    usual_s = sum(seconds for seconds in known_s if seconds is not None)
    for cause, seconds in held_s.most_common(1):
        least_s = thresholds.SLOW_SAVE.ratio * usual_s
        if seconds >= least_s or run.saves_held_by(cause):
            return DELAY_CAUSES[cause].took(seconds)
    return None
