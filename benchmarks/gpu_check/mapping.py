"""The right card under any spelling of ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.smi import ask_smi
from benchmarks.gpu_check.table import Row, judged, skipped

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


def check_mapping() -> list[Row]:
    """The card under ``CUDA_VISIBLE_DEVICES`` by index and by UUID, last one first."""
    if shutil.which('nvidia-smi') is None:
        return [skipped('device mapping', 'there is no nvidia-smi to compare with')]
    cards = [(index, uuid) for index, uuid in ask_smi('index', 'uuid')]
    inherited = os.environ.get('CUDA_VISIBLE_DEVICES')
    if inherited is not None:
        shown = [name.strip() for name in inherited.split(',')]
        cards = [card for card in cards if card[0] in shown or card[1] in shown]
        if not cards:
            return [skipped('device mapping', f'CUDA_VISIBLE_DEVICES is {inherited}')]
    rows = []
    for index, uuid in dict.fromkeys((cards[-1], cards[0])):
        others = [card[0] for card in cards if card[0] != index]
        for spelling in dict.fromkeys((index, uuid, ','.join([index, *others]))):
            rows.append(_check_one_mapping(spelling, uuid, len(cards)))
    return rows


def _check_one_mapping(spelling: str, expected: str, cards: int) -> Row:
    environ = {
        **os.environ,
        'CUDA_VISIBLE_DEVICES': spelling,
        'CUDA_DEVICE_ORDER': 'PCI_BUS_ID',
        'PYTHONPATH': os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))
        ),
    }
    done = subprocess.run(
        [sys.executable, '-c', LOOK_UP],
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    check = f'CUDA_VISIBLE_DEVICES={spelling}'
    if done.returncode != 0:
        text = ' '.join(done.stderr.split())[-200:]
        return judged(check, 'failed', expected, False, text, sensitive=False)
    found = json.loads(done.stdout.splitlines()[-1])
    ways = ', '.join(f'{way} {uuid}' for way, uuid in found.items()) or 'not named'
    passed = bool(found) and set(found.values()) == {expected}
    note = 'one card only: there was no wrong one to find' if cards == 1 else ''
    return judged(
        check,
        f'the right card by {" and ".join(found)}' if passed else ways,
        f'...{expected[-12:]}',
        passed,
        note,
        sensitive=False,
    )
