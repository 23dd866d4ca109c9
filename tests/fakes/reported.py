"""Synthetic runs, judged by the real rules, for the report's pages."""

from __future__ import annotations

from collections.abc import Sequence

from fakes.replaced import replace
from fakes.runs import make_host_window, make_inside_workers, make_ranks
from fakes.saves import make_contended, make_save
from mmgpu_hooks.judge.ranks import compare_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.run import RunEvidence


def make_full_ranks() -> list[RunEvidence]:
    """Returns ranks with data for every panel of a report; the last rank is slowest."""
    ranks = make_ranks(
        [0.1, 0.15],
        hooks_s=0.01,
        by_hook={'EMAHook': 0.12, 'LoggerHook': 0.05},
        workers=make_inside_workers(0.62),
        host=make_host_window(),
    )
    first = ranks[0]
    lasts = [
        replace(record, epoch=1 + n // 3) for n, record in enumerate(first.intervals)
    ]
    lasts[4] = replace(lasts[4], ledger_s={**lasts[4].ledger_s, 'validation': 3.0})
    first = replace(
        first,
        intervals=tuple(lasts),
        save_records=(
            make_save(30, cpu_s=2.0, run_delay_s=5.0, blocked_s=1.0),
            make_contended(90, run_delay_s=13.0, name=None),
        ),
    )
    return [first, *ranks[1:]]


def make_reported(evidence: RunEvidence | Sequence[RunEvidence]) -> Answer:
    """Returns a judged run; of several ranks, the first one is judged."""
    ranks = [evidence] if isinstance(evidence, RunEvidence) else list(evidence)
    run, *others = map(Run, ranks)
    return Answer(
        run_path='/runs/run1/gpu_efficiency.jsonl',
        diagnosis=diagnose_run(run),
        recommendation=recommend_settings(run),
        summary=run,
        ranks=compare_ranks(run, others) if others else None,
        notes=('A note.',),
    )


def make_full_run() -> Answer:
    """Returns a judged run with data for every panel of a page."""
    return make_reported(make_full_ranks())
