"""The ranks, and the host with its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import HostLimits, RanksSummary
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds
from mmgpu_hooks.show.gpu_text import describe_gpu, describe_imbalance
from mmgpu_hooks.show.host_text import describe_host
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_section,
    render_table,
    words,
)
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.pictures.rank_chart import chart_ranks, shown_ranks
from mmgpu_hooks.show.reported_run import ReportedRun

_RANK_HEAD = [
    *('rank', 'data wait', 'start-up', 'hooks', 'saves', 'its own, in all', 'step'),
    'GPU utilisation',
]


def render_ranks(runs: Sequence[ReportedRun]) -> Markup:
    """All ranks of each run, and which one the others wait for."""
    return render_section('ranks', 'Ranks', each_run(runs, _ranks_of_run))


def _ranks_of_run(run: ReportedRun) -> Markup:
    if run.answer.summary is None:
        return render_empty(run.why_no_evidence)
    ranks = run.answer.ranks
    chart = chart_ranks(ranks)
    if ranks is None or not ranks.rows:
        return render_chart(chart, title=False)
    said = [ranks.why, *(describe_imbalance(cards) for cards in ranks.imbalance)]
    return join(
        *(tag('p', words(line)) for line in said),
        render_chart(chart, _rank_table(ranks), title=False),
    )


def _rank_table(ranks: RanksSummary) -> Markup:
    rows = [
        (
            f'{row.rank}{" (slowest)" if row.rank == ranks.slowest else ""}',
            *(
                format_seconds(seconds)
                for seconds in (
                    *(row.data_wait_s, row.startup_s, row.hooks_s, row.save_s),
                    *(row.own_s, row.step_s),
                )
            ),
            'unknown' if row.gpu_util_pct is None else f'{row.gpu_util_pct:.0f} %',
        )
        for row in shown_ranks(ranks)
    ]
    caption = (
        f'{len(rows)} of {len(ranks.rows)} ranks, per iteration over '
        f'{ranks.iterations} iterations'
    )
    return render_table(caption, _RANK_HEAD, rows)


def render_host(runs: Sequence[ReportedRun]) -> Markup:
    """What the host allows, and what it went through."""
    return render_section('host', 'The host', each_run(runs, _host_of_run))


def _host_of_run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    return join(
        tag('p', tag('strong', 'CPU: '), words(describe_host(summary)), '.'),
        tag('p', tag('strong', 'GPU: '), words(describe_gpu(summary)), '.'),
        render_table(
            'What one rank may use',
            ['limit', 'value'],
            list(_limits(summary.run.host)),
        ),
        _pressure(summary),
    )


def _limits(host: HostLimits) -> Iterator[tuple[str, str]]:
    for name, count in (
        ('logical CPUs', host.logical_cpus),
        ('CPUs by affinity', host.affinity_cpus),
        ('CPUs by SLURM', host.slurm_cpus),
        ('ranks on the host', host.ranks_on_host),
    ):
        if count is not None:
            yield name, str(count)
    quota = host.cgroup_cpu_cores
    yield 'CPU quota of the group', 'none' if quota is None else f'{quota:g} cores'
    cores = host.usable_cores
    yield 'usable cores', 'unknown' if cores is None else f'{cores:g}'
    for name, size in (
        ('memory', host.ram_total_bytes),
        ('memory free at the start', host.ram_available_bytes),
        ('/dev/shm', host.shm_total_bytes),
        ('/dev/shm free at the start', host.shm_free_bytes),
    ):
        yield name, format_bytes(size)
    memory = host.cgroup_memory_bytes
    yield (
        'memory limit of the group',
        'none' if memory is None else format_bytes(memory),
    )
    files = host.open_files_soft
    yield 'open files', 'unknown' if files is None else str(files)


def _pressure(summary: Run) -> Markup:
    host = summary.host
    if host is None:
        reason = summary.unknown.get('host', 'no interval looked at it')
        return render_empty(f'What the host went through is unknown: {reason}.')
    shares = [
        ('waiting for a core, some task', host.cpu_pressure_pct),
        ('waiting for storage, some task', host.io_pressure_pct),
        ('waiting for memory, some task', host.memory_pressure_pct),
        ('held back by the CPU quota', host.throttled_pct),
    ]
    sizes = [
        ('swapped in', host.swap_in_bytes),
        ('swapped out', host.swap_out_bytes),
        ('least memory free', host.ram_available_bytes),
        ('least of /dev/shm free', host.shm_free_bytes),
    ]
    rows = [(n, 'unknown' if v is None else format_pct(v)) for n, v in shares]
    rows += [(name, format_bytes(size)) for name, size in sizes]
    files = host.open_files
    rows.append(('most open files', 'unknown' if files is None else str(files)))
    caption = f'What it went through, {format_seconds(host.seconds)} of steady training'
    return render_table(caption, ['what', 'share or size'], rows)
