"""Changes the settings of validation's loader in training, where a validation begins.

After a validation a child process judges its loops, once for all: it ends with its
answer, which is taken over before the next validation. Only with a single rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec import structs

from mmgpu_hooks.adviser.process import TuningAdviser
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.shared_room import SharedRoom
from mmgpu_hooks.hooks.tuned_start import find_settled
from mmgpu_hooks.hooks.tuner import (
    NO_SHARED_ROOM,
    LoaderTuner,
    may_persist,
    phrase_left,
    undo_failed,
)
from mmgpu_hooks.hooks.validation import VALIDATION_SOURCE, ValidationSource
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.loader.switch import BookTeardown, LoaderSwitch
from mmgpu_hooks.schema.recorded import TunedRecord, ValidationRecord
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tuning import TuneQuestion

VALIDATION_TUNER_SOURCE = phrase('tune of val_dataloader')
"""Name of the tuner of validation's loader, in warnings and the evidence file."""

LEAST_WAIT_S = 1.0
"""Smallest data wait (s) of a validation for which a loader change is sought.

A search takes a second of CPU."""

LEAST_VALIDATIONS = 2
"""Smallest number of validations before a change: the first one finds cold caches."""

MOST_ASKED = 3
"""Maximum number of unsuccessful searches for a change of validation's loader."""

MOST_JUDGED = 6
"""Maximum number of attempts, one per validation, to judge a loader change."""

_NEEDED = frozenset({VALIDATION_SOURCE, 'evidence', 'ledger', 'interval'})
"""Names of measurements needed to judge a change of validation's loader."""


class ValidationTuner(LoaderTuner):
    """Changes validation's DataLoader settings in training, and judges the change.

    Args:
        recording: The run; its evidence is open.
        validation: Measures validations.
        write: Adds a record to the evidence.
        book_teardown: Books the time in which old workers end, or one loads a batch
            for trial.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        recording: Recording,
        validation: ValidationSource,
        write: Callable[[TunedRecord], None],
        book_teardown: BookTeardown = contextlib.nullcontext,
        clock: Clock = monotonic_s,
    ) -> None:
        switch = LoaderSwitch(validation.loader, book_teardown=book_teardown)
        super().__init__(recording, switch, write)
        self._validation, self._clock = validation, clock
        self._shared_room = SharedRoom()
        self._adviser: TuningAdviser | None = None
        """Child process asked for tuning advice that has not answered, or ``None``."""
        self._dismissed: list[TuningAdviser] = []
        """Child processes that have answered, and need not be waited for."""
        self._seen = self._asked = self._judged = 0
        """Numbers of validations, searches for a change, and attempts to judge it."""
        self._why: Text | None = None
        """Clause on why validation's loader is unchanged; ``None`` if unknown."""
        self._pending = self._find_settled()
        """Change or roll-back to be made before the next validation, or ``None``."""
        self._is_open = False
        """True while the last change of the loader is not judged yet."""
        self._is_over = self._has_changed = False

    def _find_settled(self) -> TunedRecord | None:
        """Returns the change to what the resumed run had found; else ``None``."""
        if self._runner.world_size > 1:
            return None
        config = self._switch.settings
        found = find_settled(self._runner, 'validation', config)
        if found is None:
            return None
        return TunedRecord(
            iteration=0,
            action='change',
            reason='found_before',
            loader='validation',
            old=config,
            new=found,
        )

    def note(self, record: ValidationRecord) -> None:
        """Has a child process find or judge a loader change after a validation, if due.

        Args:
            record: Of the validation.

        Raises:
            SourceError: If the child process cannot be started.
        """
        self._confirm()
        self._shared_room.note_batch(record.batch_bytes)
        self._seen += 1
        if self._is_over or self._adviser is not None or not self._is_due(record):
            return
        writer = self._recording.writer
        assert writer is not None
        self._adviser = TuningAdviser(writer.path, clock=self._clock)
        question = TuneQuestion(
            iterations_left=self._runner.train_loop.max_iters - record.iteration,
            loader='validation',
            may_persist=may_persist(self._runner),
            can_change=not self._is_open,
        )
        self._adviser.ask(question)

    def _is_due(self, record: ValidationRecord) -> bool:
        """True if a child process should find or judge a change after a validation."""
        length = getattr(self._runner.train_loop, 'max_iters', None)
        if not isinstance(length, int) or length <= record.iteration:
            return False
        if self._is_open:
            self._judged += 1
            self._is_over = self._judged > MOST_JUDGED
            return not self._is_over
        wait_s = record.data_wait.total_s if record.data_wait else 0.0
        if self._seen < LEAST_VALIDATIONS or wait_s < LEAST_WAIT_S:
            return False
        obstacle = None if self._asked else self._find_obstacle()
        if obstacle is not None:
            self._is_over, self._why = True, obstacle
            return False
        self._asked += 1
        return self._asked <= MOST_ASKED

    def _find_obstacle(self) -> Text | None:
        """Returns why the loader cannot be tuned at all; ``None`` if it can."""
        if self._runner.world_size > 1:
            return phrase('the training has several ranks')
        return self._switch.find_obstacle()

    def follow(self) -> None:
        """Reads the tuning child process's answer, if any, and dismisses the process.

        Raises:
            SourceError: If the child gives no answer.
        """
        answer = None if self._adviser is None else self._adviser.read()
        if answer is None:
            return
        self._dismiss()
        if answer.judged is not None and self._is_open:
            self._take_verdict(answer.judged)
        elif answer.proposed is not None and not self._is_open:
            self._pending = answer.proposed
        elif not self._is_open:
            self._why = answer.why

    def _take_verdict(self, judged: TunedRecord) -> None:
        self._is_open = False
        if judged.action == 'keep':
            self._note(judged)
            self._is_over = True
        else:
            self._pending = judged

    def begin_validation(self) -> None:
        """Makes the pending loader change before a validation creates its iterator."""
        self.follow()
        record, self._pending = self._pending, None
        if record is None or self._is_over:
            return
        is_change = record.action == 'change'
        if is_change and self._recording.guard.off.keys() & _NEEDED:
            self._is_over = True
            return
        obstacle = self._find_obstacle_to(record)
        if obstacle is not None and is_change:
            self._is_over, self._why = True, None
            self._write_unloadable(record)
            self._say(phrase_left(record, obstacle))
            return
        if obstacle is not None:
            # what was refuted must not stay
            self._pending = record
            return
        salt = self._switch.take_salt(self._recording.count_iterations())
        began_s = self._clock()
        self._switch.switch_between(record.new, salt)
        self._unproven = record
        self._note(structs.replace(record, switch_s=self._clock() - began_s))
        self._has_changed = True
        # what was found before was judged before
        self._is_open = is_change and record.reason == 'predicted'
        self._is_over = not self._is_open

    def _find_obstacle_to(self, record: TunedRecord) -> Text | None:
        """Returns why a given loader change cannot be made now; ``None`` if it can."""
        switch, new = self._switch, record.new
        is_change = record.action == 'change'
        # its old workers hold nothing between two validations
        if is_change and not self._shared_room.fits_beside(new):
            return NO_SHARED_ROOM
        obstacle = switch.find_obstacle() or switch.find_obstacle_to(new)
        if obstacle is not None or record.reason == 'found_before':
            # in the run that is resumed they have loaded
            return obstacle
        return switch.find_first_obstacle(new, self._validation.last_index)

    def _note_failure(self, record: TunedRecord, error: Exception) -> None:
        self._is_open, self._is_over = False, True
        self._note(undo_failed(record))

    def note_end(self) -> None:
        """Logs at training's end why validation's loader never changed, if known."""
        if self._why is not None and not self._has_changed:
            self._say(phrase('val_dataloader stays as it is: {why}', why=self._why))

    def _dismiss(self) -> None:
        adviser, self._adviser = self._adviser, None
        if adviser is not None:
            adviser.dismiss()
            self._dismissed.append(adviser)

    def close(self) -> None:
        """Ends tuning of validation's loader, and its child processes."""
        self._is_over = True
        self._dismiss()
        while self._dismissed:
            self._dismissed.pop().end()
