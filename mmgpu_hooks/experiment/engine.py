"""One engine for every experiment: a plan chooses turns, each of which trains a trial.

A plan sees the trials so far and says what comes next, so it goes on after an
interruption as if there had been none. A new plan is a subclass of :class:`Plan`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mmgpu_hooks.experiment.process_tree import read_host_cpu_s, stops_put_off
from mmgpu_hooks.experiment.store import TrialStore
from mmgpu_hooks.experiment.trial import (
    Progress,
    RunningTrial,
    end_trial,
    remove_checkpoints,
)
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import Trial, TrialSpec

_LOOK_S = 0.2
_PATIENCE_S = 60.0
"""After which the user is warned of other load."""
_MUCH_LOAD = 0.25
"""Cores that others use: with fewer, time alone helps."""

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
    fold: Callable[[Progress], Mapping[str, Any]] = lambda progress: {}
    """Figures of the trial, as JSON."""
    time_limit_s: float = float('inf')
    """Its start included; then it is killed."""
    stays: bool = False
    """Whether the training is held afterwards, for the next turn in its folder."""
    warm_up: int = 0
    """Iterations before the blocks, where the training is not held already."""
    title: str = ''
    """What is told of it meanwhile; its name, when empty."""


class Plan:
    """What an experiment trains. Pure: it knows no process and no clock."""

    count: int | None = None
    """Turns in all, where that is known."""

    def choose(self, trials: Sequence[Trial], begun: Collection[str]) -> Turn | None:
        """The next turn; ``None`` when there is none, or none yet.

        Args:
            trials: In the order they ended, those of earlier starts first.
            begun: Names of those that are on their way.

        Raises:
            UserError: If what the trials say makes all others useless.
        """
        raise NotImplementedError

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Which trials of an earlier start count."""
        return [trial for trial in trials if trial.status == 'completed']

    def wants(self, name: str) -> bool:
        """Whether a trial of that name belongs to it."""
        return True

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
        return monotonic_s(), read_host_cpu_s(), self._read_own_s()

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
        on_progress: Told what goes on.
        on_warning: Called once with a sentence if other load spoils the measurement.

    Raises:
        UserError: If the plan gives up.
        OSError: If a folder, a process or a line of the store cannot be made.
    """
    trials: list[Trial] = []
    notes: tuple[str, ...] = ()
    if store is not None:
        trials, notes = store.read(plan)
    engine = _Engine(plan, store, trials, cards, max_seconds, environ or {})
    engine.on_progress, engine.on_warning = on_progress, on_warning
    is_interrupted = engine.run()
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
    store: TrialStore | None
    trials: list[Trial]
    cards: Sequence[str]
    max_seconds: float
    environ: Mapping[str, str]
    on_progress: OnProgress = lambda words, share: None
    on_warning: Callable[[str], None] = lambda sentence: None
    other_cores: float | None = None
    begin_s: float = field(default_factory=monotonic_s)
    _stop: threading.Event = field(default_factory=threading.Event)
    _live: list[RunningTrial] = field(default_factory=list)
    _held: dict[str, RunningTrial] = field(default_factory=dict)
    """By folder; they are among the live ones."""
    _ended_cpu_s: float = 0.0
    _trained: list[float] = field(default_factory=list)
    """Seconds of each trial of this start."""

    @property
    def left_s(self) -> float:
        return self.begin_s + self.max_seconds - monotonic_s()

    def run(self) -> bool:
        """Train until the plan has enough; whether somebody stopped it."""
        load = OtherLoad(self._read_cpu_s)
        flights: dict[Future[Trial], Turn] = {}
        places: SimpleQueue[str | None] = SimpleQueue()
        for card in self.cards or (None,):
            places.put(card)
        lanes = len(self.cards) or 1
        pool = ThreadPoolExecutor(lanes)
        try:
            early, is_warned = OtherLoad(self._read_cpu_s), False
            while True:
                begun = {turn.name for turn in flights.values()}
                while len(flights) < lanes and self.left_s > 0:
                    turn = self.plan.choose(self.trials, begun)
                    if turn is None:
                        break
                    begun.add(turn.name)
                    flights[pool.submit(self._train, turn, places)] = turn
                if not flights:
                    return False
                # looked up now and then: only so is Ctrl-C heard
                done, _ = wait(flights, _LOOK_S, FIRST_COMPLETED)
                for future in done:
                    del flights[future]
                    self._add(future.result())
                if not is_warned and monotonic_s() - self.begin_s >= _PATIENCE_S:
                    is_warned = True
                    self._warn(early.read_cores())
        except KeyboardInterrupt:
            return True
        finally:
            with stops_put_off():
                self.other_cores = load.read_cores()
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                for trial in list(self._live):
                    self._end(trial)

    def _add(self, trial: Trial) -> None:
        if self.store is not None:
            self.store.append(trial)
        self.trials.append(trial)
        self._trained.append(trial.seconds)

    def _warn(self, cores: float | None) -> None:
        doubt = self.plan.doubt(self.trials)
        if doubt is not None and cores is not None and cores >= _MUCH_LOAD:
            self.on_warning(
                f'after {monotonic_s() - self.begin_s:.0f} s {doubt}: other programs '
                f'use {cores:.1f} cores of this host. Stop them, or press Ctrl-C and, '
                'when the host is calm, run this again with --fresh.'
            )

    def _train(self, turn: Turn, places: SimpleQueue[str | None]) -> Trial:
        card = places.get()
        on_card = {} if card is None else {'CUDA_VISIBLE_DEVICES': card}
        try:
            return self._train_on(turn, {**self.environ, **on_card})
        finally:
            places.put(card)

    def _train_on(self, turn: Turn, environ: Mapping[str, str]) -> Trial:
        begin_s, folder = monotonic_s(), Path(turn.spec.folder)
        progress, words = Progress(folder), list(turn.blocks)
        if not turn.stays:
            # this one gets the memory alone
            while self._held:
                self._end(self._held.popitem()[1])
        trial = self._held.pop(turn.spec.folder, None)
        is_new = trial is None
        if trial is None:
            # an older trial's evidence must not be taken for this one's
            shutil.rmtree(folder, ignore_errors=True)
            if turn.warm_up:
                words.insert(0, turn.warm_up)
            trial = RunningTrial(turn.spec, words[0], environ)
            self._live.append(trial)
        trial.tree.resume()
        for iterations in words[1:] if is_new else words:
            trial.send(iterations)
        if turn.more is None and not turn.stays:
            trial.finish()
        is_kept = False
        try:
            while not progress.is_over:
                progress.seconds = monotonic_s() - begin_s
                if progress.seconds >= turn.time_limit_s or self.left_s <= 0:
                    break
                if self._stop.is_set():
                    raise _StoppedError
                for event in trial.read_events():
                    progress.heed(event)
                    self._ask(turn, trial, progress)
                self._tell(turn, progress)
                if turn.stays and len(progress.blocks) == len(words):
                    trial.tree.hold()
                    progress.status, is_kept = 'completed', True
                    break
        finally:
            progress.seconds = monotonic_s() - begin_s
            if is_kept:
                self._held[turn.spec.folder] = trial
            else:
                self._end(trial)
        limit_s = min(turn.time_limit_s, self.max_seconds)
        return end_trial(turn.name, progress, limit_s, turn.fold(progress))

    def _ask(self, turn: Turn, trial: RunningTrial, progress: Progress) -> None:
        """Have the word for the next block there before the last one ends."""
        is_open = not progress.is_over and not progress.is_enough
        if turn.more is not None and is_open and len(progress.blocks) > 1:
            iterations = turn.more(progress)
            if iterations:
                trial.send(iterations)
            else:
                progress.is_enough = True
                trial.finish()

    def _end(self, trial: RunningTrial) -> None:
        self._ended_cpu_s += trial.tree.read_cpu_s()
        self._live.remove(trial)
        trial.close()
        remove_checkpoints(Path(trial.spec.folder))

    def _read_cpu_s(self) -> float:
        """CPU seconds of all our trainings."""
        live = sum(trial.tree.read_cpu_s() for trial in list(self._live))
        return self._ended_cpu_s + live

    def _tell(self, turn: Turn, progress: Progress) -> None:
        words, done, count = turn.title or turn.name, len(self.trials), self.plan.count
        if count is None:
            self.on_progress(words, min(1 - self.left_s / self.max_seconds, 1.0))
            return
        at = f'iteration {progress.iterations}' if progress.iterations else 'starting'
        words = f'{done + 1} of {count}: {words}, {at}'
        if self._trained:
            each_s = sum(self._trained) / len(self._trained)
            left_s = (count - done) * each_s / (len(self.cards) or 1)
            left_s -= min(progress.seconds, each_s)
            words += f'; about {max(left_s / 60, 0.1):.1f} min left'
        self.on_progress(words, done / count)
