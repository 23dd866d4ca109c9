"""Program for torchrun: two ranks train without and with all of ``optimize``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed

import training.toy
from training.ranks import build_rank
from training.test_training_optimized import ADAMW, EMA, SCHEDULERS, DeepModel


def main(folder: Path) -> None:
    """Trains without and with ``optimize``, in folders ``plain`` and ``all``."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    training.toy.ToyModel = DeepModel  # type: ignore[misc]
    hook = {**training.toy.HOOK, 'summary': False, 'write_config': False}
    for name in ('plain', 'all'):
        build_rank(
            folder / name,
            hook={**hook, 'optimize': None if name == 'plain' else name},
            custom_hooks=[EMA],
            optim_wrapper=json.loads(json.dumps(ADAMW)),
            param_scheduler=SCHEDULERS,
            checkpoint={'interval': 1},
            num_workers=1,
            iterations=8,
            epochs=2,
        ).train()
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
