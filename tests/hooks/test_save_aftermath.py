"""Waits after a save, told from the usual ones."""

from __future__ import annotations

from mmgpu_hooks.hooks.saves import AftermathFolder
from mmgpu_hooks.schema import SaveAftermathRecord


def test_waits_are_taken_for_as_long_as_what_was_made_ahead_can_last():
    folder = AftermathFolder(horizon=3, start=0)
    assert folder.add_waits([0.2, 0.4]) == []
    folder.add_save(2)
    assert folder.add_waits([0.0, 0.0]) == []
    assert folder.add_waits([0.1, 0.5]) == [
        SaveAftermathRecord(
            iteration=2, iterations=3, waits_s=0.1, usual_wait_s=0.30000000000000004
        )
    ]
    assert folder.finish() == []


def test_a_save_in_the_middle_of_known_waits_is_found_by_its_iteration():
    folder = AftermathFolder(horizon=2, start=10)
    folder.add_save(12)
    (record,) = folder.add_waits([0.25, 0.75, 0.0, 0.125, 9.0])
    assert record == SaveAftermathRecord(
        iteration=12, iterations=2, waits_s=0.125, usual_wait_s=0.5
    )
    folder.add_save(15)
    assert folder.add_waits([0.5, 0.5])[0].usual_wait_s == (0.25 + 0.75 + 9.0) / 3


def test_the_next_save_ends_the_span_of_the_one_before():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_save(1)
    folder.add_save(3)
    assert folder.add_waits([1.0, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]) == [
        SaveAftermathRecord(iteration=1, iterations=2, waits_s=0.75, usual_wait_s=1.0),
        SaveAftermathRecord(iteration=3, iterations=4, waits_s=0.0, usual_wait_s=1.0),
    ]


def test_two_saves_at_one_iteration_share_their_aftermath():
    folder = AftermathFolder(horizon=1, start=0)
    folder.add_save(1)
    folder.add_save(1)
    assert folder.add_waits([1.0, 0.5, 1.0]) == [
        SaveAftermathRecord(iteration=1, iterations=1, waits_s=0.5, usual_wait_s=1.0)
    ]


def test_a_validation_ends_the_span():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_save(1)
    folder.add_cut(2)
    (record,) = folder.add_waits([1.0, 0.5, 7.0, 7.0])
    assert record == SaveAftermathRecord(
        iteration=1, iterations=1, waits_s=0.5, usual_wait_s=1.0
    )


def test_a_validation_long_after_the_save_ends_the_span_too():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_save(1)
    folder.add_waits([1.0, 0.5])
    folder.add_cut(2)
    assert folder.add_waits([7.0]) == [
        SaveAftermathRecord(iteration=1, iterations=1, waits_s=0.5, usual_wait_s=1.0)
    ]


def test_workers_that_start_anew_have_nothing_ready():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_save(1)
    assert folder.add_waits([1.0, 30.0, 1.0], firsts=[1]) == [
        SaveAftermathRecord(iteration=1, iterations=0, waits_s=0.0, usual_wait_s=1.0)
    ]
    # nor is the wait for their start a usual one
    folder.add_save(3)
    assert folder.add_waits([0.0, 0.0, 0.0, 0.0])[0].usual_wait_s == 1.0


def test_without_waits_before_it_is_not_known_what_is_usual():
    folder = AftermathFolder(horizon=1, start=0)
    folder.add_save(0)
    assert folder.add_waits([0.5]) == [
        SaveAftermathRecord(iteration=0, iterations=1, waits_s=0.5, usual_wait_s=None)
    ]


def test_a_validation_right_after_a_save_leaves_nothing_to_look_at():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_save(1)
    folder.add_cut(1)
    assert folder.add_waits([1.0, 0.0, 0.0]) == [
        SaveAftermathRecord(iteration=1, iterations=0, waits_s=0.0, usual_wait_s=1.0)
    ]


def test_the_end_of_the_run_ends_the_span():
    folder = AftermathFolder(horizon=4, start=0)
    folder.add_waits([1.0, 1.0])
    folder.add_save(2)
    folder.add_waits([0.5])
    folder.add_save(3)
    assert folder.finish() == [
        SaveAftermathRecord(iteration=2, iterations=1, waits_s=0.5, usual_wait_s=1.0),
        SaveAftermathRecord(iteration=3, iterations=0, waits_s=0.0, usual_wait_s=1.0),
    ]
    assert folder.finish() == []


def test_a_loader_without_workers_makes_nothing_ahead():
    folder = AftermathFolder(horizon=0, start=0)
    folder.add_save(1)
    assert folder.add_waits([1.0, 1.0, 1.0]) == []


def test_waits_of_less_than_a_round_of_the_workers_are_no_usual_ones():
    # 32 workers on two cores end a round together: one wait in 32 holds it all
    folder = AftermathFolder(horizon=64, start=0, round_of=32)
    known = []
    for done in range(1, 101):
        wait_s = 0.32 if done % 32 == 0 else 0.0
        known += folder.add_waits([wait_s])
        if done % 20 == 0:
            folder.add_save(done)
    assert [record.iteration for record in known] == [20, 40, 60]
    assert {record.usual_wait_s for record in known} == {None}


def test_waits_of_a_round_of_the_workers_are_usual_ones():
    folder = AftermathFolder(horizon=2, start=0, round_of=2)
    folder.add_waits([0.0, 0.5])
    folder.add_save(2)
    (record,) = folder.add_waits([0.0, 0.0])
    assert record.usual_wait_s == 0.25
