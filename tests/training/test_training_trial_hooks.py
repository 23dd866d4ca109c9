"""What ends a trial and halts a block, without a process of its own."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from mmgpu_hooks.experiment.trial_events import TrialChannel, TrialReader
from mmgpu_hooks.experiment.trial_hooks import TrialHook, TrialOver


@pytest.fixture
def pipe():
    read_end, write_end = os.pipe()
    reader = TrialReader(read_end)
    yield TrialChannel(write_end), reader
    os.close(write_end)
    reader.close()


def make_runner(losses=(), **loop):
    history = {'train/loss': SimpleNamespace(data=(losses, ()))} if losses else {}
    return SimpleNamespace(
        train_loop=SimpleNamespace(**loop),
        train_dataloader=SimpleNamespace(batch_sampler=SimpleNamespace(batch_size=4)),
        message_hub=SimpleNamespace(log_scalars=history),
        max_iters=100,
        iter=0,
    )


def train(hook, runner, iterations: int) -> None:
    for _ in range(iterations):
        hook.before_train_iter(runner, 0)
        hook.after_train_iter(runner, 0)
        runner.iter += 1


def test_a_block_tells_its_iterations_and_waits_for_a_word(pipe):
    channel, reader = pipe
    hook = TrialHook(channel, 2, iter([3]))
    runner = make_runner()
    hook.before_train_epoch(runner)
    train(hook, runner, 2)
    (first,) = reader.read_events(1)
    assert (first['event'], first['starts'], first['left']) == ('block', [0], 98)
    assert len(first['seconds']) == 2
    with pytest.raises(TrialOver):
        train(hook, runner, 3)
    (second,) = reader.read_events(1)
    assert (len(second['seconds']), second['starts']) == (3, [])
    assert second['batch_size'] == 4


@pytest.mark.parametrize(
    ('losses', 'is_finite'),
    [
        ((0.5, 0.4), True),
        ((0.5, float('nan'), 0.4), False),
        ((0.5, float('inf')), False),
        ((), None),
    ],
)
def test_a_block_tells_whether_every_loss_was_a_number(pipe, losses, is_finite):
    channel, reader = pipe
    with pytest.raises(TrialOver):
        train(TrialHook(channel, 1, iter([])), make_runner(losses), 1)
    (block,) = reader.read_events(1)
    assert block['is_loss_finite'] is is_finite
    assert block['peak_rss_bytes'] > 50e6


def test_a_loader_that_begins_again_is_a_start(pipe):
    channel, reader = pipe
    endless = SimpleNamespace(_epoch=0)
    runner = make_runner(dataloader_iterator=endless)
    hook = TrialHook(channel, 4, iter([]))
    train(hook, runner, 2)
    endless._epoch = 1
    with pytest.raises(TrialOver):
        train(hook, runner, 2)
    (block,) = reader.read_events(1)
    assert block['starts'] == [2]


def test_a_reader_that_went_away_is_no_error_of_the_training(pipe):
    read_end, write_end = os.pipe()
    os.close(read_end)
    TrialChannel(write_end).send('progress', iterations=1)
    os.close(write_end)


def test_half_a_line_waits_for_its_rest():
    read_end, write_end = os.pipe()
    reader = TrialReader(read_end)
    os.write(write_end, b'{"event": "a"}\n{"ev')
    assert reader.read_events(1) == [{'event': 'a'}]
    assert reader.read_events(0) == []
    os.write(write_end, b'ent": "b"}\n')
    os.close(write_end)
    assert reader.read_events(1) == [{'event': 'b'}]
    reader.close()
