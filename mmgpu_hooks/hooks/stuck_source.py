"""Detects that a training stands still; logs and records the part that hangs."""

from __future__ import annotations

import multiprocessing
import sys
from functools import partial

from mmengine.runner import EpochBasedTrainLoop
from msgspec import structs

from mmgpu_hooks.hooks.alarms import Alarms
from mmgpu_hooks.hooks.loop_timer import VALIDATION_PART
from mmgpu_hooks.hooks.rank_waits import RankWaits
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.validation import ValidationSource
from mmgpu_hooks.judge.standstill import (
    describe_stuck,
    find_slow_batch,
    is_in_collective,
    phrase_part,
    waits_for_data,
)
from mmgpu_hooks.measure.idle import WorkMeter
from mmgpu_hooks.measure.ledger import FIRST_WAIT, WORKER_START, is_part
from mmgpu_hooks.measure.loader.owed import OwedBatch
from mmgpu_hooks.measure.loader.settings import read_length
from mmgpu_hooks.measure.validation_parts import DATA_WAIT
from mmgpu_hooks.measure.watchdog import (
    USUAL_TIMES,
    Running,
    Watchdog,
    format_stack,
)
from mmgpu_hooks.schema.recorded import PARTS, IntervalRecord, StuckRecord
from mmgpu_hooks.schema.run_folder import STACK_SUFFIX
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say

WATCHDOG_SOURCE = 'watchdog'
"""Name of the watchdog of the train loop, in warnings and the evidence file."""

_SEEN_TIMES = 2.0
"""Multiple of a hook's longest time so far after which an alarm is raised."""
_PARTS = {FIRST_WAIT: 'data_wait', WORKER_START: 'startup'}
"""Names of train loop parts in standstill records, by label in the time ledger."""
_LOOP_PARTS = (*PARTS, *_PARTS.values())
"""Names of all parts of a train loop in standstill records; others are hooks."""
_COMPUTING = ('forward', 'process', 'metric', 'gather')
"""Parts of a validation that compute, unless they wait for other ranks."""


class StuckSource:
    """Watches a train loop for standstills, and logs and records them.

    Args:
        recording: The run.
        sources: Know what watches the loader.
        validation: Knows where the validation stands that is on.
    """

    def __init__(
        self, recording: Recording, sources: Sources, validation: ValidationSource
    ) -> None:
        self._recording, self._sources = recording, sources
        self._validation = validation
        self._run, self._ledger = recording.guard.run, recording.ledger
        writer = recording.writer
        self._evidence = None if writer is None else writer.path
        self._waits: RankWaits | None = None
        self._noted: StuckRecord | None = None
        """Record of this rank's wait for other ranks; ``None`` without a wait."""
        self._world_size = recording.runner.world_size
        if self._evidence is not None and self._world_size > 1:
            run = partial(self._run, WATCHDOG_SOURCE)
            self._waits = RankWaits(recording.write, run, self._evidence)
        self._alarms = Alarms(
            partial(self._run, WATCHDOG_SOURCE),
            recording.runner.logger.warning,
            str(recording.runner.work_dir),
            recording.write,
            lambda: self._evidence,
        )
        self._work = WorkMeter()
        self._usual_s: dict[str, float] = {}
        """Usual seconds of each train loop part that has ended once, by its label."""
        self._beat = 0.0
        self._watchdog = Watchdog(
            recording.hook.stuck_after_s,
            self._read,
            partial(self._run, WATCHDOG_SOURCE, self._report),
            partial(self._run, WATCHDOG_SOURCE, self._report_freed),
            lambda running: (
                self._run(WATCHDOG_SOURCE, self._is_proven, running) or False
            ),
            lambda running, waited_s: self._run(
                WATCHDOG_SOURCE, self._ask_others, running, waited_s
            ),
            lambda running: (
                self._run(WATCHDOG_SOURCE, self._read_idle_s, running) or 0.0
            ),
            self._evidence and self._evidence.with_suffix(STACK_SUFFIX),
        )
        self._watchdog.start()

    def note(self, record: IntervalRecord) -> None:
        """Updates the usual seconds of train loop parts by a log interval's record."""
        usual_s, iter_s = self._usual_s, record.iter.p50_s
        usual_s.update(data_wait=record.data_wait.p50_s, step=record.step.p50_s)
        usual_s.update(hooks=iter_s, loop=iter_s)
        for part in ('checkpoint_save', 'validation', 'teardown'):
            if record.ledger_s.get(part):
                usual_s[part] = record.ledger_s[part]
        if record.first_waits:
            self._note_longest(FIRST_WAIT, record.first_wait_s / record.first_waits)
            # what the first wait takes longer than others is in it, too
            start_s = record.ledger_s.get('startup', 0.0) - record.first_wait_s
            self._note_longest(WORKER_START, start_s)
        # between epochs a hook may take much longer than in an iteration
        for hook, seconds in record.hooks_s.items():
            self._note_long(hook, seconds)

    def _note_longest(self, label: str, seconds: float) -> None:
        """Notes the most seconds that a once-an-epoch part of the train loop took."""
        self._usual_s[label] = max(self._usual_s.get(label, 0.0), seconds)

    def _note_long(self, part: str, seconds: float) -> None:
        """Updates a hook's usual duration in seconds from the seconds it just took."""
        usual_s = max(self._usual_s.get(part, 0.0), self._usual_s.get('hooks', 0.0))
        self._usual_s[part] = max(usual_s, seconds * _SEEN_TIMES / USUAL_TIMES)

    def _read(self) -> Running:
        running = self._find_running()
        is_noted = self._waits is not None and self._noted is not None
        if is_noted and running.beat != self._beat:
            self._end_wait()
        self._beat = running.beat
        return running

    def _find_running(self) -> Running:
        running = self._ledger.running[-1]
        state = self._validation.read_state()
        if running is VALIDATION_PART and state is not None:
            usual_s = self._validation.usual_s(state.call)
            return Running(VALIDATION_PART, state.since_s, usual_s, state.call)
        name = running if isinstance(running, str) else type(running).__name__
        usual_s = self._usual_s.get(name, self._usual_s.get('hooks'))
        if is_part(running):
            usual_s = self._usual_s.get(running)
        if usual_s is None and name in ('data_wait', 'step'):
            # until an interval ends: it takes no longer than an iteration
            usual_s = self._ledger.mean_lap_s
        if name == 'resume':
            usual_s = self._ledger.mean_resume_s
        part = _PARTS.get(name, name) if is_part(running) else name
        return Running(part, self._ledger.stamped_s, usual_s)

    def _ask_others(self, running: Running, waited_s: float) -> bool | None:
        """True if other ranks show this rank to wait in vain; ``None`` if unknown."""
        if self._waits is None:
            return None
        if self._noted is None:
            stack = self._watchdog.read_stack()
            record = structs.replace(
                self._record(running, waited_s), stack=stack, is_alarm=False
            )
            if not is_in_collective(record, self._world_size):
                return None
            self._noted = record
        return self._waits.ask(self._noted, waited_s)

    def _read_idle_s(self, running: Running) -> float:
        """Returns for how many seconds a computing part of validation used no core."""
        if running.inside is None or running.inside.part not in _COMPUTING:
            return 0.0
        # a wait for other ranks computes nothing, and may be one that is not seen
        if self._noted is not None or (self._world_size > 1 and self._waits is None):
            return 0.0
        return self._work.read_idle_s()

    def _end_wait(self) -> None:
        noted, self._noted = self._noted, None
        if self._waits is None or noted is None:
            return
        self._waits.end()
        self._recording.write(structs.replace(noted, is_over=True, stack=()))

    def _find_owed(self, running: Running) -> OwedBatch:
        """Finds the worker that must deliver the batch for which the loop waits."""
        if running.inside == DATA_WAIT:
            return self._validation.find_owed()
        is_wait = running.part in ('data_wait', 'resume')
        return self._sources.loader.find_owed() if is_wait else OwedBatch()

    def _are_workers_forked(self, is_validation: bool) -> bool | None:
        runner = self._recording.runner
        loader = runner.train_dataloader
        if is_validation:
            loader = getattr(getattr(runner, '_val_loop', None), 'dataloader', None)
        if not getattr(loader, 'num_workers', 0):
            # the training process loads by itself
            return False
        context = getattr(loader, 'multiprocessing_context', None) or multiprocessing
        method = context.get_start_method(allow_none=True)
        return None if method is None else method == 'fork'

    def _is_proven(self, running: Running) -> bool:
        """True if process states prove that the batch the loop awaits never comes."""
        owed = self._find_owed(running)
        record = add_owed(self._record(running, self._watchdog.stuck_after_s), owed, ())
        slow = find_slow_batch(record)
        if slow is not None:
            said = phrase('GPUEfficiencyHook: {sentence}.', slow)
            self._recording.runner.logger.info(say(said))
        if owed.process is None:
            return False
        if owed.process.state in 'ZXTD':
            return True
        # one lock that all of them wait for; alone it may be a slow library
        is_at_lock = owed.process.state == 'S' and owed.process.call == 'futex'
        return is_at_lock and owed.alike > 1

    def _report(self, running: Running, waited_s: float) -> None:
        own_stack = self._watchdog.read_stack()
        owed = self._find_owed(running)
        record = add_owed(self._record(running, waited_s), owed, own_stack)
        if waits_for_data(record):
            is_forked = self._are_workers_forked(record.validation_part is not None)
            record = structs.replace(record, is_forked=is_forked)
            pinning = read_thread_stack(PIN_THREAD)
            record = structs.replace(record, pin_stack=pinning)
        lines: list[str] = [
            phrase(
                'GPUEfficiencyHook: nothing went on for {waited_s:.0f} s, {doing} '
                '(iteration {iteration}, epoch {epoch}).',
                waited_s=waited_s,
                doing=phrase_part(record),
                iteration=record.iteration + 1,
                epoch=self._recording.epoch,
            )
        ]
        if (
            running.usual_s is None
            and record.idle_s is None
            and find_slow_batch(record) is None
        ):
            lines.append(
                phrase('This part has not ended once yet: it may only be slow.')
            )
        lines += describe_stuck(record)
        self._alarms.raise_alarm(record, *lines)

    def _record(
        self, running: Running, waited_s: float, *, is_over: bool = False
    ) -> StuckRecord:
        recording, iteration = self._recording, self._recording.iteration
        inside = running.inside
        record = StuckRecord(
            iteration=iteration,
            part=running.part,
            validation_part=inside and inside.part,
            metric=inside and inside.metric,
            waited_s=waited_s,
            is_over=is_over,
        )
        if is_over:
            return record
        idle_s = self._watchdog.idle_s
        if idle_s >= self._watchdog.stuck_after_s:
            record = structs.replace(record, idle_s=idle_s)
        loop, in_hand = recording.runner.train_loop, running.part == 'step'
        batches = taken = None
        if isinstance(loop, EpochBasedTrainLoop):
            batches = read_length(recording.runner.train_dataloader)
            taken = iteration - recording.epoch_start + in_hand
        has_met = None
        if self._world_size > 1:
            has_met = iteration > recording.start
        return structs.replace(
            record, epoch_batches=batches, batches_taken=taken, has_met=has_met
        )

    def _report_freed(self, running: Running, waited_s: float) -> None:
        record = self._record(running, waited_s, is_over=True)
        self._recording.write(record)
        # parts of the loop have their usual seconds by the log intervals
        if running.part not in _LOOP_PARTS:
            self._note_long(running.part, waited_s)
        self._alarms.say(
            phrase(
                'GPUEfficiencyHook: training goes on after {waited_s:.0f} s '
                '{phrase_part} (iteration {iteration}).',
                waited_s=waited_s,
                phrase_part=phrase_part(record),
                iteration=record.iteration + 1,
            )
        )

    def close(self, went_on: bool) -> None:
        """Stops watching the train loop for standstills.

        Args:
            went_on: True if training came to its end, so that nothing stands still.
        """
        self._watchdog.stop()
        if self._waits is not None:
            self._waits.end()
        if went_on:
            self._end_wait()
            # it may have gone on since the last check
            self._watchdog.check()


PIN_THREAD = '_pin_memory_loop'
"""Name of the function that PyTorch's thread for pinning batches runs."""


def read_thread_stack(function: str) -> tuple[str, ...]:
    """Returns the stack of the thread that runs a given function, innermost first."""
    for frame in sys._current_frames().values():
        calls = format_stack(frame)
        if any(call.endswith(f' in {function}') for call in calls):
            return calls
    return ()


def add_owed(
    record: StuckRecord, owed: OwedBatch, own_stack: tuple[str, ...]
) -> StuckRecord:
    """Adds the worker and sample that the loop waits for to a standstill's record.

    Args:
        record: The standstill.
        owed: The batch, and the worker that owes it.
        own_stack: Of the thread that trains, for where no worker owes one.
    """
    process, sample = owed.process, owed.sample
    record = structs.replace(record, stack=own_stack, alike=owed.alike)
    if process is not None:
        record = structs.replace(
            record,
            stack=owed.stack,
            worker=owed.worker,
            pid=owed.pid,
            state=process.state,
            call=process.call,
            path=process.path,
            mount=process.mount,
        )
    if sample is not None:
        record = structs.replace(
            record,
            sample=sample.index,
            sample_s=sample.seconds,
            sample_number=sample.number,
            batch_samples=sample.batch_samples,
            batch_s=sample.batch_s,
            image=sample.image,
        )
    return record
