"""The machine of a benchmark, and how much of it strangers used meanwhile."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Callable

import psutil

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host import read_memory, read_system_cpu_times

_PACKAGES = {
    'torch': ('torch',),
    'mmengine': ('mmengine', 'onedl-mmengine'),
    'mmcv': ('mmcv', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
}
"""Distributions that bring a package, upstream first."""


def describe_machine(proc: Path = Path('/proc')) -> dict[str, str]:
    """What figures depend on; no host names and no paths.

    Args:
        proc: Root of the proc file system.
    """
    total_bytes = read_memory(proc)[0]
    machine = {
        'CPU': _cpu_model(proc),
        'logical CPUs': str(os.cpu_count()),
        'RAM': 'unknown' if total_bytes is None else f'{total_bytes / 2**30:.1f} GiB',
        'GPU': _gpu_name(),
        'kernel': f'{platform.system()} {platform.release()}',
        'Python': platform.python_version(),
    }
    return {**machine, **{name: _version(name) for name in _PACKAGES}}


def _cpu_model(proc: Path) -> str:
    try:
        text = (proc / 'cpuinfo').read_text(errors='replace')
    except OSError:
        text = ''
    for line in text.splitlines():
        name, _, value = line.partition(':')
        if name.strip() == 'model name':
            return value.strip()
    return platform.machine()


def _gpu_name() -> str:
    torch = sys.modules.get('torch')
    # a benchmark that needs none must not start CUDA for its name
    if torch is None or not torch.cuda.is_initialized():
        return 'not used'
    return str(torch.cuda.get_device_name())


def _version(package: str) -> str:
    for distribution in _PACKAGES[package]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return 'not installed'


def read_busy_cpu_s() -> float:
    """CPU seconds that all CPUs of the host worked since it started."""
    times = read_system_cpu_times()._asdict()
    # guest time is in user and nice already
    leave_out = ('idle', 'iowait', 'guest', 'guest_nice')
    return float(sum(s for kind, s in times.items() if kind not in leave_out))


def read_tree_cpu_s() -> float:
    """CPU seconds of this process, its descendants and those that have ended."""
    times = os.times()
    total_s = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it ended: its parent has its time by now
            continue
        total_s += used.user + used.system + used.children_user + used.children_system
    return total_s


class StrangerLoad:
    """How much of the machine other processes use from now on.

    The kernel counts in ticks of 10 ms, so the span should be seconds. Descendants
    that ended without being waited for count as strangers.

    Args:
        busy_s: CPU seconds of the whole host.
        own_s: CPU seconds of this process and its descendants.
        clock: Monotonic, in seconds.
        cpus: Logical CPUs. Defaults to those of this host.
    """

    def __init__(
        self,
        busy_s: Callable[[], float] = read_busy_cpu_s,
        own_s: Callable[[], float] = read_tree_cpu_s,
        clock: Clock = monotonic_s,
        cpus: int | None = None,
    ) -> None:
        self._readers = busy_s, own_s, clock
        self._cpus = cpus or os.cpu_count() or 1
        self._began = [read() for read in self._readers]

    def read_pct(self) -> float:
        """Share of the machine that strangers have used, 0 to 100."""
        spent = [read() - began for read, began in zip(self._readers, self._began)]
        busy_s, own_s, seconds = spent
        if seconds <= 0.0:
            return 0.0
        share = (busy_s - own_s) / (seconds * self._cpus)
        return 100.0 * min(max(share, 0.0), 1.0)


class TrainingsLoad(StrangerLoad):
    """What strangers used while the trainings ran that are judged, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.shares_pct: list[float] = []
        """Of each training; whoever judges them fills it."""

    def read_pct(self) -> float:
        """Mean share of the machine that strangers used, 0 to 100."""
        return sum(self.shares_pct) / max(len(self.shares_pct), 1)
