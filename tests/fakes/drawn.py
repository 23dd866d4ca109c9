"""Makes random synthetic runs: their loaders, hosts, core limits and other load."""

from __future__ import annotations

import math
import random
from typing import Any

from fakes.replaced import replace
from fakes.runs import (
    GIB,
    make_evidence,
    make_inside_workers,
    make_loader,
    make_run,
    steady,
)
from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.run import RunEvidence


def draw_run(seed: int) -> RunEvidence:
    """Returns a random run with up to 16 workers and up to 16 cores.

    Some starve and some do not; some restart their workers, wait for storage, have
    little memory, share the host, or have threads of OpenCV that thrash.
    """
    rng = random.Random(seed)
    workers, cores = rng.choice([0, 1, 2, 2, 4, 8, 16]), rng.choice([1, 2, 4, 8, 16])
    is_kept = rng.random() < 0.6
    step_s = math.exp(rng.uniform(math.log(0.02), math.log(0.5)))
    batch_s = step_s * math.exp(rng.uniform(math.log(0.1), math.log(8)))
    cpu_share = rng.choice([1.0, 0.9, 0.5, 0.2])
    crowd = max(workers * cpu_share / cores, 1.0)
    made_s = batch_s * (1 + (crowd - 1) * cpu_share)
    wait_s = max(made_s / max(workers, 1) - step_s, 0.0005) if workers else batch_s
    spread = rng.choice([0.02, 0.3, 1.0, 2.0])
    fields: dict[str, Any] = {
        'data_wait_s': wait_s,
        'step_s': step_s,
        'process_cpu_s': 20 * step_s * rng.choice([0.1, 0.5, 1.0]),
        'data_wait_cpu_s': 20 * (0.0005 if workers else batch_s * cpu_share),
        'system_cpu_pct': rng.choice([10.0, 40.0, 90.0]),
        'batch_bytes': rng.choice([1, 16, 128]) * 2**20,
        'batch_tensors': rng.choice([4, 12, 64]),
    }
    if workers:
        inside = make_inside_workers(
            made_s,
            std_s=spread * made_s,
            count=workers,
            cpu_s=20 * batch_s * cpu_share,
            run_delay_s=20 * (made_s - batch_s),
        )
        cpu = {'mean_s': batch_s * cpu_share, 'p50_s': batch_s * cpu_share}
        inside = replace(inside, batch_cpu=replace(inside.batch_cpu, **cpu))
        if rng.random() < 0.2:
            inside = replace(
                inside,
                thread_cpu_s=20 * batch_s * rng.choice([0.1, 0.5]),
                fetch_cpu_s=batch_s * cpu_share,
                opencv_threads=rng.choice([1, 4, 16, 64]),
                run_delay_s=inside.run_delay_s + 20 * batch_s * rng.random(),
            )
            fields['worker_threads'] = 10
        fields['workers'] = inside
        fields['data_wait'] = replace(steady(wait_s, 20), p95_s=wait_s * (1 + spread))
    if rng.random() < 0.5:
        fields['first_waits'] = rng.choice([1, 2])
        fields['first_wait_s'] = fields['first_waits'] * rng.choice([0.05, 0.5, 3.0])
    loader = make_loader(
        workers,
        persistent_workers=is_kept and workers > 0,
        prefetch_factor=rng.choice([1, 2, 2, 2, 4]) if workers else None,
        batches_per_epoch=rng.choice([5, 50, 500]),
    )
    host = HostLimits(
        logical_cpus=cores,
        affinity_cpus=cores,
        usable_cores=float(cores),
        ram_available_bytes=rng.choice([2, 16, 256]) * GIB,
        shm_free_bytes=rng.choice([GIB // 16, GIB, 64 * GIB]),
        open_files_soft=rng.choice([1024, 2**16]),
    )
    record = make_run(loader=loader, host=host, max_epochs=rng.choice([1, 3, 12, 50]))
    return make_evidence(rng.choice([4, 8, 30]), run=record, **fields)
