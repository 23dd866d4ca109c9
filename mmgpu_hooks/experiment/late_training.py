"""Tells a model that it is late in its training, as MMEngine would.

Some ask MMEngine's message hub: TOOD's head assigns targets another way in its first
epochs, which are few.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def late_in_training(config: Mapping[str, Any]) -> Iterator[None]:
    """Have the hub say what it says in the last epoch, and then what it said before.

    Args:
        config: The loaded config.
    """
    from mmengine.logging import MessageHub

    hub = MessageHub.get_current_instance()
    told = find_progress(config)
    before = {name: hub.get_info(name) for name in told if name in hub.runtime_info}
    hub.update_info_dict(told)
    try:
        yield
    finally:
        for name in told:
            hub.pop_info(name)
        hub.update_info_dict(before)


def find_progress(config: Mapping[str, Any]) -> dict[str, Any]:
    """What MMEngine's ``RuntimeInfoHook`` tells in the last epoch.

    What a config leaves open is told as in a training of one epoch, of one iteration.

    Examples:
        >>> find_progress({'train_cfg': {'max_epochs': 12}})['epoch']
        11
    """
    train = config.get('train_cfg') or {}
    epochs, iterations = train.get('max_epochs') or 1, train.get('max_iters') or 1
    return {
        'loop_stage': 'train',
        'epoch': epochs - 1,
        'iter': iterations - 1,
        'max_epochs': epochs,
        'max_iters': iterations,
    }
