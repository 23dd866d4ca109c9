"""Program that builds Runners with the hook written in various ways.

As a script, with a folder: prints what hooks of ours each Runner has, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import HOOKS
from mmengine.runner import FlexibleRunner, Runner

BARE, DOTTED = 'GPUEfficiencyHook', 'mmgpu_hooks.GPUEfficiencyHook'
# before the toys, which import us
IS_REGISTERED = HOOKS.get(BARE) is not None

from training.toy import (  # noqa: E402
    AfterIteration,
    LossTape,
    ToyModel,
    build_runner,
    evidence_of,
    log_of,
    train,
    validation,
)

GIVEN: dict[str, Any] = {'interval': 3, 'stuck_after_s': 9}


def list_spellings() -> dict[str, dict[str, Any]]:
    """Returns Runner arguments by the way in which the hook is written."""
    from mmgpu_hooks import GPUEfficiencyHook

    whole = f'{GPUEfficiencyHook.__module__}.{GPUEfficiencyHook.__name__}'
    return {
        'none': {'hook': None},
        'bare': {'hook': {'type': BARE, **GIVEN}},
        'dotted': {'hook': {'type': DOTTED, **GIVEN}},
        'listed': {'hook': None, 'custom_hooks': [{'type': whole, **GIVEN}]},
        'class': {
            'hook': None,
            'custom_hooks': [{'type': GPUEfficiencyHook, **GIVEN}],
        },
        'object': {'hook': None, 'custom_hooks': [GPUEfficiencyHook(**GIVEN)]},
        'flexible, none': {'hook': None, 'kind': FlexibleRunner},
        'flexible, bare': {'hook': {'type': BARE, **GIVEN}, 'kind': FlexibleRunner},
    }


def describe(runner: Any) -> list[dict[str, Any]]:
    """Returns the arguments of each GPUEfficiencyHook of a Runner."""
    return [
        {
            'interval': hook.interval,
            'stuck_after_s': hook.stuck_after_s,
            'added_by': hook.added_by,
        }
        for hook in runner.hooks
        if type(hook).__name__ == BARE
    ]


def find_hook(runner: Any) -> Any:
    """Returns the first GPUEfficiencyHook of a Runner."""
    return next(hook for hook in runner.hooks if type(hook).__name__ == BARE)


def validate_only(folder: Path) -> Any:
    """Returns a Runner that only validates."""
    return Runner(ToyModel(), str(folder), **validation(0.0))


def from_config(folder: Path) -> Any:
    """Returns a Runner built from a config without the hook."""
    config = {
        'model': {'type': 'training.toy.ToyModel'},
        'work_dir': str(folder),
        'train_cfg': {'by_epoch': True, 'max_epochs': 1},
        'train_dataloader': {
            'dataset': {'type': 'training.toy.ToyDataset', 'length': 2},
            'sampler': {'type': 'DefaultSampler'},
            'batch_size': 1,
        },
        'optim_wrapper': {'optimizer': {'type': 'SGD', 'lr': 0.01}},
    }
    return Runner.from_cfg(Config(config))


def train_with_late_hook(folder: Path) -> tuple[Any, str]:
    """Trains a Runner that registers the hook late; returns the Runner and its log."""
    runner = build_runner(folder, hook=None, log_interval=4)
    runner.register_hook({'type': BARE, 'interval': 3})
    train(runner)
    return runner, log_of(runner)


def train_and_register_again(folder: Path) -> dict[str, Any]:
    """Trains a Runner that registers its hooks again during training."""
    defaults = ('runtime_info', 'timer', 'sampler_seed', 'logger')
    none = dict.fromkeys([*defaults, 'param_scheduler', 'checkpoint'])

    def register_again(runner: Any) -> None:
        if runner.iter == 6:
            runner.register_hooks(none, [LossTape()])

    again = AfterIteration(register_again)
    hook = {'type': BARE, **GIVEN}
    runner = train(build_runner(folder, hook=hook, custom_hooks=[again]))
    end = evidence_of(folder).end
    return {
        'hooks': describe(runner),
        'iterations': end and end.iterations,
        'lines': log_of(runner).count("over the config's own"),
    }


def main(folder: Path) -> None:
    """Builds all Runners, trains one, and prints their hooks."""
    runners = {
        'validates only': validate_only(folder / 'validates'),
        'from_cfg': from_config(folder / 'from_cfg'),
    }
    runners['from_cfg'].register_hooks()
    for name, arguments in list_spellings().items():
        runners[name] = build_runner(folder / name, **arguments)
    found: dict[str, Any] = {name: describe(runner) for name, runner in runners.items()}
    late, log = train_with_late_hook(folder / 'late')
    found.update({'late': describe(late), 'log of late': log})
    parts = find_hook(runners['from_cfg']).before_hook_s
    found['start'] = list(parts or ())
    found['again'] = train_and_register_again(folder / 'again')
    print(json.dumps({**found, 'is registered': IS_REGISTERED}))


if __name__ == '__main__':
    main(Path(sys.argv[1]))
