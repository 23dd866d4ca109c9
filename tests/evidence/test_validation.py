from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.evidence.validation import ValidationFolder
from mmgpu_hooks.schema import DurationStats


class Watched:
    """A validation whose every second and every second of CPU are planted."""

    def __init__(self) -> None:
        self.clock, self.loading, self.process = (HandClock() for _ in range(3))
        self.delay_s: float | None = 16.0
        self.folder = ValidationFolder(
            self.clock, self.loading, self.process, lambda: self.delay_s
        )

    def wait(self, seconds: float, cpu_s: float) -> None:
        self.clock.turn(seconds)
        self.loading.turn(cpu_s)
        self.process.turn(cpu_s)

    def go_through(self, waits: list[float], step_s: float = 0.5) -> None:
        for number, wait_s in enumerate(waits):
            self.wait(wait_s, 0.25)
            self.folder.get(number == 0)
            # what we look at ourselves is in no part
            self.clock.turn(64.0)
            self.folder.begin_step()
            self.clock.turn(step_s)
            self.process.turn(0.125)
            self.folder.end_step()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_waits_and_steps_are_told_apart(watched: Watched) -> None:
    watched.clock.turn(8.0)
    watched.folder.ask_first()
    watched.go_through([4.0, 1.0, 2.0])
    figures = watched.folder.fold()
    assert figures['iterations'] == 3
    assert figures['data_wait'] == DurationStats(
        count=3, total_s=7.0, mean_s=7 / 3, p50_s=2.0, p95_s=3.8
    )
    assert figures['step'] == DurationStats(
        count=3, total_s=1.5, mean_s=0.5, p50_s=0.5, p95_s=0.5
    )
    assert figures['iter'].total_s == 8.5
    assert figures['first_waits'] == 1
    assert figures['first_wait_s'] == 4.0
    # of the first wait the CPU is in neither
    assert figures['data_wait_cpu_s'] == 0.5
    assert figures['process_cpu_s'] == 3 * 0.125 + 2 * 0.25
    # 8 s before, 7 s of waits, 1.5 s of steps and three looks
    assert watched.folder.wall_s == 8.0 + 8.5 + 3 * 64.0


def test_the_whole_of_it_is_more_than_its_iterations(watched: Watched) -> None:
    watched.go_through([4.0, 1.0])
    # metrics
    watched.wait(32.0, 8.0)
    watched.delay_s = 18.5
    assert watched.folder.fold_whole() == {
        'wall_s': 5.0 + 2 * 0.5 + 2 * 64.0 + 32.0,
        'whole_cpu_s': 2 * 0.25 + 2 * 0.125 + 8.0,
        'run_delay_s': 2.5,
    }


def test_a_wait_for_cores_that_is_not_told_stays_unknown(watched: Watched) -> None:
    watched.delay_s = None
    assert watched.folder.fold_whole()['run_delay_s'] is None


def test_without_a_word_the_first_wait_began_with_the_validation(
    watched: Watched,
) -> None:
    watched.clock.turn(8.0)
    watched.go_through([4.0])
    assert watched.folder.fold()['first_wait_s'] == 12.0


def test_each_pass_has_a_first_wait(watched: Watched) -> None:
    watched.go_through([4.0, 1.0])
    # the metrics of the first pass
    watched.clock.turn(32.0)
    watched.folder.ask_first()
    watched.go_through([2.0, 1.0])
    figures = watched.folder.fold()
    assert figures['iterations'] == 4
    assert (figures['first_waits'], figures['first_wait_s']) == (2, 6.0)
    assert figures['data_wait'].total_s == 8.0


def test_the_first_batch_of_a_pass_whose_beginning_is_unknown_is_left_out(
    watched: Watched,
) -> None:
    watched.go_through([4.0, 1.0])
    watched.clock.turn(32.0)
    watched.go_through([2.0, 1.0])
    figures = watched.folder.fold()
    assert figures['iterations'] == 3
    assert (figures['first_waits'], figures['first_wait_s']) == (1, 4.0)
    assert figures['data_wait'].total_s == 6.0
    assert figures['process_cpu_s'] == 3 * 0.125 + 2 * 0.25


def test_a_loop_without_iterations_tells_nothing(watched: Watched) -> None:
    assert watched.folder.fold() == {}
    assert watched.folder.untold == 'the loop never called its run_iter'


def test_numbers_of_batches_need_not_begin_at_0(watched: Watched) -> None:
    # monotonic clocks count from the boot of the host
    watched.clock.turn(1e6)
    watched.folder.ask_first()
    for wait_s in (4.0, 1.0):
        watched.wait(wait_s, 0.25)
        watched.folder.get(False)
        watched.folder.begin_step()
        watched.clock.turn(0.5)
        watched.folder.end_step()
    figures = watched.folder.fold()
    assert (figures['first_waits'], figures['first_wait_s']) == (1, 4.0)
    assert figures['data_wait'].total_s == 5.0
    assert figures['data_wait_cpu_s'] == 0.25


def test_the_wait_after_a_step_that_never_ended_is_left_out(watched: Watched) -> None:
    watched.go_through([4.0])
    # an error in the step, which the loop passes over
    watched.wait(1.0, 0.25)
    watched.folder.get(False)
    watched.folder.begin_step()
    watched.wait(2.0, 0.25)
    watched.folder.get(False)
    watched.folder.begin_step()
    watched.folder.end_step()
    assert watched.folder.fold()['data_wait'].total_s == 4.0


def test_iterations_longer_than_their_validation_are_refused(watched: Watched) -> None:
    watched.go_through([4.0, 1.0])
    assert watched.folder.untold is None
    watched.clock.turn(-130.0)
    assert watched.folder.fold() == {}
    assert watched.folder.untold == (
        'waits and steps took longer than the whole validation'
    )
