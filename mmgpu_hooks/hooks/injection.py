"""Adds GPUEfficiencyHook to the Runners of a process that ``mmgpu run`` started.

In each Python below ``mmgpu run``, our ``sitecustomize`` puts a finder on
``sys.meta_path`` and runs the ``sitecustomize`` that Python would have run. Once a
module that defines a Runner is executed, its ``register_hooks`` is replaced here, which
is the same in MMEngine 0.8 to 0.10 and in the fork. There all hooks of the config are
built, whatever their spelling, so ours is added by ``isinstance`` where there is none.
It is not put into the config: that goes into checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.config.switches import read_arguments
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say

COMMAND = 'mmgpu run'
_RUNNERS = ('Runner', 'FlexibleRunner')


def inject(module: Any, began_s: float) -> None:
    """Patches a Runner's module so that each new Runner gets GPUEfficiencyHook.

    Nothing more is imported before a Runner is built.

    Args:
        module: ``mmengine.runner.runner`` or ``mmengine.runner._flexible_runner``.
        began_s: When this process began, by the monotonic clock.

    Raises:
        ValueError: If the environment holds arguments that the hook does not take.
    """
    arguments = read_arguments(os.environ)
    for name in _RUNNERS:
        kind = vars(module).get(name)
        if kind is not None and kind.__module__ == module.__name__:
            _inject_into(kind, arguments, began_s)


def _inject_into(kind: Any, arguments: Mapping[str, Any], began_s: float) -> None:
    original, start = kind.register_hooks, _Start(kind, began_s, arguments)

    @functools.wraps(original)
    def register_hooks(runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(runner, *args, **kwargs)
        try:
            hook = _provide_hook(runner, arguments)
            if hook is not None:
                hook.note_start(start.take())
        except Exception as error:  # noqa: BLE001  # training must not see it
            runner.logger.warning(
                say(
                    phrase(
                        '{command}: GPUEfficiencyHook could not be added ({kind}: '
                        '{error}); training goes on without it.',
                        command=COMMAND,
                        kind=type(error).__name__,
                        error=error,
                    )
                )
            )
        return result

    Patches().set(kind, 'register_hooks', register_hooks)


def _provide_hook(runner: Any, arguments: Mapping[str, Any]) -> Any:
    """Adds GPUEfficiencyHook to a Runner, or sets new arguments on an existing hook.

    Hooks are judged once they are built, so every spelling of a config counts.

    Returns:
        The hook that records; ``None`` for a Runner that never trains, and for one
        that registers more hooks, maybe while it trains.
    """
    from mmgpu_hooks.hooks.gpu_efficiency_hook import GPUEfficiencyHook

    given = ', '.join(f'{name}={value!r}' for name, value in arguments.items())
    hooks = [hook for hook in runner.hooks if isinstance(hook, GPUEfficiencyHook)]
    if any(hook.command_arguments is not None for hook in hooks):
        return None
    if hooks:
        hooks[0].note_command(arguments)
        if arguments:
            hooks[0].change_arguments(arguments)
            runner.logger.info(
                say(
                    phrase(
                        "GPUEfficiencyHook: {command} sets {given}, over the config's "
                        'own.',
                        command=COMMAND,
                        given=given,
                    )
                )
            )
        return hooks[0]
    if runner._train_loop is None:
        return None
    hook = GPUEfficiencyHook(**arguments)
    hook.note_command(arguments, added_by=COMMAND)
    runner.register_hook(hook)
    said = phrase('GPUEfficiencyHook: switched on by {command}.', command=COMMAND)
    if given:
        said = phrase(
            'GPUEfficiencyHook: switched on by {command} with {given}.',
            command=COMMAND,
            given=given,
        )
    runner.logger.info(say(said))
    return hook


def _watch_building(runner: Any, arguments: Mapping[str, Any]) -> Any:
    """Watches a Runner's construction for standstills, if there are several ranks.

    Returns:
        What ends with it; ``None`` where nothing is watched.
    """
    ranks = os.environ.get('WORLD_SIZE') or os.environ.get('SLURM_NTASKS') or '1'
    if ranks == '1':
        return None
    with contextlib.suppress(Exception):  # training must not see it
        from mmgpu_hooks.hooks.start import watch_building

        return watch_building(runner, float(arguments.get('stuck_after_s', 60)))
    return None


class _Start:
    """Times this process's start, from process creation to the first Runner's hooks.

    Meanwhile one of several ranks may stand still: DistributedDataParallel broadcasts
    the weights before any hook is built.

    Args:
        kind: The class of the Runner, which was imported just now.
        began_s: When the process began, by the monotonic clock.
        arguments: Of the hook.
    """

    def __init__(self, kind: Any, began_s: float, arguments: Mapping[str, Any]) -> None:
        self._pid = os.getpid()
        self._began_s, self._imported_s = began_s, monotonic_s()
        self._building_s: float | None = None
        self._patches = Patches()
        original = kind.__init__

        @functools.wraps(original)
        def __init__(runner: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            watch = None
            if self._building_s is None:
                self._building_s = monotonic_s()
                self._patches.close()
                watch = _watch_building(runner, arguments)
            try:
                original(runner, *args, **kwargs)
            finally:
                if watch is not None:
                    watch.close()

        self._patches.set(kind, '__init__', __init__)

    def take(self) -> dict[str, float] | None:
        """Returns the seconds of each startup part so far; ``None`` in later calls.

        ``None`` in a forked child, and from the second call on.
        """
        pid, self._pid = self._pid, 0
        if pid != os.getpid() or self._building_s is None:
            return None
        return {
            'imports': self._imported_s - self._began_s,
            'config': self._building_s - self._imported_s,
            'model': monotonic_s() - self._building_s,
        }
