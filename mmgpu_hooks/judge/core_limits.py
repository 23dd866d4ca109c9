"""Names the limit on cores in the words and flags of the program that set it. Pure."""

from __future__ import annotations

import math

from mmgpu_hooks.schema.recorded import HostLimits


def describe_quota(host: HostLimits) -> str:
    """Name the quota and the flag that sets it; empty without a quota.

    ``set by docker run --cpus=2``
    """
    cores = host.cgroup_cpu_cores
    if cores is None:
        return ''
    pct = f'{100 * cores:.0f}%'
    words = {
        'kubernetes': f"set by the pod's resources.limits.cpu: {_phrase(cores)}",
        'docker': f'set by docker run --cpus={cores:g}',
        'podman': f'set by podman run --cpus={cores:g}',
        'slurm': f'set by the SLURM job (--cpus-per-task={math.ceil(cores)})',
        'systemd': f'set by systemd, CPUQuota={pct}',
    }
    unknown = (
        f'set by docker run --cpus={cores:g}, resources.limits.cpu of a pod, or '
        f'CPUQuota={pct} of systemd'
    )
    return words.get(host.manager or '', unknown)


def _phrase(cores: float) -> str:
    """As Kubernetes writes it: ``2``, or ``1500m``."""
    return f'{cores:g}' if cores == int(cores) else f'{1000 * cores:.0f}m'


def describe_mask(host: HostLimits) -> str:
    """Name the mask of CPUs and the flag that sets it; empty where it has all."""
    own, all_cpus = host.unbound_cpus or host.affinity_cpus, host.logical_cpus
    if own is None or (all_cpus is not None and own >= all_cpus):
        return ''
    # in the same container, taskset leaves no other trace
    words = {
        # the static CPU manager of a node gives whole cores to such a pod
        'kubernetes': f"set by the pod's resources.limits.cpu: {own}",
        'docker': 'set by docker run --cpuset-cpus, or taskset',
        'podman': 'set by podman run --cpuset-cpus, or taskset',
        'slurm': f'set by the SLURM job (--cpus-per-task={own})',
        'systemd': 'set by systemd, AllowedCPUs= or CPUAffinity=, or taskset',
    }
    unknown = 'set by taskset, docker run --cpuset-cpus, or the job'
    return words.get(host.manager or '', unknown)


def describe_core_limit(host: HostLimits) -> str:
    """Sentence on the limit below the host's CPUs; empty where there is none."""
    quota, mask = describe_quota(host), describe_mask(host)
    own = host.unbound_cpus or host.affinity_cpus
    cores = host.cgroup_cpu_cores
    if quota and cores is not None and (not mask or cores <= (own or math.inf)):
        return f'The quota of {cores:g} CPUs is {quota}.'
    if mask:
        of = f' of {host.logical_cpus}' if host.logical_cpus else ''
        return f'The {own}{of} CPUs are {mask}.'
    return ''
