"""Plan of ``mmgpu verify``: two trainings in alternating blocks of iterations.

A training is held instead of started again. Both live to the end and take turns; the
one that waits is stopped with its workers (SIGSTOP), so that it takes no core and fills
no queue. A start costs 10 to 60 s and a block 3 s, and pairs of blocks a moment apart
share what the machine is like. What does not fit in memory twice is started again for
each block.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.trial import Progress
from mmgpu_hooks.model.stats import paired_gain
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.judged import Estimate, Verification
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import (
    FIRST,
    SECOND,
    SIDES,
    BlockFigures,
    Trial,
    TrialRole,
    TrialSpec,
)

LEAST_PAIRS = 6
"""Fewest pairs of blocks (one per training) before a verification may end early.

With fewer pairs, a narrow confidence interval is often chance.

Stopping at +-2 % from 6 pairs on, a 95 % interval covers the truth 92 to 96 times in
100."""
SETTLED_GAIN = 0.02
"""Confidence half width of the speed gain (0.02: 2 %) that ends a verification."""
SETTLED_SHARE = 0.1
"""Ratio of confidence half width to speed gain that ends a verification."""

_SIDE_NAMES = {FIRST: phrase('first'), SECOND: phrase('second'), '': phrase('other')}

_LEAST_WARM_UP = 10
_BLOCK_S = 3.0
_LEAST_MEASURED, _MOST_MEASURED = 8, 400
"""Smallest and largest number of measured iterations in one block of a verification."""
_FEWEST_MEASURED = 4
"""Smallest number of measured iterations in a block, if the time limit is short."""
_RESUMED = 2
"""Number of unmeasured first iterations of a block, in addition to one per worker."""


@dataclass
class VerifyPlan(Plan):
    """Plan that runs two compared trainings alternately, a block of iterations each.

    Both trainings live until the end, and one is held while the other trains; where
    memory does not hold both, each block is a training of its own.
    """

    specs: tuple[TrialSpec, TrialSpec]
    workers: tuple[int, int]
    budget_s: float

    def choose(self, trials: Sequence[Trial]) -> Turn | None:
        blocks = _sort(trials)
        if trials and not (blocks.is_well or _is_short_of_memory(trials[-1])):
            return None
        warm_up = max(_LEAST_WARM_UP, 2 * max(self.workers))
        turn, is_warm = len(blocks.measured), len(blocks.warm_ups) == len(SIDES)
        if is_warm:
            if not turn % 2 and is_settled(blocks.gain):
                return None
            # A B B A A B B A, so that a drift cancels out
            side = SIDES[(turn + turn // 2) % 2]
            block = self._plan_block(blocks.warm_ups)
        else:
            side = SIDES[len(blocks.warm_ups)]
            block = _BlockPlan(skipped=0, measured=warm_up)
        way = 'held' if blocks.is_held else 'fresh'
        return Turn(
            f'{way} {len(blocks.warm_ups) + turn}',
            replace(self._find_spec(side), hook=None),
            blocks=(block.iterations,),
            summarize=lambda progress, _: _summarize_block(progress, block),
            time_limit_s=float('inf'),
            stays=blocks.is_held,
            warm_up=warm_up if is_warm else 0,
            title=_describe(blocks),
            role=TrialRole(side, blocks.is_held, is_warm_up=not is_warm),
        )

    def _find_spec(self, side: str) -> TrialSpec:
        first, second = self.specs
        return first if side == FIRST else second

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Returns the stored trials to reuse: warm-ups, and complete pairs of blocks.

        With them go the warm-ups by which their length was chosen, and what showed that
        both trainings do not fit in memory together.
        """
        lacking = list(filter(_is_short_of_memory, trials))
        done = [trial for trial in trials if trial.status == 'completed']
        blocks = _sort([*lacking, *done])
        measured = blocks.measured[: len(blocks.measured) // 2 * 2]
        kept = [block.trial for block in (*blocks.warm_ups, *measured)]
        return [*lacking, *kept] if measured else []

    def finish(self, outcome: Outcome) -> Verification:
        """Computes the second training's gain in speed, with its confidence interval.

        Raises:
            UserError: If one of them cannot train, or too few blocks were done.
        """
        trials = outcome.trials
        blocks = _sort(trials)
        ending, gain = self._name_ending(outcome), blocks.gain
        if gain is None:
            pairs = len(blocks.list_figures(SECOND))
            raise UserError(
                phrase(
                    'expected at least two pairs of blocks, found {pairs} when '
                    '{ending}; give it more time with --max-minutes, or a longer '
                    'training.',
                    pairs=pairs,
                    ending=ending,
                )
            )
        notes = list(outcome.notes)
        for lacking in filter(_is_short_of_memory, trials):
            notes.append(
                phrase(
                    'Both trainings did not fit in memory together ({error}), so each '
                    'block was a training of its own.',
                    error=lacking.error,
                )
            )
        before, after = (blocks.summarize(side, gain.count) for side in SIDES)
        return Verification(
            gain=gain,
            before_s=before.steady_s,
            after_s=after.steady_s,
            before_start_s=before.start_s,
            after_start_s=after.start_s,
            iterations=gain.count * self._plan_block(blocks.warm_ups).measured,
            seconds=outcome.seconds,
            ending=ending,
            external_cpu_cores=outcome.external_cpu_cores,
            notes=tuple(notes),
            batches_per_epoch=before.epoch,
            after_batches_per_epoch=after.epoch,
            iteration_change=_invert(blocks.speed_up),
            before_images_per_s=before.images_per_s,
            after_images_per_s=after.images_per_s,
        )

    def _name_ending(self, outcome: Outcome) -> str:
        last = outcome.trials[-1] if outcome.trials else None
        if outcome.is_late or last is None or last.status == 'timed_out':
            return phrase('the time budget is used up')
        if last.status == 'completed':
            if last.figures:
                return phrase('the gain is known well enough')
            return phrase('a training was at its end')
        side = _SIDE_NAMES[last.role.side if last.role is not None else '']
        raise UserError(
            phrase(
                'expected two settings that train, found that the {side} one does not '
                '({error}); the whole output is in {folder}.',
                side=side,
                error=last.error,
                folder=last.folder,
            )
        )

    def _plan_block(self, warm_ups: Sequence[_MeasuredTrial]) -> _BlockPlan:
        """Chooses a block's number of iterations by warm-up trials and time limit.

        It is long enough to average over batches, and short enough to share the state
        of the machine. What a worker waits for while it is held (storage, a sleep) goes
        on, and comes as a gift to its next batch: a batch of each worker is left out,
        and two for the caches.
        """
        iteration_s = [warm_up.figures.late_s for warm_up in warm_ups]
        skipped = max(self.workers) + _RESUMED
        wanted = math.ceil(_BLOCK_S / statistics.fmean(iteration_s))
        wanted = max(min(wanted, _MOST_MEASURED), _LEAST_MEASURED)
        left_s = self.budget_s - sum(warm_up.trial.seconds for warm_up in warm_ups)
        affordable = [left_s / math.fsum(iteration_s)]
        lefts = [warm_up.figures.left for warm_up in warm_ups]
        affordable += [left for left in lefts if left is not None]
        most = math.floor(min(affordable) / LEAST_PAIRS) - skipped
        return _BlockPlan(skipped, max(min(wanted, most), _FEWEST_MEASURED))


class _BlockPlan(NamedTuple):
    """Numbers of skipped and measured iterations in one block of a verification."""

    skipped: int
    """Number of iterations at the start of a block that are not measured."""
    measured: int

    @property
    def iterations(self) -> int:
        """Number of all iterations in a block, skipped and measured."""
        return self.skipped + self.measured


class _MeasuredTrial(NamedTuple):
    """Completed block of one of two compared trainings, with its iteration times."""

    trial: Trial
    side: str
    """Name of the compared training that ran the block, one of :data:`SIDES`."""
    figures: BlockFigures


def _is_short_of_memory(trial: Trial) -> bool:
    """True if a trial failed as memory cannot hold both compared trainings."""
    is_held = trial.role is not None and trial.role.is_held
    return is_held and trial.status == 'out_of_memory'


@dataclass(frozen=True)
class _SideFigures:
    """Mean iteration times and speed of one of two compared trainings."""

    steady_s: float
    """Mean seconds of an iteration that does not start an epoch."""
    start_s: float | None
    """Mean seconds by which an epoch's first iteration takes longer than others."""
    images_per_s: float | None
    epoch: int | None
    """Number of iterations per epoch; ``None`` if unknown."""


@dataclass(frozen=True)
class _Blocks:
    """Trials of two compared trainings, divided into warm-ups and measured blocks."""

    warm_ups: list[_MeasuredTrial]
    measured: list[_MeasuredTrial]
    is_held: bool
    is_well: bool
    """True if all blocks of iterations were trained to the end."""

    def list_figures(self, side: str) -> list[BlockFigures]:
        """Returns iteration times and batch size of a training's measured blocks."""
        return [block.figures for block in self.measured if block.side == side]

    @property
    def gain(self) -> Estimate | None:
        """Second training's relative gain in images/s, or iterations/s if unknown."""
        is_known = all(block.figures.batch_size for block in self.measured)
        before, after = (
            [
                figures.steady_s / ((figures.batch_size or 1) if is_known else 1)
                for figures in self.list_figures(side)
            ]
            for side in SIDES
        )
        return paired_gain(before, after)

    @property
    def speed_up(self) -> Estimate | None:
        """Relative gain of the second training in iterations per second (0.1: 10 %)."""
        before, after = (
            [figures.steady_s for figures in self.list_figures(side)] for side in SIDES
        )
        return paired_gain(before, after)

    def summarize(self, side: str, pairs: int) -> _SideFigures:
        """Averages a training's iteration seconds over its first ``pairs`` blocks."""
        found = self.list_figures(side)
        starts = [start_s for figures in found for start_s in figures.starts_s]
        steady_s = statistics.fmean(figures.steady_s for figures in found[:pairs])
        batch_size = found[0].batch_size
        return _SideFigures(
            steady_s=steady_s,
            start_s=statistics.fmean(starts) if starts else None,
            images_per_s=batch_size / steady_s if batch_size else None,
            epoch=found[0].epoch,
        )


def _sort(trials: Sequence[Trial]) -> _Blocks:
    is_held = not any(map(_is_short_of_memory, trials))
    warm_ups: list[_MeasuredTrial] = []
    measured: list[_MeasuredTrial] = []
    is_well = True
    for trial in trials:
        role = trial.role
        # side by side they need twice what the user's training does: begin again
        if role is None or role.is_held != is_held:
            continue
        if trial.status != 'completed' or not trial.figures:
            is_well = False
            continue
        figures = msgspec.convert(trial.figures, BlockFigures)
        group = warm_ups if role.is_warm_up else measured
        group.append(_MeasuredTrial(trial, role.side, figures))
    return _Blocks(warm_ups, measured, is_held, is_well)


def _invert(speed_up: Estimate | None) -> Estimate | None:
    """Converts a relative change of iterations/s to one of seconds per iteration."""
    if speed_up is None:
        return None
    # the shortest time is the highest speed
    value, low, high = (
        1 / (1 + gain) - 1 for gain in (speed_up.value, speed_up.high, speed_up.low)
    )
    return Estimate(value, low, high, speed_up.count)


def is_settled(gain: Estimate | None) -> bool:
    """True if the speed gain is known precisely enough to end a verification.

    Only after an even number of pairs: then each setting was first as often.
    """
    if gain is None or gain.count < LEAST_PAIRS or gain.count % 2:
        return False
    return gain.half_width <= max(SETTLED_GAIN, SETTLED_SHARE * abs(gain.value))


def _summarize_block(progress: Progress, plan: _BlockPlan) -> dict[str, Any]:
    """Returns iteration times and batch size of a trial's last block, as JSON.

    They are empty if training ended within the block.
    """
    block = progress.blocks[-1] if progress.blocks else None
    is_whole = block is not None and len(block.seconds) == plan.iterations
    if block is None or not is_whole or progress.status != 'completed':
        return {}
    steady = [
        seconds
        for index, seconds in enumerate(block.seconds)
        if index >= plan.skipped and index not in block.starts
    ]
    mean_s = statistics.fmean(steady or block.seconds)
    figures = BlockFigures(
        steady_s=mean_s,
        batch_size=block.batch_size,
        epoch=block.epoch,
        starts_s=[block.seconds[index] - mean_s for index in block.starts],
        late_s=statistics.fmean(block.seconds[len(block.seconds) // 2 :]),
        left=block.left,
    )
    kept: dict[str, Any] = msgspec.to_builtins(figures)
    return kept


def _describe(blocks: _Blocks) -> str:
    if len(blocks.warm_ups) < 2:
        return phrase('starting both trainings')
    pairs = len(blocks.list_figures(SECOND))
    gain, words = blocks.gain, phrase('{pairs} of blocks', pairs=pairs)
    if gain is None:
        return words
    low, high = 100 * gain.low, 100 * gain.high
    return phrase(
        '{words}, gain {gain_pct:+.1f} % ({low_pct:+.1f} to {high_pct:+.1f})',
        words=words,
        gain_pct=100 * gain.value,
        low_pct=low,
        high_pct=high,
    )
