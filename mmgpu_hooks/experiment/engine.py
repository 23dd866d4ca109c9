"""One engine for every experiment: a plan chooses turns, each of which trains a trial.

A plan sees the trials so far and says what comes next, so it goes on after an
interruption as if there had been none.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mmgpu_hooks.experiment.store import TrialStore
from mmgpu_hooks.experiment.trial import DEFAULT_TIME_LIMIT_S, Progress, RunningTrial
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import Trial, TrialSpec

_POLL_S = 0.2
_WARN_AFTER_S = 60.0
_MUCH_LOAD = 0.25
"""Cores that others use: below that, more time alone is enough."""

OnProgress = Callable[[str, float], None]
"""Called with what is going on and the share that is done, 0 to 1."""


@dataclass(frozen=True)
class Turn:
    """What is to be trained next."""

    name: str
    """Of the trial that it gives; no two of a plan have the same."""
    spec: TrialSpec
    blocks: tuple[int, ...]
    """Iterations, with a report after each block; without a pause in between."""
    more: Callable[[Progress], int] | None = None
    """Asked after each block but the first: iterations to add, 0 for the end."""
    summarize: Callable[[Progress], Mapping[str, Any]] = lambda progress: {}
    """Figures of the trial, as JSON."""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """Its start included; then it is killed."""
    stays: bool = False
    """Whether the training is held afterwards, for the next turn in its folder."""
    warm_up: int = 0
    """Iterations before the blocks, where the training is not held already."""
    title: str = ''
    """What is shown meanwhile; its name, when empty."""


class Plan:
    """What an experiment trains: turns in a fixed order, unless a subclass chooses.

    Pure: it knows no process and no clock.

    Args:
        turns: In the order in which they are trained.
    """

    turns: Sequence[Turn] = ()

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns

    @property
    def count(self) -> int | None:
        """Turns in all, where that is known."""
        return len(self.turns) or None

    def choose(self, trials: Sequence[Trial], begun: Collection[str]) -> Turn | None:
        """The next turn; ``None`` when there is none, or none yet.

        Args:
            trials: In the order they ended, those of earlier starts first.
            begun: Names of those that are on their way.

        Raises:
            UserError: If what the trials say makes all others useless.
        """
        names = {trial.name for trial in trials} | set(begun)
        return next((turn for turn in self.turns if turn.name not in names), None)

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Which trials of an earlier start count."""
        names = {turn.name for turn in self.turns}
        return [
            one for one in trials if one.name in names and one.status == 'completed'
        ]

    def doubt(self, trials: Sequence[Trial]) -> str | None:
        """What other load may hide, to warn of it; ``None`` when it is plain anyway."""
        return 'what is measured may be that of the load'


@dataclass(frozen=True)
class Outcome:
    """What became of a plan."""

    trials: tuple[Trial, ...]
    seconds: float = 0.0
    """Of this start."""
    is_interrupted: bool = False
    is_late: bool = False
    """Whether its time was up."""
    external_cpu_cores: float | None = None
    """In use by other programs meanwhile."""
    notes: tuple[str, ...] = ()


class OtherLoad:
    """Cores of the host that other programs use, from now on.

    Args:
        read_own_s: CPU seconds that our trainings have used so far.
    """

    def __init__(self, read_own_s: Callable[[], float]) -> None:
        self._read_own_s = read_own_s
        self._begin = self._read()

    def _read(self) -> tuple[float, float, float]:
        import psutil

        times = psutil.cpu_times()._asdict()
        # guests are in the user's account already
        idle = ('idle', 'iowait', 'guest', 'guest_nice')
        busy_s = math.fsum(value for name, value in times.items() if name not in idle)
        return monotonic_s(), busy_s, self._read_own_s()

    def read_cores(self) -> float | None:
        """Mean since construction."""
        passed_s, host_s, own_s = (
            now - begin for now, begin in zip(self._read(), self._begin)
        )
        return max((host_s - own_s) / passed_s, 0.0) if passed_s > 0 else None


def run_plan(
    plan: Plan,
    store: TrialStore | None = None,
    *,
    cards: Sequence[str] = (),
    max_seconds: float = float('inf'),
    environ: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda words, share: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Outcome:
    """Train what a plan asks for; nothing is left running, however it ends.

    A trial that crashes, hangs or runs out of memory is a record with its reason.
    Ctrl-C ends what is on its way, and what was measured is returned.

    Args:
        plan: What to train.
        store: Gets each trial as soon as it has ended, and gives those of earlier
            starts; ``None`` keeps nothing.
        cards: UUIDs of GPUs that trials run on side by side; without any, one trial at
            a time sees what this process sees.
        max_seconds: Time for all of it.
        environ: Environment variables to add.
        on_progress: Called with what is going on.
        on_warning: Called once with a sentence if other load spoils the measurement.

    Raises:
        UserError: If the plan gives up.
        OSError: If a folder, a process or a line of the store cannot be made.
    """
    trials, notes = store.read(plan.keep) if store is not None else ([], ())
    engine = _Engine(plan, trials, cards, max_seconds, environ or {}, on_progress)
    is_interrupted = engine.run(store, on_warning)
    return Outcome(
        tuple(trials),
        seconds=monotonic_s() - engine.begin_s,
        is_interrupted=is_interrupted,
        is_late=engine.left_s <= 0,
        external_cpu_cores=engine.other_cores,
        notes=notes,
    )


class _StoppedError(Exception):
    """The plan has ended, and this trial with it."""


@dataclass
class _Engine:
    plan: Plan
    trials: list[Trial]
    cards: Sequence[str]
    max_seconds: float
    environ: Mapping[str, str]
    on_progress: OnProgress
    other_cores: float | None = None
    begin_s: float = field(default_factory=monotonic_s)
    _stop: threading.Event = field(default_factory=threading.Event)
    _live: list[RunningTrial] = field(default_factory=list)
    _held: dict[str, RunningTrial] = field(default_factory=dict)
    """By folder; they are among the live ones."""
    _ended_cpu_s: float = 0.0
    _trained_s: list[float] = field(default_factory=list)
    """Of each trial of this start."""

    @property
    def left_s(self) -> float:
        return self.begin_s + self.max_seconds - monotonic_s()

    def run(self, store: TrialStore | None, on_warning: Callable[[str], None]) -> bool:
        """Train until the plan has enough; whether Ctrl-C ended it."""
        load, is_warned = OtherLoad(self._read_cpu_s), False
        flights: dict[Future[Trial], Turn] = {}
        free: SimpleQueue[str | None] = SimpleQueue()
        for card in self.cards or (None,):
            free.put(card)
        lanes = len(self.cards) or 1
        pool = ThreadPoolExecutor(lanes)
        try:
            while True:
                begun = {turn.name for turn in flights.values()}
                while len(flights) < lanes and self.left_s > 0:
                    turn = self.plan.choose(self.trials, begun)
                    if turn is None:
                        break
                    begun.add(turn.name)
                    flights[pool.submit(self._train, turn, free)] = turn
                if not flights:
                    return False
                # a wait with a limit: Ctrl-C is not heard in one without
                done, _ = wait(flights, _POLL_S, FIRST_COMPLETED)
                for future in done:
                    del flights[future]
                    trial = future.result()
                    if store is not None:
                        store.append(trial)
                    self.trials.append(trial)
                    self._trained_s.append(trial.seconds)
                if not is_warned and monotonic_s() - self.begin_s >= _WARN_AFTER_S:
                    is_warned = True
                    self._warn(load.read_cores(), on_warning)
        except KeyboardInterrupt:
            return True
        finally:
            with _stops_ignored():
                self.other_cores = load.read_cores()
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                for running in list(self._live):
                    self._end(running)

    def _warn(self, cores: float | None, on_warning: Callable[[str], None]) -> None:
        doubt = self.plan.doubt(self.trials)
        if doubt is not None and cores is not None and cores >= _MUCH_LOAD:
            on_warning(
                f'after {monotonic_s() - self.begin_s:.0f} s {doubt}: other programs '
                f'use {cores:.1f} cores of this host. Stop them, or press Ctrl-C and, '
                'when the host is calm, run this again with --fresh.'
            )

    def _train(self, turn: Turn, free: SimpleQueue[str | None]) -> Trial:
        card = free.get()
        on_card = {} if card is None else {'CUDA_VISIBLE_DEVICES': card}
        try:
            return self._train_on(turn, {**self.environ, **on_card})
        finally:
            free.put(card)

    def _train_on(self, turn: Turn, environ: Mapping[str, str]) -> Trial:
        begin_s, folder = monotonic_s(), Path(turn.spec.folder)
        progress, blocks = Progress(folder), list(turn.blocks)
        if not turn.stays:
            # this one gets the memory alone
            while self._held:
                self._end(self._held.popitem()[1])
        trial = self._held.pop(turn.spec.folder, None)
        if trial is not None:
            trial.resume()
            for iterations in blocks:
                trial.send(iterations)
        else:
            # an older trial's evidence must not be taken for this one's
            shutil.rmtree(folder, ignore_errors=True)
            if turn.warm_up:
                blocks.insert(0, turn.warm_up)
            trial = RunningTrial(turn.spec, blocks[0], environ)
            self._live.append(trial)
            for iterations in blocks[1:]:
                trial.send(iterations)
        if turn.more is None and not turn.stays:
            trial.finish()
        try:
            self._follow(turn, trial, progress, len(blocks), begin_s)
        finally:
            progress.seconds = monotonic_s() - begin_s
            if trial not in self._held.values():
                self._end(trial)
        limit_s = min(turn.time_limit_s, self.max_seconds)
        return progress.end(turn.name, limit_s, turn.summarize(progress))

    def _follow(
        self,
        turn: Turn,
        trial: RunningTrial,
        progress: Progress,
        blocks: int,
        begin_s: float,
    ) -> None:
        """Take in what it reports until it is over, out of time or to be held."""
        while not progress.is_over:
            progress.seconds = monotonic_s() - begin_s
            if progress.seconds >= turn.time_limit_s or self.left_s <= 0:
                return
            if self._stop.is_set():
                raise _StoppedError
            for event in trial.read_events():
                progress.add(event)
                is_open = not progress.is_over and not progress.is_enough
                if turn.more is not None and is_open and len(progress.blocks) > 1:
                    # the next block is known before the last one ends
                    iterations = turn.more(progress)
                    progress.is_enough = not iterations
                    trial.send(iterations) if iterations else trial.finish()
            self._show(turn, progress)
            if turn.stays and len(progress.blocks) == blocks:
                trial.hold()
                progress.status = 'completed'
                self._held[turn.spec.folder] = trial
                return

    def _end(self, trial: RunningTrial) -> None:
        self._ended_cpu_s += trial.read_cpu_s()
        self._live.remove(trial)
        trial.close()
        # the next trial needs the space
        for checkpoint in Path(trial.spec.folder).rglob('*.pth'):
            checkpoint.unlink(missing_ok=True)

    def _read_cpu_s(self) -> float:
        """CPU seconds of all our trainings."""
        return self._ended_cpu_s + sum(one.read_cpu_s() for one in list(self._live))

    def _show(self, turn: Turn, progress: Progress) -> None:
        words, done, count = turn.title or turn.name, len(self.trials), self.plan.count
        if count is None:
            self.on_progress(words, min(1 - self.left_s / self.max_seconds, 1.0))
            return
        at = f'iteration {progress.iterations}' if progress.iterations else 'starting'
        words = f'{done + 1} of {count}: {words}, {at}'
        if self._trained_s:
            each_s = sum(self._trained_s) / len(self._trained_s)
            left_s = (count - done) * each_s / (len(self.cards) or 1)
            left_s -= min(progress.seconds, each_s)
            words += f'; about {max(left_s / 60, 0.1):.1f} min left'
        self.on_progress(words, done / count)


@contextlib.contextmanager
def _stops_ignored() -> Iterator[None]:
    """Ctrl-C and a plain ``kill`` do not stop what ends the trainings."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in stops]
    try:
        yield
    finally:
        for number, handler in zip(stops, before):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
