"""Logs alarms when training stands still, and the cause that ranks' records show."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmgpu_hooks.adviser.why import judge_ranks
from mmgpu_hooks.judge.causes import CERTAINTIES
from mmgpu_hooks.measure.watchdog import WATCHDOG_THREAD
from mmgpu_hooks.schema.recorded import StuckRecord
from mmgpu_hooks.schema.run import RunEvidence, read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import find_peers
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.words import say

_RANKS_S = 2.0
"""Seconds to wait for other ranks to record their own standstill."""
_FILES_S = 10.0
"""Seconds to wait at most for the file system of the work folder to answer."""


class Alarms:
    """Writes alarms on a training that stands still into log and evidence file.

    Args:
        run: Calls a function, and keeps from training what it raises.
        warn: Writes a text into the log.
        work_dir: Of the run.
        write: Adds a record to this rank's evidence.
        find_evidence: Gives its file; ``None`` where there is none.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        warn: Callable[[str], Any],
        work_dir: str,
        write: Callable[[StuckRecord], Any],
        find_evidence: Callable[[], Path | None],
    ) -> None:
        self._run, self._warn, self._write = run, warn, write
        self._work_dir, self._find_evidence = work_dir, find_evidence

    def say(self, *lines: str) -> None:
        """Logs several lines as one warning."""
        self._warn(visible('\n  '.join(map(say, lines))))

    def raise_alarm(self, record: StuckRecord, *lines: str) -> None:
        """Logs and records a standstill, and logs its cause if the records show one.

        Args:
            record: The standstill.
            lines: What is said of it.
        """
        more = phrase('Training is left alone.')
        if self._find_evidence() is not None:
            more = phrase(
                'Training is left alone. More: mmgpu why {work_dir}',
                work_dir=shlex.quote(self._work_dir),
            )
        self.say(*lines, more)
        # the work folder may be on a mount that never answers; later alarms must come
        work = partial(self._run, self._file, record)
        thread = threading.Thread(
            target=work, name=f'{WATCHDOG_THREAD}-files', daemon=True
        )
        thread.start()
        thread.join(_FILES_S)

    def _file(self, record: StuckRecord) -> None:
        self._write(record)
        evidence = self._find_evidence()
        if evidence is None:
            return
        paths = find_peers(evidence)
        if paths:
            time.sleep(_RANKS_S)
            paths = find_peers(evidence)
        others = read_other_ranks(paths).ranks
        causes = list_causes(read_evidence(evidence), others)
        if causes:
            # MMEngine drops a warning that it has shown before
            head = phrase(
                'GPUEfficiencyHook: why nothing went on for {waited_s:.0f} s '
                '(iteration {iteration})',
                record,
                iteration=record.iteration + 1,
            )
            self.say(head, *causes)


def list_causes(own: RunEvidence, others: Sequence[RunEvidence]) -> list[str]:
    """Lists lines for the log: a standstill's cause and the rank at fault, if known."""
    why = judge_ranks([], (own, *others))
    said: list[str] = []
    if why.cause not in (None, 'unknown'):
        certainty = CERTAINTIES[why.certainty]
        said.append(
            phrase(
                'Cause: {cause} ({certainty}); mmgpu explain {cause}',
                why,
                certainty=certainty,
            )
        )
    if why.rank is not None and why.cause == 'rank_waits':
        # it stands nowhere itself: the calls are those of the ranks that wait
        said.append(why.sentence)
    elif why.rank not in (None, own.run.rank):
        said += [phrase('Rank {rank}:', why), *(proof.text for proof in why.proof[:3])]
    return said
