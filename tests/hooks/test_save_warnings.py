"""When a save is judged, with what, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from mmgpu_hooks.hooks import saves as save_warnings
from mmgpu_hooks.hooks.saves import SaveWarnings
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveJudgement,
    SaveRecord,
)

WORKERS = LoaderSettings(num_workers=2, prefetch_factor=2)


class Judge:
    """Names what a save's name says, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, SaveAftermathRecord | None, int]] = []

    def __call__(
        self,
        save: SaveRecord,
        earlier: Any,
        aftermath: SaveAftermathRecord | None,
        host: HostLimits,
        loader: LoaderSettings,
    ) -> SaveJudgement:
        self.asked.append((save.name, aftermath, len(earlier)))
        cause = save.backend
        return SaveJudgement(cause is not None, cause, 1.0, 1.0, 1.0, f'of {save.name}')


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    judge = Judge()
    monkeypatch.setattr(save_warnings, 'judge_save', judge)
    return judge


def make_save(iteration: int, name: str, cause: str | None = None) -> SaveRecord:
    return SaveRecord(
        iteration=iteration, epoch=1, wall_s=1.0, name=name, backend=cause
    )


def make_aftermath(iteration: int) -> SaveAftermathRecord:
    return SaveAftermathRecord(
        iteration=iteration, iterations=4, waits_s=0.5, usual_wait_s=0.25
    )


def test_a_save_is_judged_when_it_is_known_what_followed(judge: Judge):
    warnings = SaveWarnings(lambda _: None, HostLimits(), WORKERS)
    warnings.add_save(make_save(4, 'a'))
    warnings.add_save(make_save(8, 'best'))
    warnings.add_save(make_save(8, 'b'))
    warnings.add_save(make_save(12, 'c'))
    assert judge.asked == []
    warnings.add_aftermath(make_aftermath(8))
    after = make_aftermath(8)
    # what followed both of one iteration followed the last of them
    assert judge.asked == [('a', None, 0), ('best', None, 0), ('b', after, 0)]
    warnings.finish()
    assert judge.asked[-1] == ('c', None, 0)


def test_without_workers_there_is_nothing_to_wait_for(judge: Judge):
    warnings = SaveWarnings(lambda _: None, HostLimits(), LoaderSettings(num_workers=0))
    warnings.add_save(make_save(4, 'a'))
    assert judge.asked == [('a', None, 0)]


def test_of_many_that_wait_the_oldest_are_judged_without(judge: Judge):
    warnings = SaveWarnings(lambda _: None, HostLimits(), WORKERS)
    for iteration in range(34):
        warnings.add_save(make_save(iteration, f'{iteration}'))
    assert [name for name, _, _ in judge.asked] == ['0', '1']


def test_saves_that_nothing_held_are_what_later_ones_are_measured_by(judge: Judge):
    warnings = SaveWarnings(lambda _: None, HostLimits(), LoaderSettings(num_workers=0))
    calm = SaveRecord(
        iteration=4,
        epoch=1,
        wall_s=1.0,
        cpu_s=1.0,
        run_delay_s=0.0,
        blocked_s=0.0,
        bytes=9,
    )
    warnings.add_save(calm)
    warnings.add_save(make_save(8, 'b'))
    assert judge.asked == [(None, None, 0), ('b', None, 1)]


def test_each_cause_is_said_once_and_then_counted(judge: Judge):
    said: list[str] = []
    warnings = SaveWarnings(said.append, HostLimits(), LoaderSettings(num_workers=0))
    for iteration, cause in enumerate(['workers', 'storage', None, 'workers']):
        warnings.add_save(make_save(iteration, f'{iteration}', cause))
    warnings.finish()
    assert said == [
        'GPUEfficiencyHook: of 0',
        'GPUEfficiencyHook: of 1',
        'GPUEfficiencyHook: slow saves in this run by cause: 2 workers, 1 storage.',
    ]


def test_what_was_said_of_one_save_needs_no_count(judge: Judge):
    said: list[str] = []
    warnings = SaveWarnings(said.append, HostLimits(), LoaderSettings(num_workers=0))
    warnings.add_save(make_save(1, 'a', 'storage'))
    warnings.finish()
    assert said == ['GPUEfficiencyHook: of a']


def test_an_aftermath_without_iterations_is_of_all_saves_before_it(judge: Judge):
    warnings = SaveWarnings(lambda _: None, HostLimits(), WORKERS)
    warnings.add_save(make_save(8, 'best'))
    warnings.add_save(make_save(8, 'b'))
    followed = SaveAftermathRecord(
        iteration=8, iterations=0, waits_s=0.0, usual_wait_s=0.25
    )
    warnings.add_aftermath(followed)
    assert [asked[:2] for asked in judge.asked] == [('best', followed), ('b', followed)]
