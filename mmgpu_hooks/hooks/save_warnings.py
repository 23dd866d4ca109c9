"""Says during the run that saves are slow and why: once per cause, then a count."""

from __future__ import annotations

from collections import Counter, deque
from typing import Callable

from mmgpu_hooks.judge.saves import KEPT_REFERENCES, is_reference, judge_save
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveRecord,
)

_MOST_PENDING = 32
"""Saves whose aftermath is awaited; of more the oldest are judged without."""


class SaveWarnings:
    """Judges each save once it is known what followed.

    Args:
        warn: Logs one warning.
        host: Limits of the host.
        loader: Live settings of the loader.
    """

    def __init__(
        self, warn: Callable[[str], None], host: HostLimits, loader: LoaderSettings
    ) -> None:
        self._warn = warn
        self._host = host
        self._loader = loader
        self._earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
        self._pending: deque[SaveRecord] = deque()
        self._slow: Counter[str] = Counter()

    def add_save(self, save: SaveRecord) -> None:
        """Take a save; whether it was slow is said when it is known what it cost."""
        self._pending.append(save)
        # without workers nothing is made ahead: there will be no aftermath
        most = _MOST_PENDING if self._loader.num_workers else 0
        while len(self._pending) > most:
            self._judge(self._pending.popleft(), None)

    def add_aftermath(self, aftermath: SaveAftermathRecord) -> None:
        """Take what followed a save; of several at one iteration the last one, or
        all where nothing was won back.
        """
        while self._pending and self._pending[0].iteration <= aftermath.iteration:
            save = self._pending.popleft()
            is_last = not self._pending or self._pending[0].iteration > save.iteration
            # what won nothing back did so for every save before it
            is_known = is_last or not aftermath.iterations
            is_its = save.iteration == aftermath.iteration and is_known
            self._judge(save, aftermath if is_its else None)

    def _judge(self, save: SaveRecord, aftermath: SaveAftermathRecord | None) -> None:
        judged = judge_save(save, self._earlier, aftermath, self._host, self._loader)
        if is_reference(save):
            self._earlier.append(save)
        # never a warning without proof: a slow save of no proven cause is a finding
        if not judged.is_slow or judged.cause is None:
            return
        self._slow[judged.cause] += 1
        if self._slow[judged.cause] == 1:
            self._warn(f'GPUEfficiencyHook: {judged.sentence}')

    def finish(self) -> None:
        """Judge what is left, and say how many were slow, unless that was said."""
        while self._pending:
            self._judge(self._pending.popleft(), None)
        if any(count > 1 for count in self._slow.values()):
            causes = ', '.join(
                f'{count} {cause}' for cause, count in self._slow.most_common()
            )
            self._warn(f'GPUEfficiencyHook: slow saves in this run by cause: {causes}.')
