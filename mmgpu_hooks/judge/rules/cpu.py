"""Rules about CPU cores: quotas, affinity, threads and other programs."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.core_limits import describe_core_limit, describe_quota
from mmgpu_hooks.judge.cpu import are_workers_many
from mmgpu_hooks.judge.rules.rule import (
    cannot_tell,
    cannot_tell_as,
    notice,
    problem,
    rule,
    weigh,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase, sentences


@rule('MG102', 'The CPU is the wall', 'data_bound_cpu')
def judge_cpu_wall(run: Run) -> Finding | None:
    """The usable cores cannot load batches faster, however many workers there are.

    Loading one batch and training on it costs more CPU than the cores have in the
    time of a step. Cheaper transforms, smaller images on disk or more cores help;
    more workers do not, and they slow down everything else that needs a core.
    """
    share, workload = run.bound_share, run.workload
    if share is None:
        return None
    if workload is None:
        return cannot_tell_as(run.why_no_workload)
    if not run.is_cpu_the_wall:
        return None
    return problem(
        sentences(
            phrase(
                'A batch costs {loading_cpu_s} of CPU to load and {step_cpu_s} to '
                'train on, and {free_cores:.1f} cores are free for it: no setting is '
                'faster than {cpu_floor_s} per iteration.',
                loading_cpu_s=workload.batch_cpu.mean_s,
                step_cpu_s=workload.step_cpu_s,
                free_cores=run.free_cores,
                cpu_floor_s=run.cpu_floor_s,
            ),
            describe_core_limit(run.meta.host),
        ),
        share,
    )


@rule('MG105', 'More workers than cores')
def judge_too_many_workers(run: Run) -> Finding | None:
    """``num_workers`` exceeds the cores this rank may use.

    Workers beyond the cores only take turns, take memory, and make checkpoint saves
    and the training thread wait for a core. PyTorch warns about it too. Workers that
    were measured to wait for at least half of a batch's time (for storage, say) are
    right to outnumber the cores: this rule is silent about them, PyTorch is not.
    """
    workers = run.meta.loader.num_workers
    cores = run.meta.host.usable_cores
    if workers is None or cores is None:
        return cannot_tell(
            phrase('the number of workers, or of usable cores, is unknown')
        )
    if not are_workers_many(workers, cores) or run.waiting_share:
        return None
    return notice(
        sentences(
            phrase(
                'num_workers={workers:d} on {cores:g} usable cores of this rank.',
                workers=workers,
                cores=cores,
            ),
            describe_core_limit(run.meta.host),
        )
    )


@rule('MG106', 'Workers wait for a core')
def judge_run_delay(run: Run) -> Finding | None:
    """Loader workers are ready to run and get no core: the CPU is oversubscribed.

    Measured by the kernel (``/proc/<pid>/schedstat``). Fewer workers, fewer threads
    or no neighbour on the machine help.
    """
    figures = run.figures
    cpu_s, delay_s = figures.worker_cpu_s, figures.worker_run_delay_s
    if not run.meta.loader.num_workers or not figures.is_enough:
        return None
    if cpu_s is None or delay_s is None:
        return cannot_tell(
            phrase("the workers' scheduler statistics could not be read")
        )
    if delay_s <= 0 or delay_s < thresholds.RUN_DELAY_PROBLEM * (cpu_s + delay_s):
        return None
    return notice(
        phrase(
            'Workers spent {delay_s} per batch waiting for a core, beside {cpu_s} on '
            'one.',
            delay_s=delay_s,
            cpu_s=cpu_s,
        )
    )


@rule('MG107', 'Others use the CPU')
def judge_external_load(run: Run) -> Finding | None:
    """Other programs took a good part of this host's CPU while the run was measured.

    Steps and loading were slower for it, and a setting that suits the crowded host
    may not suit the quiet one. Measure again when they are gone, or plan with them.

    With several ranks on the host, the evidence of all of them says what is theirs.
    Where a file is missing, other programs cannot be told from that rank.
    """
    figures = run.figures
    if figures.why_no_external and figures.is_enough:
        return cannot_tell(figures.why_no_external)
    external, logical = figures.external_cpu_cores, run.meta.host.logical_cpus
    if external is None or not run.is_busy_host:
        return None
    return notice(
        phrase(
            'Others used {external_cores:.1f} of {logical_cpus} meanwhile.',
            external_cores=external,
            logical_cpus=logical,
        )
    )


@rule('MG110', 'The training thread waits for a core', 'cpu_oversubscribed')
def judge_main_delay(run: Run) -> Finding | None:
    """The training thread is ready to run, but waits for a core that others use.

    Measured by the kernel (``/proc/self/task/<tid>/schedstat``). It delays every
    launch on a GPU too. Fewer workers, fewer threads or no neighbour help.
    """
    figures, iter_s = run.figures, run.figures.iter_s
    if not iter_s or not figures.is_enough:
        return None
    if figures.main_run_delay_s is None:
        return cannot_tell(
            phrase("the training thread's wait for cores was not recorded")
        )
    share = figures.main_run_delay_s / iter_s
    detail = phrase(
        'The training thread waited {main_run_delay_s} per iteration for a core '
        '({delay_share} of {iter_s}).',
        figures,
        delay_share=share,
    )
    return problem(detail, share) if share >= thresholds.MAIN_DELAY_PROBLEM else None


@rule('MG111', 'Workers are confined to a few CPUs', 'affinity_collapsed')
def judge_affinity(run: Run) -> Finding | None:
    """Workers may not run on all CPUs that the training process may run on.

    An OpenMP library bound them when it was loaded, so that many workers take turns
    on the same few cores. ``OMP_PROC_BIND=false`` in the environment keeps it from
    doing so, as do ``OMP_NUM_THREADS=1`` and
    ``env_cfg.mp_cfg.opencv_num_threads=0``; more workers do not help.
    """
    confined, host = run.confined_cpus, run.meta.host
    workers = run.meta.loader.num_workers or 0
    if confined is None:
        return None
    detail = phrase(
        'The most confined of {workers} may run on {confined_cpus}, the training '
        'process on {affinity_cpus:d}. OMP_PROC_BIND=false in the environment keeps '
        'an OpenMP library from binding them.',
        workers=workers,
        confined_cpus=confined,
        affinity_cpus=host.affinity_cpus,
    )
    # each on a core of its own is as good as all on all
    return weigh(detail, run.bound_share if confined < workers else None)


@rule('MG112', 'The CPU quota throttles', 'quota_throttled')
def judge_quota(run: Run) -> Finding | None:
    """The control group used up its CPU quota and was stopped until the next period.

    Containers have such quotas: ``--cpus`` of Docker, ``resources.limits.cpu`` of
    Kubernetes, ``CPUQuota=`` of systemd. Fewer workers and threads use it more evenly;
    a larger one removes it.
    """
    pct, quota = run.figures.throttled_pct, run.meta.host.cgroup_cpu_cores
    if pct is None or pct < thresholds.THROTTLED_NOTICE_PCT:
        return None
    detail = phrase(
        'The quota held tasks back for {throttled_s:sum} ({throttled_pct} of the time, '
        'summed over CPUs).',
        run.figures,
    )
    if quota:
        detail = phrase(
            'The quota of {quota_cpus:g} CPUs held tasks back for {throttled_s:sum} '
            '({throttled_pct} of the time, summed over CPUs); it is {set_by}.',
            run.figures,
            quota_cpus=quota,
            set_by=describe_quota(run.meta.host),
        )
    return problem(detail, min(pct / 100.0, 1.0))


@rule('MG113', 'The training process is bound to a few CPUs', 'affinity_collapsed')
def judge_binding(run: Run) -> Finding | None:
    """The main thread may run on fewer CPUs than it was started with.

    Loader workers inherit them, so more workers only share them. An OpenMP library
    binds the thread that imports torch when the environment has ``OMP_PROC_BIND``,
    ``OMP_PLACES``, ``GOMP_CPU_AFFINITY`` or ``KMP_AFFINITY``: unset them, or set
    ``OMP_PROC_BIND=false``, where the training (or ``torchrun``) is started. Usable
    cores, predictions and recommended settings count the CPUs as they are without the
    binding.

    Where none of them is set, and another thread of the process may run on more CPUs,
    nothing says who bound the main thread: ``sched_setaffinity`` in the training script
    or in a module of ``custom_imports``, ``taskset -p`` from outside, or nobody, and
    the other thread widened itself, as those of a driver do. No more cores are counted
    on then than the main thread has.

    CPUs that were taken before the start (``taskset``, SLURM, a container) are no
    finding: they may be intended.
    """
    host, workers = run.meta.host, run.meta.loader.num_workers or 0
    own, before = host.affinity_cpus, host.unbound_cpus
    if own is None:
        return None
    if run.unbinding is None:
        wider = before or host.wider_thread_cpus
        if wider is None:
            return None
        detail = phrase(
            'The main thread may run on {own_cpus}; another thread of the process on '
            '{wider}. Who bound it, and whether before the start, is unknown.',
            own_cpus=own,
            wider=wider,
        )
        if workers:
            detail = phrase(
                'The main thread may run on {own_cpus}, and its {workers} with it; '
                'another thread of the process on {wider}. Who bound it, and whether '
                'before the start, is unknown.',
                own_cpus=own,
                workers=workers,
                wider=wider,
            )
        return notice(detail)
    assert before is not None
    lost = before - own
    bound = phrase(
        '{bound_by} bound it to {own_cpus:d} of {unbound_cpus} ({lost_cpus:d} lost).',
        bound_by=host.bound_by,
        own_cpus=own,
        unbound_cpus=before,
        lost_cpus=lost,
    )
    if workers:
        bound = phrase(
            '{bound_by} bound it to {own_cpus:d} of {unbound_cpus} ({lost_cpus:d} '
            'lost), and its {workers} with it.',
            bound_by=host.bound_by,
            own_cpus=own,
            unbound_cpus=before,
            lost_cpus=lost,
            workers=workers,
        )
    detail = sentences(bound, run.unbinding)
    return weigh(detail, run.bound_share if 0 < own <= workers else None)


@rule('MG115', "The workers' threads take each other's cores", 'thread_thrash')
def judge_threads(run: Run) -> Finding | None:
    """Each worker runs several threads, and together they are more than the cores.

    OpenCV and OpenMP start as many threads as there are cores, in every worker. They
    wait actively, so they take CPU from each other. One thread per worker is right:
    ``env_cfg=dict(mp_cfg=dict(opencv_num_threads=0))``, MMEngine's default, for
    OpenCV (``--cfg-options env_cfg.mp_cfg.opencv_num_threads=0``), and
    ``OMP_NUM_THREADS=1`` in the environment for the rest.
    """
    found = run.threads
    if found is None or not found.is_crowd:
        return None
    if found.share is None:
        return cannot_tell(
            phrase('what the workers use to send batches was not measured')
        )
    if not found.is_thrash:
        return None
    detail = phrase(
        '{workers} run up to {threads} each on {cores:g} cores: {share} of their CPU '
        "is not their main threads', which waited {delay_s} per batch for a core.",
        found,
    )
    if found.opencv:
        detail = phrase(
            '{workers} run up to {threads} each on {cores:g} cores; OpenCV uses '
            "{opencv} in each: {share} of their CPU is not their main threads', which "
            'waited {delay_s} per batch for a core.',
            found,
        )
    is_much = found.share >= thresholds.THREADS_PROBLEM
    return weigh(detail, run.bound_share if is_much else None)


@rule('MG116', 'Cores are idle while the loop waits')
def judge_idle_cores(run: Run) -> Finding | None:
    """Each worker keeps one core busy, other cores are idle, and the loop waits.

    More workers use them; ``mmgpu recommend`` says how many. Where memory holds no more
    workers, threads inside of them do:
    ``env_cfg=dict(mp_cfg=dict(opencv_num_threads=2))`` for what OpenCV does on large
    images. Silent where workers wait for storage, which needs no core.
    """
    figures, found, share = run.figures, run.threads, run.bound_share
    used, iter_s = run.used_cores, figures.iter_s
    if share is None or not iter_s or not run.is_starved:
        return None
    if found is None or found.share is None:
        return None
    has_threads = found.share >= thresholds.THREADS_NOTICE
    if has_threads or run.waiting_share or run.confined_cpus:
        return None
    busy = found.cpu_s / iter_s
    if busy < thresholds.BUSY_WORKERS * found.workers:
        return None
    if used is None:
        return cannot_tell(
            figures.why_no_cpu
            or phrase('the CPU of the training process was not recorded')
        )
    idle = found.cores - used - run.external_share_cores
    if idle < thresholds.IDLE_CORES * found.cores:
        return None
    if figures.external_cpu_cores is None:
        return cannot_tell(figures.why_no_external) if figures.why_no_external else None
    return notice(
        phrase(
            'Workers run one thread each ({workers:d} in all) and use {busy_cores:.1f} '
            'of {cores:g} cores, {idle_cores:.1f} are idle, and the loop waits for '
            '{data_wait_share} of its time.',
            workers=found.workers,
            busy_cores=busy,
            cores=found.cores,
            idle_cores=idle,
            data_wait_share=share,
        )
    )
