"""Tests how a trial's hook pauses and ends training, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgpu_hooks.experiment.trial_child import TrialHook, TrialOver


@pytest.fixture
def events(tmp_path):
    path = tmp_path / 'events.jsonl'
    path.write_text('')
    return path


def read_blocks(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events.read_text().splitlines()]


def make_runner(*losses, **loop):
    scalars = {'train/loss': SimpleNamespace(data=(losses, ()))} if losses else {}
    model = torch.nn.Linear(2, 1)
    return SimpleNamespace(
        model=model,
        optim_wrapper=SimpleNamespace(
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        ),
        train_loop=SimpleNamespace(**loop),
        train_dataloader=SimpleNamespace(batch_sampler=SimpleNamespace(batch_size=4)),
        message_hub=SimpleNamespace(log_scalars=scalars),
        max_iters=100,
        iter=0,
    )


def train(hook, runner, iterations: int) -> None:
    for _ in range(iterations):
        hook.before_train_iter(runner, 0)
        hook.after_train_iter(runner, 0)
        runner.iter += 1


@pytest.mark.parametrize(
    ('losses', 'is_finite'),
    [((0.5, 0.4), True), ((0.5, float('nan'), 0.4), False), ((), True)],
)
def test_a_block_says_whether_every_loss_was_a_number(events, losses, is_finite):
    hook, runner = TrialHook(events, iter([1])), make_runner(*losses)
    hook.before_train(runner)
    with pytest.raises(TrialOver):
        train(hook, runner, 1)
    (block,) = read_blocks(events)
    assert block['is_loss_finite'] is is_finite


def test_a_loader_that_begins_again_is_a_start(events):
    endless = SimpleNamespace(_epoch=0)
    runner = make_runner(dataloader_iterator=endless)
    hook = TrialHook(events, iter([4]))
    hook.before_train(runner)
    train(hook, runner, 2)
    endless._epoch = 1
    with pytest.raises(TrialOver):
        train(hook, runner, 2)
    (block,) = read_blocks(events)
    assert block['starts'] == [2]
