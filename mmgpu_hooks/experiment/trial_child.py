"""The process of one trial: ``python -m mmgpu_hooks.experiment.trial_child``.

It trains in earnest: MMEngine's own Runner on the user's config. Whoever started it
reads from a pipe how far it is and how it ended; everything printed is in its log.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from mmgpu_hooks.experiment.process_group import join_without_cuda
from mmgpu_hooks.experiment.process_tree import die_with_parent
from mmgpu_hooks.experiment.trial_channel import TrialChannel
from mmgpu_hooks.experiment.trial_config import read_trial_config
from mmgpu_hooks.experiment.trial_failure import classify_error
from mmgpu_hooks.schema import TrialSpec


def run_child(body: dict[str, Any]) -> None:
    """Train, and tell how it ended.

    Args:
        body: ``spec`` with the fields of a TrialSpec; ``parent``, a process id; the
            pipe ``descriptor``; iterations of the first ``block`` or ``None``.
    """
    die_with_parent(body['parent'])
    channel = TrialChannel(body['descriptor'])
    hook = None
    status: str = 'completed'
    line: str | None = None
    try:
        # late: MMEngine's hooks bring torch along
        from mmgpu_hooks.experiment import trial_hooks

        spec = TrialSpec(**body['spec'])
        if body['block'] is None:
            hook = trial_hooks.TrialHook(channel, spec.iterations, spec.seconds)
        else:
            hook = trial_hooks.BlockHook(channel, body['block'], _read_words())
        with contextlib.suppress(trial_hooks.TrialOver):
            _train(spec, hook)
    # a training may end in any way, and each of them is a result
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        status, line = classify_error(type(error).__name__, str(error))
    done = hook.done if hook is not None else 0
    channel.send('over', status=status, error=line, iterations=done)


def _train(spec: TrialSpec, hook: Any) -> None:
    from mmengine.registry import RUNNERS
    from mmengine.runner import Runner

    # the layout of the config's copies is seconds of every start
    layout: Any = importlib.import_module('mmengine.config.config')
    if hasattr(layout, 'FormatCode'):
        layout.FormatCode = lambda text, **_: (text, True)
    config = read_trial_config(spec)
    if spec.ranks > 1:
        join_without_cuda(config)
    runner: Any = (
        RUNNERS.build(config) if 'runner_type' in config else Runner.from_cfg(config)
    )
    runner.register_hook(hook)
    runner.train()


def _read_words() -> Iterator[int]:
    """Iterations of the next block, for as long as somebody tells them."""
    for line in sys.stdin:
        yield int(line)


if __name__ == '__main__':
    run_child(json.loads(sys.argv[1]))
