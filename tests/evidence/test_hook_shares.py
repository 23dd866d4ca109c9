from __future__ import annotations

import pytest

from mmgpu_hooks.evidence.hook_shares import LONG_CALLS, HookShares, labels_of
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
    assert shares.long['A'] == 1
    assert shares.split() == {'A': 20 * MS, 'B': pytest.approx(200 * US)}


def test_a_long_iteration_that_nobody_looked_at_is_split_among_nobody():
    shares = HookShares()
    look(shares, A=400 * US)
    shares.add(UNSPLIT, 50 * MS)
    assert shares.surprises == 1
    assert shares.surprise_s == pytest.approx(49.5 * MS)
    # but for what is usual
    assert shares.split() == {'A': pytest.approx(800 * US)}
    assert shares.total_s == pytest.approx(50.5 * MS)


def test_long_iterations_are_of_those_who_took_long_where_it_was_looked_at():
    shares = HookShares()
    look(shares, A=400 * US, B=500 * US)
    look(shares, A=400 * US, B=3 * MS)
    look(shares, A=2 * MS, B=3 * MS)
    shares.add(UNSPLIT, 10 * MS)
    usual_s = 1.6 * MS / 3  # of A, of B and of the calling, where they were not long
    surprise_s = 10 * MS - usual_s
    split = shares.split()
    assert split['A'] == pytest.approx(
        2.8 * MS + usual_s * 0.8 / 1.6 + surprise_s * 2 / 8
    )
    assert split['B'] == pytest.approx(
        6.5 * MS + usual_s * 0.5 / 1.6 + surprise_s * 6 / 8
    )
    assert sum(split.values()) <= shares.total_s
    # what is long later is for those who are long then
    shares.add(UNSPLIT, 10 * MS)
    later = shares.split()
    assert later['B'] - split['B'] < usual_s


@pytest.mark.parametrize(
    ('calls', 'is_long'), [('LLLL', True), ('LLLSLLL', True), ('LSLSLSLS', False)]
)
def test_a_method_is_taken_to_be_long_when_most_of_its_calls_are(
    calls: str, is_long: bool
):
    shares = HookShares()
    seen = labels_of('A', False, 'A 1 after')[LOOKED]
    other = labels_of('A', False, 'A 1 before')[LOOKED]
    for _ in range(100):
        shares.add(seen, 100 * US)
    for call in calls:
        # a short one of another method tells nothing of this one
        shares.add(other, 100 * US)
        shares.add(seen, 5 * MS if call == 'L' else 100 * US)
    assert (shares.long['A 1 after'] >= LONG_CALLS) is is_long
    assert set(shares.split()) == {'A'}


def test_many_hooks_of_a_usual_length_are_no_surprise():
    shares = HookShares()
    look(shares, **dict.fromkeys('ABCDE', 900 * US))
    shares.add(UNSPLIT, 5 * MS)
    assert shares.surprises == 0
