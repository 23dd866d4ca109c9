"""Longer GPU checks: ``mmgpu profile``, torch.compile, several ranks, step memory."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import pseudo_collate

from benchmarks.gpu_check.child import read_answer, start_python
from benchmarks.gpu_check.models import LARGE, SMALL, Images, ToyModel, list_models
from benchmarks.gpu_check.table import Row, judged, within
from benchmarks.gpu_check.training import HOOK, SIDES, train
from mmgpu_hooks.memory.activations import run_step

CONFIG = f"""\
model = dict(type='benchmarks.gpu_check.models.ToyModel')
train_dataloader = dict(
    batch_size=4, num_workers=0, persistent_workers=False,
    dataset=dict(type='benchmarks.gpu_check.models.Images', sides=[{SMALL}] * 64),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='pseudo_collate'),
)
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=1e-4))
"""

PROFILE = """
import sys
from mmgpu_hooks.commands.main import main
sys.exit(main(['profile', *sys.argv[1:], '--iterations', '10', '--format', 'json']))
"""
RANK = 'from benchmarks.gpu_check.longer import train_rank; train_rank()'
CLOSE_PCT = 5.0


def check_profile() -> list[Row]:
    """Checks that a train step's parts by ``mmgpu profile`` add up to its duration."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, 'toy.py')
        config.write_text(CONFIG)
        words = [str(config), '--work-dir', folder]
        found = read_answer(start_python(PROFILE, *words))
    sum_pct = 100 * sum(found['parts'].values()) / found['step_s']
    names = ', '.join(found['modules'])
    copies_s = found['parts']['copies']
    shown = f'{found["kernels"]} a step, bound by {found["bound"]}'
    passed = bool(found['kernels'] and copies_s and 'layers' in names)
    return [
        within('mmgpu profile: parts of the step', sum_pct, 100, CLOSE_PCT),
        judged('mmgpu profile: kernels', shown, 'kernels, copies', passed, names),
    ]


def check_compile() -> list[Row]:
    """Checks that the hook leaves torch.compile's graphs of a step unchanged."""
    from torch._dynamo.utils import counters

    rows = []
    for mode in (True, {'mode': 'reduce-overhead'}):
        found = []
        for hook in (None, HOOK):
            torch._dynamo.reset()
            counters.clear()
            trained = train(ToyModel(), SIDES, hook, cfg={'compile': mode})
            breaks = sum(counters['graph_break'].values())
            found.append((breaks, counters['stats']['unique_graphs']))
        last = trained.evidence.intervals[-1]
        shown = '{} graph breaks, {} graphs'.format(*found[1])
        target = '{} and {}, as without the hook'.format(*found[0])
        note = f'peak {last.gpu_mem_peak_bytes} of {last.gpu_mem_reserved_bytes} bytes'
        passed = found[0] == found[1]
        rows.append(judged(f'compile={mode}', shown, target, passed, note))
    return rows


def check_ranks() -> list[Row]:
    """Checks a training with two ranks on one GPU, which communicate by gloo."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    shared = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': port, 'WORLD_SIZE': '2'}
    ranks = [
        start_python(RANK, environ={**shared, 'RANK': rank, 'LOCAL_RANK': '0'})
        for rank in '01'
    ]
    first, second = map(read_answer, ranks)
    shown, target = f'{first}, {second}', 'one card, each with peaks of its own'
    passed = first['card'] == second['card'] is not None
    passed = passed and first['rank'] != second['rank'] and all(first['peaks'])
    return [judged('two ranks on one card', shown, target, passed)]


def train_rank() -> None:
    """Trains as one of several ranks, and prints figures from its evidence file."""
    gloo: dict[str, Any] = {'dist_cfg': {'backend': 'gloo'}}
    evidence = train(ToyModel(), SIDES * 2, launcher='pytorch', env_cfg=gloo).evidence
    card, peaks = evidence.run.gpu, [r.gpu_mem_peak_bytes for r in evidence.intervals]
    uuid = card.uuid if card else None
    print(json.dumps({'rank': evidence.run.rank, 'card': uuid, 'peaks': peaks}))


def check_memory() -> list[Row]:
    """Compares a step's memory, estimated on the CPU, with its peak on the GPU."""
    rows = []
    for kind in list_models():
        model, images = kind().train(), Images([LARGE])
        saved, gradients = run_step(
            model, pseudo_collate([images[0]]), mixed=False, is_backward=True
        )
        kept = [*model.parameters(), *model.buffers()]
        static = sum(tensor.nelement() * tensor.element_size() for tensor in kept)
        estimate = static + saved + sum(count * size for count, size in gradients)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        peak = max(train(kind(), [LARGE] * 8, None).tape.peaks) - before
        shown = f'{peak / 2**20:.0f} MiB, {peak / estimate:.2f} times the estimate'
        passed = 1 <= peak / estimate <= 2
        rows.append(judged(f'memory, {kind.__name__}', shown, '1 to 2 times', passed))
    return rows
