"""The plan of ``mmgpu verify``: blocks of two settings in turns, A B B A."""

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
from mmgpu_hooks.schema.tried import Trial, TrialSpec

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
    """Two settings. Both trainings live until the end, and one is held while the other
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
        turn, is_warm = len(blocks.measured), len(blocks.warm_ups) == 2
        if is_warm:
            if not turn % 2 and is_settled(blocks.gain):
                return None
            # A B B A A B B A, so that a drift cancels out
            side = (turn + turn // 2) % 2
            skipped, measured = self._plan_block(blocks.warm_ups)
        else:
            side, skipped, measured = len(blocks.warm_ups), 0, warm_up
        iterations = skipped + measured
        return Turn(
            f'{"held" if blocks.is_held else "fresh"} {len(blocks.warm_ups) + turn}',
            replace(self.specs[side], hook=None),
            blocks=(iterations,),
            summarize=lambda progress, _: _summarize_block(
                progress, side, skipped, iterations
            ),
            time_limit_s=float('inf'),
            stays=blocks.is_held,
            warm_up=warm_up if is_warm else 0,
            title=_describe(blocks),
        )

    def keep(self, trials: Sequence[Trial]) -> list[Trial]:
        """Whole pairs, with the warm-ups by which their length was chosen."""
        blocks = _sort([one for one in trials if one.status == 'completed'])
        measured = blocks.measured[: len(blocks.measured) // 2 * 2]
        return [*blocks.warm_ups, *measured] if measured else []

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
                f'expected at least two pairs of blocks, found {len(blocks.of(1))} '
                f'when {ending}; give it more time with --max-minutes, or a longer '
                'training.'
            )
        notes = list(outcome.notes)
        for lacking in filter(_is_short_of_memory, trials):
            notes.append(
                f'Both trainings did not fit in memory together ({lacking.error}), so '
                'each block was a training of its own.'
            )
        (before_s, before_start_s), (after_s, after_start_s) = (
            blocks.summarize(side, gain.count) for side in (0, 1)
        )
        return Verification(
            gain=gain,
            before_s=before_s,
            after_s=after_s,
            before_start_s=before_start_s,
            after_start_s=after_start_s,
            iterations=gain.count * self._plan_block(blocks.warm_ups)[1],
            seconds=outcome.seconds,
            ending=ending,
            external_cpu_cores=outcome.external_cpu_cores,
            notes=tuple(notes),
        )

    def _name_ending(self, outcome: Outcome) -> str:
        last = outcome.trials[-1] if outcome.trials else None
        if outcome.is_late or last is None or last.status == 'timed_out':
            return 'the time budget is used up'
        if last.status == 'completed':
            if last.figures:
                return 'the gain is known well enough'
            return 'a training was at its end'
        side = 'first' if last.folder == self.specs[0].folder else 'second'
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
    """Whether it failed because both trainings are in memory together."""
    return trial.name.startswith('held') and trial.status == 'out_of_memory'


@dataclass(frozen=True)
class _Blocks:
    """Trials in their roles."""

    warm_ups: list[Trial]
    measured: list[Trial]
    is_held: bool
    is_well: bool
    """Whether none of them failed or ended early."""

    def of(self, side: int) -> list[Mapping[str, Any]]:
        return [one.figures for one in self.measured if one.figures['side'] == side]

    @property
    def gain(self) -> Estimate | None:
        before, after = ([f['image_s'] for f in self.of(side)] for side in (0, 1))
        return paired_gain(before, after)

    def summarize(self, side: int, pairs: int) -> tuple[float, float | None]:
        """A steady iteration of one side, and what an epoch's start adds to one."""
        found = self.of(side)
        starts = [start for figures in found for start in figures['starts_s']]
        steady_s = statistics.fmean(figures['steady_s'] for figures in found[:pairs])
        return steady_s, statistics.fmean(starts) if starts else None


def _sort(trials: Sequence[Trial]) -> _Blocks:
    is_held = not any(map(_is_short_of_memory, trials))
    # side by side they need twice what the user's training does: begin again
    way = 'held' if is_held else 'fresh'
    mine = [trial for trial in trials if trial.name.startswith(way)]
    done = [one for one in mine if one.status == 'completed' and one.figures]
    return _Blocks(done[:2], done[2:], is_held, len(done) == len(mine))


def is_settled(gain: Estimate | None) -> bool:
    """Whether more pairs would show nothing that matters.

    Only after an even number of pairs: then each setting was first as often.
    """
    if gain is None or gain.count < LEAST_PAIRS or gain.count % 2:
        return False
    return gain.half_width <= max(SETTLED, SETTLED_SHARE * abs(gain.value))


def _summarize_block(
    progress: Progress, side: int, skipped: int, iterations: int
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
        'side': side,
        'steady_s': mean_s,
        'image_s': mean_s / (block.batch_size or 1),
        'starts_s': [block.seconds[index] - mean_s for index in block.starts],
        'late_s': statistics.fmean(block.seconds[len(block.seconds) // 2 :]),
        'left': block.left,
    }


def _describe(blocks: _Blocks) -> str:
    if len(blocks.warm_ups) < 2:
        return 'starting both trainings'
    gain, words = blocks.gain, f'{plural(len(blocks.of(1)), "pair")} of blocks'
    if gain is None:
        return words
    low, high = 100 * gain.low, 100 * gain.high
    return f'{words}, gain {100 * gain.value:+.1f} % ({low:+.1f} to {high:+.1f})'
