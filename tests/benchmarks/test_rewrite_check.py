"""The benchmark says what it saw, and its exit code means what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rewrite_check import flatten, is_kept, same

ROOT = Path(__file__).resolve().parents[2]
OLD = 'a = 1\ntrain_dataloader = dict(num_workers=2, dataset=1)\n'
APPENDED = OLD + '\ntrain_dataloader = dict(\n    num_workers=8,\n    batch_size=3)\n'


@pytest.mark.parametrize(
    ('new', 'good'),
    [
        (OLD.replace('=2', '=8, pin_memory=True'), True),
        (OLD.replace('=2', '=8').replace('a = 1', 'a = 2'), False),
        (OLD.replace('dataset=1', 'dataset=2'), False),
        (APPENDED, True),
        (APPENDED.replace('batch_size', 'lr'), False),
        (APPENDED.replace('train_', 'val_'), False),
    ],
)
def test_its_own_check_of_the_bytes(new, good):
    assert is_kept(OLD, new) is good


def test_its_own_check_of_the_values():
    left, right = flatten({'a': {'b': [1, True]}}), flatten({'a': {'b': [1, 1]}})
    odd = [key for key in {*left, *right} if not same(left, right, key)]
    assert odd == [('a', 'b', '1')]


@pytest.mark.slow
def test_the_first_few():
    command = [sys.executable, '-m', 'benchmarks.rewrite', '--limit', '25']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith('rewrite: ')
