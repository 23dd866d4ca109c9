"""The setting ``persistent_workers``: workers that live through all epochs."""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.memory import find_worker_growth
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import COVERAGE, START_ERROR
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.recommend.job import (
    Choice,
    Decision,
    Gain,
    Job,
    Setting,
    Unpredicted,
)
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import Flag


class PersistentWorkers(Setting):
    """Decides on persistent workers by the time that worker starts take each epoch."""

    name = 'persistent_workers'
    noun = phrase('Workers that live through all epochs')
    values = Flag(is_optional=True)
    resting = False
    rules = ('MG104',)

    def read(self, run: Run) -> bool:
        """Reads if the run's workers lived through all epochs; False if it has none."""
        loader = run.meta.loader
        return bool(loader.persistent_workers) and bool(loader.num_workers)

    def settle(self, job: Job, at: Choice) -> bool:
        """True (persistent) if worker starts cost time and host memory suffices."""
        recorded, workers = job.run.meta.loader, at['num_workers']
        if not workers:
            return False
        if recorded.persistent_workers is not False:
            return bool(job.old[self.name])
        if workers > job.cap(at).workers:
            return False
        is_new = not recorded.num_workers
        return count_starts(job.run) >= 2 if is_new else starts_cost(job.run)

    def apply(self, job: Job, then: Prospect, new: bool, slip: float = 0.0) -> Prospect:
        """Predicts training time (a `Prospect`) with or without persistent workers."""
        return replace(then, loader=replace(then.loader, persistent_workers=bool(new)))

    def judge_unpredicted(self, run: Run) -> Unpredicted | None:
        """Returns a change to persistent workers if measured starts justify it."""
        loader = run.meta.loader
        ends = bool(loader.num_workers) and loader.persistent_workers is False
        if not run.figures.is_enough or not ends or not starts_cost(run):
            return None
        starts = count_starts(run)
        share = run.figures.run_share(run.figures.startup_s) * (starts - 1) / starts
        reach = COVERAGE * START_ERROR * share
        gain = Gain(share, share - reach, share + reach)
        return Unpredicted(True, gain, _why_keep(run))

    def why(self, decision: Decision) -> Text:
        """Phrases how much time starting workers each epoch costs, or would cost."""
        run = decision.job.run
        if not decision.new[self.name]:
            return phrase('There are no workers to keep.')
        if not decision.old['num_workers']:
            return phrase(
                'New workers would otherwise be started {starts:d} times.',
                starts=count_starts(run),
            )
        return _why_keep(run)

    def cite(self, decision: Decision) -> tuple[str, ...]:
        """Returns the codes of the rules on worker starts; none without workers."""
        return self.rules if decision.new[self.name] else ()


def count_starts(run: Run) -> int:
    """Counts the epochs that the DataLoader starts: as configured, or else as recorded.

    A loop that counts iterations says nothing of its epochs, so only what was seen
    counts.
    """
    record = run.meta
    if record.loop == 'epoch' and record.max_epochs:
        return record.max_epochs
    return run.figures.epoch_starts


def starts_cost(run: Run) -> bool:
    """True if starting workers each epoch costs time and frees no leaked memory.

    Workers that grow give their memory back when an epoch ends them: they stay so.
    """
    share = run.figures.run_share(run.figures.startup_s)
    if count_starts(run) < 2 or share < thresholds.STARTUP_MEASURABLE:
        return False
    return find_worker_growth(run) is None


def _why_keep(run: Run) -> Text:
    return phrase(
        'Starting workers took {startup_s:sum} in {epoch_starts}.', run.figures
    )
