from __future__ import annotations

import pytest

from mmgpu_hooks.hooks.sources import count_ranks_on_host


@pytest.mark.parametrize(
    ('environ', 'expected'),
    [
        ('', 32),
        ('LOCAL_WORLD_SIZE=8', 8),
        ('LOCAL_WORLD_SIZE=64', 32),
        ('OMPI_COMM_WORLD_LOCAL_SIZE=4', 4),
        ('SLURM_PROCID=9 SLURM_STEP_TASKS_PER_NODE=8(x4)', 8),
        # of uneven nodes the most, so too few workers are advised and not too many
        ('SLURM_PROCID=31 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=12(x2),8', 12),
        ('SLURM_PROCID=9 SLURM_NTASKS_PER_NODE=8', 8),
        ('SLURM_NTASKS_PER_NODE=8', 32),
        ('LOCAL_WORLD_SIZE=odd', 32),
        ('LOCAL_WORLD_SIZE=²', 32),
        (f'LOCAL_WORLD_SIZE={"9" * 5000}', 32),
    ],
)
def test_ranks_on_a_host_are_what_the_launcher_says(environ, expected):
    values = dict(pair.split('=') for pair in environ.split())
    assert count_ranks_on_host(32, values) == expected
