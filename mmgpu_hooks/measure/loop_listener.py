"""Base class for callbacks on events of a train loop, its DataLoader and its saves.

A class that wants to hear something inherits :class:`LoopListener`, overrides the
methods that it needs, and is given to the constructors of those that tell it. The
order in one epoch of a training that validates and saves at its end::

    on_iterator_begin, on_iterator_end     the loader makes its iterator
    on_skipped_wait                        once per batch that a resume throws away
    on_iteration_end                       where a log line or an interval is due
    on_last_wait                           no batch is owed: workers may end now
    on_save_record                         after each checkpoint
    on_validation_begin ... on_validation_record, on_validation_end

Plain waits, steps and hooks are stamped on the ledger and told to nobody: between two
steps a call costs more than a stamp.
"""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.schema.recorded import SaveRecord, ValidationRecord


class LoopListener:
    """Base class with one callback per event of a train loop, which do nothing.

    No method may raise, but for the two that say so.
    """

    def on_iterator_begin(self) -> None:
        """Called before a DataLoader makes an iterator, which starts workers."""

    def on_iterator_end(self, iterator: Any) -> None:
        """Called after a DataLoader made an iterator, or failed to make one.

        Args:
            iterator: The iterator; ``None`` if it could not be made.
        """

    def on_iterator_failure(self, error: Exception) -> bool:
        """Called if a DataLoader failed to make an iterator; returns True to try again.

        Args:
            error: What it raised.

        Returns:
            True if the loader is to try once more.
        """
        return False

    def on_last_wait(self, iterator: Any) -> None:
        """Called before an epoch's last wait for data, which may end the workers.

        No batch is owed to it.

        Args:
            iterator: The iterator that is waited for.
        """

    def on_skipped_wait(self, left: int) -> None:
        """Called before waiting for a batch that a resumed training discards.

        Args:
            left: Batches that are still to be thrown away, this one included.
        """

    def on_iteration_end(self, batch_idx: int, batch: Any, outputs: Any) -> None:
        """Called after an iteration that prints a log line or ends a log interval.

        Args:
            batch_idx: Number of the iteration in its epoch.
            batch: Its batch.
            outputs: What the model's ``train_step`` returned.
        """

    def on_validation_begin(self) -> None:
        """Called before a validation inside the training."""

    def on_validation_end(self) -> None:
        """Called after a validation inside the training."""

    def on_validation_record(self, record: ValidationRecord) -> None:
        """Called after a validation, when the record of its times is complete.

        Args:
            record: What was measured.

        Raises:
            Exception: Ends the measuring of validations.
        """

    def on_save_record(self, record: SaveRecord) -> None:
        """Called after a checkpoint save, when the record of its times is complete.

        Args:
            record: What was measured.

        Raises:
            Exception: Ends the measuring of saves.
        """


NO_LISTENER = LoopListener()
"""Listener that ignores all events of the training loop: the default."""
