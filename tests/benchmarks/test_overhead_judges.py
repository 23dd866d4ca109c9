from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import overhead_pairs, overhead_peers
from benchmarks.harness import Figure
from benchmarks.overhead_cost import Cost, ThreadShare, judge_cost, judge_threads
from benchmarks.overhead_effect import Iteration, Round
from benchmarks.overhead_figures import Spent
from benchmarks.overhead_loop import INTERVAL
from benchmarks.overhead_pairs import KEPT, WARM, Paired, judge_pairs, train_pairs
from mmgpu_hooks.measure.gpu_sampler import THREAD_NAME

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


def rounds(percent: float, spread_percent: float) -> list[Round]:
    def arm(percent: float) -> list[Iteration]:
        return [Iteration(0.005 + 0.025 * percent / 100, 0.02)] * 2

    shifts = [percent + spread_percent * sign for sign in [1, -1] * 8]
    return [
        # the control takes part in every second round
        {'none': arm(0), 'ours': arm(shift), **({} if index % 2 else {'sham': arm(0)})}
        for index, shift in enumerate(shifts)
    ]


@pytest.mark.parametrize(
    ('percent', 'spread_percent', 'verdict', 'is_noisy'),
    [
        (0.1, 0.5, 'met', False),
        (0.35, 0.5, 'missed', False),
        (-2.0, 0.5, 'missed', False),
        (0.0, 2.0, 'missed', True),
    ],
)
def test_equivalence(
    percent: float, spread_percent: float, verdict: str, is_noisy: bool
):
    paired = Paired(
        rounds(percent, spread_percent), 0.05, {'none': 0.002, 'ours': 0.0021}
    )
    hook, hooks, rest, threads, plain, workers, sham = judge_pairs(paired)
    assert hook.verdict == verdict
    assert hook.value == pytest.approx(percent + 0.05)
    assert ('too noisy to tell' in hook.note) is is_noisy
    assert '16 rounds of iterations of 25.0 ms' in hook.note
    # shown, not judged
    assert workers.value == pytest.approx(100)
    assert {f.verdict for f in (workers, hooks, rest, threads, plain, sham)} == {''}
    assert [f.value for f in (hooks, rest, threads, plain, sham)] == pytest.approx(
        [percent, 0.0, 0.05, percent, 0.0]
    )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the benchmark: what a matrix product takes is one core's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures('one_thread')
def test_real_pairs_take_equal_turns(monkeypatch: pytest.MonkeyPatch):
    # shorter steps than the benchmark's: they are counted here
    monkeypatch.setattr(overhead_pairs, 'STEP_S', 0.004)
    paired = train_pairs(2, parts=1)
    assert [sorted(r) for r in paired.rounds] == [
        ['none', 'ours', 'sham'],
        ['none', 'ours'],
    ]
    for iterations in (its for r in paired.rounds for its in r.values()):
        assert len(iterations) == 2 * KEPT
        assert all(i.rest_s > 0.001 and i.hooks_s > 0.0 for i in iterations)
    assert paired.threads >= 0.0
    assert all(0.0 < paired.workers_s[arm] < 0.1 for arm in ('none', 'sham', 'ours'))


def test_ends_of_intervals_are_kept_as_often_as_others():
    assert math.gcd(WARM + KEPT, INTERVAL) == 1


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
