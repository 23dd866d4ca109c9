"""Tells from a call that saves a checkpoint where it goes and what it is for."""

from __future__ import annotations

import os
from typing import Any

from mmengine.hooks import CheckpointHook

from mmgpu_hooks.hooks.save_watch import Target


def read_save_target(
    runner: Any, out_dir: Any = None, filename: Any = None, *_: Any, **__: Any
) -> Target:
    """Of ``runner.save_checkpoint``, which is called with these arguments.

    The names are those that MMEngine's CheckpointHook gives.
    """
    if not isinstance(filename, (str, os.PathLike)):
        return Target('other')
    name = os.fspath(filename)
    path = None
    if isinstance(out_dir, (str, os.PathLike)):
        path = os.path.join(os.fspath(out_dir), name)
    return Target(_find_occasion(runner, name), path)


def _find_occasion(runner: Any, name: str) -> str:
    for hook in runner.hooks:
        if not isinstance(hook, CheckpointHook):
            continue
        if hook.save_best and name.startswith('best_'):
            return 'best'
        done = runner.epoch if hook.by_epoch else runner.iter
        # MMEngine counts on after the hooks of an epoch or iteration
        if name in (hook.filename_tmpl.format(number) for number in (done, done + 1)):
            return 'epoch' if hook.by_epoch else 'iteration'
    return 'other'


def read_publish_target(*_: Any, **__: Any) -> Target:
    """Of ``CheckpointHook._publish_model``, which finds the name as it goes."""
    return Target('publish')
