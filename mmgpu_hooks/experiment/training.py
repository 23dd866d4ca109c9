"""Where MMDetection's training script lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mmgpu_hooks.schema.errors import UserError


class TrainingError(UserError):
    """There is no training script; the message is one sentence."""


def find_train_script() -> Path:
    """MMDetection's own ``tools/train.py``, out of the installed wheel.

    Raises:
        TrainingError: If MMDetection is not installed, or without its tools.
    """
    # found, not imported: importing MMDetection takes seconds and torch
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        raise TrainingError(
            'expected MMDetection to train with, found no package mmdet; install it '
            '(make setup does).'
        )
    script = Path(spec.origin).parent / '.mim' / 'tools' / 'train.py'
    if not script.is_file():
        raise TrainingError(
            f'expected the tools of MMDetection in {script}, found nothing; install '
            'mmdet from its wheel.'
        )
    return script
