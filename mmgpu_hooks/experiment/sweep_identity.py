"""What a measurement belongs to: this config, on this host, in this environment."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.experiment.cards import read_cards
from mmgpu_hooks.measure.host import read_host_limits
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.version import __version__

_LIMITS = (
    'logical_cpus',
    'affinity_cpus',
    'cgroup_cpu_cores',
    'slurm_cpus',
    'ram_total_bytes',
    'cgroup_memory_bytes',
    'shm_total_bytes',
)
"""Those that do not change from one minute to the next."""

_PACKAGES = ('torch', 'mmengine', 'mmcv', 'mmdet')
_VARIABLES = (
    'CUDA_VISIBLE_DEVICES',
    'OMP_NUM_THREADS',
    'MKL_NUM_THREADS',
    'PYTORCH_CUDA_ALLOC_CONF',
)
"""Of the environment, those that make the same training a faster or slower one."""


def read_identity(
    config: FlatConfig,
    *,
    saves: bool,
    side_by_side: int = 1,
    ranks: int = 1,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """What two measurements must have in common to stand in one table.

    Args:
        config: As loaded; comments and the spelling of it are no matter.
        saves: Whether checkpoints are written meanwhile.
        side_by_side: Trials that run at a time.
        ranks: Processes that train together in each.
        environ: The environment.

    Returns:
        What JSON knows, by what a sentence calls it.
    """
    limits = read_host_limits(ranks_on_host=1, environ=environ)
    try:
        cards = [card.uuid for card in read_cards()]
    except UserError:
        cards = []
    return {
        'config': digest_config(config),
        'host': {
            'name': platform.node(),
            'cards': cards,
            **{name: getattr(limits, name) for name in _LIMITS},
        },
        'environment': {name: environ.get(name) for name in _VARIABLES},
        'versions': {
            'python': platform.python_version(),
            'mmgpu_hooks': __version__,
            **{name: _read_version(name) for name in _PACKAGES},
        },
        'saves': saves,
        'number of GPUs': side_by_side,
        'number of ranks': ranks,
    }


def digest_config(config: FlatConfig) -> str:
    """The same for equal configs, in any process."""
    lines = sorted(f'{path!r} {_spell(value)}' for path, value in config.items())
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def _spell(value: object) -> str:
    # the text of a class or function may hold its address
    name = getattr(value, '__qualname__', None)
    if isinstance(name, str):
        return f'{getattr(value, "__module__", "")}.{name}'
    return repr(value)


def _read_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
