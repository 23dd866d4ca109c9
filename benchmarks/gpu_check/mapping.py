"""The right card under any spelling of ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.nvml import ask_smi
from benchmarks.harness import Figure, at_least

ROOT = Path(__file__).resolve().parents[2]

# Run in a process of its own; prints what each way of looking up finds.
LOOK_UP = """
import json, torch
torch.cuda.init()
from mmgpu_hooks.measure.cuda import cuda_device
from mmgpu_hooks.measure.gpu import Gpu, open_gpu
device = cuda_device()
found = {}
for way, names in (
    ('uuid', {'uuid': device.uuid}),
    ('pci', {'pci_bus_id': device.pci_bus_id}),
):
    if None in names.values():
        continue
    gpu = open_gpu(**names)
    found[way] = gpu.device()['uuid'] if isinstance(gpu, Gpu) else gpu.reason
    if isinstance(gpu, Gpu):
        gpu.close()
print(json.dumps(found))
"""


def check_mapping() -> list[Figure]:
    """The card under ``CUDA_VISIBLE_DEVICES`` by index and by UUID, last one first."""
    if shutil.which('nvidia-smi') is None:
        return [Figure('device mapping', None, note='there is no nvidia-smi')]
    cards = [(index, uuid) for index, uuid in ask_smi('index', 'uuid')]
    inherited = os.environ.get('CUDA_VISIBLE_DEVICES')
    if inherited is not None:
        shown = [name.strip() for name in inherited.split(',')]
        cards = [card for card in cards if card[0] in shown or card[1] in shown]
        if not cards:
            why = f'CUDA_VISIBLE_DEVICES is {inherited}'
            return [Figure('device mapping', None, note=why)]
    rows = []
    for index, uuid in dict.fromkeys((cards[-1], cards[0])):
        others = [card[0] for card in cards if card[0] != index]
        for spelling in dict.fromkeys((index, uuid, ','.join([index, *others]))):
            rows.append(_check_one_mapping(spelling, uuid, len(cards)))
    return rows


def _check_one_mapping(spelling: str, expected: str, cards: int) -> Figure:
    path = filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))
    environ = {
        **os.environ,
        'CUDA_VISIBLE_DEVICES': spelling,
        'CUDA_DEVICE_ORDER': 'PCI_BUS_ID',
        'PYTHONPATH': os.pathsep.join(path),
    }
    done = subprocess.run(
        [sys.executable, '-c', LOOK_UP],
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    name = f'CUDA_VISIBLE_DEVICES={spelling}: ways to find the card'
    if done.returncode != 0:
        return at_least(name, None, 1, note=' '.join(done.stderr.split())[-200:])
    found = json.loads(done.stdout.splitlines()[-1])
    ways = ', '.join(f'{way} {uuid}' for way, uuid in found.items()) or 'not named'
    if cards == 1:
        ways += '; one card only: there was no wrong one to find'
    right = None if set(found.values()) - {expected} else len(found)
    return at_least(name, right, 1, note=ways)
