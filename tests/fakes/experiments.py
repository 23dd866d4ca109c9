"""Synthetic results of sweeps, save benchmarks, verifications and profiles."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fakes.overhead import make_profile
from fakes.replaced import replace
from fakes.save_bench import make_bench, make_row
from fakes.sweeps import make_sweep, make_sweep_row
from mmgpu_hooks.schema.judged import Estimate, Verification
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.document import Section
from mmgpu_hooks.show.experiments import (
    describe_profile,
    describe_save_bench,
    describe_sweep,
    describe_verify,
)

SWEPT = make_sweep(
    make_sweep_row(0, 0.8),
    make_sweep_row(2, 0.5),
    make_sweep_row(4, 0.4),
    make_sweep_row(8, None, status='out_of_memory', error='MemoryError: no room'),
)
"""Sweep whose fastest setting has too many workers for the host; one trial fails."""
HARMED = make_bench(
    make_row(0, 0.4),
    make_row(2, 0.42),
    make_row(8, 2.0, cause='workers', won_s=0.5),
    make_row(32, None, status='out_of_memory', error='MemoryError: no room'),
)
"""Save benchmark in which 8 workers slow the saves, and 32 exceed the memory."""
VERIFIED = Verification(
    gain=Estimate(0.5, 0.45, 0.55, 8),
    before_s=0.3,
    after_s=0.2,
    iterations=120,
    seconds=75.0,
    ending=phrase('the gain is known well enough'),
    external_cpu_cores=0.3,
    predicted_gain=0.52,
    before={'train_dataloader.num_workers': 0},
    after={
        'train_dataloader.num_workers': 4,
        'train_dataloader.persistent_workers': True,
    },
    folder='work_dirs/run/verify/1',
    before_images_per_s=10.0,
    after_images_per_s=15.0,
    iteration_change=Estimate(-1 / 3, -0.355, -0.31, 8),
    before_config='a.py',
    after_config='a.py',
)
"""Verification whose second setting is faster, as predicted."""

SWEEPS = {
    'beyond the host': SWEPT,
    'interrupted': make_sweep(make_sweep_row(0, 0.8), asked=3, is_interrupted=True),
    'nothing measured': make_sweep(make_sweep_row(0, None)),
    'two batch sizes': make_sweep(
        make_sweep_row(0, 0.1, batch=1), make_sweep_row(0, 0.4, batch=8)
    ),
    'disturbed': make_sweep(make_sweep_row(0, external_cpu_cores=1.25)),
    'too short': make_sweep(make_sweep_row(0, None, status='completed', error=None)),
}
SAVE_BENCHES = {
    'harmed': HARMED,
    'harmless': make_bench(make_row(0, 0.4), make_row(2, 0.39), make_row(8, 0.45)),
    'alone': make_bench(make_row(8, 0.9)),
    'interrupted': make_bench(make_row(8, 0.9, noise=(1.0,)), interrupted=True),
}
VERIFICATIONS = {
    'faster': VERIFIED,
    'slower': replace(VERIFIED, gain=Estimate(-0.2, -0.3, -0.1, 6)),
    'no difference': replace(
        VERIFIED,
        gain=Estimate(0.01, -0.01, 0.03, 6),
        before_start_s=3.0,
        after_start_s=-0.01,
        batches_per_epoch=10,
    ),
    'other work': replace(
        VERIFIED,
        after_config='b.py',
        other_work=(phrase('model'), phrase('data set'), phrase('batch size')),
        untrained=('val_dataloader.num_workers', 'work_dir', 'a', 'b'),
        before={},
        after={f'model.head.{layer}': layer for layer in range(40)},
        after_images_per_s=None,
    ),
    'unlike epochs': replace(
        VERIFIED,
        batches_per_epoch=10,
        after_batches_per_epoch=5,
        before_start_s=3.0,
        after_start_s=1.0,
        before={},
        after={},
    ),
}
_ON_CARD = make_profile(
    device='NVIDIA A100',
    parts={'forward': 0.04, 'backward': 0.03, 'copies': 0.01, 'idle': 0.03},
    modules={'': 0.02, 'backbone': 0.05},
    products_pct=20.0,
    kernels=900.0,
    bound='launches',
    bound_reason=None,
    capability=(8, 0),
    uncovered_s=0.03,
    fills=12.0,
    losses_pct=40.0,
)
PROFILES = {
    'on a CPU': make_profile(),
    'launch-bound': _ON_CARD,
    'kernel-bound, with AMP': replace(_ON_CARD, bound='kernels', amp='float16'),
    'an old card': replace(_ON_CARD, bound='kernels', capability=(6, 1), amp='float16'),
}
DESCRIBED: dict[str, Callable[[], list[Section]]] = {
    **{
        f'sweep: {case}': functools.partial(describe_sweep, sweep)
        for case, sweep in SWEEPS.items()
    },
    **{
        f'save-bench: {case}': functools.partial(describe_save_bench, bench)
        for case, bench in SAVE_BENCHES.items()
    },
    **{
        f'verify: {case}': functools.partial(describe_verify, measured)
        for case, measured in VERIFICATIONS.items()
    },
    **{
        f'profile: {case}': functools.partial(describe_profile, profile)
        for case, profile in PROFILES.items()
    },
}
"""Functions that return a synthetic result's output sections, by command and case."""
