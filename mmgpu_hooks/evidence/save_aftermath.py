"""The waits for data after each save, out of the waits that the ledger knows anyway.

While the loop stands in a save the workers go on: what they made then is found ready
afterwards, and the next iterations wait less. So the waits after a save are set beside
the usual ones, for as many iterations as batches can be made ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from mmgpu_hooks.schema import SaveAftermathRecord

_USUAL_WAITS = 256
"""Waits that a usual one is the mean of, the newest: a run may change its pace."""


class AftermathFolder:
    """Sorts waits into those after a save and the usual ones.

    Saves and what ends a span are told when they happen, the waits whenever somebody
    has them, in order. Two saves at the same iteration have one aftermath. One without
    iterations is of a save after which something else came at once.

    Args:
        horizon: Batches that can be made ahead: ``prefetch_factor`` times workers.
            With 0 there is no aftermath.
        start: Iterations done before the first wait.
        round_of: Waits that a usual one must at least rest on. Workers that are short
            of cores end their batches together, so one wait in as many as there are
            workers holds all of it, and fewer waits may miss it.
    """

    def __init__(self, horizon: int, start: int, round_of: int = 1) -> None:
        self._horizon = horizon
        self._round_of = min(max(round_of, 1), _USUAL_WAITS)
        self._done = start
        self._usual: deque[float] = deque(maxlen=_USUAL_WAITS)
        self._saves: deque[int] = deque()
        self._cuts: deque[int] = deque()
        self._open: int | None = None
        self._waits: list[float] = []

    def add_save(self, iteration: int) -> None:
        """A save ended, after so many iterations."""
        if self._horizon and iteration not in self._saves:
            self._saves.append(iteration)

    def add_cut(self, iteration: int) -> None:
        """The loop did something else than iterations, after so many of them."""
        is_wanted = self._saves or self._open is not None
        if is_wanted and iteration not in self._cuts:
            self._cuts.append(iteration)

    def add_waits(
        self, waits: Sequence[float], firsts: Collection[int] = ()
    ) -> list[SaveAftermathRecord]:
        """Sort the waits of the next iterations.

        Args:
            waits: Seconds, one per iteration.
            firsts: Positions of those that began an epoch or started workers: they are
                neither usual nor after a save.

        Returns:
            What is known by now.
        """
        known: list[SaveAftermathRecord] = []
        if not (self._saves or self._cuts or firsts) and self._open is None:
            # what most intervals are: no save was near
            self._done += len(waits)
            self._usual.extend(waits)
            return known
        for position, wait_s in enumerate(waits):
            self._begin_and_end(known, position in firsts)
            self._done += 1
            if self._open is not None:
                self._waits.append(wait_s)
                if len(self._waits) >= self._horizon:
                    self._close(known)
            elif position not in firsts:
                self._usual.append(wait_s)
        return known

    def _begin_and_end(self, known: list[SaveAftermathRecord], is_cut: bool) -> None:
        """Heed what happened between the last iteration and the next."""
        while self._cuts and self._cuts[0] <= self._done:
            self._cuts.popleft()
            is_cut = True
        while self._saves and self._saves[0] <= self._done:
            self._close(known)
            self._open = self._saves.popleft()
        if is_cut:
            self._close(known)

    def _close(self, known: list[SaveAftermathRecord]) -> None:
        if self._open is not None:
            usual = self._usual
            is_usual_known = len(usual) >= self._round_of
            known.append(
                SaveAftermathRecord(
                    iteration=self._open,
                    iterations=len(self._waits),
                    waits_s=sum(self._waits),
                    usual_wait_s=sum(usual) / len(usual) if is_usual_known else None,
                )
            )
        self._open, self._waits = None, []

    def finish(self) -> list[SaveAftermathRecord]:
        """The run is over: what is known of the last saves."""
        known: list[SaveAftermathRecord] = []
        self._begin_and_end(known, is_cut=True)
        return known
