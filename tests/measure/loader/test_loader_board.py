from __future__ import annotations

import pytest

from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Board


@pytest.mark.parametrize('start_method', ['fork', 'spawn', 'forkserver'])
def test_slots_of_a_board_do_not_overlap(start_method: str):
    memory = Board(3, start_method)
    for number in range(3):
        slot = memory.slot(number)
        slot.figures[board.FLOATS - 1] = number + 1.0
        slot.figures[0] = -number
        slot.write_reason(f'reason {number} ' + 'x' * 500)
        slot.write_row_name(board.ROWS - 1, f'row {number} ' + 'ü' * 500)
        slot.write_sample_name(board.TOP - 1, f'sample {number}')
    for number in range(3):
        slot = memory.slot(number)
        assert slot.figures[board.FLOATS - 1] == number + 1.0
        assert slot.figures[0] == -number
        assert slot.read_reason().startswith(f'reason {number} xx')
        assert slot.read_row_name(board.ROWS - 1).startswith(f'row {number} ü')
        assert slot.read_sample_name(board.TOP - 1) == f'sample {number}'
