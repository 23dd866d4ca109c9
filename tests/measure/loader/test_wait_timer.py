"""Tests the timing of waits for a loader's batches, by fake clocks."""

from __future__ import annotations

import pytest

from mmgpu_hooks.measure.ledger import LAP, TimeLedger
from mmgpu_hooks.measure.loader.waits import CPU_EVERY, WaitTimer
from mmgpu_hooks.measure.loop_listener import LoopListener

WAIT_S = 0.01


class Batches:
    """Fake batch iterator whose waits use much and little CPU in turns."""

    def __init__(self, threads: int) -> None:
        self.now_s = self.cpu_s = 0.0
        self.threads = threads
        self.reads = self._num_yielded = 0

    def read_cpu_s(self) -> float:
        self.reads += 1
        return self.cpu_s

    def _next_data(self) -> int:
        self.now_s += WAIT_S
        self.cpu_s += self.threads * WAIT_S * (0.9 if self._num_yielded % 2 else 0.1)
        self._num_yielded += 1
        return self._num_yielded


@pytest.mark.parametrize('every', [1, CPU_EVERY])
def test_the_cpu_of_all_waits_is_estimated_from_those_that_are_read(every: int) -> None:
    batches = Batches(threads=4)
    ledger = TimeLedger(lambda: batches.now_s)
    WaitTimer(ledger, batches.read_cpu_s, every).follow(batches)

    def wait(times: int) -> float | None:
        for _ in range(times):
            batches._next_data()
            ledger.note(LAP)
        return ledger.take().wait_cpu_s

    # known from the first waits on, and it may be of many threads
    assert wait(2) == pytest.approx(4 * 0.9 * WAIT_S)
    assert wait(2000) == pytest.approx(4 * 0.5 * 2000 * WAIT_S, rel=0.1)
    assert batches.reads == pytest.approx(2 * 2000 / every, rel=0.1)


def test_waits_of_skipped_batches_are_counted_over_ends_of_epochs():
    """Tests that the exception at an epoch's end does not count as a skipped batch."""
    batches = Batches(threads=1)
    ledger = TimeLedger(lambda: batches.now_s)
    seen = list[int]()

    class Skips(LoopListener):
        def on_skipped_wait(self, left: int) -> None:
            seen.append(left)

    timer = WaitTimer(ledger, batches.read_cpu_s, skipped=3, listener=Skips())

    class Ending(Batches):
        def _next_data(self) -> int:
            if self._num_yielded == 2:
                raise StopIteration
            batches.now_s += WAIT_S
            self._num_yielded += 1
            return self._num_yielded

    for epoch in range(2):
        iterator = Ending(threads=1)
        timer.follow(iterator)
        for _ in range(2):
            iterator._next_data()
        if not epoch:
            with pytest.raises(StopIteration):
                iterator._next_data()
    ledger.note(LAP)
    assert seen == [3, 2, 1, 1]
    assert timer.skipped == 0
    parts_s = ledger.take().parts_s
    assert parts_s['resume'] == pytest.approx(3 * WAIT_S)
    assert parts_s['data_wait'] == pytest.approx(WAIT_S)
