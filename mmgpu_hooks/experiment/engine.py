"""Runs an experiment: its plan's trainings one by one, in child processes.

A plan sees the trials so far and says what comes next, so it goes on after an
interruption as if there had been none.

``Plan.choose`` returns the next `Turn` or ``None``; it knows no process and no clock.
The engine starts, holds and ends the trainings, keeps each trial in the store as soon
as it has ended, and says while it lasts that other programs use cores.

One trial from the command to its record: ``commands/sweep.py`` asks ``sweep.py`` for a
plan, and has this engine run it (``commands/trials.py``). ``trial.py`` starts, follows,
holds and ends the process; in it ``trial_child.py`` trains with the config changed in
memory, and reports each block. ``sweep_judge.py`` says from the evidence when it has
trained enough. ``schema/tried.py`` holds the record and ``store.py`` keeps it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional

from mmgpu_hooks.experiment.narrow_start import refuse_narrow_start
from mmgpu_hooks.experiment.store import KeptTrials, TrialStore
from mmgpu_hooks.experiment.trial import DEFAULT_TIME_LIMIT_S, Progress, RunningTrial
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.host import read_busy_s
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import Trial, TrialRole, TrialSpec

_MUCH_LOAD = 0.25
"""Number of cores used by other programs from which on a progress text shows it."""

_LEAST_SHARE = 0.01
"""Share (0 to 1) of a training's iterations to exceed before its end is forecast."""

OnProgress = Callable[[str, float, Optional[float]], None]
"""Type of progress callbacks, called with text, done share (0 to 1), seconds left.

The share goes from 0 to 1; the seconds are ``None`` while unknown."""


@dataclass(frozen=True)
class Turn:
    """One training of an experiment's plan, or a stretch of a training that pauses."""

    name: str
    """Name of the training and its stored trial, unique in the experiment's plan."""
    spec: TrialSpec
    blocks: tuple[int, ...]
    """Number of iterations of each block, after which the training sends a report.

    There is no pause between blocks."""
    more: Callable[[Progress], int] | None = None
    """Function that returns how many more iterations to train (0: end the training).

    Called after each block of iterations but the first."""
    summarize: Callable[[Progress, Trial], Mapping[str, Any]] = lambda *_: {}
    """Function that computes a trial's measured values, as JSON, when it has ended."""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """Seconds from the training's start or continuation after which it is killed."""
    stays: bool = False
    """True if the training is paused, not ended, after its planned iterations.

    A later turn with the same folder continues it."""
    warm_up: int = 0
    """Number of warm-up iterations trained first, unless a paused training goes on."""
    title: str = ''
    """Name of the training in the progress bar; if empty, `name` is shown."""
    role: TrialRole | None = None
    """Role of the trial in ``mmgpu verify``; ``None`` in other commands."""


class Plan:
    """Plan of an experiment's trainings: a fixed list, unless `choose` is overridden.

    Pure: it knows no process and no clock.

    Args:
        turns: In the order in which they are trained.
    """

    turns: Sequence[Turn] = ()

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns

    def choose(self, trials: Sequence[Trial]) -> Turn | None:
        """Returns the experiment's next training; ``None`` if all have been trained.

        Args:
            trials: In the order they ended, those of earlier starts first.

        Raises:
            UserError: If what the trials say makes all others useless.
        """
        names = {trial.name for trial in trials}
        return next((turn for turn in self.turns if turn.name not in names), None)

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the stored trials to reuse; failed trials are trained again."""
        names = {turn.name for turn in self.turns}
        return [
            trial
            for trial in trials
            if trial.name in names and trial.status != 'failed'
        ]


@dataclass(frozen=True)
class Outcome:
    """Result of an experiment: its trials, its duration, and if it was cut short."""

    trials: tuple[Trial, ...]
    seconds: float = 0.0
    """Seconds that the experiment took since its latest start."""
    is_interrupted: bool = False
    is_late: bool = False
    """True if the experiment was cut short by its time limit."""
    external_cpu_cores: float | None = None
    """Mean number of cores used by programs outside the experiment while it ran."""
    notes: tuple[Text, ...] = ()


class _CpuReading(NamedTuple):
    """Clock time (s), and CPU seconds used until then outside the experiment."""

    clock_s: float
    others_s: float


class OtherLoad:
    """Measures the mean number of cores used by programs outside the experiment.

    Args:
        read_own_s: CPU seconds that our trainings have used so far.
    """

    def __init__(self, read_own_s: Callable[[], float]) -> None:
        self._read_own_s = read_own_s
        self._begin = self._read()

    def _read(self) -> _CpuReading:
        return _CpuReading(monotonic_s(), read_busy_s() - self._read_own_s())

    def read_cores(self) -> float | None:
        """Returns the mean number of cores used outside the experiment so far."""
        now = self._read()
        passed_s = now.clock_s - self._begin.clock_s
        used_s = now.others_s - self._begin.others_s
        return max(used_s / passed_s, 0.0) if passed_s > 0 else None


def run_plan(
    plan: Plan,
    store: TrialStore | None = None,
    *,
    max_seconds: float = float('inf'),
    on_progress: OnProgress = lambda words, share, left_s: None,
) -> Outcome:
    """Runs an experiment's trainings, and leaves no process behind however it ends.

    A trial that crashes, hangs or runs out of memory is a record with its reason.
    Ctrl-C ends what is on its way, and what was measured is returned.

    Args:
        plan: What to train.
        store: Gets each trial as soon as it has ended, and gives those of earlier
            starts; ``None`` keeps nothing.
        max_seconds: Time for all of it.
        on_progress: Called with what is going on.

    Raises:
        UserError: If the plan gives up, or srun narrowed the CPUs of this process.
        OSError: If a folder, a process or a line of the store cannot be made.
    """
    refuse_narrow_start()
    earlier = KeptTrials() if store is None else store.read(plan.keep)
    trials = list(earlier.trials)
    engine = _Engine(plan, trials, max_seconds, on_progress)
    is_interrupted = False
    try:
        while engine.left_s > 0 and (turn := plan.choose(trials)) is not None:
            trial = engine.train(turn)
            if store is not None:
                store.append(trial)
            trials.append(trial)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        try:
            # may fail, and no training may outlive this
            cores = engine.load.read_cores()
        finally:
            engine.end_all()
    return Outcome(
        tuple(trials),
        seconds=engine.passed_s,
        is_interrupted=is_interrupted,
        is_late=engine.left_s <= 0,
        external_cpu_cores=cores,
        notes=earlier.notes,
    )


@dataclass
class _Engine:
    """Runs an experiment's trainings in turn, some of them paused meanwhile.

    The first fields are those of `run_plan`.
    """

    plan: Plan
    trials: Sequence[Trial]
    max_seconds: float
    on_progress: OnProgress

    def __post_init__(self) -> None:
        self._begin_s = monotonic_s()
        self._live: dict[str, RunningTrial] = {}
        """Running and paused trainings of the experiment, by folder."""
        self._ended_cpu_s = 0.0
        self._turns_s = list[float]()
        """Seconds that each training, or each stretch of a paused one, has taken."""
        self.load = OtherLoad(self._read_own_cpu_s)
        self._others_cores: float | None = None

    @property
    def passed_s(self) -> float:
        return monotonic_s() - self._begin_s

    @property
    def left_s(self) -> float:
        return self.max_seconds - self.passed_s

    def train(self, turn: Turn) -> Trial:
        """Runs one training of the plan; returns its trial, however it ended."""
        # between turns alone: to read it takes a while
        if self.passed_s > 1:
            self._others_cores = self.load.read_cores()
        begin_s, folder = monotonic_s(), Path(turn.spec.folder)
        progress, blocks = Progress(folder), list(turn.blocks)
        if not turn.stays:
            # this one gets the memory alone
            self.end_all()
        trial = self._live.get(turn.spec.folder)
        if trial is not None:
            trial.resume()
        else:
            # an older trial's evidence must not be taken for this one's
            shutil.rmtree(folder, ignore_errors=True)
            blocks = [turn.warm_up, *blocks] if turn.warm_up else blocks
            trial = RunningTrial(turn.spec)
            self._live[turn.spec.folder] = trial
        for iterations in blocks:
            trial.send(iterations)
        if turn.more is None and not turn.stays:
            trial.finish()
        while not progress.is_over:
            progress.seconds = monotonic_s() - begin_s
            if progress.seconds >= turn.time_limit_s or self.left_s <= 0:
                break
            self._take_in(turn, trial, progress)
            progress.seconds = monotonic_s() - begin_s
            self._show(turn, progress)
            if turn.stays and len(progress.blocks) == len(blocks):
                trial.hold()
                progress.status = 'completed'
                break
        progress.seconds = monotonic_s() - begin_s
        if not turn.stays or progress.status != 'completed' or progress.is_over:
            self._end(turn.spec.folder)
        self._turns_s.append(progress.seconds)
        ended = progress.end(turn.name, min(turn.time_limit_s, self.max_seconds))
        ended = replace(ended, role=turn.role)
        return replace(ended, figures=turn.summarize(progress, ended))

    def _take_in(self, turn: Turn, trial: RunningTrial, progress: Progress) -> None:
        """Reads a training's new reports, and sends its next number of iterations."""
        for event in trial.read_events():
            progress.add(event)
            is_open = not progress.is_over and not progress.is_enough
            if turn.more is not None and is_open and len(progress.blocks) > 1:
                iterations = turn.more(progress)
                progress.is_enough = not iterations
                trial.send(iterations) if iterations else trial.finish()

    def _end(self, folder: str) -> None:
        trial = self._live[folder]
        self._ended_cpu_s += trial.read_cpu_s()
        trial.close()
        del self._live[folder]
        # the next trial needs the space
        for checkpoint in Path(folder).rglob('*.pth'):
            checkpoint.unlink(missing_ok=True)

    def end_all(self) -> None:
        """Ends all running and paused trainings of the experiment."""
        for folder in list(self._live):
            self._end(folder)

    def _read_own_cpu_s(self) -> float:
        running_s = sum(trial.read_cpu_s() for trial in self._live.values())
        return self._ended_cpu_s + running_s

    def _show(self, turn: Turn, progress: Progress) -> None:
        words, done = turn.title or turn.name, len(self.trials)
        # a plan that chooses by what it has measured does not know how many
        count = len(self.plan.turns)
        share, left_s = self.passed_s / self.max_seconds, self.left_s
        if count:
            at = f'iteration {progress.iterations}' if progress.iterations else ''
            words = f'{done + 1} of {count}: {words}, {at or "starting"}'
            planned = sum(turn.blocks) + turn.warm_up
            running = progress.iterations / planned if turn.more is None else 0.0
            whole = estimate_left(
                self._turns_s,
                progress.seconds,
                running=running,
                done=done,
                count=count,
            )
            share = whole.share
            left_s = left_s if whole.left_s is None else min(whole.left_s, left_s)
        if self._others_cores is not None and self._others_cores >= _MUCH_LOAD:
            words = phrase(
                '{words}; other programs use {others_cores:.1f} cores',
                words=words,
                others_cores=self._others_cores,
            )
        known_s = left_s if left_s < float('inf') else None
        self.on_progress(words, min(share, 1.0), known_s)


class PlanProgress(NamedTuple):
    """Done share (0 to 1) of an experiment, and the estimated seconds left."""

    share: float
    """Share (0 to 1) of the experiment's time that is done."""
    left_s: float | None
    """Estimated seconds until the experiment ends; ``None`` before a first report."""


def estimate_left(
    turns_s: Sequence[float],
    passed_s: float,
    *,
    running: float = 0.0,
    done: int,
    count: int,
) -> PlanProgress:
    """Estimates the done share (0 to 1) of an experiment and the seconds to its end.

    Args:
        turns_s: What turns of this start took; those of earlier starts took nothing.
        passed_s: Since the running turn began.
        running: The share of its iterations that are done, where their number is known.
        done: Turns that have ended, in any start.
        count: All turns of the plan.
    """
    if running > _LEAST_SHARE:
        mean_s = passed_s / running
    elif turns_s:
        mean_s = sum(turns_s) / len(turns_s)
        # one that takes longer than the others may end at any moment
        running = min(passed_s / mean_s, 1.0) if mean_s else 1.0
    else:
        return PlanProgress(done / count, None)
    return PlanProgress((done + running) / count, mean_s * (count - done - running))
