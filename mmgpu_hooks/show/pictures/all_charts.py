"""Every picture of a report, for the folder that papers and issues take them from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import SaveJudgement
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.envelope import find_reaches
from mmgpu_hooks.show.pictures.loader_charts import chart_slowest, chart_transforms
from mmgpu_hooks.show.pictures.memory_chart import chart_memory
from mmgpu_hooks.show.pictures.rank_chart import chart_ranks
from mmgpu_hooks.show.pictures.save_charts import (
    chart_save_causes,
    chart_save_phases,
)
from mmgpu_hooks.show.pictures.slow_saves_chart import chart_slow_saves
from mmgpu_hooks.show.pictures.time_charts import (
    chart_hooks,
    chart_ledger,
    chart_timeline,
)
from mmgpu_hooks.show.pictures.timeline import Timeline
from mmgpu_hooks.show.pictures.what_if_chart import chart_what_if
from mmgpu_hooks.show.reported_run import ReportedRun

_AWKWARD = re.compile(r'[^A-Za-z0-9._]+')


def list_charts(
    runs: Sequence[ReportedRun], timelines: Sequence[Timeline | None]
) -> Iterator[tuple[str, Chart | NoChart]]:
    """Each with the name of its file, without an ending.

    Args:
        runs: As the page has them.
        timelines: Of :func:`mmgpu_hooks.show.pictures.timeline.fold_timelines`.
    """
    known = [(r.label, r.answer.summary) for r in runs if r.answer.summary is not None]
    ledger = chart_ledger(known)
    yield ledger.name, ledger
    reaches = find_reaches(timelines)
    for number, (run, timeline) in enumerate(zip(runs, timelines), start=1):
        prefix = ''
        if len(runs) > 1:
            prefix = f'{number}-{_AWKWARD.sub("-", run.label).strip("-.")}-'
        charts = [chart_timeline(timeline, reaches), chart_what_if(run)]
        if run.answer.summary is not None:
            charts += _of_summary(run.answer.summary, run.answer.diagnosis.saves)
            charts.append(chart_ranks(run.answer.ranks))
        for chart in charts:
            yield f'{prefix}{chart.name}', chart


def _of_summary(summary: Run, saves: Sequence[SaveJudgement]) -> list[Chart | NoChart]:
    return [
        chart_hooks(summary),
        chart_transforms(summary),
        chart_slowest(summary),
        chart_memory(summary),
        chart_slow_saves(summary, saves),
        chart_save_phases(summary),
        chart_save_causes(summary),
    ]
