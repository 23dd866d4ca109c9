"""All rules over one run."""

from __future__ import annotations

from mmgpu_hooks.judge import (  # noqa: F401  # they register the rules
    loading_rules,
    scheduling_rules,
    training_rules,
    writing_rules,
)
from mmgpu_hooks.judge.duration_text import format_seconds
from mmgpu_hooks.judge.rule import RULES, apply_rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import DATA_WAIT_PROBLEM
from mmgpu_hooks.judge.verdict import VERDICTS, diagnose_verdict
from mmgpu_hooks.schema import (
    Diagnosis,
    PlainRun,
    Verdict,
)

__all__ = ['RULES', 'diagnose_plain_run', 'diagnose_run']

_ORDER = {'problem': 0, 'notice': 1, 'ok': 2, 'unknown': 3}


def diagnose_run(run: Run) -> Diagnosis:
    """Judge one run.

    Args:
        run: One rank's.

    Returns:
        The verdict and the findings, worst first; no changes yet.
    """
    judged = (apply_rule(entry, run) for entry in RULES.values())
    findings = {finding.code: finding for finding in judged if finding is not None}
    return Diagnosis(
        verdict=diagnose_verdict(run, findings),
        findings=tuple(
            sorted(findings.values(), key=lambda f: (_ORDER[f.severity], f.code))
        ),
        counts={
            'iterations': run.iterations,
            'steady_iterations': run.steady_iterations,
            'gpu_samples': run.gpu.samples if run.gpu else 0,
            'saves': run.saves,
        },
        saves=run.judged_saves,
    )


def diagnose_plain_run(run: PlainRun) -> Diagnosis:
    """Judge a run by MMEngine's own ``time`` and ``data_time``.

    ``data_time`` holds the hooks after IterTimerHook, saves and, in iteration-based
    runs, validation; so a low one clears the loader and a high one only suspects it.
    """
    share = run.data_time_s / run.time_s if run.time_s > 0 else 0.0
    is_data = share >= DATA_WAIT_PROBLEM
    name = 'data_bound' if is_data else 'compute_bound'
    called = 'Perhaps data-bound' if is_data else VERDICTS[name]
    doubt = ' (or hooks, saves and validation, which it also holds)' if is_data else ''
    return Diagnosis(
        verdict=Verdict(
            name,
            f"{called}: MMEngine's data_time is {100 * share:.0f} % of time "
            f'({format_seconds(run.data_time_s)} of {format_seconds(run.time_s)}, '
            f'median of {run.lines} log lines){doubt}.',
            'low',
        ),
        counts={'iterations': run.iterations, 'log_lines': run.lines},
    )
