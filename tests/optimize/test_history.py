"""Tests that scalar histories that grow by doubling equal MMEngine's."""

from __future__ import annotations

import copy
import pickle
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mmengine.logging import HistoryBuffer, MessageHub

from benchmarks.equal import is_equal
from mmgpu_hooks.optimize.history import GrowingHistories

LONG = 300_000


def fail(error: Exception) -> None:
    raise AssertionError('taken back') from error


def make_hub(name: str, values: int = 0) -> MessageHub:
    hub = MessageHub(name)
    for key in ('train/loss', 'train/count') if values else ():
        kind = float if key == 'train/loss' else int
        logged, counts = np.arange(values).astype(kind), np.ones(values, int)
        hub.log_scalars[key] = HistoryBuffer(logged, counts)
        hub._resumed_keys[key] = True
    return hub


def grow(hub: MessageHub) -> GrowingHistories:
    return GrowingHistories(SimpleNamespace(message_hub=hub), fail)


def add(hub: MessageHub, numbers: int, seed: int = 0) -> None:
    """Adds scalar values of all types to a message hub."""
    chosen = random.Random(seed)
    for number in range(numbers):
        hub.update_scalar('train/loss', chosen.gauss(0, 1))
        hub.update_scalar('train/count', chosen.randrange(100), chosen.randrange(1, 9))
        hub.update_scalar('train/mixed', chosen.choice([1, 2.5, True]), 2)
        hub.update_scalar('train/array', np.array([number], dtype=np.float32))
        hub.update_scalars({'val/new': dict(value=2**62, count=3)}, resumed=False)
        if number == 50:
            hub.log_scalars['train/mixed'].update(1.5, 0.5)
            hub.log_scalars['train/count'].update(2**64)
        if number == 60:
            hub.log_scalars.pop('train/array')
        if number == 70:
            buffer = hub.log_scalars['train/mixed']
            buffer._log_history = buffer._log_history[10:]
            buffer._count_history = buffer._count_history[10:]


def read(hub: MessageHub) -> list[Any]:
    """Returns all values that log processors read, and a checkpoint's content."""
    figures = [
        [name, type(figure), figure]
        for buffer in hub.log_scalars.values()
        for name in ('mean', 'min', 'max', 'current')
        for size in (None, 1, 7, 10**6)
        for arguments in ([] if size is None or name == 'current' else [size],)
        for figure in [buffer.statistics(name, *arguments)]
    ]
    return [figures, [buffer.data for buffer in hub.log_scalars.values()]]


@pytest.mark.parametrize('values', [0, 3000])
def test_histories_are_the_same(values):
    plain, ours = make_hub('plain', values), make_hub('ours', values)
    growing = grow(ours)
    for seed in range(3):
        add(plain, 100, seed)
        add(ours, 100, seed)
        assert is_equal(read(plain), read(ours))
    growing.close()
    assert is_equal(read(plain), read(ours))
    add(plain, 5)
    add(ours, 5)
    assert is_equal(read(plain), read(ours))
    for buffer in ours.log_scalars.values():
        assert type(buffer) is HistoryBuffer
        assert not [name for name in vars(buffer) if name in ('_log', '_counts')]
    assert 'update_scalar' not in vars(ours)


def test_a_checkpoint_has_plain_histories_of_the_same_bytes():
    plain, ours = make_hub('plain'), make_hub('ours')
    grow(ours)
    add(plain, 40)
    add(ours, 40)
    states = [hub.state_dict() for hub in (plain, ours)]
    assert pickle.dumps(states[0]) == pickle.dumps(states[1])
    assert b'mmgpu' not in pickle.dumps(states[1])
    for name, buffer in states[1]['log_scalars'].items():
        assert type(buffer) is HistoryBuffer
        for other in (copy.copy(ours.log_scalars[name]), copy.deepcopy(buffer)):
            assert type(other) is HistoryBuffer
            assert is_equal(other.data, ours.log_scalars[name].data)
    resumed = make_hub('resumed')
    growing = grow(resumed)
    resumed.load_state_dict(pickle.loads(pickle.dumps(states[0])))
    resumed.log_scalars.pop('val/new', None)
    plain.log_scalars.pop('val/new')
    add(resumed, 30, 5)
    add(plain, 30, 5)
    assert is_equal(read(plain), read(resumed))
    growing.close()


def test_a_full_history_drops_its_oldest():
    plain, ours = HistoryBuffer(max_length=5000), HistoryBuffer(max_length=5000)
    hub = make_hub('short')
    hub.log_scalars['loss'] = ours
    hub._resumed_keys['loss'] = True
    growing = grow(hub)
    kept = []
    for number in range(20_000):
        plain.update(number / 3, number)
        hub.update_scalar('loss', number / 3, number)
        if number % 977 == 0:
            kept.append((ours.data[0], plain.data[0]))
            assert is_equal(ours.data, plain.data)
    # who keeps an array keeps it as it was
    assert all(is_equal(one, other) for one, other in kept)
    growing.close()
    assert is_equal(ours.data, plain.data)


def test_an_array_that_somebody_holds_is_his_from_the_next_value_on():
    plain, ours = make_hub('plain', 10), make_hub('ours', 10)
    growing = grow(ours)
    for hub in (plain, ours):
        buffer = hub.log_scalars['train/loss']
        hub.update_scalar('train/loss', 1.0)
        values, counts = buffer.data
        values[0], counts[1] = 70.0, 5
        copied = copy.copy(buffer)
        hub.update_scalar('train/loss', 2.0)
        values[2], counts[3] = 80.0, 6
        copied.data[0][4] = 90.0
        hub.update_scalar('train/loss', 3.0)
        assert buffer.data[0][:5].tolist() == [70.0, 1.0, 2.0, 3.0, 4.0]
        assert values[4] == 90.0
    assert is_equal(read(plain), read(ours))
    growing.close()


def test_a_held_buffer_shows_the_values_added_later():
    hub = make_hub('held', 10)
    held = hub.get_scalar('train/loss')
    growing = grow(hub)
    hub.update_scalar('train/loss', 5.0)
    held.update(6.0)
    held._log_history[-2] = 5.5
    assert hub.get_scalar('train/loss') is held
    assert held.data[0][-3:].tolist() == [9.0, 5.5, 6.0]
    with pytest.raises(TypeError, match='log_val must be int or float'):
        held.update('7')
    growing.close()
    assert held.data[0][-3:].tolist() == [9.0, 5.5, 6.0]


def test_a_long_training_is_no_slower_and_the_same():
    plain, ours = make_hub('plain', LONG), make_hub('ours', LONG)
    growing = grow(ours)
    assert f'the longest has {LONG} values' in growing.changed
    store = None
    copies = 0
    for number in range(200):
        for hub in (plain, ours):
            hub.update_scalar('train/loss', number / 7)
            hub.update_scalar('train/count', number)
        base = ours.log_scalars['train/loss']._log_history.base
        copies += base is not store
        store = base
    # one copy made room for all of them
    assert copies == 1
    assert is_equal(read(plain), read(ours))
    assert pickle.dumps(plain.state_dict()) == pickle.dumps(ours.state_dict())
    growing.close()
