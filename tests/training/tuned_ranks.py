"""Program for torchrun: data-parallel trainings tuned by scripted answers.

After the folder: ``agree``, ``refuse`` (the loader of rank 1 cannot be switched within
an epoch), ``fail_0`` and ``fail_1`` (that rank cannot start the new workers, which are
a loss on the other), ``die`` (rank 1 ends when it is asked) or ``resume`` (the tuned
training is resumed, too).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from fakes.tuning import ScriptedAdviser, judge, propose, settings
from mmgpu_hooks.hooks import tuner
from mmgpu_hooks.hooks.tune_ranks import RankAgreement
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import evidence_name
from training.ranks import build_rank
from training.toy import HOOK, LossTape, ToyDataset


class Seeded(ToyDataset):
    """Data set that records each worker's seed as a file name."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            (self.folder / f'{torch.initial_seed()}_{os.getpid()}').touch()
        return super().__getitem__(index)


def refuse(*_: Any, **__: Any) -> None:
    """Raises the error of a host that has no room for another process."""
    raise BlockingIOError(11, 'Resource temporarily unavailable')


def resume(work_dir: Path, rank: int, hook: dict[str, Any]) -> None:
    """Resumes a training for one more epoch, and notes its workers."""
    torch.distributed.barrier()
    runner = build_rank(
        work_dir,
        iterations=60,
        epochs=4,
        dataset=Seeded(240, work_dir / 'seeds'),
        num_workers=1,
        hook=hook,
        resume=True,
    )
    runner.train()
    evidence = work_dir / runner.timestamp / 'vis_data' / evidence_name(rank)
    workers = {each.workers.count for each in read_evidence(evidence).intervals}
    (work_dir / f'resumed_{rank}.json').write_text(json.dumps([*workers]))


def main(folder: Path, what: str) -> None:
    """Trains without and with the hook, in folders named accordingly."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    rank = torch.distributed.get_rank()
    old, new = (settings(workers, prefetch_factor=2) for workers in (1, 2))
    script = propose(old, new), judge(new, new, 'gain')
    if what.startswith('fail'):
        script = propose(old, new), judge(new, old, 'loss')
    if what == f'fail_{rank}':
        LoaderSwitch.switch_within = refuse  # type: ignore[method-assign]
    # quiet hosts and busy ones judge alike
    tuner.FIRST_S, tuner.SHORT_S, tuner.FIRST_ASKED = 0.0, 0.0, 0
    tuner.TuningAdviser = lambda *_, **__: ScriptedAdviser(script)  # type: ignore
    if what == 'die' and rank == 1:
        RankAgreement.answer = lambda *_, **__: os._exit(3)  # type: ignore
    for name in ('tuned', 'plain'):
        work_dir = folder / name
        (work_dir / 'seeds').mkdir(exist_ok=True, parents=True)
        hook = {**HOOK, 'tune': True, 'summary': False, 'write_config': False}
        runner = build_rank(
            work_dir,
            iterations=60,
            epochs=3,
            dataset=Seeded(240, work_dir / 'seeds'),
            num_workers=1,
            step_s=0.002 * (1 + rank),
            hook=hook if name == 'tuned' else None,
            checkpoint={'interval': 3},
            custom_hooks=[LossTape(str(work_dir / f'losses_{rank}.json'))],
        )
        if what == 'refuse' and rank == 1:
            runner.train_loop.dataloader.in_order = False
        runner.train()
        workers = runner.train_dataloader.num_workers
        (work_dir / f'workers_{rank}.json').write_text(json.dumps(workers))
        if what == 'resume' and name == 'tuned':
            resume(work_dir, rank, hook)
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2])
