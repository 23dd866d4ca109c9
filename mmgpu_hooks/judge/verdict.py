"""One verdict per run, out of a closed list."""

from __future__ import annotations

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.save_delay import fold_delay
from mmgpu_hooks.judge.thresholds import (
    MIN_ITERATIONS,
    SLOW_SAVE_RATIO,
    SURE_ITERATIONS,
    VERDICT_SHARE,
)
from mmgpu_hooks.schema import Finding, Verdict

VERDICTS: dict[str, str] = {
    'not_enough_evidence': 'Not enough evidence',
    'data_bound': 'Data-bound',
    'data_bound_workers': 'Data-bound, too few workers',
    'data_bound_cpu': 'Data-bound, the CPU is the wall',
    'data_bound_storage': 'Data-bound, loading is blocked',
    'data_bound_order': 'Data-bound, late batches hold up the ones behind them',
    'affinity_collapsed': 'Data-bound, workers are confined to a few CPUs',
    'quota_throttled': 'Held back by the CPU quota',
    'cpu_oversubscribed': 'The training thread waits for a core',
    'startup_bound': 'Bound by starts of the loader',
    'validation_bound': 'Bound by validation',
    'save_bound': 'Bound by checkpoint saves',
    'hook_bound': 'Bound by hooks',
    'compute_bound': 'Compute-bound',
}
"""Every verdict there is, and how it is called in text."""

_OF_PROBLEM = {
    'MG104': 'startup_bound',
    'MG108': 'startup_bound',
    'MG302': 'validation_bound',
    'MG301': 'save_bound',
    'MG303': 'hook_bound',
    'MG304': 'save_bound',
    'MG305': 'save_bound',
    'MG306': 'save_bound',
    'MG307': 'save_bound',
    'MG308': 'save_bound',
    'MG110': 'cpu_oversubscribed',
    'MG112': 'quota_throttled',
}


_CAUSES = ('MG102', 'MG103', 'MG109', 'MG111', 'MG113')
"""They say why MG101 holds, so they never stand alone."""


def diagnose_verdict(run: Run, findings: dict[str, Finding]) -> Verdict:
    """Choose the verdict: the problem with the largest share of the time wins.

    Args:
        run: The run.
        findings: By rule code.
    """
    if not run.is_enough:
        return Verdict(
            'not_enough_evidence',
            f'{VERDICTS["not_enough_evidence"]}: steady iterations recorded '
            f'{run.steady_iterations}, needed {MIN_ITERATIONS}; train at least '
            f'{count_missing(run)} more.',
            'low',
        )
    confidence = judge_confidence(run)
    worst = _largest_problem(findings)
    if worst is None and run.is_data_bound:
        # a small share of the run, and yet the loader sets the speed of its iterations
        worst = findings.get('MG101')
    if worst is None:
        share = run.data_wait_share or 0.0
        return Verdict(
            'compute_bound',
            f'{VERDICTS["compute_bound"]}: data is at hand when it is needed '
            f'({100 * share:.0f} % of an iteration is waiting), so the step sets the '
            'speed.',
            confidence,
            run.headspace_pct,
        )
    name = _OF_PROBLEM.get(worst.code) or _data_bound(run, findings)
    why = worst.detail
    if worst.code == 'MG101':
        why = f'{why[:-1]}, {_cause(name, run)}.'
    elif name == 'save_bound':
        why = f'{why}{_save_cause(run)}'
    return Verdict(name, f'{VERDICTS[name]}: {why}', confidence, run.headspace_pct)


def count_missing(run: Run) -> int:
    """How many more iterations a run needs before it is judged."""
    more = MIN_ITERATIONS - run.steady_iterations
    if run.steady_iterations == run.iterations:
        # the only interval becomes the warm-up once there is another
        more += max(run.run.interval_iterations, run.iterations)
    return max(more, 1)


def judge_confidence(run: Run) -> str:
    """``high``, ``medium`` or ``low``: how many iterations, on how quiet a host.

    Never high where saves and validations are in the figures of CPU.
    """
    if run.is_busy_host:
        return 'low'
    sure = run.steady_iterations >= SURE_ITERATIONS and not run.cpu_aside_pct
    return 'high' if sure else 'medium'


def _largest_problem(findings: dict[str, Finding]) -> Finding | None:
    problems = [f for f in findings.values() if f.severity == 'problem']
    causes = [
        finding
        for finding in problems
        if finding.code not in _CAUSES and (finding.share or 0.0) >= VERDICT_SHARE
    ]
    return max(causes, key=lambda f: f.share or 0.0, default=None)


def _data_bound(run: Run, findings: dict[str, Finding]) -> str:
    if any(_is_problem(findings.get(code)) for code in ('MG111', 'MG113')):
        return 'affinity_collapsed'
    if _is_problem(findings.get('MG102')):
        return 'data_bound_cpu'
    if _is_problem(findings.get('MG109')):
        return 'data_bound_order'
    # of a loader that cannot be seen, nobody knows what would help
    if not run.is_starved or run.run.loader.num_workers is None:
        return 'data_bound'
    # without workers the loading blocks the loop, whatever it waits for
    if run.run.loader.num_workers and _is_problem(findings.get('MG103')):
        return 'data_bound_storage'
    cores = run.run.host.usable_cores
    workers = run.run.loader.num_workers or 0
    if cores is not None and workers >= max(int(cores), 1):
        return 'data_bound'
    return 'data_bound_workers'


_HELD_BY = {
    'workers': 'waiting for a core while loader workers had them',
    'strangers': 'waiting for a core while other programs had them',
    'storage': 'blocked in the write to storage',
    'memory': 'because memory was short',
    'size': "because histories of MMEngine's message hub fill the file",
    'remote': 'waiting for a remote backend',
}


def _save_cause(run: Run) -> str:
    """What is proven to hold the saves up, if anything is."""
    held = {cause: run.saves_held_by(cause) for cause in _HELD_BY}
    delays = {
        cause: fold_delay(saves, len(run.judged_saves))
        for cause, saves in held.items()
        if saves
    }
    if not delays:
        return _small_delays(run)
    cause = max(delays, key=lambda name: delays[name].gross_s)
    return f' {delays[cause].sentence(_HELD_BY[cause])}'


def _small_delays(run: Run) -> str:
    """What is proven of delays that make no single save slow, but add up."""
    held_s = {
        cause: sum(judged.held_s.get(cause, 0.0) for judged in run.judged_saves)
        for cause in _HELD_BY
    }
    usual_s = sum(judged.uncontended_s or 0.0 for judged in run.judged_saves)
    cause = max(held_s, key=lambda name: held_s[name])
    if not run.judged_saves or held_s[cause] < SLOW_SAVE_RATIO * usual_s:
        return ''
    return (
        f' {format_sum(held_s[cause])} of it {_HELD_BY[cause]} (gross), though '
        'no single save was slow for it.'
    )


def _is_problem(finding: Finding | None) -> bool:
    return finding is not None and finding.severity == 'problem'


def _cause(name: str, run: Run) -> str:
    workers = run.run.loader.num_workers
    if name == 'affinity_collapsed':
        confined = run.confined_cpus or run.run.host.affinity_cpus
        return f'as the workers may run on {confined} CPU(s) only'
    if name == 'data_bound_cpu':
        return 'and the usable cores cannot load faster: more workers will not help'
    if name == 'data_bound_order':
        return 'while batches that are ready stand behind late ones'
    if run.wait_cause == 'stalls':
        p95_s = run.data_wait_p95_s
        return (
            'in rare stalls (in the median interval, 95 % of the waits are below '
            f'{format_seconds(p95_s)})'
        )
    if run.wait_cause == 'fetching':
        return 'most of it in the training thread itself, fetching ready batches'
    if workers is None:
        return 'by a loader whose settings are unknown'
    if name == 'data_bound':
        cores = run.run.host.usable_cores
        return f'with num_workers={workers} on {cores:g} usable cores'
    if name == 'data_bound_storage':
        blocked = 100 * (run.blocked_share or 0.0)
        return (
            f'while the workers wait for storage or locks {blocked:.0f} % of the time'
        )
    if workers == 0:
        return 'because the training process loads every batch itself (num_workers=0)'
    return f'with num_workers={workers}'
