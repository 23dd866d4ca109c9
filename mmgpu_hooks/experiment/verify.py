"""The plan of ``mmgpu verify``: blocks of two trainings in turns, A B B A."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.trial import Progress
from mmgpu_hooks.model.stats import paired_gain
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.judged import Estimate, Verification
from mmgpu_hooks.schema.tried import SECOND, SIDES, Trial, TrialRole, TrialSpec

LEAST_PAIRS = 6
"""Below these a narrow interval is too often narrow by chance: stopping at +-2 % from
6 pairs on, an interval of 95 % covers the truth 92 to 96 times in 100."""
SETTLED = 0.02
"""The gain is known well enough when its interval is +- this,"""
SETTLED_SHARE = 0.1
"""or this share of the gain itself."""

_LEAST_WARM_UP = 10
_BLOCK_S = 3.0
_LEAST, _MOST, _FEWEST = 8, 400, 4
_RESUMED = 2
"""Iterations after a halt whose caches are cold."""


@dataclass
class VerifyPlan(Plan):
    """Two sides. Both trainings live until the end, and one is held while the other
    trains; where memory does not hold both, each block is a training of its own.
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
            skipped, measured = self._plan_block(blocks.warm_ups)
        else:
            side, skipped, measured = SIDES[len(blocks.warm_ups)], 0, warm_up
        iterations = skipped + measured
        way = 'held' if blocks.is_held else 'fresh'
        return Turn(
            f'{way} {len(blocks.warm_ups) + turn}',
            replace(dict(zip(SIDES, self.specs))[side], hook=None),
            blocks=(iterations,),
            summarize=lambda progress, _: _summarize_block(
                progress, skipped, iterations
            ),
            time_limit_s=float('inf'),
            stays=blocks.is_held,
            warm_up=warm_up if is_warm else 0,
            title=_describe(blocks),
            role=TrialRole(side, blocks.is_held, is_warm_up=not is_warm),
        )

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Whole pairs, with the warm-ups by which their length was chosen, and what
        showed that both trainings do not fit in memory together."""
        lacking = list(filter(_is_short_of_memory, trials))
        done = [trial for trial in trials if trial.status == 'completed']
        blocks = _sort([*lacking, *done])
        measured = blocks.measured[: len(blocks.measured) // 2 * 2]
        return [*lacking, *blocks.warm_ups, *measured] if measured else []

    def finish(self, outcome: Outcome) -> Verification:
        """The gain with its interval.

        Raises:
            UserError: If one of them cannot train, or too few blocks were done.
        """
        trials = outcome.trials
        blocks = _sort(trials)
        ending, gain = self._name_ending(outcome), blocks.gain
        if gain is None:
            raise UserError(
                f'expected at least two pairs of blocks, found '
                f'{len(blocks.of(SECOND))} when {ending}; give it more time with '
                '--max-minutes, or a longer training.'
            )
        notes = list(outcome.notes)
        for lacking in filter(_is_short_of_memory, trials):
            notes.append(
                f'Both trainings did not fit in memory together ({lacking.error}), so '
                'each block was a training of its own.'
            )
        before, after = (blocks.summarize(side, gain.count) for side in SIDES)
        return Verification(
            gain=gain,
            before_s=before.steady_s,
            after_s=after.steady_s,
            before_start_s=before.start_s,
            after_start_s=after.start_s,
            iterations=gain.count * self._plan_block(blocks.warm_ups)[1],
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
            return 'the time budget is used up'
        if last.status == 'completed':
            if last.figures:
                return 'the gain is known well enough'
            return 'a training was at its end'
        side = last.role.side if last.role is not None else 'other'
        raise UserError(
            f'expected two settings that train, found that the {side} one does not '
            f'({last.error}); the whole output is in {last.folder}.'
        )

    def _plan_block(self, warm_ups: Sequence[Trial]) -> tuple[int, int]:
        """Iterations that are skipped and measured, long enough to average over
        batches, short enough to share the state of the machine.

        What a worker waits for while it is held (storage, a sleep) goes on, and comes
        as a gift to its next batch: a batch of each worker is left out, and two for
        the caches.
        """
        iteration_s = [trial.figures['late_s'] for trial in warm_ups]
        skipped = max(self.workers) + _RESUMED
        measured = min(math.ceil(_BLOCK_S / statistics.fmean(iteration_s)), _MOST)
        left_s = self.budget_s - sum(trial.seconds for trial in warm_ups)
        affordable = [left_s / math.fsum(iteration_s)]
        lefts = [trial.figures['left'] for trial in warm_ups]
        affordable += [left for left in lefts if left is not None]
        most = math.floor(min(affordable) / LEAST_PAIRS) - skipped
        return skipped, max(min(max(measured, _LEAST), most), _FEWEST)


def _is_short_of_memory(trial: Trial) -> bool:
    """True if it failed because both trainings are in memory together."""
    is_held = trial.role is not None and trial.role.is_held
    return is_held and trial.status == 'out_of_memory'


@dataclass(frozen=True)
class _Side:
    """Figures of one side over its blocks."""

    steady_s: float
    """A steady iteration."""
    start_s: float | None
    """What an epoch's start adds to one."""
    images_per_s: float | None
    epoch: int | None
    """Iterations of an epoch."""


@dataclass(frozen=True)
class _Blocks:
    """Trials in their roles."""

    warm_ups: list[Trial]
    measured: list[Trial]
    is_held: bool
    is_well: bool
    """True if none of them failed or ended early."""

    def of(self, side: str) -> list[Mapping[str, Any]]:
        """Figures of the measured blocks of one side."""
        return [
            trial.figures
            for trial in self.measured
            if trial.role is not None and trial.role.side == side
        ]

    @property
    def gain(self) -> Estimate | None:
        """In images, or in iterations where a batch size is unknown."""
        sizes = [figures['batch_size'] for side in SIDES for figures in self.of(side)]
        is_known = all(sizes)
        before, after = (
            [
                figures['steady_s'] / (figures['batch_size'] if is_known else 1)
                for figures in self.of(side)
            ]
            for side in SIDES
        )
        return paired_gain(before, after)

    @property
    def speed_up(self) -> Estimate | None:
        """The gain in iterations."""
        before, after = (
            [figures['steady_s'] for figures in self.of(side)] for side in SIDES
        )
        return paired_gain(before, after)

    def summarize(self, side: str, pairs: int) -> _Side:
        """Figures of one side over the first so many pairs."""
        found = self.of(side)
        starts = [start for figures in found for start in figures['starts_s']]
        steady_s = statistics.fmean(figures['steady_s'] for figures in found[:pairs])
        batch_size = found[0]['batch_size']
        return _Side(
            steady_s,
            statistics.fmean(starts) if starts else None,
            batch_size / steady_s if batch_size else None,
            found[0]['epoch'],
        )


def _sort(trials: Sequence[Trial]) -> _Blocks:
    is_held = not any(map(_is_short_of_memory, trials))
    # side by side they need twice what the user's training does: begin again
    mine = [
        (trial, trial.role)
        for trial in trials
        if trial.role is not None and trial.role.is_held == is_held
    ]
    done = [pair for pair in mine if pair[0].status == 'completed' and pair[0].figures]
    return _Blocks(
        [trial for trial, role in done if role.is_warm_up],
        [trial for trial, role in done if not role.is_warm_up],
        is_held,
        len(done) == len(mine),
    )


def _invert(speed_up: Estimate | None) -> Estimate | None:
    """The change of the time that an iteration takes, of the gain in iterations."""
    if speed_up is None:
        return None
    # the shortest time is the highest speed
    value, low, high = (
        1 / (1 + gain) - 1 for gain in (speed_up.value, speed_up.high, speed_up.low)
    )
    return Estimate(value, low, high, speed_up.count)


def is_settled(gain: Estimate | None) -> bool:
    """True if more pairs would show nothing that matters.

    Only after an even number of pairs: then each setting was first as often.
    """
    if gain is None or gain.count < LEAST_PAIRS or gain.count % 2:
        return False
    return gain.half_width <= max(SETTLED, SETTLED_SHARE * abs(gain.value))


def _summarize_block(
    progress: Progress, skipped: int, iterations: int
) -> dict[str, Any]:
    """What the last block took; nothing when the training ended within it."""
    block = progress.blocks[-1] if progress.blocks else None
    is_whole = block is not None and len(block.seconds) == iterations
    if block is None or not is_whole or progress.status != 'completed':
        return {}
    steady = [
        seconds
        for index, seconds in enumerate(block.seconds)
        if index >= skipped and index not in block.starts
    ]
    mean_s = statistics.fmean(steady or block.seconds)
    return {
        'steady_s': mean_s,
        'batch_size': block.batch_size,
        'epoch': block.epoch,
        'starts_s': [block.seconds[index] - mean_s for index in block.starts],
        'late_s': statistics.fmean(block.seconds[len(block.seconds) // 2 :]),
        'left': block.left,
    }


def _describe(blocks: _Blocks) -> str:
    if len(blocks.warm_ups) < 2:
        return 'starting both trainings'
    gain, words = blocks.gain, f'{plural(len(blocks.of(SECOND)), "pair")} of blocks'
    if gain is None:
        return words
    low, high = 100 * gain.low, 100 * gain.high
    return f'{words}, gain {100 * gain.value:+.1f} % ({low:+.1f} to {high:+.1f})'
