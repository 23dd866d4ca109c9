"""Adds GPUEfficiencyHook to MMEngine trainings in processes that ``mmgpu run`` starts.

Python imports this module whenever a process starts that has this folder on its
``PYTHONPATH``. It imports nothing of ours before MMEngine's Runner is there, and needs
nothing of ours: the process may run a Python in which we are not installed.
"""

import os
import sys
import time

TYPE_CHECKING = False  # importing typing for it takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

_RUNNERS = ('mmengine.runner.runner', 'mmengine.runner._flexible_runner')


class _AtRunner:
    """Import finder that patches MMEngine's Runner modules to add GPUEfficiencyHook.

    A finder of modules without its base class, whose import is slow.
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def find_spec(
        self, fullname: str, path: 'Any' = None, target: 'Any' = None
    ) -> 'Any':
        if fullname not in _RUNNERS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, 'find_spec'):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: 'Any') -> None:
        """Wraps a Runner module's import loader to patch the module once executed."""

        def exec_module(module: 'Any') -> None:
            del loader.exec_module
            execute(module)
            self._inject(module)

        try:
            execute = loader.exec_module
            loader.exec_module = exec_module
        except AttributeError as error:
            self._give_up(error)

    def _inject(self, module: 'Any') -> None:
        try:
            from mmgpu_hooks.hooks.injection import inject

            inject(module, self._began_s)
        except Exception as error:  # noqa: BLE001  # training must not see it
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        sys.meta_path.remove(self)
        # one warning is enough of several ranks
        if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) != '0':
            return
        said = f'GPUEfficiencyHook cannot be added ({type(error).__name__}: {error})'
        cure = ''
        if isinstance(error, ImportError):
            said = (
                f'expected mmgpu_hooks to be installed for {sys.executable}, found '
                f'"{error}"'
            )
            cure = ' Install it there.'
        sys.stderr.write(
            f'mmgpu run: {said}; training goes on without GPUEfficiencyHook.{cure}\n'
        )


def _import_next() -> None:
    """Imports the next ``sitecustomize`` module on the path, which this one hides.

    Python treats what it raises as ever. This folder leaves the path: nothing else is
    in it.
    """
    ours, folder = sys.modules.pop('sitecustomize'), os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != 'sitecustomize':
            raise
        # there is none, and Python wants a module under this name
        sys.modules['sitecustomize'] = ours


if 'MMGPU_RUN' in os.environ and os.environ.get('MMGPU_DISABLE', '') in ('', '0'):
    sys.meta_path.insert(0, _AtRunner())
_import_next()
