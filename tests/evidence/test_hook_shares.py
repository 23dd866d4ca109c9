from __future__ import annotations

import pytest

from mmgpu_hooks.evidence.hook_shares import LONG_CALLS, HookShares, labels_of
from mmgpu_hooks.evidence.ledger_parts import EXACT, LOOKED, UNSPLIT, UNTOLD

US, MS = 1e-6, 1e-3


def look(shares: HookShares, **hooks_s: float) -> None:
    """An iteration that is looked at, with 100 us of MMEngine's own calling."""
    for name, seconds in hooks_s.items():
        shares.add(labels_of(name.partition(' ')[0], False, name)[LOOKED], seconds)
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


def test_a_long_iteration_that_nobody_looked_at_is_told_to_be_nobodys():
    shares = HookShares()
    look(shares, A=400 * US)
    shares.add(UNSPLIT, 50 * MS)
    assert shares.surprises.count == 1
    assert shares.surprises.last_s == pytest.approx(49.5 * MS)
    # but for what is usual
    split = {'A': pytest.approx(800 * US), UNTOLD: pytest.approx(49.5 * MS)}
    assert shares.split() == split
    assert shares.settle(shares.split()) == split
    assert shares.total_s == pytest.approx(50.5 * MS)


def test_long_iterations_are_of_those_who_took_as_long_where_it_was_looked_at():
    shares = HookShares()
    shares.iterations = 12
    look(shares, **{'A 1 step': 2 * MS, 'B 2 step': 30 * MS, 'C 3 step': 400 * US})
    look(shares, **{'A 1 step': 2 * MS, 'B 2 step': 31 * MS, 'C 3 step': 400 * US})
    usual_s = 0.5 * MS
    shares.add(UNSPLIT, 28 * MS, 'step')
    split = shares.split()
    assert split['A'] == pytest.approx(4 * MS)
    assert split['B'] == pytest.approx(61 * MS + 28 * MS - usual_s)
    assert UNTOLD not in split
    # not what is like nobody's, nor what is at the other point of an iteration
    shares.add(UNSPLIT, 10 * MS, 'step')
    shares.add(UNSPLIT, 30 * MS, 'data_wait')
    split = shares.split()
    assert split['B'] == pytest.approx(61 * MS + 28 * MS - usual_s)
    assert split[UNTOLD] == pytest.approx(40 * MS - 2 * usual_s)
    assert sum(split.values()) <= shares.total_s


def test_at_the_end_what_was_nobodys_is_of_who_is_known_to_take_so_long():
    shares = HookShares()
    look(shares, **{'A 1 step': 400 * US, 'B 2 step': 400 * US})
    for iteration, seconds in ((100, 50 * MS), (150, 6 * MS)):
        shares.iterations = iteration
        shares.add(UNSPLIT, seconds, 'step')
        shares.split()
    shares.follow('B 2 step')
    for iteration in (200, 300):
        shares.iterations = iteration
        shares.add(labels_of('B', True, 'B 2 step')[UNSPLIT], 50 * MS)
        by_interval = shares.split()
    settled = shares.settle(by_interval)
    usual_s = 0.9 * MS
    # what an interval's record says stays so
    assert by_interval[UNTOLD] == pytest.approx(56 * MS - 2 * usual_s)
    assert settled[UNTOLD] == pytest.approx(6 * MS - usual_s)
    assert settled['B'] == pytest.approx(by_interval['B'] + 50 * MS - usual_s)
    assert settled['A'] == by_interval['A']
    assert sum(settled.values()) == pytest.approx(sum(by_interval.values()))


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
    assert shares.surprises.count == 0
