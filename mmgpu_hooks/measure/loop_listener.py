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
    """Base class with one callback per event of a train loop; each does nothing.

    No method may raise, but for the two that say so.
    """

    def on_iterator_begin(self) -> None:
        """Lets a subclass act before a DataLoader makes an iterator and its workers."""

    def on_iterator_end(self, iterator: Any) -> None:
        """Lets a subclass act after a DataLoader made an iterator, or failed to.

        Args:
            iterator: The iterator; ``None`` if it could not be made.
        """

    def on_iterator_failure(self, error: Exception) -> bool:
        """Returns True if a DataLoader that failed to make an iterator is to try again.

        Args:
            error: What it raised.

        Returns:
            True if the loader is to try once more.
        """
        return False

    def on_last_wait(self, iterator: Any) -> None:
        """Lets a subclass act before an epoch's last data wait, which may end workers.

        No batch is owed to it.

        Args:
            iterator: The iterator that is waited for.
        """

    def on_skipped_wait(self, left: int) -> None:
        """Lets a subclass act before the wait for a batch that a resumed run discards.

        Args:
            left: Batches that are still to be thrown away, this one included.
        """

    def on_iteration_end(self, batch_idx: int, batch: Any, outputs: Any) -> None:
        """Lets a subclass act after an iteration that logs or ends a log interval.

        Args:
            batch_idx: Number of the iteration in its epoch.
            batch: Its batch.
            outputs: What the model's ``train_step`` returned.
        """

    def on_validation_begin(self) -> None:
        """Lets a subclass act before a validation inside the training."""

    def on_validation_end(self) -> None:
        """Lets a subclass act after a validation inside the training."""

    def on_validation_record(self, record: ValidationRecord) -> None:
        """Lets a subclass use the complete record of a validation's times.

        Args:
            record: What was measured.

        Raises:
            Exception: Ends the measuring of validations.
        """

    def on_save_record(self, record: SaveRecord) -> None:
        """Lets a subclass use the complete record of a checkpoint save's times.

        Args:
            record: What was measured.

        Raises:
            Exception: Ends the measuring of saves.
        """


NO_LISTENER = LoopListener()
"""Listener that ignores all events of the training loop: the default."""
