"""Rule about CPUs that SLURM gave a job and ``srun`` left unused."""

from __future__ import annotations

from mmgpu_hooks.judge.rules.rule import rule, weigh
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.slurm import find_narrow_start
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase, sentences


@rule('MG117', 'srun leaves CPUs of the job unused', 'affinity_collapsed')
def judge_narrow_start(run: Run) -> Finding | None:
    """``srun`` bound the training to fewer CPUs than SLURM gave it.

    Loader workers inherit that, so more workers only take turns. It happens where the
    job was asked for with ``--hint=nomultithread`` or ``--threads-per-core``, with
    ``srun --exact``, where the site binds tasks by itself
    (``TaskPluginParam=autobind=cores``), and in a job that was submitted from inside
    another one. ``srun --cpus-per-task=N --cpu-bind=cores``, with the number of the
    ``#SBATCH`` line, gives the task its CPUs; so does a start without ``srun``, which
    is no loss where the job has one task. ``SRUN_CPUS_PER_TASK`` is no cure: only some
    versions of SLURM read it.

    The settings that are written are for the start as it was. ``mmgpu recommend``
    shows those for the mended start beside them, and ``--cores`` writes them.

    A single CPU that was asked for (``srun -c1``), and ``taskset``, are no finding.
    """
    found = find_narrow_start(run.meta.host)
    if found is None:
        return None
    workers = run.meta.loader.num_workers or 0
    narrow = phrase(
        'srun bound this task to {bound_cpus} of the {given_cpus:d} that SLURM gave '
        'it.',
        found,
    )
    if workers:
        narrow = phrase(
            'srun bound this task to {bound_cpus} of the {given_cpus:d} that SLURM '
            'gave it, and its {workers} with it.',
            found,
            workers=workers,
        )
    is_shared = found.bound_cpus <= max(workers, 1)
    share = run.bound_share if is_shared else None
    return weigh(sentences(narrow, found.cure), share)
