"""Tests reading from the host if a run's process lives, and its last stack."""

from __future__ import annotations

import os

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence
from mmgpu_hooks.measure import now
from mmgpu_hooks.schema.judged import HostNow
from mmgpu_hooks.schema.run_folder import STACK_SUFFIX

OWN = now.read_process_identity()
STACK = 'Current thread 0x7f (most recent call first):\n  File "a.py", line 3 in load\n'


@pytest.mark.parametrize(
    ('other', 'is_alive'),
    [
        ({}, True),
        ({'process_start': (OWN.start_ticks or 0) + 1}, False),
        ({'pid': 2**22 + 1}, False),
        ({'hostname': 'another-host'}, None),
        ({'process_start': None}, None),
        ({'pid': None}, None),
    ],
    ids=[
        'this process',
        'its number belongs to another process by now',
        'no such process',
        'another host',
        'its start was hidden',
        'its number is unknown',
    ],
)
def test_a_run_is_alive_while_its_very_process_is(tmp_path, other, is_alive):
    evidence = make_evidence()
    own = {
        'pid': os.getpid(),
        'process_start': OWN.start_ticks,
        'hostname': OWN.hostname,
    }
    path = tmp_path / 'run.jsonl'
    path.with_suffix(STACK_SUFFIX).write_text(STACK)
    run = replace(evidence.run, **{**own, **other})
    found = now.read_host(replace(evidence, path=str(path), run=run))
    assert found.is_alive is is_alive
    assert [call.split()[-1] for call in found.stack] == ['load']
    if is_alive is None:
        assert found == HostNow(stack=found.stack)
