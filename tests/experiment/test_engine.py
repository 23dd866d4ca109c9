"""Tests the experiment engine with a made-up plan and fake trainings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmgpu_hooks.experiment import engine
from mmgpu_hooks.experiment.engine import Plan, Turn, estimate_left, run_plan
from mmgpu_hooks.experiment.store import STORE_NAME, KeptTrials, open_store
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.schema.tried import Trial, TrialSpec


def make_plan(folder: Path, seeds: Sequence[int] = (1, 2, 3)) -> Plan:
    """Returns a plan that measures the iteration time with each random seed."""
    return Plan(
        [
            Turn(
                str(seed),
                TrialSpec('a.py', str(folder / str(seed))),
                blocks=(10, 20),
                summarize=lambda progress, _: {'blocks': len(progress.blocks)},
                time_limit_s=100.0,
            )
            for seed in seeds
        ]
    )


def test_every_turn_is_a_record_and_nothing_is_left(scripted, tmp_path):
    shown: list[tuple[str, float, float | None]] = []
    outcome = run_plan(
        make_plan(tmp_path), on_progress=lambda *words: shown.append(words)
    )
    assert [trial.name for trial in outcome.trials] == ['1', '2', '3']
    for trial in outcome.trials:
        assert (trial.status, trial.iterations) == ('completed', 30)
        assert trial.figures == {'blocks': 2}
    assert not outcome.is_interrupted
    assert all(child.is_closed for child in scripted.started)
    assert any(words.startswith('2 of 3: 2, iteration 30') for words, *_ in shown)
    assert all(0 <= share <= 1 for _, share, _ in shown)
    # three turns of 3 s each by the clock of the script, which runs in jumps
    left = [seconds for *_, seconds in shown if seconds is not None]
    assert (left[0], left[1]) == pytest.approx((8.0, 6.0), abs=0.5)
    assert left[-1] == pytest.approx(0.0, abs=0.5)


@pytest.mark.parametrize(
    ('turns_s', 'passed_s', 'running', 'done', 'count', 'expected'),
    [
        # nothing is known of the first turn
        ([], 9.0, 0.0, 0, 4, (0.0, None)),
        # but where its iterations are counted
        ([], 10.0, 0.25, 0, 2, (0.125, 70.0)),
        ([20.0], 10.0, 0.0, 1, 4, (0.375, 50.0)),
        # it takes longer than those before it
        ([20.0], 90.0, 0.0, 1, 4, (0.5, 40.0)),
        # two of an earlier start took no time of this one
        ([10.0], 5.0, 0.0, 3, 4, (0.875, 5.0)),
    ],
)
def test_progress_and_time_left_follow_finished_turns_and_iterations(
    turns_s, passed_s, running, done, count, expected
):
    found = estimate_left(turns_s, passed_s, running=running, done=done, count=count)
    assert found == pytest.approx(expected)


def test_other_load_is_said_while_it_can_still_be_stopped(
    scripted, tmp_path, monkeypatch
):
    monkeypatch.setattr(engine.OtherLoad, 'read_cores', lambda self: 1.5)
    shown: list[str] = []
    run_plan(make_plan(tmp_path), on_progress=lambda words, *_: shown.append(words))
    said = ['other programs use 1.5 cores' in words for words in shown]
    # nothing is known at the start
    assert (said[0], said[-1]) == (False, True)


def test_a_trial_that_fails_or_hangs_is_a_record_with_its_reason(scripted, tmp_path):
    ends = {'1': ('failed', 'ValueError: no'), '2': ('out_of_memory', 'no room')}
    scripted.ending = staticmethod(lambda spec: ends.get(Path(spec.folder).name))
    outcome = run_plan(make_plan(tmp_path))
    found = [(trial.status, trial.error) for trial in outcome.trials]
    assert found == [*ends.values(), ('completed', None)]
    scripted.iteration_s = staticmethod(lambda spec: 11.0)
    (hung,) = run_plan(make_plan(tmp_path, [7])).trials
    assert hung.status == 'timed_out'
    assert hung.error == 'killed after 100 s, 10 iterations done'


def test_trainings_end_even_where_the_load_cannot_be_read(
    scripted, tmp_path, monkeypatch
):
    def fail(load: engine.OtherLoad) -> float:
        raise OSError('no such file: /proc/stat')

    monkeypatch.setattr(engine.OtherLoad, 'read_cores', fail)
    held = Turn('1', TrialSpec('a.py', str(tmp_path / '1')), blocks=(10,), stays=True)
    with pytest.raises(OSError, match='no such file'):
        run_plan(Plan([held]))
    assert [child.is_closed for child in scripted.started] == [True]


def test_what_was_interrupted_goes_on(scripted, tmp_path, monkeypatch):
    plan, folder = make_plan(tmp_path / 'trials'), tmp_path / 'kept'
    choose = plan.choose

    def press_after_one(trials):
        if trials:
            raise KeyboardInterrupt
        return choose(trials)

    monkeypatch.setattr(plan, 'choose', press_after_one)
    with open_store(folder, {'host': 'one'}) as store:
        outcome = run_plan(plan, store)
    assert outcome.is_interrupted
    assert [trial.name for trial in outcome.trials] == ['1']
    assert all(child.is_closed for child in scripted.started)
    monkeypatch.setattr(plan, 'choose', choose)
    with open_store(folder, {'host': 'one'}) as store:
        outcome = run_plan(plan, store)
    assert [trial.name for trial in outcome.trials] == ['1', '2', '3']
    assert [Path(child.spec.folder).name for child in scripted.started] == [
        '1',
        '2',
        '3',
    ]
    with open_store(folder, {'host': 'two'}) as store:
        outcome = run_plan(plan, store)
    assert len(scripted.started) == 6
    assert outcome.notes == ('Not reused: 3 earlier trials of another host.',)


@pytest.mark.parametrize(
    'text',
    [
        '{"identity": {',
        'null',
        '{"identity": {}}',
        '{"identity": 5, "trials": [{"name": "1", "status": "completed"}]}',
    ],
)
def test_what_is_no_store_is_written_anew(tmp_path, text):
    keep = make_plan(tmp_path).keep
    for number in (1, 2):
        with open_store(tmp_path, {'config': 'abc'}) as store:
            store.append(Trial('1', 'completed', seconds=number))
            store.append(Trial('3', 'failed', quoted('E: x')))
    with open_store(tmp_path, {'config': 'abc'}) as store:
        kept = store.read(keep).trials
        assert [(trial.name, trial.seconds) for trial in kept] == [('1', 2.0)]
        (tmp_path / STORE_NAME).write_text(text)
        assert store.read(keep) == KeptTrials()
        store.append(Trial('2', 'completed'))
        assert '2' in [trial.name for trial in store.read(keep).trials]
