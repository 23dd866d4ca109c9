"""Program for torchrun: data-parallel trainings in an existing process group.

With ``endless`` after the folder: one training that somebody has to end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from training.toy import LossTape, build_runner

DATA_PARALLEL = 'MMDistributedDataParallel'
COLLECTIVES = ('all_reduce', 'all_gather', 'all_gather_object', 'broadcast', 'barrier')


def main(folder: Path) -> None:
    """Trains without and with the hook, in folders named accordingly."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    calls: list[str] = []
    for name in COLLECTIVES:
        original = getattr(torch.distributed, name)

        def counted(*args, _original=original, _name=name, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        setattr(torch.distributed, name, counted)
    for hook in ('without', 'with'):
        train(folder / hook, hook, calls)
    torch.distributed.destroy_process_group()


def build_rank(work_dir: Path, **options: Any) -> Any:
    """Returns the Runner of one rank."""
    return build_runner(
        work_dir,
        launcher='pytorch',
        env_cfg={'dist_cfg': {'backend': 'gloo'}},
        # without it MMEngine gives each rank a GPU of its own
        cfg={'model_wrapper_cfg': {'type': DATA_PARALLEL, 'device_ids': None}},
        **options,
    )


def train(work_dir: Path, hook: str, calls: list[str]) -> None:
    """Trains once, and writes losses and collectives to the folder."""
    rank = torch.distributed.get_rank()
    work_dir.mkdir(exist_ok=True)
    runner = build_rank(
        work_dir,
        length=48,
        step_s=0.005,
        checkpoint={'interval': 6, 'by_epoch': False},
        custom_hooks=[LossTape(str(work_dir / f'losses_{rank}.json'))],
        **({} if hook == 'with' else {'hook': None}),
    )
    del calls[:]
    runner.train()
    (work_dir / f'collectives_{rank}.txt').write_text(' '.join(calls))


def train_without_end(work_dir: Path) -> None:
    """Trains with the hook until the process is killed."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    build_rank(work_dir, iterations=100_000, length=400_000, step_s=0.02).train()


if __name__ == '__main__':
    is_endless = sys.argv[2:] == ['endless']
    (train_without_end if is_endless else main)(Path(sys.argv[1]))
