"""Rules that judge a training run, by code; each rule module registers its own.

A rule is one function: it stands in the file of its family, takes a `Run` and returns
``problem``, ``notice``, ``fine``, ``cannot_tell`` or ``None``. ``@rule`` gives its
code, its title and the verdict of a run whose largest problem it is; its docstring is
the page of ``mmgpu explain``. The lists of rules in the docs and in the frozen public
surface are generated.
"""

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
"""Diagnostic rules by code, in the order in which they are printed."""
