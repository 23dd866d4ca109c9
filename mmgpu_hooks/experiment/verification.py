"""Measures what a change of settings gives, by training both in turns."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Callable

from mmgpu_hooks.experiment.block_figures import (
    LEAST_WARM_UP,
    BlockPlan,
    SideFigures,
    is_settled,
    plan_blocks,
)
from mmgpu_hooks.experiment.blocks import (
    Block,
    BlockEndedError,
    BlockTrainer,
    FreshTraining,
    HeldTraining,
)
from mmgpu_hooks.experiment.strangers import StrangerMeter
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.model.stats import alternate, fold_gain
from mmgpu_hooks.schema import Estimate, TrialSpec, Verification

_MOST_PAIRS = 1000
_PATIENCE_S = 60.0
"""After which the user is warned of other load that hides the difference."""
_MUCH_LOAD = 0.25
"""Cores that others use: with fewer, time alone helps."""

Progress = Callable[[str, float], None]
"""Called with what is going on and the share of the time budget that is used."""


class VerificationError(Exception):
    """The settings could not be set against each other; one sentence for the user."""


class _NoMemoryError(Exception):
    """A training ran out of memory; the decisive line."""


@dataclass
class _Side:
    """One of the two settings."""

    name: str
    folder: str
    trainer: BlockTrainer
    figures: SideFigures = field(default_factory=SideFigures)


@dataclass
class _Watch:
    """The time budget, and whom to tell of it."""

    budget_s: float
    on_progress: Progress
    on_warning: Callable[[str], None]
    begin_s: float = field(default_factory=monotonic_s)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.budget_s

    @property
    def used_s(self) -> float:
        return monotonic_s() - self.begin_s

    @property
    def left_s(self) -> float:
        return self.budget_s - self.used_s

    def tell(self, words: str) -> None:
        self.on_progress(words, min(self.used_s / self.budget_s, 1.0))


def run_verification(
    before: TrialSpec,
    after: TrialSpec,
    *,
    workers: tuple[int, int],
    max_seconds: float,
    one_at_a_time: bool = False,
    on_progress: Progress = lambda words, share: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
    environ: Mapping[str, str] | None = None,
) -> Verification:
    """Train two settings in alternating blocks until their difference is known.

    Both trainings live from the first block to the last, and one is held while the
    other trains. Where they do not fit in memory together, each block is a training of
    its own. Whatever ends this, none of it is left running.

    Args:
        before: The first setting; limits in it are not heeded.
        after: The second.
        workers: Of each setting.
        max_seconds: Time budget, the start of the trainings included.
        one_at_a_time: Whether each block is to be a training of its own.
        on_progress: Told what goes on.
        on_warning: Called once with a sentence if other load hides the difference.
        environ: Environment variables to add.

    Returns:
        The gain with its interval.

    Raises:
        VerificationError: If one of them cannot train, or too few blocks were done.
        OSError: If a folder or a process cannot be made.
    """
    watch = _Watch(max_seconds, on_progress, on_warning)
    warm_up = max(LEAST_WARM_UP, 2 * max(workers))

    def verify(make: Callable[[TrialSpec], BlockTrainer], *notes: str) -> Verification:
        with contextlib.ExitStack() as stack:
            sides = []
            for name, spec in (('first', before), ('second', after)):
                trainer = make(spec)
                stack.callback(trainer.close)
                sides.append(_Side(name, spec.folder, trainer))
            return _Verifier(sides[0], sides[1], watch).run(workers, warm_up, notes)

    def verify_fresh(*notes: str) -> Verification:
        return verify(lambda spec: FreshTraining(spec, environ, warm_up), *notes)

    try:
        if one_at_a_time:
            return verify_fresh()
        try:
            return verify(lambda spec: HeldTraining(spec, environ))
        except _NoMemoryError as error:
            # side by side they need twice what the user's training does
            return verify_fresh(
                f'Both trainings did not fit in memory together ({error}), so each '
                'block was a training of its own.'
            )
    except _NoMemoryError as error:
        raise VerificationError(
            'expected two settings that train, found one that runs out of memory '
            f'({error}); free some, or lower the batch size or the workers.'
        ) from error


class _Verifier:
    """Two trainings that take turns."""

    def __init__(self, before: _Side, after: _Side, watch: _Watch) -> None:
        self._before, self._after, self._watch = before, after, watch
        # until the user is warned, and over all
        self._early, self._strangers = (
            StrangerMeter([side.trainer.read_cpu_s for side in (before, after)])
            for _ in range(2)
        )
        self._is_warned = False

    @property
    def _gain(self) -> Estimate | None:
        return fold_gain(self._before.figures.image_s, self._after.figures.image_s)

    def run(
        self, workers: tuple[int, int], warm_up: int, notes: tuple[str, ...]
    ) -> Verification:
        plan, ending = None, 'enough pairs were trained'
        try:
            plan = self._begin(workers, warm_up)
            for turn, is_after in enumerate(alternate(_MOST_PAIRS)):
                side = self._after if is_after else self._before
                block = self._train(side, plan.iterations, self._words())
                side.figures.add(block, plan.skipped)
                if turn % 2 and is_settled(self._gain):
                    ending = 'the gain is known well enough'
                    break
        except BlockEndedError as error:
            is_late = error.status == 'timed_out'
            ending = (
                'the time budget is used up' if is_late else 'a training was at its end'
            )
        cores = self._strangers.read_cores()
        return replace(self._fold(plan, ending, notes), external_cpu_cores=cores)

    def _begin(self, workers: tuple[int, int], warm_up: int) -> BlockPlan:
        """Start, warm up, and see how long blocks may be."""
        self._watch.tell('starting both trainings')
        for side in (self._before, self._after):
            with self._told_of(side):
                side.trainer.start(self._watch.end_s)
        warm_ups = [
            self._train(side, warm_up, 'warming up')
            for side in (self._before, self._after)
        ]
        return plan_blocks(warm_ups, workers, self._watch.left_s)

    def _train(self, side: _Side, iterations: int, words: str) -> Block:
        self._watch.tell(words)
        self._warn_of_load()
        with self._told_of(side):
            return side.trainer.train(iterations, self._watch.end_s)

    def _warn_of_load(self) -> None:
        if self._is_warned or self._watch.used_s < _PATIENCE_S:
            return
        self._is_warned = True
        gain, cores = self._gain, self._early.read_cores()
        if gain is not None and not gain.low <= 0 <= gain.high:
            return
        if cores is not None and cores >= _MUCH_LOAD:
            known = 'not known' if gain is None else 'still within the noise'
            self._watch.on_warning(
                f'after {self._watch.used_s:.0f} s the difference is {known}: '
                f'other programs use {cores:.1f} cores of this host. Stop '
                'them, or press Ctrl-C and run this again when the host is calm.'
            )

    @contextlib.contextmanager
    def _told_of(self, side: _Side) -> Iterator[None]:
        """Only an end that was to be expected passes as it is."""
        try:
            yield
        except BlockEndedError as error:
            if error.status == 'out_of_memory':
                raise _NoMemoryError(error.line) from error
            if error.status in ('completed', 'timed_out'):
                raise
            raise VerificationError(
                f'expected two settings that train, found that the {side.name} one '
                f'does not ({error.line}); the whole output is in {side.folder}.'
            ) from error

    def _words(self) -> str:
        gain = self._gain
        pairs = len(self._after.figures.image_s)
        if gain is None:
            return f'{pairs} pair(s) of blocks'
        return (
            f'{pairs} pairs of blocks, gain {100 * gain.value:+.1f} % '
            f'({100 * gain.low:+.1f} to {100 * gain.high:+.1f})'
        )

    def _fold(
        self, plan: BlockPlan | None, ending: str, notes: tuple[str, ...]
    ) -> Verification:
        before, after = self._before.figures, self._after.figures
        gain = self._gain
        if plan is None or gain is None:
            raise VerificationError(
                'expected at least two pairs of blocks, found '
                f'{min(len(before.image_s), len(after.image_s))} when {ending}; give '
                'it more time with --max-minutes, or a longer training.'
            )
        pairs = gain.count
        return Verification(
            gain=gain,
            before_s=statistics.fmean(before.steady_s[:pairs]),
            after_s=statistics.fmean(after.steady_s[:pairs]),
            before_start_s=_mean(before.start_s),
            after_start_s=_mean(after.start_s),
            pairs=pairs,
            iterations=pairs * plan.measured,
            seconds=self._watch.used_s,
            ending=ending,
            notes=notes,
        )


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
