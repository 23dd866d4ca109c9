"""Locates a PCI device in the host: its NUMA node and the CPUs near it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class DevicePlace(NamedTuple):
    """NUMA node of a PCI device and the CPUs of that node; ``None`` if not stated."""

    numa_node: int | None = None
    cpus: tuple[int, ...] | None = None
    """Numbers of the CPUs of the PCI device's NUMA node."""


def read_device_place(pci_bus_id: str, sys: Path = Path('/sys')) -> DevicePlace:
    """Reads the NUMA node of a PCI device and the numbers of that node's CPUs.

    Args:
        pci_bus_id: As NVML writes it, such as ``00000000:3B:00.0``.
        sys: Root of the sys file system.

    Returns:
        The place. A virtual machine often has no nodes: its kernel then writes -1.
    """
    found = re.fullmatch(r'(?:[0-9a-f]{4})?([0-9a-f]{4}:.+)', pci_bus_id.lower())
    name = found[1] if found else pci_bus_id.lower()
    folder = sys / 'bus' / 'pci' / 'devices' / name
    try:
        node = int((folder / 'numa_node').read_text())
    except (OSError, ValueError):
        return DevicePlace()
    if node < 0:
        return DevicePlace()
    try:
        cpus = parse_cpu_list((folder / 'local_cpulist').read_text())
    except (OSError, ValueError):
        cpus = ()
    return DevicePlace(node, cpus or None)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parses a list of CPU numbers as the kernel writes it, such as ``0-2,8``.

    Raises:
        ValueError: If it is none.

    Examples:
        >>> parse_cpu_list('0-2,8')
        (0, 1, 2, 8)
    """
    cpus: list[int] = []
    for part in filter(None, text.strip().split(',')):
        first, _, last = part.partition('-')
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)
