"""Says in the log and in the evidence that training stands still, and where."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.judge.standstill import Rank, describe_stuck, phrase_part
from mmgpu_hooks.judge.why import judge_end, read_host
from mmgpu_hooks.measure.ledger import TimeLedger, is_part
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.watchdog import THREAD_NAME, Running, Watchdog
from mmgpu_hooks.schema.recorded import IntervalRecord, StuckRecord
from mmgpu_hooks.schema.run import RunEvidence, read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import STACK_SUFFIX, find_other_ranks
from mmgpu_hooks.show.escaping import visible

_WAITS = 'data_wait', 'first_wait'
_OF_ITERATION = 'data_wait', 'step'
_RANKS_S = 2.0
"""What the others are given to say where they stand."""
_FILES_S = 10.0
"""What the work folder is given; a dead mount answers never."""


class StuckSource:
    """Watches the train loop of one run.

    Args:
        stuck_after_s: The least time that is too long.
        guard: Switches it off when it fails.
        ledger: Knows what runs.
        find_loader: Gives what watches the loader.
        read_position: Gives iteration and epoch, without changing anything.
        write: Writes a record.
        runner: Has the logger, and the work folder to name.
        evidence: File that it is written to, if any.
    """

    def __init__(
        self,
        stuck_after_s: float,
        guard: Guard,
        ledger: TimeLedger,
        find_loader: Callable[[], LoaderProbe | None],
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Any], None],
        runner: Any,
        evidence: Path | None,
    ) -> None:
        self._guard = guard
        self._ledger = ledger
        self._find_loader = find_loader
        self._read_position = read_position
        self._write = write
        self._warn = runner.logger.warning
        self._work_dir = str(runner.work_dir)
        self._evidence = evidence
        self._usual_s: dict[str, float] = {}
        """What a part that has ended takes, by part."""
        self._watchdog = Watchdog(
            stuck_after_s,
            self._read,
            self._note_stuck,
            self._note_freed,
            lambda _: self._guard.run('watchdog', self._is_proven) or False,
            evidence and evidence.with_suffix(STACK_SUFFIX),
        )
        self._watchdog.start()

    def note(self, record: IntervalRecord) -> None:
        """Learn from an interval what is usual."""
        usual_s = self._usual_s
        usual_s['data_wait'] = record.data_wait.p50_s
        usual_s['step'] = record.step.p50_s
        usual_s['hooks'] = usual_s['loop'] = record.iter.p50_s
        for part in ('checkpoint_save', 'validation', 'teardown'):
            if record.ledger_s.get(part):
                usual_s[part] = record.ledger_s[part]

    def _read(self) -> Running:
        running = self._ledger.running[-1]
        is_hook = not is_part(running)
        name = running if isinstance(running, str) else type(running).__name__
        usual_s = self._usual_s.get('hooks' if is_hook else running)
        if usual_s is None and name in _OF_ITERATION:
            # until an interval ends: it takes no longer than an iteration
            usual_s = self._ledger.mean_lap_s
        return Running(name, self._ledger.stamped_s, usual_s)

    def _is_proven(self) -> bool:
        """Whether the first batch will never come, whatever is usual."""
        loader = self._find_loader()
        owed = None
        if self._ledger.part in _WAITS and loader is not None:
            owed = loader.find_owed()
        if owed is None or owed.state is None:
            return False
        letter, call, _, _ = owed.state
        # one lock that all of them wait for; alone it may be a slow library
        return letter in 'ZXTD' or (owed.alike > 1 and (letter, call) == ('S', 'futex'))

    def _note_stuck(self, running: Running, waited_s: float) -> None:
        self._guard.run('watchdog', self._report, running, waited_s)

    def _report(self, running: Running, waited_s: float) -> None:
        part, loader, owed = _part(running), self._find_loader(), None
        if part == 'data_wait' and loader is not None:
            owed = loader.find_owed()
        iteration, epoch = self._read_position()
        fields: dict[str, Any] = {'stack': self._watchdog.read_stack()}
        if owed is not None:
            fields.update(
                worker=owed.worker,
                pid=owed.pid,
                sample=owed.sample,
                sample_s=owed.sample_s,
                image=owed.image,
                alike=owed.alike,
            )
            if owed.state is not None:
                letter, call, path, mount = owed.state
                fields.update(state=letter, call=call, path=path, mount=mount)
                fields['stack'] = owed.stack
        record = StuckRecord(
            iteration=iteration, part=part, waited_s=waited_s, **fields
        )
        lines = [
            f'GPUEfficiencyHook: nothing went on for {waited_s:.0f} s, '
            f'{phrase_part(record)} (iteration {iteration + 1}, epoch {epoch}).'
        ]
        if running.usual_s is None:
            lines.append('This part has not ended once yet: it may only be slow.')
        lines += describe_stuck(record)
        causes: list[str] = []
        filing = threading.Thread(
            target=self._guard.run,
            args=('watchdog', self._file, record, causes),
            name=f'{THREAD_NAME}-files',
            daemon=True,
        )
        filing.start()
        filing.join(_FILES_S)
        if filing.is_alive():
            lines.append('The work folder does not answer: this stands here alone.')
        lines += causes
        work_dir = shlex.quote(self._work_dir)
        lines.append(f'Training is left alone. More: mmgpu why {work_dir}')
        self._warn(visible('\n  '.join(lines)))

    def _file(self, record: StuckRecord, causes: list[str]) -> None:
        """Write a record, and find the cause in it and in those of other ranks."""
        self._write(record)
        if self._evidence is None:
            return
        paths = find_other_ranks(self._evidence)
        if paths:
            time.sleep(_RANKS_S)
        others, _ = read_other_ranks(paths)
        causes += list_causes(read_evidence(self._evidence), others)

    def _note_freed(self, running: Running, waited_s: float) -> None:
        iteration, _ = self._read_position()
        part = _part(running)
        record = StuckRecord(
            iteration=iteration, part=part, waited_s=waited_s, is_over=True
        )
        self._guard.run('watchdog', self._write, record)
        self._warn(
            f'GPUEfficiencyHook: training goes on after {waited_s:.0f} s '
            f'{phrase_part(record)}.'
        )

    def close(self, went_on: bool) -> None:
        """Watch no longer.

        Args:
            went_on: Whether training came to its end, so that nothing stands still.
        """
        self._watchdog.stop()
        if went_on:
            # it may have gone on since the last check
            self._watchdog.check()


def _part(running: Running) -> str:
    return 'data_wait' if running.part in _WAITS else running.part


def list_causes(own: RunEvidence, others: Sequence[RunEvidence]) -> list[str]:
    """The cause, and the rank that the others wait for, as far as they are known."""
    why = judge_end([], [Rank(one, read_host(one)) for one in (own, *others)])
    said = []
    if why.cause not in (None, 'unknown'):
        said.append(f'Cause: {why.cause} ({why.certainty}); mmgpu explain {why.cause}')
    if why.rank not in (None, own.run.rank):
        said += [f'Rank {why.rank}:', *(proof.text for proof in why.proof[:3])]
    return said
