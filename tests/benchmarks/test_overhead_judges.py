from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks import overhead_peers
from benchmarks.harness import Figure
from benchmarks.overhead_cost import Cost, ThreadShare, judge_cost, judge_threads
from benchmarks.overhead_figures import Spent
from benchmarks.overhead_growth import Growth, judge_growth, run_bare_loop
from benchmarks.overhead_pairs import Iteration, judge_pairs
from mmgpu_hooks.telemetry.gpu.sampler import THREAD_NAME

US, MS = 1e-6, 1e-3


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def cost(ordinary_us: float, end_us: float) -> Cost:
    spent = Spent([ordinary_us * US] * 95 + [50 * US] * 5, [end_us * US] * 3, [5 * MS])
    return Cost(spent, {'Runner.call_hook': ordinary_us * US / 2}, [2 * MS])


@pytest.mark.parametrize(
    ('ours', 'net_us', 'is_met'),
    [(cost(29, 700), 20, True), (cost(30, 700), 21, False)],
)
def test_the_cost_is_judged_net_of_the_borders(ours: Cost, net_us: float, is_met: bool):
    figures = by_name(judge_cost({'ours': ours, 'empty': cost(9, 9)}))
    median = figures['main thread per iteration, median']
    assert median.value == pytest.approx(net_us)
    assert median.is_met is is_met
    assert f'raw {net_us + 9:.1f} less the borders 9.0' in median.note
    where = figures['- in Runner.call_hook']
    assert where.value == pytest.approx(net_us / 2)
    assert where.verdict == ''


@pytest.mark.parametrize(('end_us', 'is_met'), [(1020, True), (1040, False)])
def test_an_interval_is_what_it_costs_beyond_an_iteration(end_us: float, is_met: bool):
    figures = by_name(judge_cost({'ours': cost(29, end_us), 'empty': cost(9, 9)}))
    interval = figures['main thread per interval, median']
    assert interval.value == pytest.approx((end_us - 29) / 1000)
    assert interval.is_met is is_met


def test_the_control_is_shown_when_it_was_run():
    arms = {'ours': cost(29, 700), 'empty': cost(9, 9), 'sham': cost(14, 14)}
    sham = by_name(judge_cost(arms))['sham hook per iteration, median']
    assert sham.value == pytest.approx(5)
    assert sham.verdict == ''


def test_threads_are_told_and_added_up():
    (figure,) = judge_threads(ThreadShare({THREAD_NAME: 0.1, 'mmgpu-b': 0.04}, 30.0))
    assert figure.value == pytest.approx(100 * 0.14 / 30)
    assert figure.verdict == 'met'
    assert figure.note == f'in 30 s; threads: mmgpu-b, {THREAD_NAME}'
    assert judge_threads(ThreadShare({'mmgpu-b': 0.2}, 30.0))[0].verdict == 'missed'


def test_without_a_gpu_it_is_said_that_nothing_was_sampled():
    (figure,) = judge_threads(ThreadShare({}, 30.0))
    assert figure.value == 0.0
    assert figure.note == 'in 30 s; threads: none; no GPU: nothing sampled'


BORDER_S = 5 * US


def growth(
    last_us: float = 25.0,
    spread_us: float = 0.1,
    rss_mib: float = 0.1,
    kept: tuple[int, ...] = (1, 1),
) -> Growth:
    def tenth(level_us: float) -> list[float]:
        # what an interval's end costs grows no more than the rest
        costs_us = [level_us + spread_us * (i // 500 % 2) for i in range(10_000)]
        ends = (1000.0 if (i + 1) % 50 == 0 else 0.0 for i in range(10_000))
        return [(cost + end) * US for cost, end in zip(costs_us, ends)]

    # of 100,000 iterations, the first lays the borders
    costs_s = [*tenth(25.0)[1:], *tenth(25.0) * 8, *tenth(last_us)]
    return Growth(costs_s, [2**28, 2**28 + int(rss_mib * 2**20)], list(kept))


def test_what_does_not_grow():
    figures = judge_growth(growth(), BORDER_S)
    assert [figure.verdict for figure in figures] == ['met'] * 4
    assert figures[0].value == pytest.approx(1.0, abs=0.001)
    assert '100,000 iterations' in figures[2].note


@pytest.mark.parametrize(
    ('grown', 'missed'),
    [
        (growth(last_us=27.0), 'growth per iteration, last tenth over first'),
        (growth(rss_mib=1.1), 'growth of the process, last nine tenths'),
        (growth(kept=(1, 2)), 'values kept in the message hub, per scalar'),
        (growth(kept=(2, 2)), 'values kept in the message hub, per scalar'),
    ],
)
def test_what_grows(grown: Growth, missed: str):
    figures = judge_growth(grown, BORDER_S)
    assert [f.name for f in figures if f.verdict == 'missed'] == [missed]


def test_the_borders_do_not_dilute_growth():
    (iteration, *_) = judge_growth(growth(last_us=27.0), BORDER_S)
    assert iteration.value == pytest.approx(22 / 20, rel=0.01)


def test_noise_proves_no_absence_of_growth():
    (iteration, *_) = judge_growth(growth(spread_us=50.0), BORDER_S)
    assert iteration.verdict == 'missed'
    assert iteration.note.endswith('the machine is too noisy to tell')


def test_a_real_loop_keeps_one_value_per_scalar():
    found = run_bare_loop(300)
    assert len(found.costs_s) == 299
    assert len(found.rss_bytes) == 10
    assert min(found.rss_bytes) > 0
    assert found.hub_values == [1] * 10


def rounds(percent: float, spread_percent: float) -> list[Iteration]:
    factors = [1 + (percent + spread_percent * sign) / 100 for sign in [1, -1] * 8]
    return [Iteration(0.02 * factor, 0.019) for factor in factors]


@pytest.mark.parametrize(
    ('percent', 'spread_percent', 'verdict', 'is_noisy'),
    [
        (0.1, 0.5, 'met', False),
        (0.45, 0.5, 'missed', False),
        (-2.0, 0.5, 'missed', False),
        (0.0, 2.0, 'missed', True),
    ],
)
def test_equivalence(
    percent: float, spread_percent: float, verdict: str, is_noisy: bool
):
    arms = {
        'none': [Iteration(0.02, 0.019)] * 16,
        'sham': rounds(0.0, 0.1),
        'ours': rounds(percent, spread_percent),
    }
    hook, sham, median = judge_pairs(arms)
    assert hook.verdict == verdict
    assert hook.value == pytest.approx(percent, abs=0.03)
    assert ('too noisy to tell' in hook.note) is is_noisy
    assert '16 rounds of iterations of 20.0 ms' in hook.note
    # shown, not judged
    assert (sham.verdict, median.verdict) == ('', '')
    assert median.value == 0.0


FOUND = {
    'version': '9.9',
    'raw_s': 500 * US,
    'border_s': 80 * US,
    'p95_s': 600 * US,
    'ends_s': 0.5 * MS,
    'ends_border_s': 0.1 * MS,
    'threads': {'sampler': 0.002, 'sender': 0.001},
    'aggregator': 0.05,
}


def test_peers_are_shown_and_not_judged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metadata, 'version', lambda name: '9.9')
    monkeypatch.setattr(overhead_peers, '_measure', lambda peer: FOUND)
    figures = overhead_peers.measure_peers()
    assert {figure.verdict for figure in figures} == {''}
    values = {figure.name: figure.value for figure in figures}
    assert values['TraceML 9.9 per iteration, median'] == pytest.approx(420)
    assert values['TraceML 9.9 per interval, median'] == pytest.approx(0.4)
    assert values['TraceML 9.9 threads'] == pytest.approx(0.3)
    assert values['TraceML 9.9 aggregator'] == pytest.approx(5)
    assert 'nvitop 9.9 per iteration, median' in values


def test_a_peer_that_is_not_there_is_unknown(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, 'version', version)
    for figure in overhead_peers.measure_peers():
        assert figure.value is None
        assert figure.note == 'not installed: see requirements/bench.txt'


def test_a_peer_that_fails_is_unknown_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
):
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, '', 'Traceback\nOSError: gone')

    monkeypatch.setattr(metadata, 'version', lambda name: '9.9')
    monkeypatch.setattr(subprocess, 'run', run)
    (figure,) = [f for f in overhead_peers.measure_peers() if 'nvitop' in f.name]
    assert figure.value is None
    assert figure.note == 'failed: OSError: gone'


def test_the_pinned_peers_are_those_that_are_measured():
    root = Path(__file__).resolve().parents[2]
    pins = (root / 'requirements' / 'bench.txt').read_text()
    for _, distribution in overhead_peers.PEERS.values():
        assert f'\n{distribution}==' in pins
