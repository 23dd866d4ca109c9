"""All rules by code, a family a file; importing a family registers its rules."""

from mmgpu_hooks.judge.rules import (
    card,
    cpu,
    holders,
    loading,
    memory,
    saving,
    slurm,
    starting,
    training,
)
from mmgpu_hooks.judge.rules.rule import RULES as REGISTERED

__all__ = [
    'RULES',
    'card',
    'cpu',
    'holders',
    'loading',
    'memory',
    'saving',
    'slurm',
    'starting',
    'training',
]

RULES = {code: REGISTERED[code] for code in sorted(REGISTERED)}
"""In the order they are printed."""
