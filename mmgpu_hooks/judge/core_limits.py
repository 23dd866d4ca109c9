"""Names CPU core limits and the docker, SLURM or other options behind them; no I/O."""

from __future__ import annotations

import math

from mmgpu_hooks.schema.recorded import HostLimits
from mmgpu_hooks.schema.text import Text, phrase

_NOTHING = Text('')


def describe_quota(host: HostLimits) -> Text:
    """Names the docker, SLURM or other option behind the CPU quota; empty without one.

    ``set by docker run --cpus=2``
    """
    cores = host.cgroup_cpu_cores
    if cores is None:
        return _NOTHING
    pct = 100 * cores
    if host.manager == 'kubernetes':
        return phrase(
            "set by the pod's resources.limits.cpu: {limit}",
            limit=_write_millicores(cores),
        )
    if host.manager == 'docker':
        return phrase('set by docker run --cpus={quota_cpus:g}', quota_cpus=cores)
    if host.manager == 'podman':
        return phrase('set by podman run --cpus={quota_cpus:g}', quota_cpus=cores)
    if host.manager == 'slurm':
        return phrase(
            'set by the SLURM job (--cpus-per-task={whole_cpus:d})',
            whole_cpus=math.ceil(cores),
        )
    if host.manager == 'systemd':
        return phrase('set by systemd, CPUQuota={quota_pct:.0f}%', quota_pct=pct)
    return phrase(
        'set by docker run --cpus={quota_cpus:g}, resources.limits.cpu of a pod, or '
        'CPUQuota={quota_pct:.0f}% of systemd',
        quota_cpus=cores,
        quota_pct=pct,
    )


def _write_millicores(cores: float) -> str:
    """Writes cores as Kubernetes does: ``2``, or ``1500m`` (millicores)."""
    return f'{cores:g}' if cores == int(cores) else f'{1000 * cores:.0f}m'


def describe_mask(host: HostLimits) -> Text:
    """Names the docker, SLURM or other option behind the CPU affinity mask, if any."""
    own, all_cpus = host.unbound_cpus or host.affinity_cpus, host.logical_cpus
    if own is None or (all_cpus is not None and own >= all_cpus):
        return _NOTHING
    if host.manager == 'kubernetes':
        # the static CPU manager of a node gives whole cores to such a pod
        return phrase("set by the pod's resources.limits.cpu: {limit}", limit=str(own))
    if host.manager == 'slurm':
        return phrase(
            'set by the SLURM job (--cpus-per-task={whole_cpus:d})', whole_cpus=own
        )
    # in the same container, taskset leaves no other trace
    words = {
        'docker': phrase('set by docker run --cpuset-cpus, or taskset'),
        'podman': phrase('set by podman run --cpuset-cpus, or taskset'),
        'systemd': phrase('set by systemd, AllowedCPUs= or CPUAffinity=, or taskset'),
    }
    unknown = phrase('set by taskset, docker run --cpuset-cpus, or the job')
    return words.get(host.manager or '', unknown)


def describe_core_limit(host: HostLimits) -> Text:
    """Describes what limits usable cores to fewer than the host's; empty if nothing."""
    quota, mask = describe_quota(host), describe_mask(host)
    own = host.unbound_cpus or host.affinity_cpus
    cores = host.cgroup_cpu_cores
    if quota and cores is not None and (not mask or cores <= (own or math.inf)):
        return phrase(
            'The quota of {quota_cpus:g} CPUs is {set_by}.',
            quota_cpus=cores,
            set_by=quota,
        )
    if mask and host.logical_cpus:
        return phrase(
            'The {own_cpus:d} of {logical_cpus:d} CPUs are {set_by}.',
            own_cpus=own,
            logical_cpus=host.logical_cpus,
            set_by=mask,
        )
    if mask:
        return phrase('The {own_cpus:d} CPUs are {set_by}.', own_cpus=own, set_by=mask)
    return _NOTHING
