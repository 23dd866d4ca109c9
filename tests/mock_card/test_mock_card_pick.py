"""Tests ``mmgpu pick-gpu`` on eight mock GPUs, most of them in use by others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.picking import PICK
from mock_card.trainings import CARDS, write_cards

HOLD = [sys.executable, '-c', 'import sys; print("holds", flush=True); input()']

UUID = 'GPU-b200b200-0000-0000-0000-00000000000'
BUSY = {'utilization': {'gpu': 90, 'memory': 10}}
FREE = {0, 3, 5}


@pytest.fixture
def environ(mock_source: Path, tmp_path: Path) -> dict[str, str]:
    """Environment of a process on a host with eight mock GB200 GPUs."""
    memory = {'free': 1, 'used': 191, 'total': 192}
    of_others = {f'{name}_bytes': gib * 2**30 for name, gib in memory.items()}
    full = {index: {**BUSY, 'memory': of_others} for index in set(range(8)) - FREE}
    write_cards(mock_source, tmp_path, 'gb200', {}, {**full, 3: BUSY})
    unset = {'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'XDG_RUNTIME_DIR'}
    return {
        **{name: value for name, value in os.environ.items() if name not in unset},
        'LD_LIBRARY_PATH': str(mock_source / 'driver'),
        'MOCK_NVML_CONFIG': str(CARDS),
    }


def test_idle_cards_are_picked_first(environ, tmp_path):
    ended = subprocess.run(
        [*PICK, '-n', '2'], env=environ, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    _, *rows, visible = ended.stdout.splitlines()
    assert visible == f'CUDA_VISIBLE_DEVICES={UUID}0,{UUID}5'
    assert len(rows) == 8 and all(' NVIDIA GB200 ' in row for row in rows)
    assert {n for n in range(8) if 'too little memory' not in rows[n]} == FREE
    assert '90 %' in rows[3]


def test_of_ten_started_together_each_has_a_card_of_its_own(environ, tmp_path):
    ten = [
        subprocess.Popen(
            [*PICK, '--', *HOLD],
            env=environ,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    holding = [
        process
        for process in ten
        if process.stdout and process.stdout.readline() == 'holds\n'
    ]
    assert len(holding) == len(FREE)
    picked = [process.communicate('\n')[1] for process in holding]
    assert len({text.splitlines()[0] for text in picked}) == len(FREE)
    assert all(process.returncode == 0 for process in holding)
    losers = [process for process in ten if process not in holding]
    for process in losers:
        process.communicate()
        assert process.returncode == 1
