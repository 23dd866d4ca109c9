"""Tests the tuning of several ranks in one process, with a fake store and loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.hooks import LoggerHook
from msgspec import structs

from fakes.clock import HandClock
from fakes.runs import make_interval, make_workers
from fakes.store import Store
from fakes.tuning import NOTHING, ScriptedAdviser, judge, propose, settings
from mmgpu_hooks.hooks import possible_gain, shared_room, tune_ranks, tuner
from mmgpu_hooks.hooks.log_schedule import LogSchedule
from mmgpu_hooks.hooks.recording import Guard
from mmgpu_hooks.hooks.tuner import Tuner
from mmgpu_hooks.measure.host import FileSystem
from mmgpu_hooks.schema.recorded import TunedRecord, TunedSettings
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tuning import TuneAnswer

MIB = 2**20
ONE, TWO = settings(1), settings(2)
ITER_S = 0.1
"""Seconds of an iteration."""
LOGGED = 50
"""Iterations per line of LoggerHook."""


class Switch:
    """Fake `LoaderSwitch` that stores new loader settings, or raises an error."""

    def __init__(self) -> None:
        self.settings: TunedSettings = ONE
        self.unloadable: Text | None = None
        self.obstacle: Text | None = None
        self.failure: OSError | None = None

    def find_obstacle(self) -> None:
        return None

    def find_obstacle_to(self, new: TunedSettings) -> None:
        return None

    def find_first_obstacle(self, new: TunedSettings, index: Any) -> None:
        return None

    def find_obstacle_within(self, live: Any, new: TunedSettings) -> Text | None:
        return self.obstacle

    def take_salt(self, iteration: int) -> int:
        return iteration

    def confirm(self) -> None:
        pass

    def switch_within(
        self, live: Any, new: TunedSettings, salt: int, **options: Any
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.settings = new
        self.on_failure: Callable[[Exception], None] = options['on_failure']


class Rank:
    """Fake rank with a real tuner, whose log intervals end as in a training."""

    def __init__(self, rank: int, world: int, most: int) -> None:
        self.switch, self.records, self.said = (
            Switch(),
            list[TunedRecord](),
            list[str](),
        )
        self.clock = HandClock()
        live = SimpleNamespace(_iterator=object())
        self.runner = SimpleNamespace(
            rank=rank,
            world_size=world,
            hooks=[LoggerHook(interval=LOGGED)],
            logger=SimpleNamespace(info=self.said.append),
            train_dataloader=range(most),
            train_loop=SimpleNamespace(
                max_iters=most, max_epochs=1, dataloader_iterator=live
            ),
        )
        self.schedule, self._count = LogSchedule(self.runner, None), 0
        off: list[str] = []
        self.guard = Guard(lambda source, reason: off.append(reason))
        self.recording = SimpleNamespace(
            runner=self.runner,
            writer=SimpleNamespace(path=None),
            guard=self.guard,
            recorded=0,
            iteration=0,
            epoch=1,
            epoch_start=0,
        )
        probe = SimpleNamespace(
            is_watching=True, unsupported={}, processes=None, last_index=None
        )
        self.tuner = Tuner(
            self.recording,  # type: ignore[arg-type]
            probe,  # type: ignore[arg-type]
            self.switch,  # type: ignore[arg-type]
            self.schedule.cut_at,
            self.records.append,
            self.clock,
        )

    def train(self) -> None:
        """Trains one iteration, and calls the tuner if a log interval ends with it."""
        done = self.recording.iteration = self.recording.iteration + 1
        self._count += 1
        self.clock.turn(ITER_S)
        if self.schedule.is_due(done - 1, self._count).is_end:
            self.recording.recorded, self._count = done, 0
            self.tuner.follow(make_interval(data_wait_s=ITER_S / 2, step_s=ITER_S / 2))

    @property
    def actions(self) -> list[str]:
        return [record.action for record in self.records]


Start = Callable[..., list[Rank]]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, store: Store) -> Start:
    """Function that begins to tune ranks by the answers of a fake child process."""

    def begin(
        answers: Sequence[TuneAnswer],
        world: int = 2,
        unwritten: Sequence[int] = (),
        first_asked: int = 0,
    ) -> list[Rank]:
        monkeypatch.setenv('LOCAL_WORLD_SIZE', str(world))
        monkeypatch.setattr(tuner, 'find_store', lambda: store)
        monkeypatch.setattr(tuner, 'ASK_AGAIN', 1.0)
        monkeypatch.setattr(tuner, 'FIRST_ASKED', first_asked)
        monkeypatch.setattr(possible_gain, 'LEAST_INTERVALS', 1)
        adviser = ScriptedAdviser(answers)
        monkeypatch.setattr(tuner, 'TuningAdviser', lambda *_, **__: adviser)
        ranks = [Rank(rank, world, 10_000) for rank in range(world)]
        for number in unwritten:
            ranks[number].recording.writer = None
        for rank in ranks:
            # each has a process of its own
            monkeypatch.setattr(tune_ranks, '_trainings', iter(range(5)))
            rank.tuner.begin()
        return ranks

    return begin


def train(
    ranks: Sequence[Rank], iterations: int, until: Callable[[], bool] = lambda: False
) -> None:
    """Trains all ranks in step, rank 0 last, until a condition holds."""
    for _ in range(iterations):
        for rank in reversed(ranks):
            rank.train()
        if until():
            return


def read_decision(store: Store) -> int | None:
    """Returns the iteration agreed for the ranks' loader change; ``None`` before."""
    found = [int(kept) for key, kept in store.kept.items() if key.endswith('/at')]
    return found[-1] if found else None


def settings_of(ranks: Sequence[Rank]) -> list[TunedSettings]:
    return [rank.switch.settings for rank in ranks]


@pytest.mark.parametrize('answers_before', [0, 25])
def test_all_ranks_change_at_one_iteration(start, answers_before):
    ranks = start([*[NOTHING] * answers_before, propose(ONE, TWO)], world=3)
    train(ranks, 600)
    assert settings_of(ranks) == [TWO] * 3
    changes = {record.iteration for rank in ranks for record in rank.records}
    assert len(changes) == 1
    # intervals were long again before
    assert (changes.pop() > 200) == (answers_before > 0)


def test_intervals_are_long_again_once_ranks_agreed_or_not(start):
    ranks = start([*[NOTHING] * 15, propose(ONE, TWO)])
    ranks[1].switch.obstacle = phrase('the last switch is not over yet')
    train(ranks, 1000)
    assert settings_of(ranks) == [ONE, ONE]
    before = [rank.recording.recorded for rank in ranks]
    train(ranks, LOGGED - 1)
    assert [rank.recording.recorded for rank in ranks] == before


def test_a_loss_is_taken_back_where_a_rank_could_not_make_the_change(start):
    ranks = start([propose(ONE, TWO), judge(TWO, ONE, 'loss')])
    ranks[1].switch.failure = BlockingIOError(11, 'planted')
    train(ranks, 300)
    assert settings_of(ranks) == [ONE, ONE]
    assert [rank.actions for rank in ranks] == [['change', 'roll_back'], []]
    assert 'was not possible (BlockingIOError' in ' '.join(ranks[1].said)


def test_a_loss_is_taken_back_where_a_rank_could_not_start_it_later(start):
    ranks = start([propose(ONE, TWO), judge(TWO, ONE, 'loss')])
    train(ranks, 300, lambda: ranks[1].switch.settings == TWO)
    # the old workers ended first, and then no others started
    ranks[1].switch.settings = ONE
    ranks[1].switch.on_failure(BlockingIOError(11, 'planted'))
    train(ranks, 300)
    assert settings_of(ranks) == [ONE, ONE]
    assert [rank.records[-1].reason for rank in ranks] == ['loss', 'failed']
    assert [rank.actions for rank in ranks] == [['change', 'roll_back']] * 2


def test_what_the_judging_rank_cannot_make_is_taken_back_on_the_others(start):
    ranks = start([propose(ONE, TWO)], world=3)
    ranks[0].switch.failure = BlockingIOError(11, 'planted')
    train(ranks, 300)
    assert settings_of(ranks) == [ONE] * 3
    assert ranks[0].records == []
    for rank in ranks[1:]:
        change, back = rank.records
        assert (change.new, back.reason, back.new) == (TWO, 'failed', ONE)
        assert back.iteration > change.iteration


def test_a_roll_back_is_offered_until_all_ranks_can_make_it(start):
    ranks = start([propose(ONE, TWO), judge(TWO, ONE, 'loss')])
    train(ranks, 300, lambda: ranks[1].switch.settings == TWO)
    ranks[1].switch.obstacle = phrase('worker 7 stands still or has ended')
    train(ranks, 300)
    assert settings_of(ranks) == [TWO, TWO]
    ranks[1].switch.obstacle = None
    train(ranks, 300)
    assert settings_of(ranks) == [ONE, ONE]
    first, second = (rank.records[-1] for rank in ranks)
    assert first.iteration == second.iteration > 300


def test_a_rank_that_cannot_change_at_once_does_so_later(start, store):
    ranks = start([propose(ONE, TWO)])
    train(ranks, 300, lambda: read_decision(store) is not None)
    ranks[1].switch.obstacle = phrase('no iterator of it is known that the loop uses')
    train(ranks, 100)
    assert settings_of(ranks) == [TWO, ONE]
    ranks[1].switch.obstacle = None
    train(ranks, 20)
    assert settings_of(ranks) == [TWO, TWO]


@pytest.mark.parametrize('late', [0, 1])
def test_nothing_is_changed_once_training_has_ended(start, store, late):
    ranks = start([propose(ONE, TWO)])
    train(ranks, 300, lambda: read_decision(store) is not None)
    # all have read it then
    train(ranks, 10)
    due_at, rank = read_decision(store), ranks[late]
    assert due_at is not None
    assert due_at > rank.recording.iteration
    rank.tuner.close()
    # of what is recorded last
    rank.recording.recorded = due_at
    rank.tuner.follow(make_interval(data_wait_s=0.05, step_s=0.05))
    assert rank.switch.settings == ONE
    assert rank.records == []


def test_a_rank_that_tunes_nothing_says_so_to_the_others(start):
    ranks = start([propose(ONE, TWO)], unwritten=[1])
    train(ranks, 300)
    assert settings_of(ranks) == [ONE, ONE]
    assert 'no evidence is written' in ranks[1].said[-1]
    assert 'rank 1 cannot make the change, so none does' in ranks[0].said[-1]


def test_a_training_that_never_waits_is_not_watched_for_ever(start):
    (rank,) = start([propose(ONE, TWO)], world=1)
    idle = make_interval(
        data_wait_s=0.0, step_s=0.1, process_cpu_s=0.1, workers=make_workers(0.001)
    )
    for rank.recording.recorded in (1000, 2000, 3000):
        rank.tuner.follow(idle)
    said = 'nothing more to change after iteration 3000: training does not wait for its'
    assert [said in line for line in rank.said] == [True]
    rank.tuner.note_end()
    assert len(rank.said) == 1
    assert rank.tuner._adviser is None


def test_a_rank_that_never_answers_is_not_waited_for(start, monkeypatch):
    monkeypatch.setattr(tuner, 'MOST_WATCHED', 200)
    ranks = start([propose(ONE, TWO)])
    train(ranks[:1], 500)
    assert settings_of(ranks) == [ONE, ONE]
    assert 'the ranks did not agree in time' in ranks[0].said[-1]


def test_intervals_are_long_again_where_rank_0_ends_without_a_decision(
    start, monkeypatch
):
    monkeypatch.setattr(tuner, 'MOST_WATCHED', 200)
    ranks = start([propose(ONE, TWO)])
    offering = ranks[0].tuner
    train(ranks, 300, lambda: offering._offered is not None)
    train(ranks[1:], 600)
    assert 'rank 0 made no decision' in ranks[1].said[-1]
    ends = []
    for _ in range(4 * LOGGED):
        train(ranks[1:], 1)
        ends.append(ranks[1].recording.recorded)
    first, *_, last = sorted({*ends})
    assert last - first == LOGGED * (len({*ends}) - 1)


def test_an_obstacle_that_cannot_be_found_out_is_offered_to_no_rank(start):
    ranks = start([propose(ONE, TWO)])

    def fail(*_: Any) -> Text | None:
        raise OSError('planted')

    ranks[0].switch.find_obstacle_within = fail
    with pytest.raises(OSError, match='planted'):
        train(ranks, 300)
    train(ranks[1:], 300)
    assert ranks[1].tuner._offered is None


def test_the_child_is_not_asked_before_a_verdict_is_possible(start):
    (rank,) = start([NOTHING], world=1, first_asked=tuner.FIRST_ASKED)
    train([rank], tuner.FIRST_ASKED - 1)
    assert rank.tuner._adviser.questions == []
    train([rank], 1)
    assert len(rank.tuner._adviser.questions) == 1


def test_a_training_that_is_too_short_to_be_asked_of_says_so(start):
    (rank,) = start([NOTHING], world=1, first_asked=tuner.FIRST_ASKED)
    train([rank], 12)
    rank.tuner.note_end()
    assert 'nothing was changed: too few intervals yet' in rank.said[-1]


@pytest.mark.parametrize(
    ('cpu_s', 'questions'), [(0.0, 20), (0.02, 20), (0.06, 7), (0.5, 1)]
)
def test_a_search_that_takes_a_core_is_made_less_often(start, cpu_s, questions):
    answer = structs.replace(NOTHING, cpu_s=cpu_s)
    (rank,) = start([answer] * 30, world=1)
    # 10 s: a twentieth of a core is half a second, 25 ms of each interval of 0.5 s
    train([rank], 101)
    assert len(rank.tuner._adviser.questions) == questions


def test_a_change_is_judged_however_much_the_search_took(start):
    dear = structs.replace(propose(ONE, TWO), cpu_s=50.0)
    (rank,) = start([dear, judge(TWO, TWO, 'gain')], world=1)
    train([rank], 100)
    assert rank.actions == ['change', 'keep']


@pytest.mark.parametrize(
    ('free', 'batch', 'is_made'),
    [(64, 10, True), (64, 20, False), (20, 10, False), (64, None, True)],
    ids=['fits', 'does not fit', 'held by others', 'batches were not counted'],
)
def test_more_workers_come_where_shared_memory_holds_their_batches(
    start, monkeypatch, free, batch, is_made
):
    (rank,) = start([propose(ONE, TWO)], world=1)
    # of 64 MiB; a worker loads two batches ahead
    shared = FileSystem(64 * MIB, free * MIB)
    monkeypatch.setattr(shared_room, 'read_file_system', lambda _: shared)
    rank.tuner.note_batch(batch and batch * MIB)
    train([rank], 60)
    assert rank.switch.settings == (TWO if is_made else ONE)
    said = 'their batches do not fit into /dev/shm'
    assert (said in rank.said[-1]) == (not is_made)


def test_a_roll_back_asks_for_no_shared_memory(start, monkeypatch):
    (rank,) = start([propose(TWO, ONE), judge(ONE, TWO, 'loss')], world=1)
    rank.switch.settings = TWO
    monkeypatch.setattr(shared_room, 'read_file_system', lambda _: FileSystem(MIB, 0))
    rank.tuner.note_batch(MIB)
    train([rank], 100)
    assert rank.actions == ['change', 'roll_back']


def test_ranks_that_all_can_but_too_late_say_so(start):
    ranks = start([*[NOTHING] * 12, propose(ONE, TWO)])
    for rank in ranks:
        rank.runner.train_loop.max_iters = 80
    train(ranks, 79)
    assert settings_of(ranks) == [ONE, ONE]
    said = [
        line for line in ranks[0].said if 'num_workers 1 -> 2 would be next' in line
    ]
    assert len(said) == 1
    assert 'what is left is too short to pay for a change' in said[0]
