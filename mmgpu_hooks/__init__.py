"""mmgpu_hooks: where the time of an MMDetection training goes, and what to do.

Importing the package registers ``GPUEfficiencyHook`` with MMEngine when MMEngine is
installed, and imports neither torch nor the hook before somebody builds it.
"""

from typing import TYPE_CHECKING, Any

from mmgpu_hooks.hooks.registration import register_lazily

if TYPE_CHECKING:
    from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook
    from mmgpu_hooks.version import __version__

__all__ = ['GPUEfficiencyHook', '__version__']

register_lazily()


def __getattr__(name: str) -> Any:
    if name == 'GPUEfficiencyHook':
        from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook

        return GPUEfficiencyHook
    if name == '__version__':
        from mmgpu_hooks.version import __version__

        return __version__
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
