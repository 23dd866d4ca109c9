"""Rules about waiting for data."""

from __future__ import annotations

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.rule import cannot_tell, fine, notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    DATA_WAIT_NOTICE,
    DATA_WAIT_PROBLEM,
    RUN_DELAY_PROBLEM,
    STARTUP_PROBLEM,
)
from mmgpu_hooks.schema import Finding


@rule('MG101', 'Waiting for data')
def judge_data_wait(run: Run) -> Finding | None:
    """The training loop stands still until a batch arrives.

    ``data_wait`` is the time blocked in ``next(loader)`` alone; hooks, checkpoint
    saves and validation are not in it (they are in MMEngine's ``data_time``). From
    10 % of an iteration on, the loader and not the model sets the speed.
    """
    share = run.data_wait_share
    if share is None:
        return cannot_tell('no iteration was measured')
    detail = (
        f'{100 * share:.0f} % of an iteration is spent waiting for data '
        f'({format_seconds(run.data_wait_s)} of '
        f'{format_seconds(run.iter_s)}, mean of '
        f'{run.steady_iterations} iterations).'
    )
    if share >= DATA_WAIT_PROBLEM:
        waits_s = (run.data_wait_s or 0.0) * run.iterations
        return problem(detail, run.run_share(waits_s))
    if share >= DATA_WAIT_NOTICE:
        return notice(detail, share)
    return fine(detail)


@rule('MG102', 'The CPU is the wall')
def judge_cpu_wall(run: Run) -> Finding | None:
    """The usable cores cannot load batches faster, however many workers there are.

    Loading one batch and training on it costs more CPU than the cores have in the
    time of a step. Cheaper transforms, smaller images on disk or more cores help;
    more workers do not, and they slow down everything else that needs a core.
    """
    workload = run.workload
    if not run.is_data_bound:
        return None
    if workload is None:
        return cannot_tell(run.why_no_workload or 'the loading was not measured')
    if not run.is_cpu_the_wall:
        return None
    return problem(
        f'A batch costs {format_seconds(workload.batch_cpu.mean_s)} of CPU to load and '
        f'{format_seconds(workload.step_cpu_s)} to train on, and '
        f'{run.free_cores:.1f} cores are free for it: no setting is faster than '
        f'{format_seconds(run.cpu_floor_s)} per iteration.',
        run.data_wait_share or 0.0,
    )


@rule('MG103', 'Loading is blocked, not busy')
def judge_blocked_loading(run: Run) -> Finding | None:
    """While a batch is loaded, most of the time nothing runs: storage, network, locks.

    More workers help, because they wait side by side; faster storage, a local copy
    or a cache help more.
    """
    if not run.is_starved:
        return None
    share, workload = run.blocked_share, run.workload
    if workload is None:
        return cannot_tell(run.why_no_workload or 'the loading was not measured')
    if share is None:
        return cannot_tell('the time to load a batch was only bounded, not measured')
    if not run.waiting_share:
        return None
    return problem(
        f'Of {format_seconds(workload.occupancy.mean_s)} to load a batch only '
        f'{format_seconds(workload.batch_cpu.mean_s)} is CPU; {100 * share:.0f} % is '
        'waiting for storage or locks.',
        run.data_wait_share or 0.0,
    )


@rule('MG104', 'Workers start again and again')
def judge_startup(run: Run) -> Finding | None:
    """The first batch of each epoch waits for workers to start.

    ``persistent_workers=True`` keeps them from one epoch to the next. Short epochs
    suffer most.
    """
    share = run.run_share(run.startup_s)
    loader = run.run.loader
    if not loader.num_workers or loader.persistent_workers is not False:
        return None
    if run.run.loop == 'iter' or share < STARTUP_PROBLEM:
        return None
    return problem(
        f'{format_sum(run.startup_s)} ({100 * share:.0f} % of the run) went '
        'into first '
        f'batches of {run.epoch_starts} epoch start(s), beyond a normal wait.',
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
    workers = run.run.loader.num_workers
    cores = run.run.host.usable_cores
    if workers is None or cores is None:
        missing = 'number of workers' if workers is None else 'number of usable cores'
        return cannot_tell(f'the {missing} is unknown')
    if workers <= max(cores, 1) or run.waiting_share:
        return None
    return notice(f'num_workers={workers} on {cores:g} usable cores of this rank.')


@rule('MG106', 'Workers wait for a core')
def judge_run_delay(run: Run) -> Finding | None:
    """Loader workers are ready to run and get no core: the CPU is oversubscribed.

    Measured by the kernel (``/proc/<pid>/schedstat``). Fewer workers, fewer threads
    or no neighbour on the machine help.
    """
    cpu_s, delay_s = run.worker_cpu_s, run.worker_run_delay_s
    if not run.run.loader.num_workers or not run.is_enough:
        return None
    if cpu_s is None or delay_s is None:
        return cannot_tell("the workers' scheduler statistics could not be read")
    wanted_s = cpu_s + delay_s
    if wanted_s <= 0 or delay_s / wanted_s < RUN_DELAY_PROBLEM:
        return None
    return notice(
        f'Workers spent {format_seconds(delay_s)} per batch waiting for a core, beside '
        f'{format_seconds(cpu_s)} on one.'
    )


@rule('MG107', 'Others use the CPU')
def judge_external_load(run: Run) -> Finding | None:
    """Other programs took a good part of this host's CPU while the run was measured.

    Steps and loading were slower for it, and a setting that suits the crowded host
    may not suit the quiet one. Measure again when they are gone, or plan with them.
    """
    external = run.external_cpu_cores
    logical = run.run.host.logical_cpus
    if external is None or logical is None or not run.is_busy_host:
        return None
    return notice(f'Others used {external:.1f} of {logical} CPUs meanwhile.')


@rule('MG108', 'The loader starts over')
def judge_restarts(run: Run) -> Finding | None:
    """Iteration-based training comes to the end of its data and begins again.

    MMEngine then makes a new iterator and pauses for two seconds. A sampler without an
    end (``sampler=dict(type='InfiniteSampler')``) never gets there.
    """
    share = run.run_share(run.startup_s)
    if run.run.loop != 'iter' or run.epoch_starts < 2:
        return None
    if share < STARTUP_PROBLEM:
        return None
    return problem(
        f'{format_sum(run.startup_s)} ({100 * share:.0f} % of the run) went '
        f'into {run.epoch_starts} starts of the loader, beyond a normal wait.',
        share,
    )
