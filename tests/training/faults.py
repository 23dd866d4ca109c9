"""Trainings in which something of ours fails, and what must be left behind: nothing."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import Runner

from training.toy import LossTape, build_runner, log_of, open_files, train


@dataclass(frozen=True)
class Trained:
    runner: Runner
    warnings: list[str]


def train_and_look(work_dir: Path, **arguments: Any) -> Trained:
    """Train, and prove that nothing of ours is left behind."""
    files = open_files()
    arguments = {'custom_hooks': [LossTape()], 'num_workers': 1, **arguments}
    runner = build_runner(work_dir, epochs=2, **arguments)
    train(runner)
    assert open_files() <= files
    assert not [t for t in threading.enumerate() if t.name.startswith('mmgpu')]
    assert not {'call_hook', 'save_checkpoint'} & set(vars(runner))
    for hook in runner.hooks:
        assert not {'before_train_iter', 'after_train_iter'} & set(vars(hook))
    assert 'run' not in vars(runner.train_loop)
    assert '_get_iterator' not in vars(runner.train_dataloader)
    lines = [
        line
        for line in log_of(runner).splitlines()
        if 'WARNING' in line and 'GPUEfficiencyHook' in line
    ]
    return Trained(runner, [line.split('GPUEfficiencyHook: ')[1] for line in lines])


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError('planted')


def after(good_calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which fails after so many good calls."""
    calls = iter(range(good_calls))

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError('planted')
        return function(*args, **kwargs)

    return sometimes


def patch(monkeypatch: pytest.MonkeyPatch, target: str, good_calls: int) -> None:
    module, name = target.rsplit('.', 1)
    try:
        holder: Any = importlib.import_module(f'mmgpu_hooks.{module}')
    except ModuleNotFoundError:
        parent, class_name = module.rsplit('.', 1)
        holder = getattr(importlib.import_module(f'mmgpu_hooks.{parent}'), class_name)
    replacement = after(good_calls, getattr(holder, name)) if good_calls else failing
    monkeypatch.setattr(holder, name, replacement)
