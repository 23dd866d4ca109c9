"""Package mmgpu_hooks: finds what slows an MMDetection training, and advises changes.

Importing the package registers ``GPUEfficiencyHook`` with MMEngine when MMEngine is
installed, and imports neither torch nor the hook before somebody builds it.

A name stands in for the class until it is built: ``import mmgpu_hooks`` must register
the hook, and ``mmgpu --help`` must not import torch. So a function is registered under
the hook's name; it imports the class, which takes its place.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook
    from mmgpu_hooks.optimize.coco_metric import FastCocoMetric as FastCocoMetric
    from mmgpu_hooks.version import __version__

# FastCocoMetric needs MMDetection, and `import *` must not
__all__ = ['GPUEfficiencyHook', '__version__']


def __getattr__(name: str) -> Any:
    if name == 'GPUEfficiencyHook':
        from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook

        return GPUEfficiencyHook
    if name == 'FastCocoMetric':
        from mmgpu_hooks.optimize.coco_metric import FastCocoMetric

        return FastCocoMetric
    if name == '__version__':
        from mmgpu_hooks.version import __version__

        return __version__
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def _build_hook(*args: Any, **kwargs: Any) -> Any:
    return __getattr__('GPUEfficiencyHook')(*args, **kwargs)


def _register() -> None:
    """Registers a lazy stand-in for GPUEfficiencyHook in MMEngine's ``HOOKS`` registry.

    The stand-in imports the real class, which takes its place, when it is first built.
    """
    from mmengine.registry import HOOKS

    if HOOKS.module_dict.get('GPUEfficiencyHook') is None:
        HOOKS.register_module(name='GPUEfficiencyHook', module=_build_hook)


class _AtFirstUse:
    """Import finder that registers GPUEfficiencyHook when ``mmengine.hooks`` is loaded.

    It finds no module itself. Without it, a script that imports us before MMEngine
    could not name the hook ``GPUEfficiencyHook`` alone, since MMEngine's registry has
    no way to be told of a name before it is imported. It has no base class: importing
    that is slow.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname in ('mmengine.hooks', 'mmengine.runner'):
            sys.meta_path.remove(self)
            _register()


# analysis does without MMEngine, which takes longer to import than a short run to judge
if 'mmengine.registry' in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _AtFirstUse())
