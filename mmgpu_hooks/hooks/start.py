"""Watches a rank for standstills and low memory until its train loop begins.

Ranks may wait for one another before the first iteration: weights are broadcast, data
sets are parsed, checkpoints are loaded. What each does, as far as it may last, and is
seen to do goes into a file in the run's folder, which its evidence takes the place of.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from mmgpu_hooks.hooks.alarms import Alarms
from mmgpu_hooks.hooks.memory_source import MEMORY_SOURCE, StartMemory
from mmgpu_hooks.hooks.rank_waits import RankWaits
from mmgpu_hooks.hooks.recording import Guard, vis_data_folder
from mmgpu_hooks.hooks.sources import count_ranks_on_host
from mmgpu_hooks.hooks.start_source import StartSource
from mmgpu_hooks.judge.causes import CERTAINTIES
from mmgpu_hooks.judge.standstill import describe_stuck, is_in_collective
from mmgpu_hooks.measure.clock import monotonic_s, wall_unix_s
from mmgpu_hooks.measure.flight_recorder import list_dump_prefixes
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.now import read_process_identity
from mmgpu_hooks.measure.peer_processes import PeerProcesses
from mmgpu_hooks.measure.proc import ThreadUse, read_thread_use
from mmgpu_hooks.measure.slurm import parse_job_id
from mmgpu_hooks.measure.watchdog import Running, Watchdog, format_stack
from mmgpu_hooks.schema.recorded import (
    START_PART,
    EvidenceLine,
    HostLimits,
    RunRecord,
    StuckRecord,
)
from mmgpu_hooks.schema.run_folder import start_name
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.writer import EvidenceWriter, open_evidence

START_SOURCE = 'watchdog of the start'
"""Name, in log and evidence file, of the watch for standstills before training."""

_BUSY_SHARE = 0.02
"""Share (0 to 1) of a core above which a thread counts as working, not polling."""
_MMENGINE = 'mmengine/runner/'
"""Path part found in the training thread's call stack while a Runner is built."""


class StartFile:
    """Evidence file of a rank for the time until its train loop begins.

    Args:
        runner: The Runner, maybe not whole yet.
    """

    def __init__(self, runner: Any) -> None:
        self._runner, self._lock = runner, threading.Lock()
        self._writer: EvidenceWriter | None = None
        self._is_over = False

    @property
    def path(self) -> Path | None:
        """Path of the evidence file of training's start; ``None`` without log_dir."""
        if getattr(self._runner, 'log_dir', None) is None:
            return None
        return vis_data_folder(self._runner) / start_name(self._runner.rank)

    def write(self, *records: EvidenceLine) -> None:
        """Appends records to the evidence file of training's start, made if missing.

        Raises:
            OSError: If there is no room.
        """
        path = self.path
        with self._lock:
            if self._is_over or path is None:
                return
            if self._writer is None:
                self._writer = open_evidence(path, self._describe())
            for record in records:
                self._writer.write(record)

    def _describe(self) -> RunRecord:
        """Makes the evidence file's first record: facts known before training."""
        runner, identity = self._runner, read_process_identity()
        world = runner.world_size
        ranks = count_ranks_on_host(world, os.environ)
        uses_cuda = sys.modules['torch'].cuda.is_initialized()
        return RunRecord(
            started_unix_s=wall_unix_s(),
            rank=runner.rank,
            world_size=world,
            work_dir=os.path.abspath(runner.work_dir),
            device='cuda' if uses_cuda else 'cpu',
            host=HostLimits(ranks_on_host=ranks),
            hostname=identity.hostname,
            pid=identity.pid,
            process_start=identity.start_ticks,
            memory_cgroup=identity.memory_cgroup,
            oom_kills=identity.oom_kills,
            slurm_job_id=parse_job_id(os.environ),
            flight_recorder=list_dump_prefixes(os.environ) if uses_cuda else (),
        )

    def close(self) -> None:
        """Deletes the evidence file of training's start, which is no longer needed."""
        with self._lock:
            self._is_over = True
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()
                writer.path.unlink(missing_ok=True)


class StartWatch:
    """Notices that a rank stands still before its train loop begins.

    It goes on while the thread that trains comes to another line, uses a core or reads.
    A rank in a collective waits for others, so nothing but another line counts there.

    Args:
        runner: The Runner, maybe not whole yet.
        file: Gets what is seen.
        stuck_after_s: The least time that is too long.
        run: Calls a function, and keeps from training what it raises.
        account: Knows what the start does; ``None`` where nothing does.
    """

    def __init__(
        self,
        runner: Any,
        file: StartFile,
        stuck_after_s: float,
        run: Callable[..., Any],
        account: StartSource | None,
    ) -> None:
        self._runner, self._file, self._account = runner, file, account
        self._run = partial(run, START_SOURCE)
        self._waits: RankWaits | None = None
        self._peers = PeerProcesses(os.environ)
        self._noted: StuckRecord | None = None
        """Record of this rank's wait for other ranks; ``None`` without a wait."""
        self._stack: tuple[str, ...] = ()
        self._use: ThreadUse | None = None
        self._thread_id = threading.get_native_id()
        self._moves, self._checked_s = 0, monotonic_s()
        self._is_announced = False
        self._watchdog = Watchdog(
            stuck_after_s,
            self._read,
            partial(self._run, self._report),
            partial(self._run, self._report_freed),
            ask_others=lambda running, waited_s: self._run(self._ask_others, waited_s),
        )
        self._watchdog.start()

    @property
    def _world_size(self) -> int:
        return getattr(self._runner, 'world_size', 1)

    def _read(self) -> Running:
        now_s, stack = monotonic_s(), self._watchdog.read_stack()
        if not self._is_announced and self._file.path is not None:
            self._is_announced = True
            if self._world_size > 1:
                # the others see that this one is there
                self._run(self._file.write)
        if self._has_moved(stack, now_s - self._checked_s):
            self._moves += 1
            if self._noted is not None:
                self._run(self._end_wait)
        self._stack, self._checked_s = stack, now_s
        return Running(START_PART, float(self._moves), None)

    def _has_moved(self, stack: tuple[str, ...], passed_s: float) -> bool:
        before, self._use = self._use, read_thread_use(self._thread_id)
        if stack != self._stack or not any(_MMENGINE in call for call in stack):
            return True
        record = self._describe(0.0, stack)
        if self._use is None or is_in_collective(record, self._world_size):
            return False
        if before is None or self._use.io_bytes != before.io_bytes:
            return True
        return self._use.cpu_s - before.cpu_s > _BUSY_SHARE * passed_s

    def _describe(
        self, waited_s: float, stack: tuple[str, ...], *, is_alarm: bool = True
    ) -> StuckRecord:
        return StuckRecord(
            iteration=0,
            part=START_PART,
            waited_s=waited_s,
            stack=stack,
            has_met=False if self._world_size > 1 else None,
            is_alarm=is_alarm,
        )

    def _ask_others(self, waited_s: float) -> bool | None:
        path = self._file.path
        if path is None and self._is_in_first_collective:
            return self._peers.are_idle()
        if self._world_size <= 1 or path is None:
            return None
        if self._noted is None:
            self._noted = self._describe(waited_s, self._stack, is_alarm=False)
        if self._waits is None:
            self._waits = RankWaits(self._file.write, self._run, path)
        return self._waits.ask(self._noted, waited_s)

    @property
    def _is_in_first_collective(self) -> bool:
        """True if this rank waits for others before the run has a folder."""
        record = self._describe(0.0, self._stack)
        return self._file.path is None and is_in_collective(record, self._world_size)

    def _end_wait(self) -> None:
        noted, self._noted = self._noted, None
        if noted is None or self._waits is None:
            return
        self._waits.end()
        if is_in_collective(noted, self._world_size):
            self._file.write(structs.replace(noted, is_over=True, stack=()))

    def _provide_alarms(self) -> Alarms:
        work_dir = str(getattr(self._runner, 'work_dir', '.'))
        return Alarms(
            self._run, self._warn, work_dir, self._file.write, lambda: self._file.path
        )

    def _warn(self, text: str) -> None:
        logger = getattr(self._runner, 'logger', None)
        if logger is None:
            sys.stderr.write(f'{text}\n')
        else:
            logger.warning(text)

    def _report(self, running: Running, waited_s: float) -> None:
        record = self._describe(waited_s, self._stack)
        doing = None if self._account is None else self._account.doing
        said = phrase(
            'GPUEfficiencyHook: nothing went on for {waited_s:.0f} s, before training '
            'began.',
            waited_s=waited_s,
        )
        if doing is not None:
            said = phrase(
                'GPUEfficiencyHook: nothing went on for {waited_s:.0f} s, before '
                'training began ({doing}).',
                waited_s=waited_s,
                doing=doing,
            )
        lines = [said, *describe_stuck(record)]
        if self._is_in_first_collective and self._peers.ranks > 1:
            cause = {'cause': 'rank_never_came', 'certainty': CERTAINTIES['likely']}
            lines += [
                phrase('Cause: {cause} ({certainty}); mmgpu explain {cause}', **cause),
                phrase(
                    'Rank {rank} of {ranks:d} waits for the others here, before the '
                    'run has a folder. Those that print no such alarm have not come.',
                    rank=self._peers.rank,
                    ranks=self._peers.ranks,
                ),
            ]
        self._provide_alarms().raise_alarm(record, *lines)

    def _report_freed(self, running: Running, waited_s: float) -> None:
        record = self._describe(waited_s, ())
        self._run(self._file.write, structs.replace(record, is_over=True))
        self._provide_alarms().say(
            phrase(
                'GPUEfficiencyHook: the start goes on after {waited_s:.0f} s.',
                waited_s=waited_s,
            )
        )

    def close(self) -> None:
        """Stops watching the training's start for standstills."""
        self._watchdog.stop()
        if self._waits is not None:
            self._waits.end()


class Start:
    """Watches the start of a training for low memory and standstills.

    Args:
        runner: The Runner.
        stuck_after_s: The least standstill that is too long; 0 watches for none.
        run: Calls a function for a source, and keeps from training what it raises.
        account: Knows what the start does; ``None`` where nothing does.
    """

    def __init__(
        self,
        runner: Any,
        stuck_after_s: float,
        run: Callable[..., Any],
        account: StartSource | None = None,
    ) -> None:
        self._account = account
        self.file = StartFile(runner)
        """Evidence file for the time until the train loop begins."""
        self._trainer = threading.get_ident()
        self.memory = StartMemory(run, self.file.write, self._tick)
        self._watch: StartWatch | None = None
        if stuck_after_s:
            self._watch = run(
                START_SOURCE, StartWatch, runner, self.file, stuck_after_s, run, account
            )

    def _tick(self) -> None:
        if self._account is not None:
            self._account.tick()
        self._end_if_left()

    def _end_if_left(self) -> None:
        """Stops watching if building the Runner has failed."""
        stack = format_stack(sys._current_frames().get(self._trainer))
        if not any(_MMENGINE in call for call in stack):
            self.close()

    def close(self) -> None:
        """Stops watching training's start, deletes its evidence file; idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        self.memory.close()
        self.file.close()
        if self._account is not None:
            self._account.leave()


class StartListener(LoopListener):
    """Measures how long making the train loader's iterator takes at training's start.

    Args:
        run: Calls a function for a source, and keeps from training what it raises.
        start: Watches the start; ``None`` where nothing does.
        account: Takes the start apart; ``None`` where nothing does.
        take_back: Undoes settings with which no iterator could be made: True if it did.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        start: Start | None,
        account: StartSource | None,
        take_back: Callable[[Exception], bool],
    ) -> None:
        self._run, self._start, self._account = run, start, account
        self._take_back = take_back

    def on_iterator_begin(self) -> None:
        if self._start is not None:
            self._run(MEMORY_SOURCE, self._start.memory.pause)
        if self._account is not None:
            self._account.begin_workers()

    def on_iterator_end(self, iterator: Any) -> None:
        if self._account is not None:
            self._account.end_workers()
        if self._start is not None:
            self._run(MEMORY_SOURCE, self._start.memory.go_on)

    def on_iterator_failure(self, error: Exception) -> bool:
        return self._take_back(error)


def watch_building(runner: Any, stuck_after_s: float) -> Start:
    """Returns a watch for standstills while a Runner is built; the caller closes it.

    Args:
        runner: The Runner, of which nothing is there yet.
        stuck_after_s: The least standstill that is too long; 0 watches for none.
    """
    return Start(runner, stuck_after_s, Guard(lambda source, reason: None).run)
