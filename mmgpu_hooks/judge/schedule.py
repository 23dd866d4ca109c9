"""Plans a training's validations and saves, as MMEngine's loops and CheckpointHook do.

Positions are iterations of the whole training, done when it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mmgpu_hooks.schema.recorded import RunRecord, TrainingPlan

_MOST_EVENTS = 20_000
"""Maximum number of validations and saves that are listed one by one."""


class PlannedEvent(NamedTuple):
    """Validation or checkpoint save that is planned in a training."""

    iteration: int
    """Number of iterations of the whole training done when the event happens."""
    is_save: bool


@dataclass(frozen=True)
class Schedule:
    """Length of a training, with its planned validations and saves."""

    iterations: int
    """Number of iterations of the whole training."""
    epoch: int | None
    """Number of iterations per epoch; ``None`` in iteration-based training."""
    plan: TrainingPlan | None
    """Plan of validations and saves; ``None`` if it is unknown."""

    @classmethod
    def of(cls, run: RunRecord) -> Schedule | None:
        """Reads the schedule of a run; ``None`` if its length is unknown."""
        if run.loop == 'epoch' and run.max_epochs and run.loader.batches_per_epoch:
            epoch = run.loader.batches_per_epoch
            return cls(run.max_epochs * epoch, epoch, run.plan)
        if run.loop == 'iter' and run.max_iters:
            return cls(run.max_iters, None, run.plan)
        return None

    @property
    def unit(self) -> int:
        """Number of iterations in one unit of the loop: an epoch, or 1."""
        return self.epoch or 1

    def count_validations(self, done: int) -> int | None:
        """Counts the validations planned after an iteration; ``None`` if unknown."""
        return None if self.plan is None else sum(map(len, self._validations(done)))

    def count_saves(self, done: int) -> int | None:
        """Counts the saves planned after an iteration, except those of a best model."""
        return None if self.plan is None else sum(map(len, self._saves(done)))

    def count_starts(self, done: int) -> int:
        """Counts the epochs of the training that begin after an iteration."""
        if self.epoch is None:
            return 0
        return max(self.iterations // self.epoch - -(-done // self.epoch), 0)

    def list_events(self, done: int) -> list[PlannedEvent] | None:
        """Lists validations and saves planned after an iteration, ordered by iteration.

        Returns:
            ``None`` where there are too many, or the schedule is unknown.
        """
        saves, validations = self._saves(done), self._validations(done)
        if self.plan is None or sum(map(len, saves + validations)) > _MOST_EVENTS:
            return None
        found = [PlannedEvent(at, True) for span in saves for at in span]
        found += [PlannedEvent(at, False) for span in validations for at in span]
        return sorted(found, key=lambda event: (event.iteration, not event.is_save))

    def _validations(self, done: int) -> list[range]:
        """Lists the iterations after which the training validates, as ranges."""
        plan, unit = self.plan, self.unit
        if plan is None:
            return []
        last, found = self.iterations // unit, list[range]()
        begin = max(done // unit + 1, plan.val_begin, 1)
        nexts = [span.begin for span in plan.val_intervals[1:]]
        for span, following in zip(plan.val_intervals, [*nexts, last + 2]):
            # the loop takes the interval of the unit that comes next
            first, step = max(begin, span.begin - 1), max(span.interval, 1)
            until = min(following - 2, last)
            found.append(range(-(-first // step) * step, until + 1, step))
        is_at_end = any(last in span for span in found)
        if found and not is_at_end and last >= begin:
            found.append(range(last, last + 1))
        return [
            range(span.start * unit, span.stop * unit, span.step * unit)
            for span in found
        ]

    def _saves(self, done: int) -> list[range]:
        """Lists the iterations after which a checkpoint is saved, as ranges."""
        plan, found, last = self.plan, list[range](), self.iterations
        if plan is None:
            return []
        if plan.save_interval:
            unit = self.unit if plan.saves_by_epoch else 1
            first, step = plan.save_begin * unit, plan.save_interval * unit
            passed = max(-(-(done + 1 - first) // step), 0)
            found.append(range(first + passed * step, last + 1, step))
        is_at_end = any(last in span for span in found)
        if plan.saves_last and not is_at_end and done < last:
            found.append(range(last, last + 1))
        return found
