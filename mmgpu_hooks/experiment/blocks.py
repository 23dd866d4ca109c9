"""Trainings that train a block of iterations when told to, and stand still else.

Two of them take turns: each is held, with its workers, while the other trains. Held
workers make no batches ahead, so a block goes on exactly where the last one ended and
begins with neither a full nor an empty queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Union

from mmgpu_hooks.experiment.trial import RunningTrial
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import TrialSpec


@dataclass(frozen=True)
class Block:
    """Consecutive iterations of one training."""

    seconds: tuple[float, ...]
    """Each from the end of the one before."""
    starts: tuple[int, ...] = ()
    """Indices of those that began an epoch."""
    batch_size: int | None = None
    left: int | None = None
    """Iterations that the training still has."""


class BlockEndedError(Exception):
    """The training ended in the middle of a block.

    Args:
        status: Of :data:`~mmgpu_hooks.schema.trial.TRIAL_STATUSES`.
        line: The decisive line, if any.
    """

    def __init__(self, status: str, line: str | None) -> None:
        super().__init__(line or status)
        self.status = status
        self.line = line


class HeldTraining:
    """One training for all blocks, held between them.

    Args:
        spec: What to train; its limits and its evidence are left out.
        environ: Environment variables to add.
    """

    def __init__(self, spec: TrialSpec, environ: Mapping[str, str] | None) -> None:
        # intervals with pauses inside would mislead whoever reads them later
        spec = replace(spec, evidence=False, iterations=None, seconds=None)
        self._trial = RunningTrial(spec, block=1, environ=environ)
        self._is_waiting = False

    def close(self) -> None:
        """End it with all its workers."""
        self._trial.close()

    def read_cpu_s(self) -> float:
        """CPU seconds it used so far, its workers included."""
        return self._trial.tree.read_cpu_s()

    def start(self, deadline_s: float) -> None:
        """Wait for the end of the first iteration.

        Raises:
            BlockEndedError: If it does not come.
        """
        if not self._is_waiting:
            self._wait(deadline_s)

    def train(self, iterations: int, deadline_s: float) -> Block:
        """Train a block.

        Args:
            iterations: Of the block.
            deadline_s: On the monotonic clock.

        Raises:
            BlockEndedError: If the training ended, or the deadline came.
        """
        self.start(deadline_s)
        self._trial.tree.resume()
        self._trial.send(iterations)
        self._is_waiting = False
        return self._wait(deadline_s)

    def _wait(self, deadline_s: float) -> Block:
        while monotonic_s() < deadline_s:
            for event in self._trial.read_events():
                if event['event'] == 'over':
                    raise BlockEndedError(event['status'], event['error'])
                self._trial.tree.hold()
                self._is_waiting = True
                return Block(
                    tuple(event['seconds']),
                    tuple(event['starts']),
                    event['batch_size'],
                    event['left'],
                )
        raise BlockEndedError('timed_out', None)


class FreshTraining:
    """A training of its own for each block, for what does not fit in memory twice.

    Args:
        spec: As for `HeldTraining`.
        environ: As for `HeldTraining`.
        warm_up: Iterations before each block.
    """

    def __init__(
        self, spec: TrialSpec, environ: Mapping[str, str] | None, warm_up: int
    ) -> None:
        self._spec, self._environ, self._warm_up = spec, environ, warm_up
        self._blocks, self._cpu_s = 0, 0.0

    def close(self) -> None:
        """Nothing runs between two blocks."""

    def read_cpu_s(self) -> float:
        """CPU seconds of the blocks that ended, their workers included."""
        return self._cpu_s

    def start(self, deadline_s: float) -> None:
        """Nothing is started ahead."""

    def train(self, iterations: int, deadline_s: float) -> Block:
        """As :meth:`HeldTraining.train`."""
        self._blocks += 1
        folder = f'{self._spec.folder}/{self._blocks:03d}'
        spec = replace(self._spec, folder=folder)
        with closing(HeldTraining(spec, self._environ)) as fresh:
            try:
                fresh.train(self._warm_up, deadline_s)
                return fresh.train(iterations, deadline_s)
            finally:
                self._cpu_s += fresh.read_cpu_s()


BlockTrainer = Union[HeldTraining, FreshTraining]
"""What trains blocks with one setting."""
