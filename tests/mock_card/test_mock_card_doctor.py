"""Tests ``mmgpu doctor`` on the mock driver's GPUs: driver version and NUMA node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mock_card.trainings import CARDS, write_cards

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ('kind', 'card'),
    [
        ('h100', '8 x NVIDIA H100 80GB HBM3, 80.0 GiB'),
        ('t4', '4 x NVIDIA T4, 16.0 GiB'),
    ],
)
def test_doctor_names_cards_driver_and_numa_nodes(
    mock_source: Path, tmp_path: Path, kind, card
):
    write_cards(mock_source, tmp_path, kind, {})
    environ = {
        **{n: v for n, v in os.environ.items() if n != 'CUDA_VISIBLE_DEVICES'},
        'LD_LIBRARY_PATH': str(mock_source / 'driver'),
        'MOCK_NVML_CONFIG': str(tmp_path / CARDS),
    }
    done = subprocess.run(
        [sys.executable, '-m', 'mmgpu_hooks', 'doctor', '--format', 'json'],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout)
    rows = {row['name']: row for row in answer['rows']}
    assert rows['GPU']['text'] == card
    assert rows['driver']['text'].startswith('550.163.01, runs CUDA up to 12.4')
    assert len(answer['machine']['cards']['cards']) == int(card.split()[0])
    assert rows['GPU place']['text'].startswith('GPU 0-3')
    is_cuda = answer['machine']['installed']['torch_cuda'] is not None
    assert rows['torch']['level'] == ('ok' if is_cuda else 'problem')
    assert done.returncode == bool(answer['problems'])
