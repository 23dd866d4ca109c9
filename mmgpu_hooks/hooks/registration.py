"""Makes the hook known to MMEngine without importing it, torch or MMEngine's hooks."""

from __future__ import annotations

import sys
from typing import Any

NAME = 'GPUEfficiencyHook'


class _AtFirstUse:
    """Registers the hook when MMEngine is about to import what builds hooks.

    A finder of modules without their base class, whose import is slow.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname in ('mmengine.hooks', 'mmengine.runner'):
            sys.meta_path.remove(self)
            _register()


def register_lazily() -> None:
    """Put a stand-in under the hook's name into MMEngine's root ``HOOKS``.

    The stand-in imports the real class, which takes its place, when it is first
    built. Where MMEngine is not imported yet, that waits until it is: analysis does
    without, and MMEngine takes longer to import than a short run to judge.
    """
    if 'mmengine.registry' in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _AtFirstUse())


def _register() -> None:
    from mmengine.registry import HOOKS

    if HOOKS.module_dict.get(NAME) is None:
        HOOKS.register_module(name=NAME, module=_build_hook)


def _build_hook(*args: Any, **kwargs: Any) -> Any:
    from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook

    return GPUEfficiencyHook(*args, **kwargs)
