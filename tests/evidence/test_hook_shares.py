from __future__ import annotations

import pytest

from mmgpu_hooks.evidence.hook_shares import HookShares, labels_of
from mmgpu_hooks.evidence.ledger_parts import EXACT, LOOKED, UNSPLIT

US, MS = 1e-6, 1e-3


def look(shares: HookShares, **hooks_s: float) -> None:
    """An iteration that is looked at, with 100 us of MMEngine's own calling."""
    for name, seconds in hooks_s.items():
        shares.add(labels_of(name, False)[LOOKED], seconds)
    shares.add(LOOKED, 100 * US)
    shares.looks += 1


def test_iterations_that_nobody_looked_at_are_split_as_the_others_were():
    shares = HookShares()
    look(shares, A=300 * US, B=100 * US)
    for _ in range(10):
        shares.add(UNSPLIT, 500 * US)
    assert shares.total_s == pytest.approx(5500 * US)
    split = shares.split()
    assert split == {'A': pytest.approx(3300 * US), 'B': pytest.approx(1100 * US)}


def test_what_was_split_once_stays_so():
    shares = HookShares()
    look(shares, A=900 * US)
    shares.add(UNSPLIT, 1000 * US)
    assert shares.split()['A'] == pytest.approx(1800 * US)
    look(shares, B=900 * US)
    assert shares.split() == {
        'A': pytest.approx(1800 * US),
        'B': pytest.approx(900 * US),
    }


def test_before_anybody_looked_nothing_is_split():
    shares = HookShares()
    shares.add(UNSPLIT, 500 * US)
    assert shares.split() == {}
    look(shares, A=100 * US)
    assert shares.split() == {'A': pytest.approx(100 * US)}


@pytest.mark.parametrize('between', [UNSPLIT, LOOKED, EXACT])
def test_a_hook_that_is_always_timed_stands_for_itself(between: str):
    shares = HookShares()
    shares.add(labels_of('A', True)[between], 7 * MS)
    shares.add(UNSPLIT, 900 * US)
    assert shares.split() == {'A': 7 * MS}


def test_at_a_point_that_is_seldom_every_hook_stands_for_itself():
    assert labels_of('A', False)[EXACT] == labels_of('A', True)[EXACT]
    assert UNSPLIT not in labels_of('A', False)
    assert labels_of('step', True)[UNSPLIT] == 'step'


def test_a_long_call_stands_for_itself_and_is_told():
    shares = HookShares()
    look(shares, A=20 * MS, B=100 * US)
    shares.add(UNSPLIT, 200 * US)
    assert shares.long == {'A': 1}
    assert shares.split() == {'A': 20 * MS, 'B': pytest.approx(200 * US)}


def test_a_long_iteration_that_nobody_looked_at_is_split_among_nobody():
    shares = HookShares()
    look(shares, A=400 * US)
    shares.add(UNSPLIT, 50 * MS)
    assert shares.surprises == 1
    assert shares.split() == {'A': pytest.approx(400 * US)}
    assert shares.total_s == pytest.approx(50.5 * MS)


def test_many_hooks_of_a_usual_length_are_no_surprise():
    shares = HookShares()
    look(shares, **dict.fromkeys('ABCDE', 900 * US))
    shares.add(UNSPLIT, 5 * MS)
    assert shares.surprises == 0
