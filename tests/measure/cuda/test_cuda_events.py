from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.absent import AbsentError
from mmgpu_hooks.measure.cuda import CudaEvents, open_cuda_events


class Gpu:
    """Fake GPU stream: executes queued work in order and time-stamps events."""

    def __init__(self) -> None:
        self.host = HandClock(0.0)
        self.done = {'main': 0.0}
        """Time in seconds at which each stream will have finished its queued work."""
        self.stream = 'main'
        self.events = 0
        self.capturing = False

    @property
    def done_at(self) -> float:
        return self.done.get(self.stream, 0.0)

    def work(self, seconds: float) -> None:
        self.done[self.stream] = max(self.done_at, self.host()) + seconds

    def event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    """Fake CUDA event, which raises an error if it is read too early."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._at: float | None = None

    def record(self, stream: str) -> None:
        assert not self._gpu.capturing
        # an event passes when all before it is done
        done = self._gpu.done
        self._at = done[stream] = max(done.get(stream, 0.0), self._gpu.host())

    def query(self) -> bool:
        assert not self._gpu.capturing
        return self._at is not None and self._at <= self._gpu.host()

    def elapsed_time(self, later: Event) -> float:
        assert self.query() and later.query(), 'this would raise on a GPU'
        assert self._at is not None and later._at is not None
        return 1e3 * (later._at - self._at)


class Loop:
    """Fake train loop: a wait on the host, then a step that occupies the GPU."""

    def __init__(self, most: int = 1024) -> None:
        self.gpu = Gpu()
        self.events = CudaEvents(
            self.gpu.event,
            lambda: self.gpu.stream,
            lambda: self.gpu.capturing,
            most=most,
        )

    def iterate(
        self, *, wait_s: float = 0.0, gpu_s: float = 0.07, sync: bool = True
    ) -> None:
        self.gpu.host.turn(wait_s)
        self.events.begin_step()
        self.gpu.work(gpu_s)
        self.events.end_step()
        if sync:  # MMEngine reads the losses
            self.gpu.host.now = max(self.gpu.host.now, self.gpu.done_at)


def test_a_planted_stall_is_the_idle_share():
    loop = Loop()
    for _ in range(11):
        loop.iterate(wait_s=0.03)
    assert loop.events.drain() == (pytest.approx(30.0), 10)
    assert loop.events.drain() == (None, 0)


def test_what_the_gpu_has_not_reached_belongs_to_the_next_drain():
    loop = Loop()
    for _ in range(4):
        loop.iterate(gpu_s=1.0, sync=False)
    loop.gpu.host.now = 2.5
    assert loop.events.drain() == (pytest.approx(0.0), 2)
    loop.gpu.host.now = 9.0
    assert loop.events.drain() == (pytest.approx(0.0), 1)


def test_events_are_used_again_and_more_than_are_kept_are_not_timed():
    loop = Loop(most=6)
    for _ in range(20):
        for _ in range(4):
            loop.iterate(wait_s=0.03)
        loop.events.drain()
    assert loop.gpu.events <= 12
    for _ in range(50):
        loop.iterate(gpu_s=1.0, sync=False)
    loop.gpu.host.turn(60.0)
    assert loop.events.drain().iterations == 5
    # and all are free again
    for _ in range(5):
        loop.iterate(wait_s=0.03)
    assert loop.events.drain() == (pytest.approx(30.0), 4)
    assert loop.gpu.events <= 14


def test_two_streams_do_not_pass_in_turn():
    loop = Loop()
    loop.iterate(gpu_s=1.0, sync=False)
    # the next step's stream is idle, and passes its begin before the first step ends
    loop.gpu.stream = 'side'
    for _ in range(2):
        loop.iterate(gpu_s=0.1, sync=False)
    loop.gpu.host.now = 0.5
    assert loop.events.drain() == (None, 0)
    loop.gpu.host.now = 1.5
    assert loop.events.drain().iterations == 2


def test_a_step_is_timed_on_the_stream_that_it_began_on():
    loop = Loop()
    loop.gpu.done['left behind'] = 99.0
    for _ in range(3):
        loop.gpu.host.turn(0.03)
        loop.events.begin_step()
        loop.gpu.work(0.07)
        loop.gpu.host.now = loop.gpu.done_at
        loop.gpu.stream = 'left behind'
        loop.events.end_step()
        loop.gpu.stream = 'main'
    assert loop.events.drain() == (pytest.approx(30.0), 2)


def validate(loop: Loop) -> None:
    loop.gpu.host.turn(60.0)
    loop.events.interrupt()


def capture_a_graph(loop: Loop) -> None:
    loop.gpu.capturing = True
    for _ in range(3):
        loop.iterate(wait_s=0.03)
    loop.gpu.capturing = False


def raise_in_a_step(loop: Loop) -> None:
    loop.gpu.host.turn(0.03)
    loop.events.begin_step()  # and no end


@pytest.mark.parametrize(
    ('between', 'timed'),
    # what leads into the broken step is timed, what leads out of it is not
    [(validate, 4), (capture_a_graph, 4), (raise_in_a_step, 5)],
)
def test_what_comes_between_two_steps_is_no_idle_time(between, timed):
    loop = Loop()
    for _ in range(3):
        loop.iterate(wait_s=0.03)
    between(loop)
    for _ in range(3):
        loop.iterate(wait_s=0.03)
    assert loop.events.drain() == (pytest.approx(30.0), timed)


def test_on_the_cpu_no_idle_share_is_claimed():
    pytest.importorskip('torch', exc_type=ImportError)
    with pytest.raises(AbsentError, match='training runs on the CPU'):
        open_cuda_events()
