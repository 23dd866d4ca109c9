from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from fakes.replaced import replace
from mmgpu_hooks.measure.host import compute_usable_cores, read_host_limits
from mmgpu_hooks.measure.slurm import SlurmTask, parse_bound_cpus, parse_most_tasks
from mmgpu_hooks.schema.recorded import HostLimits


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Fake host: 8 CPUs, 4 of them usable, a quota of 3 cores and 6 GiB."""
    own, group = tmp_path / 'proc' / 'self', tmp_path / 'sys' / 'fs' / 'cgroup'
    own.mkdir(parents=True)
    group.mkdir(parents=True)
    (own / 'cgroup').write_text('0::/\n')
    (group / 'cpu.max').write_text('300000 100000\n')
    (group / 'memory.max').write_text(f'{6 << 30}\n')
    return tmp_path


def read(host: Path, ranks: int = 1, cpus: int = 4, **environ: str) -> HostLimits:
    return read_host_limits(
        ranks_on_host=ranks,
        proc=host / 'proc',
        sys=host / 'sys',
        shm=host,
        environ=environ,
        affinity=lambda: frozenset(range(cpus)),
        cpu_count=lambda: 8,
    )


def test_every_limit_is_recorded(host: Path):
    limits = read(host, SLURM_CPUS_PER_TASK='6')
    assert limits.logical_cpus == 8
    assert limits.affinity_cpus == 4
    assert limits.cgroup_cpu_cores == 3.0
    assert limits.slurm_cpus == 6
    assert limits.usable_cores == 3.0
    assert limits.cgroup_memory_bytes == 6 << 30


@pytest.mark.parametrize(
    ('cpus', 'affinity', 'quota', 'slurm', 'ranks', 'is_task', 'usable'),
    [
        (8, 8, None, None, 1, True, 8.0),
        (8, 2, None, None, 1, True, 2.0),
        (8, 8, 1.5, None, 1, True, 1.5),
        (8, 8, 6.0, None, 4, True, 1.5),
        (64, 64, None, 8, 4, True, 8.0),  # SLURM's figure is per rank already
        (64, 32, None, 8, 4, True, 8.0),  # the job's CPUs, shared by its ranks
        (64, 8, None, 8, 4, True, 8.0),  # CPUs bound per task: ours alone
        (64, 4, None, 8, 4, True, 4.0),
        (64, 32, None, 32, 4, False, 8.0),  # torchrun: one task holds all ranks
        (8, None, None, None, 2, True, 4.0),  # macOS has no affinity
        (None, None, None, None, 1, True, None),
        (None, None, 0.5, None, 1, True, 0.5),
    ],
)
def test_usable_cores_are_the_share_of_a_rank_in_the_narrowest_limit(
    cpus, affinity, quota, slurm, ranks, is_task, usable
):
    assert usable == compute_usable_cores(
        HostLimits(
            logical_cpus=cpus,
            affinity_cpus=affinity,
            cgroup_cpu_cores=quota,
            ranks_on_host=ranks,
        ),
        SlurmTask(requested_cpus=slurm, is_rank=is_task),
    )


@pytest.mark.parametrize(
    ('affinity', 'ranks', 'task', 'usable', 'mended'),
    [
        # figures of a node of 16 cores, as SLURM set its masks
        (8, 1, SlurmTask(8, 8, 16, tasks=1), 8.0, None),
        # two tasks share all CPUs of the step
        (16, 2, SlurmTask(8, 16, 16, tasks=2, node_tasks=2), 8.0, None),
        (4, 4, SlurmTask(4, 4, 16, tasks=4, node_tasks=4), 4.0, None),
        # two trainings that are no ranks of each other share them, too
        (16, 1, SlurmTask(None, 16, 16, tasks=2, node_tasks=2), 8.0, None),
        # an exclusive job
        (16, 1, SlurmTask(8, 16, 16, tasks=1), 16.0, None),
        (1, 1, SlurmTask(8, 1, 8, tasks=1), 1.0, 8.0),
        # a site that binds each task to a core
        (1, 2, SlurmTask(8, 1, 16, tasks=2, node_tasks=2), 1.0, 8.0),
        # ranks of torchrun in one task
        (1, 4, SlurmTask(8, 1, 8, tasks=1, is_rank=False), 0.25, 2.0),
        (8, 4, SlurmTask(8, 8, 8, tasks=1, is_rank=False), 2.0, None),
        # a batch script has all of its job, whatever a task has
        (16, 4, SlurmTask(4, None, 16, is_rank=False), 4.0, None),
        # a site that binds nothing: the node has more than the job
        (64, 1, SlurmTask(8, None, 8, tasks=1), 8.0, None),
        (64, 1, SlurmTask(8, None, 8), 8.0, None),
        # taskset below srun is meant
        (1, 1, SlurmTask(8, 8, 8, tasks=1), 1.0, None),
    ],
)
def test_a_slurm_task_has_the_cores_of_its_mask_and_may_be_narrow(
    affinity, ranks, task, usable, mended
):
    limits = HostLimits(logical_cpus=64, affinity_cpus=affinity, ranks_on_host=ranks)
    assert compute_usable_cores(limits, task) == usable
    assert task.is_narrow(affinity) == (mended is not None)
    if mended is not None:
        wide = replace(limits, affinity_cpus=task.given_cpus)
        assert compute_usable_cores(wide, task.mend()) == mended


@pytest.mark.parametrize(
    ('kind', 'masks', 'task', 'cpus'),
    [
        ('mask_cpu:', '0x3', '0', 2),
        ('mask_cpu:', '00FF', '0', 8),
        ('mask_cpu:', '0x1,0x7', '1', 3),
        # of masks that are fewer SLURM begins anew
        ('mask_cpu:', '0x1,0x7', '2', 1),
        ('mask_cpu:', '', '0', None),
        ('mask_cpu:', '0xg', '0', None),
        ('mask_cpu:', '0x1', 'x', None),
        ('map_cpu:', '0', '0', None),
        ('none', '0x1', '0', None),
    ],
)
def test_the_cpus_of_a_task_are_counted_in_its_mask(kind, masks, task, cpus):
    names = ('SLURM_CPU_BIND_TYPE', 'SLURM_CPU_BIND_LIST', 'SLURM_LOCALID')
    assert parse_bound_cpus(dict(zip(names, (kind, masks, task)))) == cpus


@pytest.mark.parametrize(
    ('text', 'tasks'),
    [('8(x3),4', 8), ('2', 2), ('4,12(x2)', 12), ('', None), ('x', None), ('0', None)],
)
def test_of_uneven_nodes_the_most_tasks_count(text, tasks):
    assert parse_most_tasks(text) == tasks


@pytest.mark.parametrize('value', ['', '0', '-2', 'x'])
def test_slurm_counts_only_when_set_and_positive(host: Path, value: str):
    assert read(host, SLURM_CPUS_PER_TASK=value).slurm_cpus is None


def test_without_proc_and_sys_all_is_unknown(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'resource', None)
    nowhere = tmp_path / 'nowhere'
    limits = read_host_limits(
        ranks_on_host=1,
        proc=nowhere,
        sys=nowhere,
        shm=nowhere,
        environ={},
        affinity=lambda: None,
        cpu_count=lambda: None,
    )
    memory = psutil.virtual_memory()
    assert limits.ram_total_bytes == memory.total
    assert (
        replace(limits, ram_total_bytes=None, ram_available_bytes=None) == HostLimits()
    )


def test_open_files_is_the_soft_limit(host: Path, monkeypatch):
    resource = pytest.importorskip('resource', exc_type=ImportError)
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (256, 4096))
    assert read(host).open_files_soft == 256
    monkeypatch.setattr(
        resource, 'getrlimit', lambda which: (resource.RLIM_INFINITY,) * 2
    )
    assert read(host).open_files_soft is None


@pytest.mark.parametrize(
    ('environ', 'usable'),
    [
        ({}, 4.0),
        ({'WORLD_SIZE': '2', 'SLURM_NTASKS': '2'}, 4.0),  # one task per rank
        ({'WORLD_SIZE': '2', 'SLURM_NTASKS': '1'}, 2.0),  # one task holds both
        ({'WORLD_SIZE': '2'}, 4.0),
        ({'TORCHELASTIC_RUN_ID': 'none'}, 2.0),
    ],
)
def test_a_launcher_under_slurm_is_told_by_the_number_of_tasks(host, environ, usable):
    (host / 'sys' / 'fs' / 'cgroup' / 'cpu.max').write_text('max 100000')
    limits = read(host, ranks=2, cpus=8, SLURM_CPUS_PER_TASK='4', **environ)
    assert limits.usable_cores == usable
