from __future__ import annotations

import statistics

import pytest

from benchmarks.overhead_check import judge_planted_growth
from benchmarks.overhead_growth import judge_growth
from benchmarks.overhead_growth_loop import Growth, run_bare_loop
from mmgpu_hooks import GPUEfficiencyHook

US = 1e-6
INTERVALS = 2000


def growth(
    last_us: float = 25.0,
    end_us: float = 1000.0,
    spread: float = 0.01,
    slower: float = 1.0,
    rss_mib: float = 0.1,
    kept: tuple[int, ...] = (1, 1),
    blocks: int = 100,
) -> Growth:
    """Of 100,000 iterations.

    Args:
        last_us: What an iteration costs in the end, with 5 us of borders; 25 at first,
            and ever more in between.
        end_us: What an interval's end costs then beyond an iteration; 1000 at first.
        spread: Steps between the five levels of noise.
        slower: Than the rest of the loop the machine is in the last tenth.
        rss_mib: What the process grew by.
        kept: Values in the message hub.
        blocks: Of Python's memory, kept in the last nine tenths.
    """
    costs_s, reference_s = [], []
    for interval in range(INTERVALS):
        is_last = interval >= 0.9 * INTERVALS
        speed = (slower if is_last else 1.0) * US
        noise = 1 + spread * (interval % 5 - 2)
        done = interval / INTERVALS
        ours = (25.0 + (last_us - 25.0) * done) * noise
        end = (1000.0 + (end_us - 1000.0) * done) * noise
        if interval == 0:
            end *= 5  # what is done once
        costs_s += [ours * speed] * 49 + [(ours + end) * speed]
        reference_s += [5 * speed] * 49 + [(5 + 800) * speed]
    rss_bytes = [2**28, 2**28 + int(rss_mib * 2**20)]
    held = [10**6, 10**6 + blocks]
    return Growth(costs_s, reference_s, rss_bytes, held, list(kept))


def test_what_does_not_grow():
    figures = judge_growth(growth())
    assert [figure.verdict for figure in figures] == ['met'] * 5
    assert [f.value for f in figures[:2]] == pytest.approx([1.0, 1.0], abs=0.001)
    assert '100,000 iterations' in figures[2].note


def test_a_slower_machine_is_no_growth():
    figures = judge_growth(growth(slower=1.5))
    assert [figure.verdict for figure in figures] == ['met'] * 5
    assert [f.value for f in figures[:2]] == pytest.approx([1.0, 1.0], abs=0.001)


@pytest.mark.parametrize(
    ('grown', 'missed'),
    [
        (growth(last_us=27.0), 'growth per iteration, last tenth over first'),
        (growth(end_us=1100.0), 'growth per interval, last tenth over first'),
        (growth(rss_mib=1.1), 'growth of the process, last nine tenths'),
        (growth(blocks=1000), "blocks of Python's memory kept, per interval"),
        (growth(kept=(1, 2)), 'values kept in the message hub, per scalar'),
        (growth(kept=(2, 2)), 'values kept in the message hub, per scalar'),
    ],
)
def test_what_grows(grown: Growth, missed: str):
    figures = judge_growth(grown)
    assert [f.name for f in figures if f.verdict == 'missed'] == [missed]


def test_the_borders_do_not_dilute_growth():
    (iteration, *_) = judge_growth(growth(last_us=27.0, slower=1.2))
    assert iteration.value == pytest.approx(22 / 20, rel=0.015)


def test_what_the_machine_does_for_seconds_is_no_growth():
    slow = growth(spread=0.05)
    hundred = 100 * 50
    # ours suffers more than the reference, in the last twentieth only
    slow.costs_s[-hundred:] = [1.08 * cost_s for cost_s in slow.costs_s[-hundred:]]
    iteration, *_ = judge_growth(slow)
    assert iteration.verdict == 'met'


def noisy() -> Growth:
    """Each twentieth is dearer or cheaper than the next."""
    found, twentieth = growth(), 100 * 50
    for begin in range(0, len(found.costs_s), 2 * twentieth):
        for index in range(begin, begin + twentieth):
            found.costs_s[index] *= 1.3
    return found


def test_noise_proves_no_absence_of_growth():
    (iteration, *_) = judge_growth(noisy())
    assert iteration.verdict == 'missed'
    assert iteration.note.endswith('the machine is too noisy to tell')


def test_the_check_asks_for_the_verdict_of_what_was_planted():
    nothing = judge_growth(growth())[:4]
    planted = judge_growth(growth(27.0, 1100.0, rss_mib=1.8, blocks=1800))[:4]
    assert {f.verdict for f in judge_planted_growth(nothing, False)} == {'met'}
    assert {f.verdict for f in judge_planted_growth(nothing, True)} == {'missed'}
    assert {f.verdict for f in judge_planted_growth(planted, True)} == {'met'}
    uncertain = judge_growth(noisy())[:1]
    assert {f.verdict for f in judge_planted_growth(uncertain, True)} == {'missed'}


def test_real_loops_take_turns_and_keep_one_value_per_scalar():
    found = run_bare_loop(500, GPUEfficiencyHook(summary=False))
    assert len(found.costs_s) == len(found.reference_s) == 500
    assert len(found.rss_bytes) == 10
    assert min(found.rss_bytes) > 0
    assert len(found.blocks) == 10
    assert found.hub_values == [1] * 10
    # the reference works at the ends of the intervals, and only there
    ends_s = found.reference_s[49::50]
    rest_s = [s for i, s in enumerate(found.reference_s) if (i + 1) % 50]
    # but for the few that somebody else's work fell into
    assert min(ends_s) > statistics.quantiles(rest_s, n=20)[-1]
    assert min(ends_s) > 3 * statistics.median(rest_s)
