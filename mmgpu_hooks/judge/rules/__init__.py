"""All rules by code, a family a file; importing a family registers its rules."""

from mmgpu_hooks.judge.rules import (
    card,
    cpu,
    holders,
    host,
    loading,
    memory,
    saving,
    slurm,
    starting,
    training,
    validation,
)
from mmgpu_hooks.judge.rules.rule import REGISTERED

__all__ = [
    'RULES',
    'card',
    'cpu',
    'holders',
    'host',
    'loading',
    'memory',
    'saving',
    'slurm',
    'starting',
    'training',
    'validation',
]

RULES = {code: REGISTERED[code] for code in sorted(REGISTERED)}
"""Rules by code, in the order they are printed."""
