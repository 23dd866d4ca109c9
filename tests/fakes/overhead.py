"""Synthetic host-bound runs and profiles with known host CPU times."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_run
from mmgpu_hooks.schema.recorded import (
    AveragedModel,
    HistoryCost,
    RunRecord,
    StepOverhead,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import HostPart, Profile

COUNTED = StepOverhead(
    optimizer='AdamW',
    groups=240,
    settings=2,
    is_fused=False,
    clipped_tensors=240,
    averages=(AveragedModel(kind='ExpMomentumEMA', tensors=400, interval=1),),
    fills_new_tensors=False,
    is_compiled=False,
)
"""Numbers of groups and tensors in RTMDet-tiny's optimizer, clipping and EMA."""

HOST_PARTS = {
    'forward and backward': HostPart(0.060, 0.060),
    'optimizer step': HostPart(0.020, 0.005, 0.0002),
    'clipping': HostPart(0.003, 0.003),
    'zeroing': HostPart(0.001, 0.0005),
    'average': HostPart(0.010, 0.002, 0.0001),
    'schedulers': HostPart(0.001, 0.0005),
    'batch received': HostPart(0.002, 0.001),
    'batch sent': HostPart(0.004, 0.002),
}
"""CPU seconds per iteration of each host part, without and with ``optimize``."""


def make_overhead_run(**fields: Any) -> RunRecord:
    """Returns the run record of a CPU training with the hook in ``default_hooks``."""
    given: dict[str, Any] = {
        'overhead': COUNTED,
        'hook_place': 'default_hooks.gpu_efficiency',
    }
    return make_run(**{**given, **fields})


def make_profile(**fields: Any) -> Profile:
    """Returns a profile of the synthetic host-bound run."""
    profile = Profile(
        device='CPU',
        iterations=20,
        step_s=0.11,
        plain_step_s=0.089,
        parts={'forward': 0.09, 'idle': 0.02},
        modules={},
        products_pct=None,
        kernels=None,
        bound=None,
        bound_reason=phrase('on a CPU nothing is launched'),
        amp=None,
        capability=None,
        flags={},
        folder='/runs/one/profile',
        host_parts=HOST_PARTS,
        counted=COUNTED,
    )
    return replace(profile, **fields)


def make_host_bound(
    profile: Profile | None = None, *, run: RunRecord | None = None, **fields: Any
) -> RunEvidence:
    """Returns a run of 100 ms per iteration, with 1 ms of data wait.

    Args:
        profile: That lies in its work_dir.
        run: In the place of `make_overhead_run`'s.
        fields: As of `make_evidence`.
    """
    given: dict[str, Any] = {
        'data_wait_s': 0.001,
        'step_s': 0.089,
        'hooks_s': 0.010,
        'process_cpu_s': 2.0,
        'workers': make_inside_workers(0.05),
        'small_tensors': 36,
        'small_tensor_bytes': 2000,
        **fields,
    }
    evidence = make_evidence(run=run or make_overhead_run(), **given)
    return replace(evidence, profile=profile)


def make_short_of_cores(
    data_wait_s: float, batch_time_s: float, **fields: Any
) -> RunEvidence:
    """Returns a run of 120 ms per iteration, most of which it waits for a CPU core.

    One worker, which sleeps while it loads: it waits for storage.
    """
    run = make_overhead_run(**fields)
    host = replace(run.host, logical_cpus=2, affinity_cpus=2, usable_cores=2.0)
    run = replace(run, host=host, loader=replace(run.loader, num_workers=1))
    workers = make_inside_workers(batch_time_s, std_s=0.005, count=1)
    cpu = replace(workers.batch_cpu, mean_s=0.003, p95_s=0.004)
    return make_host_bound(
        make_profile(),
        run=run,
        data_wait_s=data_wait_s,
        step_s=0.11 - data_wait_s,
        workers=replace(workers, cpu_s=0.06, batch_cpu=cpu),
        process_cpu_s=0.6,
        process_run_delay_s=1.6,
        system_cpu_pct=100.0,
    )


def with_histories(evidence: RunEvidence, copy_s: float) -> RunEvidence:
    """Returns a run whose last interval has the copy time of its scalar histories."""
    measured = HistoryCost(values=100_000, scalars=13, copy_s=copy_s)
    *before, last = evidence.intervals
    intervals = (*before, replace(last, histories=measured))
    return replace(evidence, intervals=intervals)
