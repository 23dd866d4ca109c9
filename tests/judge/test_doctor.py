"""Tests ``mmgpu doctor``'s judgement of synthetic machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mmgpu_hooks.judge.doctor import count_problems, is_within, judge_machine
from mmgpu_hooks.schema.checkup import (
    Binding,
    Bounds,
    Cards,
    Checked,
    ConfigCheck,
    Folder,
    HostCard,
    Installed,
    LoaderPlan,
    Machine,
)
from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import quoted

GIB = 2**30
H100 = HostCard(0, 'NVIDIA H100', 80 * GIB, '00000000:3B:00.0')
SOUND = Machine(
    host=HostLimits(
        logical_cpus=64,
        affinity_cpus=64,
        usable_cores=64.0,
        ram_total_bytes=512 * GIB,
        ram_available_bytes=400 * GIB,
        shm_total_bytes=256 * GIB,
        shm_free_bytes=256 * GIB,
    ),
    installed=Installed('3.11.7', {'mmengine': '0.10.7'}, '2.5.1', '12.4'),
    cards=Cards((H100,), '550.163.01', '12.4'),
    own_cpus=tuple(range(64)),
    work_dir=Folder('.', kind='ext4'),
)


def judge(**fields: Any) -> dict[str, Checked]:
    return {row.name: row for row in judge_machine(replace(SOUND, **fields))}


def on_host(**fields: Any) -> HostLimits:
    limits = {name: getattr(SOUND.host, name) for name in SOUND.host.__struct_fields__}
    return HostLimits(**{**limits, **fields})


def test_of_a_sound_machine_nothing_is_wrong_or_unknown():
    rows = judge_machine(SOUND)
    assert {row.level for row in rows} == {'ok'}
    assert count_problems(rows) == 0
    assert all(row.cure is None for row in rows)


@pytest.mark.parametrize(
    ('host', 'text'),
    [
        ({}, '64 usable of 64'),
        (
            {'usable_cores': 9.0, 'slurm_cpus': 9, 'affinity_cpus': 9},
            '9 usable of 64: SLURM gave 9',
        ),
        ({'usable_cores': 2.5, 'cgroup_cpu_cores': 2.5}, '2.5 usable of 64: CPU quota'),
        ({'usable_cores': 8.0, 'affinity_cpus': 8}, '8 usable of 64: affinity mask'),
        ({'usable_cores': None}, 'this platform does not say'),
    ],
)
def test_the_narrowest_limit_of_the_cores_is_named(host, text):
    cores = judge(host=on_host(**host))['cores']
    assert cores.text.startswith(text)
    assert cores.level == ('unknown' if host.get('usable_cores', 1) is None else 'ok')


@pytest.mark.parametrize(
    ('host', 'binding', 'level', 'text'),
    [
        (
            {},
            Binding(('OMP_PLACES',), 64, 2),
            'problem',
            'OMP_PLACES binds the training to 2 of 64 CPUs',
        ),
        ({}, Binding(('OMP_PLACES',), 64, 64), 'ok', '64 usable of 64'),
        (
            {},
            Binding(('KMP_AFFINITY',), reason=quoted('no')),
            'unknown',
            'KMP_AFFINITY: no',
        ),
        # the shell that asks is bound itself
        (
            {'affinity_cpus': 1, 'unbound_cpus': 64, 'bound_by': 'OMP_PROC_BIND'},
            Binding(('OMP_PROC_BIND',), 1, 1),
            'problem',
            'OMP_PROC_BIND binds the training to 1 of 64 CPUs',
        ),
    ],
    ids=['bound', 'not bound', 'unknown', 'the shell is bound'],
)
def test_openmp_that_binds_the_training_is_a_problem(host, binding, level, text):
    cores = judge(host=on_host(**host), binding=binding)['cores']
    assert cores.level == level
    assert text in cores.text


def test_a_start_that_srun_narrowed_is_a_problem_with_its_cure():
    narrow = {'slurm_bound_cpus': 1, 'slurm_given_cpus': 9, 'slurm_tasks': 1}
    host = on_host(affinity_cpus=1, usable_cores=1.0, mended_cores=9.0, **narrow)
    cores = judge(host=host)['cores']
    assert cores.level == 'problem'
    assert 'srun bound this task to 1 CPU of the 9 that SLURM gave it' in cores.text
    assert cores.cure == 'srun --ntasks=1 --cpus-per-task=9 --cpu-bind=cores ...'


@pytest.mark.parametrize(
    ('driver', 'torch', 'level'),
    [
        ('12.4', '12.4', 'ok'),
        # within a major version an older driver will do
        ('12.2', '12.8', 'ok'),
        ('12.4', '13.0', 'problem'),
        ('11.8', '12.1', 'problem'),
        ('13.0', '12.4', 'ok'),
        (None, '12.4', 'ok'),
        ('12.4', None, 'ok'),
    ],
)
def test_a_driver_that_is_too_old_for_torch_is_a_problem(driver, torch, level):
    cards = Cards((H100,), '550.163.01', driver)
    installed = Installed('3.11.7', {}, '2.5.1', torch)
    found = judge(cards=cards, installed=installed)['driver']
    assert found.level == level
    assert ('too old for torch' in found.text) is (level == 'problem')


NEAR, FAR = tuple(range(32)), tuple(range(32, 64))


@pytest.mark.parametrize(
    ('own', 'level', 'text'),
    [
        (NEAR, 'notice', 'GPU 0-1 on NUMA node 0, 32 of our 32 CPUs beside it; GPU 2'),
        (NEAR, 'notice', 'GPU 2 on NUMA node 1, none of our 32 CPUs beside it'),
        (NEAR + FAR, 'ok', 'GPU 2 on NUMA node 1, 32 of our 64 CPUs beside it'),
        (None, 'ok', 'GPU 0-1 on NUMA node 0, 32 CPUs beside it'),
    ],
)
def test_cards_without_own_cores_on_their_numa_node_are_a_notice(own, level, text):
    nodes = ((0, NEAR), (0, NEAR), (1, FAR))
    cards = Cards(
        tuple(
            replace(H100, index=index, numa_node=node, near_cpus=near)
            for index, (node, near) in enumerate(nodes)
        )
    )
    place = judge(cards=cards, own_cpus=own)['GPU place']
    assert place.level == level
    assert text in place.text


def test_a_place_that_is_unknown_has_no_line():
    assert 'GPU place' not in judge()


@pytest.mark.parametrize(
    ('shm', 'config', 'level', 'text'),
    [
        (64 * 2**20, None, 'problem', "64 MiB, a container's default"),
        (65 * 2**20, None, 'ok', '65 MiB'),
        (
            64 * 2**20,
            LoaderPlan(8, 2, 32),
            'problem',
            "a container's default",
        ),
        (GIB, LoaderPlan(8, 2, 32), 'ok', 'what a batch takes is unknown'),
        (
            GIB,
            LoaderPlan(1, 2, 32, 2**20, 96, is_measured=True),
            'ok',
            'enough for 1 worker: 2 batches of 1 MiB in flight a rank',
        ),
    ],
)
def test_shared_memory_is_judged_by_size_or_by_the_loader(shm, config, level, text):
    host = on_host(shm_total_bytes=shm, shm_free_bytes=shm)
    check = config and ConfigCheck('mine.py', loader=config)
    found = judge(host=host, config=check)['/dev/shm']
    assert found.level == level
    assert text in found.text


@pytest.mark.parametrize(
    ('config', 'level', 'text'),
    [
        (
            ConfigCheck('a b.py'),
            'ok',
            "mmgpu run tools/train.py 'a b.py' (or mmgpu enable 'a b.py')",
        ),
        (ConfigCheck('a.py', hooks=('custom_hooks.0',)), 'ok', None),
        (
            ConfigCheck(
                'a.py', hooks=('custom_hooks.0',), unregistered='custom_hooks.0'
            ),
            'problem',
            "type='mmgpu_hooks.GPUEfficiencyHook' in custom_hooks.0",
        ),
    ],
)
def test_a_config_without_the_hook_gets_the_commands_that_add_it(config, level, text):
    hook = judge(config=config)['hook']
    assert (hook.level, hook.cure) == (level, text)


@pytest.mark.parametrize(
    ('packages', 'cure'),
    [
        ({'mmdet': '3.3.0'}, "pip install 'mmcv>=2.0.0rc4,<2.2.0'"),
        (
            {'mmdet': '3.3.0', 'mmcv-lite': '2.1.0'},
            "pip uninstall -y mmcv-lite; pip install 'mmcv>=2.0.0rc4,<2.2.0'",
        ),
        ({'mmdet': '3.3.0', 'mmcv': '2.1.0'}, None),
        (
            {'onedl-mmdetection': '3.4.0'},
            "pip install 'onedl-mmcv>=2.0.0rc4,<2.2.0'",
        ),
        ({'mmengine': '0.10.7'}, None),
    ],
)
def test_mmdetection_needs_an_mmcv_with_operators(packages, cure):
    bounds = (Bounds('mmcv', '2.0.0rc4', '2.2.0'),)
    rows = judge(installed=Installed('3.11.7', packages, '2.5.1', bounds=bounds))
    assert (rows['MMCV'].cure if 'MMCV' in rows else None) == cure


@pytest.mark.parametrize(
    ('version', 'is_in'),
    [
        ('2.0.0rc3', False),
        ('2.0.0rc4', True),
        ('2.1.0+cu121', True),
        ('2.2.0', False),
        ('2.2.0rc1', True),
        ('unknown', True),
    ],
)
def test_versions_are_compared_with_their_bounds(version, is_in):
    assert is_within(version, Bounds('mmcv', '2.0.0rc4', '2.2.0')) is is_in
