"""Synthetic checkpoint saves as the hook would record them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fakes.replaced import replace
from fakes.runs import add_to_end, make_loader
from mmgpu_hooks.schema.recorded import (
    AfterSaveRecord,
    HostLimits,
    SavePhase,
    SaveRecord,
)
from mmgpu_hooks.schema.run import RunEvidence

MIB = 2**20
HOST = HostLimits(logical_cpus=2, affinity_cpus=2, usable_cores=2.0)
LOADER = make_loader(8)


def make_save(
    iteration: int = 100,
    *,
    cpu_s: float = 0.4,
    run_delay_s: float = 0.0,
    blocked_s: float = 0.0,
    **fields: Any,
) -> SaveRecord:
    """Returns the record of a 200 MiB checkpoint save on an idle host."""
    write = SavePhase(
        wall_s=0.25 * cpu_s + 0.25 * run_delay_s + blocked_s,
        cpu_s=0.25 * cpu_s,
        run_delay_s=0.25 * run_delay_s,
        blocked_s=blocked_s,
    )
    serialise = SavePhase(
        wall_s=0.75 * (cpu_s + run_delay_s),
        cpu_s=0.75 * cpu_s,
        run_delay_s=0.75 * run_delay_s,
        blocked_s=0.0,
    )
    save = SaveRecord(
        iteration=iteration,
        wall_s=cpu_s + run_delay_s + blocked_s,
        name=f'iter_{iteration}.pth',
        backend='LocalBackend',
        phases={'serialise': serialise, 'write': write},
        cpu_s=cpu_s,
        run_delay_s=run_delay_s,
        blocked_s=blocked_s,
        bytes=200 * MIB,
        workers=8,
        workers_busy=0.0,
        workers_cpu_s=0.0,
        other_cpu_s=0.0,
        memory_pressure_pct=0.0,
        major_faults=0,
    )
    return replace(save, **fields)


def make_contended(iteration: int = 100, **fields: Any) -> SaveRecord:
    """Returns the record of a checkpoint save slowed by eight workers on two cores."""
    delay_s = fields.pop('run_delay_s', 1.6)
    wall_s = 0.4 + delay_s
    shared = {'workers_busy': 8.0, 'workers_cpu_s': 2 * wall_s - 0.4}
    return make_save(iteration, run_delay_s=delay_s, **{**shared, **fields})


def make_after_save(iteration: int = 100, **fields: Any) -> AfterSaveRecord:
    """Returns the record of usual data waits in the sixteen iterations after a save."""
    record = AfterSaveRecord(
        iteration=iteration, iterations=16, waits_s=16 * 0.05, usual_wait_s=0.05
    )
    return replace(record, **fields)


def make_calm(count: int = 5, **fields: Any) -> list[SaveRecord]:
    """Returns records of checkpoint saves that nothing delayed."""
    return [make_save(10 * index, **fields) for index in range(1, count + 1)]


def make_contended_ones(count: int, **fields: Any) -> list[SaveRecord]:
    """Returns records of checkpoint saves slowed by workers, ten iterations apart."""
    return [make_contended(10 * n, **fields) for n in range(1, count + 1)]


def with_saves(evidence: RunEvidence, saves: Sequence[SaveRecord]) -> RunEvidence:
    """Returns a run with given checkpoint saves, and usual data waits after each."""
    walls_s = sum(save.wall_s for save in saves)
    evidence = add_to_end(evidence, checkpoint_save=walls_s)
    return replace(
        evidence,
        end=replace(evidence.end, saves=len(saves)),
        save_records=tuple(saves),
        after_saves=tuple(make_after_save(save.iteration) for save in saves),
    )
