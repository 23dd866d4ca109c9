"""Which of all workers' samples were the slowest, and what they are called."""

from __future__ import annotations

import pytest

from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Slot, make_private_slot
from mmgpu_hooks.measure.loader.inside import InsideReader, InsideTally
from mmgpu_hooks.schema import SlowSample


def plant(place: int, seconds: float, index: int, slot: Slot) -> None:
    """Leave what a worker leaves of a slow sample in its first batch."""
    figures = slot.figures
    figures[board.BATCHES] = 1.0
    figures[board.TOP_INDEX + place] = index
    slot.write_sample_name(place, f'{index}.jpg')
    figures[board.TOP_SECONDS + place] = seconds


def read_slowest(slots: list[Slot]) -> tuple[SlowSample, ...]:
    tally = InsideTally()
    InsideReader(slots).collect(tally)
    figures = tally.drain()
    assert figures is not None
    return figures.slowest


def test_the_slowest_of_all_workers_are_told_and_no_other_name_is_read(
    monkeypatch: pytest.MonkeyPatch,
):
    slots = [make_private_slot() for _ in range(3)]
    for worker, slot in enumerate(slots):
        for place in range(board.TOP):
            index = 10 * worker + place
            plant(place, 7.0 * index % 31, index, slot)
    named: list[str] = []
    read = Slot.read_sample_name

    def read_sample_name(slot: Slot, place: int) -> str:
        named.append(read(slot, place))
        return named[-1]

    monkeypatch.setattr(Slot, 'read_sample_name', read_sample_name)
    assert read_slowest(slots) == (
        SlowSample(seconds=30.0, index=22, image='22.jpg'),
        SlowSample(seconds=29.0, index=13, image='13.jpg'),
        SlowSample(seconds=23.0, index=21, image='21.jpg'),
        SlowSample(seconds=22.0, index=12, image='12.jpg'),
    )
    assert len(named) == board.TOP


def test_a_sample_whose_place_is_taken_meanwhile_gets_no_other_samples_name(
    monkeypatch: pytest.MonkeyPatch,
):
    slot = make_private_slot()
    plant(0, 2.0, 7, slot)
    read = Slot.read_sample_name

    def read_sample_name(slot: Slot, place: int) -> str:
        plant(place, 3.0, 8, slot)
        return read(slot, place)

    monkeypatch.setattr(Slot, 'read_sample_name', read_sample_name)
    assert read_slowest([slot]) == (SlowSample(seconds=2.0, index=7),)
