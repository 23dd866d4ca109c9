"""Makes the hook known to MMEngine without importing it, torch or MMEngine's hooks."""

from __future__ import annotations

from typing import Any

NAME = 'GPUEfficiencyHook'


def register_lazily() -> None:
    """Put a stand-in under the hook's name into MMEngine's root ``HOOKS``.

    The stand-in imports the real class, which takes its place, when it is first
    built. Without MMEngine there is nothing to register and analysis still works.
    """
    try:
        from mmengine.registry import HOOKS
    except ImportError:
        return
    if HOOKS.module_dict.get(NAME) is None:
        HOOKS.register_module(name=NAME, module=_build_hook)


def _build_hook(*args: Any, **kwargs: Any) -> Any:
    from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook

    return GPUEfficiencyHook(*args, **kwargs)
