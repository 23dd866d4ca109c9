"""Synthetic validations as the hook would record them."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from fakes.runs import (
    add_to_end,
    make_evidence,
    make_inside_workers,
    make_loader,
    steady,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import DurationStats, ValidationRecord

METRICS_S = 3.0


def make_validation(
    number: int = 0,
    *,
    iterations: int = 200,
    batch_time_s: float = 0.08,
    step_s: float = 0.02,
    workers: int = 1,
    persistent: bool = True,
    first_wait_s: float = 0.2,
    **fields: Any,
) -> ValidationRecord:
    """Returns a validation record whose time is set by its workers or its step.

    Of loading, nine tenths are CPU; the metrics take 3 s.

    Args:
        number: Validations before it.
        workers: Of its loader; 0 loads in the loop.
        fields: Of the record.
    """
    made_s = batch_time_s / max(workers, 1)
    wait_s = max(made_s - step_s, 0.0) if workers else batch_time_s
    cpu_s = 0.001 if workers else 0.9 * batch_time_s
    rest_s = wait_s * (iterations - 1)
    waits = DurationStats(
        count=iterations,
        total_s=rest_s + first_wait_s,
        mean_s=rest_s / iterations,
        p50_s=wait_s,
        p95_s=wait_s,
    )
    window = make_inside_workers(
        batch_time_s, std_s=0.002, count=max(workers, 1), iterations=iterations
    )
    return replace(
        ValidationRecord(
            iteration=100 * (number + 1),
            wall_s=rest_s + first_wait_s + step_s * iterations + METRICS_S,
            iterations=iterations,
            data_wait=waits,
            step=steady(step_s, iterations),
            iter=steady(wait_s + step_s, iterations),
            first_waits=1,
            first_wait_s=first_wait_s,
            data_wait_cpu_s=cpu_s * (iterations - 1),
            process_cpu_s=(cpu_s + 0.5 * step_s) * iterations,
            batch_bytes=2**20,
            batch_tensors=2,
            loader=make_loader(
                workers,
                persistent_workers=persistent and workers > 0,
                batch_size=1,
                batches_per_epoch=iterations,
                dataset_length=iterations,
            ),
            workers=window if workers else None,
            train_workers_cpu_s=0.0,
            other_cpu_s=0.0,
        ),
        **fields,
    )


def summarise(*validations: ValidationRecord, **fields: Any) -> Run:
    """Returns the summary of a made-up run that has the given validations."""
    evidence = make_evidence(**fields)
    wall_s = sum(validation.wall_s for validation in validations)
    evidence = add_to_end(evidence, validation=wall_s)
    return Run(replace(evidence, validations=validations))
