"""Tests the schedule of validations and saves against MMEngine's own loops."""

from __future__ import annotations

import bisect
import random

import pytest

from mmgpu_hooks.judge.schedule import PlannedEvent, Schedule
from mmgpu_hooks.schema.recorded import TrainingPlan, ValInterval


def draw_plan(draw: random.Random) -> TrainingPlan:
    begins = [0, *sorted(draw.sample(range(2, 50), draw.randint(0, 2)))]
    return TrainingPlan(
        val_intervals=tuple(
            ValInterval(begin=begin, interval=draw.randint(1, 9)) for begin in begins
        ),
        val_begin=draw.randint(1, 12),
        save_interval=draw.choice([None, 1, 2, 5, 9]),
        saves_by_epoch=draw.random() < 0.5,
        save_begin=draw.randint(0, 6),
        saves_last=draw.random() < 0.5,
    )


def play(plan: TrainingPlan, epochs: int, epoch: int) -> list[PlannedEvent]:
    """Returns when MMEngine's loop and CheckpointHook would validate and save."""
    found = []
    begins = [span.begin for span in plan.val_intervals]
    for iteration in range(1, epochs * epoch + 1):
        number, is_end = divmod(iteration, epoch)[0], iteration % epoch == 0
        is_last = iteration == epochs * epoch
        counted = number if plan.saves_by_epoch else iteration
        behind = counted - plan.save_begin
        is_due = bool(plan.save_interval) and behind >= 0
        is_due = is_due and behind % (plan.save_interval or 1) == 0
        if (is_end or not plan.saves_by_epoch) and (
            is_due or (plan.saves_last and is_last)
        ):
            found.append(PlannedEvent(iteration, True))
        if is_end and number >= plan.val_begin:
            span = plan.val_intervals[bisect.bisect(begins, number + 1) - 1]
            if number % span.interval == 0 or number == epochs:
                found.append(PlannedEvent(iteration, False))
    return found


@pytest.mark.parametrize('seed', range(4))
def test_the_schedule_lists_the_events_that_mmengine_would_have(seed):
    draw = random.Random(seed)
    for _ in range(200):
        epoch, epochs = draw.choice([1, 3, 7]), draw.randint(1, 40)
        plan = draw_plan(draw)
        schedule = Schedule(epoch * epochs, epoch if epoch > 1 else None, plan)
        events, done = play(plan, epochs, epoch), draw.randint(0, epoch * epochs)
        ahead = [event for event in events if event.iteration > done]
        assert schedule.list_events(done) == ahead
        saves = sum(event.is_save for event in ahead)
        assert schedule.count_saves(done) == saves
        assert schedule.count_validations(done) == len(ahead) - saves


def test_without_a_plan_the_schedule_is_unknown():
    schedule = Schedule(100, None, None)
    assert schedule.count_validations(0) is None
    assert schedule.count_saves(0) is None
    assert schedule.list_events(0) is None
