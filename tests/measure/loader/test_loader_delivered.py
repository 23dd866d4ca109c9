from __future__ import annotations

import pytest

from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.batches import Contents, DeliveredBatches
from mmgpu_hooks.measure.loader.board import Slot, make_private_slot


class Iterator:
    """All that is asked of a loader's iterator."""

    _rcvd_idx = 0


def make(slot: Slot, number: int, held: Contents) -> None:
    """A worker makes a batch."""
    count = int(slot.figures[board.BATCHES])
    begin = board.DELIVERY_RING + board.DELIVERY * (count % board.RING)
    for offset, figure in enumerate((number, *held)):
        slot.figures[begin + offset] = board.UNKNOWN if figure is None else figure
    slot.figures[board.BATCHES] = count + 1.0


def held(number: int) -> Contents:
    return Contents(2, 100 + number, number)


@pytest.fixture
def slots() -> list[Slot]:
    return [make_private_slot(), make_private_slot()]


@pytest.fixture
def iterator() -> Iterator:
    return Iterator()


@pytest.fixture
def delivered(slots: list[Slot], iterator: Iterator) -> DeliveredBatches:
    batches = DeliveredBatches()
    batches.follow(iterator, slots)
    return batches


def numbers(batches: DeliveredBatches) -> list[int | None] | None:
    found = batches.drain()
    return None if found is None else sorted(boxes or 0 for boxes in found[2])


def test_only_what_the_loop_took_is_told_and_once(delivered, slots, iterator):
    for number in range(6):
        make(slots[number % 2], number, held(number))
    iterator._rcvd_idx = 3
    assert list(zip(*delivered.drain())) in (
        [held(0), held(2), held(1)],
        [held(2), held(0), held(1)],
    )
    iterator._rcvd_idx = 6
    assert numbers(delivered) == [3, 4, 5]
    assert numbers(delivered) == []


def test_workers_may_take_any_batch_and_any_figure_may_be_unknown(
    delivered, slots, iterator
):
    make(slots[1], 0, Contents(None, None, 0))
    make(slots[1], 1, held(1))
    iterator._rcvd_idx = 2
    assert sorted(zip(*delivered.drain()), key=lambda one: one[2]) == [
        Contents(None, None, 0),
        held(1),
    ]


def test_a_batch_that_is_missing_makes_the_interval_unknown(delivered, slots, iterator):
    make(slots[0], 0, held(0))
    iterator._rcvd_idx = 2
    assert delivered.drain() is None
    make(slots[0], 2, held(2))
    iterator._rcvd_idx = 3
    assert numbers(delivered) == [2]


def test_numbers_begin_anew_in_the_next_epoch(delivered, slots, iterator):
    for number in range(4):
        make(slots[number % 2], number, held(number))
    iterator._rcvd_idx = 4
    delivered.collect()  # at the last ask
    for number in range(4):
        make(slots[number % 2], number, held(10 + number))
    iterator._rcvd_idx = 2
    assert numbers(delivered) == [0, 1, 2, 3, 10, 11]


def test_an_epoch_as_long_as_the_one_before_is_seen(delivered, slots, iterator):
    for epoch in range(3):
        iterator._task_info = {}
        iterator._rcvd_idx = 0
        for number in range(4):
            make(slots[number % 2], number, held(10 * epoch + number))
        iterator._rcvd_idx = 4
        delivered.collect()  # at the last ask, and never before
    assert numbers(delivered) == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


def test_batches_that_the_last_epoch_left_are_none_of_the_next(
    delivered, slots, iterator
):
    for number in range(6):
        make(slots[number % 2], number, held(number))
    iterator._rcvd_idx = 2
    assert numbers(delivered) == [0, 1]
    # the loop broke off: four were made and never taken
    iterator._task_info = {}
    for number in range(6):
        make(slots[number % 2], number, held(10 + number))
    iterator._rcvd_idx = 5
    assert numbers(delivered) == [10, 11, 12, 13, 14]
    iterator._rcvd_idx = 6
    assert numbers(delivered) == [15]


def test_a_look_reads_what_is_new_alone(delivered, slots, iterator, monkeypatch):
    read = []
    original = Slot.read_figures
    monkeypatch.setattr(
        Slot,
        'read_figures',
        lambda slot, start, end: read.append(end - start) or original(slot, start, end),
    )
    for number in range(board.RING + 10):
        make(slots[0], number, held(number))
        iterator._rcvd_idx = number + 1
        if number % 50 == 49:
            assert len(delivered.drain()[0]) == 50
    assert read == [50 * board.DELIVERY] * 5
    read.clear()
    assert numbers(delivered) == list(range(250, board.RING + 10))
    # over the end of the ring
    assert read == [6 * board.DELIVERY, 10 * board.DELIVERY]


def test_the_board_may_go_round(delivered, slots, iterator):
    for number in range(3 * board.RING):
        make(slots[0], number, held(number))
        iterator._rcvd_idx = number
        delivered.collect(is_due=False)
    assert len(delivered.drain()[0]) == 3 * board.RING - 1


def test_more_batches_than_the_board_holds_are_unknown(delivered, slots, iterator):
    for number in range(board.RING + 1):
        make(slots[0], number, held(number))
    iterator._rcvd_idx = board.RING + 1
    assert delivered.drain() is None


def test_without_workers_in_reach_nothing_is_told(iterator):
    delivered = DeliveredBatches()
    assert delivered.drain() is None
    delivered.follow(iterator, ())
    assert delivered.drain() is None
