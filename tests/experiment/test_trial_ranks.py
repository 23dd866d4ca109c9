from __future__ import annotations

from typing import Any

import pytest

from mmgpu_hooks.experiment.trial_child import choose_end


def over(status: str, error: str | None = None) -> dict[str, Any]:
    return {'event': 'over', 'status': status, 'error': error}


PROGRESS = {'event': 'progress', 'iterations': 3}


@pytest.mark.parametrize(
    ('told', 'end'),
    [
        ([], None),
        ([(0, PROGRESS), (1, PROGRESS)], None),
        ([(0, over('completed'))], over('completed')),
        # it had nothing left to train; rank 0 says when all of it is over
        ([(1, over('completed'))], None),
        ([(1, over('failed', 'E: x'))], over('failed', 'rank 1: E: x')),
        (
            [(0, over('failed', 'E: peer')), (1, over('failed', 'E: x'))],
            over('failed', 'E: peer'),
        ),
        (
            [(0, over('failed', 'E: peer')), (3, over('out_of_memory', 'no room'))],
            over('out_of_memory', 'rank 3: no room'),
        ),
    ],
)
def test_the_first_reason_counts(told, end):
    assert choose_end(told) == end
