"""Rules about who gets a core, which batch comes first, and what decodes images."""

from __future__ import annotations

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.rule import cannot_tell, notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    MAIN_DELAY_PROBLEM,
    ORDER_PROBLEM,
    THROTTLED_NOTICE_PCT,
)
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.schema import Finding, Prediction


@rule('MG109', 'Late batches hold up the ones behind them')
def judge_order(run: Run) -> Finding | None:
    """Batches arrive in order, so a slow one keeps the ready ones behind it waiting.

    The workers are not busy all the time and still the loop waits. More batches made
    ahead (``prefetch_factor``) carry the loop over slow ones; so does finding what
    makes some samples slow.
    """
    loader, workload = run.loader, run.workload
    if not run.is_data_bound or not run.run.loader.num_workers:
        return None
    if loader is None or loader.out_of_order is None:
        return cannot_tell('the order in which batches came was not measured')
    if workload is None:
        return cannot_tell(run.why_no_workload or 'the loading was not measured')
    early = loader.out_of_order / max(loader.asks, 1)
    simulated = predict_setting(
        workload, workload.num_workers, workload.prefetch_factor
    )
    if early < ORDER_PROBLEM or not isinstance(simulated, Prediction):
        return None
    if simulated.limit != 'head_of_line':
        return None
    return problem(
        f'{loader.out_of_order} batches in {loader.asks} iterations came before their '
        f'turn and waited for a late one; loading one takes '
        f'{format_seconds(workload.occupancy.mean_s)}, give or take '
        f'{format_seconds(workload.occupancy.std_s)}.',
        run.data_wait_share or 0.0,
    )


@rule('MG110', 'The training thread waits for a core')
def judge_main_delay(run: Run) -> Finding | None:
    """The thread that trains is ready to run and others have the cores.

    Measured by the kernel (``/proc/self/task/<tid>/schedstat``). It delays every
    launch on a GPU too. Fewer workers, fewer threads or no neighbour help.
    """
    if not run.is_enough:
        return None
    if run.main_run_delay_s is None:
        return cannot_tell(
            "the training thread's wait for cores, apart from that in saves and "
            'validations, was not recorded'
        )
    share = run.main_run_delay_s / (run.iter_s or 1.0)
    if share < MAIN_DELAY_PROBLEM:
        return None
    return problem(
        f'The training thread waited {format_seconds(run.main_run_delay_s)} per '
        'iteration '
        f'for a core ({100 * share:.0f} % of {format_seconds(run.iter_s)}).',
        share,
    )


@rule('MG111', 'Workers are confined to a few CPUs')
def judge_affinity(run: Run) -> Finding | None:
    """Workers may not run on all CPUs that the training process may run on.

    An OpenMP library bound them when it was loaded, so that many workers take turns
    on the same few cores. ``OMP_PROC_BIND=false`` in the environment keeps it from
    doing so; more workers do not help.
    """
    confined, host = run.confined_cpus, run.run.host
    workers = run.run.loader.num_workers or 0
    if confined is None:
        return None
    detail = (
        f'The most confined of {workers} workers may run on {confined} CPU(s), the '
        f'training process on {host.affinity_cpus}.'
    )
    # each on a core of its own is as good as all on all
    if confined < workers and run.is_data_bound:
        return problem(detail, run.data_wait_share or 0.0)
    return notice(detail)


@rule('MG112', 'The CPU quota throttles')
def judge_quota(run: Run) -> Finding | None:
    """The control group used up its CPU quota and was stopped until the next period.

    Containers have such quotas. Fewer workers and threads use it more evenly; a
    larger one removes it.
    """
    host = run.host
    if host is None or host.throttled_pct is None:
        return None
    if host.throttled_pct < THROTTLED_NOTICE_PCT:
        return None
    quota = run.run.host.cgroup_cpu_cores
    of_quota = f' of {quota:g} CPUs' if quota is not None else ''
    share = min(host.throttled_pct / 100.0, 1.0)
    return problem(
        f'The quota{of_quota} held tasks back for {format_sum(host.throttled_s)} '
        f'({host.throttled_pct:.0f} % of the time, summed over CPUs).',
        share,
    )


@rule('MG113', 'The training process is bound to a few CPUs')
def judge_binding(run: Run) -> Finding | None:
    """The main thread may run on fewer CPUs than it was started with.

    Loader workers inherit them, so more workers only share them. An OpenMP library
    binds the thread that imports torch when the environment has ``OMP_PROC_BIND``,
    ``OMP_PLACES``, ``GOMP_CPU_AFFINITY`` or ``KMP_AFFINITY``: unset them, or set
    ``OMP_PROC_BIND=false``, where the training (or ``torchrun``) is started. "Bound
    after start" means that code called ``sched_setaffinity``: look for it in the
    training script and the modules of ``custom_imports``. Usable cores, predictions
    and recommended settings count the CPUs as they are without the binding.

    CPUs that were taken before the start (``taskset``, SLURM, a container) are no
    finding: nobody can tell them from what was intended. The summary then says how
    many of the cpuset's CPUs the process may use.
    """
    host, workers = run.run.host, run.run.loader.num_workers or 0
    own, before = host.affinity_cpus, host.unbound_cpus
    if own is None or before is None:
        return None
    bound = f'{host.bound_by} bound it' if host.bound_by else 'It was bound after start'
    too = f', and its {workers} worker(s) with it' if workers else ''
    detail = (
        f'{bound} to {own} of {before} CPUs ({before - own} lost){too}. {run.unbinding}'
    )
    if run.is_data_bound and 0 < own <= workers:
        return problem(detail, run.data_wait_share or 0.0)
    return notice(detail)


@rule('MG114', 'Pillow decodes the images')
def judge_decoder(run: Run) -> Finding | None:
    """``LoadImageFromFile(imdecode_backend='pillow')`` takes much longer than cv2.

    A JPEG of 12 megapixels took Pillow 125 ms, ``cv2`` (which brings libjpeg-turbo, and
    is MMDetection's default) 33 ms and ``turbojpeg`` 26 ms. Take ``imdecode_backend=
    'cv2'``; pixels differ by rounding, so finish a training with what it began with.
    """
    if run.run.loader.image_decoder != 'pillow':
        return None
    loader = run.loader
    timed = [one for one in (loader.transforms if loader else ()) if one.image_s]
    took_s = {one.name: one.image_s for one in timed}.get('LoadImageFromFile')
    took = f' and takes {format_seconds(took_s)} per image' if took_s else ''
    return notice(f"LoadImageFromFile has imdecode_backend='pillow'{took}.")
