"""Tests that a limit on CPU cores is named with the option that sets it."""

from __future__ import annotations

import pytest

from mmgpu_hooks.judge.core_limits import describe_core_limit
from mmgpu_hooks.schema.recorded import HostLimits


@pytest.mark.parametrize(
    ('limits', 'words'),
    [
        ({'manager': 'docker', 'cgroup_cpu_cores': 2.5}, 'docker run --cpus=2.5.'),
        (
            {'manager': 'kubernetes', 'cgroup_cpu_cores': 1.5},
            "the pod's resources.limits.cpu: 1500m.",
        ),
        ({'manager': 'systemd', 'cgroup_cpu_cores': 2.0}, 'CPUQuota=200%.'),
        ({'cgroup_cpu_cores': 2.0}, 'resources.limits.cpu of a pod, or CPUQuota=200%'),
        (
            {'manager': 'docker', 'affinity_cpus': 4},
            'The 4 of 8 CPUs are set by docker run --cpuset-cpus, or taskset.',
        ),
        ({'manager': 'slurm', 'affinity_cpus': 4}, '(--cpus-per-task=4).'),
        # the tighter of the two
        (
            {'manager': 'docker', 'affinity_cpus': 2, 'cgroup_cpu_cores': 4.0},
            '--cpuset-cpus, or taskset.',
        ),
        ({'affinity_cpus': 8}, ''),
        ({}, ''),
    ],
)
def test_the_limit_is_named_with_its_flag(limits, words):
    said = describe_core_limit(HostLimits(logical_cpus=8, **limits))
    assert said.endswith(words) or words in said if words else said == ''
