"""Tests that tuned trainings go on where a thread copies batches to pinned memory.

FakeGPU has PyTorch start its own thread and queue for that; the copy is the tensor.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mock_card.trainings import CONFIG

TAIL = """
custom_imports['imports'].append('mock_card.tuned')
custom_hooks.append(dict(type='mock_card.tuned.PinTape', path='tape.json'))
train_dataloader.update(
    num_workers={before}, persistent_workers={lives_on} and {before} > 0,
    pin_memory=True)
train_cfg = {train_cfg}
log_processor = dict(by_epoch={by_epoch})
"""
LOOPS = {
    # of an iteration-based training one epoch: it would sleep between two
    'iter': "dict(type='IterBasedTrainLoop', max_iters=40, val_interval=100)",
    'epoch': 'dict(by_epoch=True, max_epochs=2)',
}
OURS = "dict(type='GPUEfficiencyHook', tune=True, summary=False, write_config=False),"

CASES: dict[str, tuple[str, int, int, bool]] = {
    # loop, workers before and after, whether they live on
    'begins to pin in a thread': ('epoch', 0, 2, False),
    'ends to pin in a thread': ('epoch', 2, 0, False),
    'other workers': ('epoch', 2, 3, False),
    'workers that live on': ('epoch', 2, 3, True),
    'endless': ('iter', 2, 3, False),
}
"""Tuned trainings with pinned memory: loop, workers before and after, if persistent."""


@pytest.fixture(scope='module')
def trainings(mock_cards) -> dict[str, Any]:
    """Finished trainings by name; those named after a loop are not tuned."""
    cases = {**{loop: (loop, 2, 2, False) for loop in LOOPS}, **CASES}
    planned = {}
    for name, (loop, before, after, lives_on) in cases.items():
        is_tuned = name in CASES
        text = CONFIG.format(
            hook=OURS if is_tuned else '',
            interval=4,
            benchmark=False,
            model={'type': 'training.toy.ToyModel'},
            length=80,
            dataset='ToyDataset',
            batch_size=2,
        ) + TAIL.format(
            before=before,
            lives_on=lives_on,
            train_cfg=LOOPS[loop],
            by_epoch=loop == 'epoch',
        )
        given = {'MOCK_CARD_TUNED': json.dumps([before, after, lives_on])}
        planned[name] = mock_cards.plan_config(
            name.replace(' ', '_'), text, **(given if is_tuned else {})
        )
    codes = mock_cards.train()
    assert set(codes.values()) == {0}, [
        planned[name].printed[-3000:]
        for name in planned
        if codes[name.replace(' ', '_')]
    ]
    return planned


def read_tape(training: Any) -> dict[str, Any]:
    tape: dict[str, Any] = json.loads((training.folder / 'tape.json').read_text())
    return tape


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_the_samples_stay_the_same_where_they_are_pinned(trainings, name):
    loop, before, after, lives_on = CASES[name]
    tuned, plain = read_tape(trainings[name]), read_tape(trainings[loop])
    assert tuned['labels'] == plain['labels']
    assert trainings[name].losses == trainings[loop].losses
    assert trainings[name].run.meta.device == 'cuda'
    change, keep = trainings[name].run.evidence.tuned
    assert (change.old.num_workers, change.new.num_workers) == (before, after)
    assert change.is_within
    assert keep.action == 'keep'
    # one thread for each pool of workers; both live while the old one delivers
    assert set(plain['pinning']) == {1}
    assert tuned['pinning'][0] == int(before > 0)
    assert tuned['pinning'][-1] == int(after > 0)
    assert max(tuned['pinning']) <= 2
    assert tuned['at_end'] == [1, after] if lives_on or loop == 'iter' else [0, 0]
    assert plain['left'] == tuned['left'] == [0, 0]
