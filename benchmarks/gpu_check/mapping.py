"""GPU checks that NVML opens the GPU selected by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import os
import shutil

import torch

from benchmarks.gpu_check.child import read_answer, start_python
from benchmarks.gpu_check.nvml import open_our_gpu
from benchmarks.gpu_check.smi import ask_smi
from benchmarks.gpu_check.table import Row, judged, skipped, within

VARIABLE = 'CUDA_VISIBLE_DEVICES'

# Run in a process of its own; prints what each way of looking up finds.
LOOK_UP = """
import json, torch
torch.cuda.init()
from benchmarks.gpu_check.nvml import open_named
from mmgpu_hooks.measure.cuda import cuda_device
found = {}
for way, name in cuda_device().items():
    if name is None:
        continue
    gpu = open_named(**{way: name})
    found[way] = gpu if isinstance(gpu, str) else gpu.device()['uuid']
    if not isinstance(gpu, str):
        gpu.close()
print(json.dumps(found))
"""

READ_MEMORY = """
import json, sys
from mmgpu_hooks.measure.gpu import open_gpu
print(json.dumps({'used': open_gpu(uuid=sys.argv[1]).read_sample()['mem_used_bytes']}))
"""
NAMESPACE = ('unshare', '--pid', '--fork', '--mount-proc')
HELD_GIB, OFF_MIB = 2, 64


def check_mapping() -> list[Row]:
    """Checks which GPU NVML opens for indices and UUIDs in ``CUDA_VISIBLE_DEVICES``."""
    check = 'device mapping'
    if shutil.which('nvidia-smi') is None:
        return [skipped(check, 'there is no nvidia-smi to compare with')]
    if VARIABLE in os.environ:
        return [skipped(check, f'{VARIABLE} is set: not all cards are ours')]
    cards = [(index, uuid) for index, uuid in ask_smi('index', 'uuid')]
    rows = []
    for index, uuid in dict.fromkeys((cards[-1], cards[0])):
        others = [card[0] for card in cards if card[0] != index]
        for spelling in dict.fromkeys((index, uuid, ','.join([index, *others]))):
            rows.append(_check_one_mapping(spelling, uuid, len(cards)))
    return rows


def _check_one_mapping(spelling: str, expected: str, cards: int) -> Row:
    check = f'{VARIABLE}={spelling}'
    environ = {VARIABLE: spelling, 'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}
    found = read_answer(start_python(LOOK_UP, environ=environ))
    ways = ', '.join(f'{way} {uuid}' for way, uuid in found.items()) or 'not named'
    passed = bool(found) and set(found.values()) == {expected}
    note = 'one card only: there was no wrong one to find' if cards == 1 else ''
    shown = f'the right card by {" and ".join(found)}' if passed else ways
    return judged(check, shown, f'...{expected[-12:]}', passed, note)


def check_namespace() -> list[Row]:
    """Checks the memory per process that NVML shows inside another PID namespace."""
    check = 'memory in use, from another PID namespace'
    if shutil.which(NAMESPACE[0]) is None or os.geteuid():
        return [skipped(check, 'needs root and unshare')]
    gpu = open_our_gpu()
    if isinstance(gpu, str):
        return [skipped(check, gpu)]
    held = torch.ones(HELD_GIB * 2**30, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    uuid, here = gpu.device()['uuid'], gpu.read_sample()['mem_used_bytes']
    gpu.close()
    process = start_python(READ_MEMORY, str(uuid), before=NAMESPACE)
    there = read_answer(process)['used']
    del held
    if here is None or there is None or there < HELD_GIB * 2**30:
        return [judged(check, f'{there} bytes', f'{here} bytes', False)]
    return [within(check, there / 2**20, here / 2**20, OFF_MIB, 'MiB')]
