"""Tests the judging of slow checkpoint saves and their causes, on synthetic saves."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replaced import replace
from fakes.saves import (
    HOST,
    LOADER,
    MIB,
    make_after_save,
    make_calm,
    make_contended,
    make_save,
)
from mmgpu_hooks.judge.saves import judge_save, judge_saves
from mmgpu_hooks.schema.judged import SAVE_CAUSES, SaveJudgement
from mmgpu_hooks.schema.recorded import (
    SAVE_PHASES,
    AfterSaveRecord,
    HostLimits,
    LoaderSettings,
    SavePhase,
    SaveRecord,
)

ALONE: dict[str, Any] = {'workers': 0, 'workers_busy': 0.0, 'workers_cpu_s': 0.0}


def judge(save, earlier=(), after_save=None, host=HOST, loader=LOADER) -> SaveJudgement:
    return judge_save(save, earlier, after_save, host, loader)


def short_of_memory(save: SaveRecord, **fields) -> SaveRecord:
    return replace(save, **{'memory_pressure_pct': 60.0, 'major_faults': 900, **fields})


STOLEN = {
    # as a hypervisor's stealing looks: blocked where no disk is touched, too
    'serialise': SavePhase(wall_s=1.2, cpu_s=0.3, run_delay_s=0.0, blocked_s=0.9),
    'write': SavePhase(wall_s=1.2, cpu_s=0.1, run_delay_s=0.0, blocked_s=1.1),
}

FAULTS: dict[str, Any] = {'major_faults': 12000, 'memory_pressure_pct': None}


# 0.4 s of CPU: a delay by the CPU counts from 0.2 s on, others from 0.6 s on, beyond
# the 0.2 s of blocking that are usual.
@pytest.mark.parametrize(
    ('save', 'cause'),
    [
        (make_contended(run_delay_s=0.21), 'workers'),
        (make_contended(run_delay_s=0.19), None),
        (make_save(run_delay_s=0.21, other_cpu_s=0.9, **ALONE), 'other_load'),
        (make_save(run_delay_s=0.19, other_cpu_s=0.9, **ALONE), None),
        (make_save(blocked_s=0.81), 'storage'),
        (make_save(blocked_s=0.79), None),
        (short_of_memory(make_save(blocked_s=1.3)), 'memory'),
        # others are short of it
        (short_of_memory(make_save(blocked_s=1.3), major_faults=0), 'storage'),
        (make_save(blocked_s=1.3, **FAULTS), 'memory'),
    ],
    ids=[
        'workers',
        'workers below it',
        'other load',
        'other load below it',
        'storage',
        'storage below it',
        'memory',
        'memory of others',
        'memory by faults alone',
    ],
)
def test_a_cause_is_named_from_its_threshold_on(save, cause):
    judged = judge(save)
    assert (judged.is_slow, judged.cause) == (cause is not None, cause)


def test_the_uncontended_save_is_the_median_of_the_runs_own_of_like_size():
    # contention costs caches as well: more CPU than on an idle host
    slow = make_contended(cpu_s=0.55)
    earlier = [
        make_save(1, cpu_s=1.9),  # the first: lazy initialisation
        make_contended(2),
        *(make_save(10 + i, cpu_s=0.40 + 0.01 * i) for i in range(4)),
    ]
    judged = judge(slow, earlier)
    assert judged.uncontended_s == pytest.approx(0.42)
    assert judged.gross_delay_s == pytest.approx(slow.wall_s - 0.42)
    assert judged.held_s == pytest.approx({'workers': 1.6})
    slow = make_contended(bytes=220 * MIB)
    earlier = [*make_calm(3), *make_calm(9, cpu_s=0.05, bytes=20 * MIB)]
    assert judge(slow, earlier).uncontended_s == pytest.approx(0.44)


WIDE = HostLimits(logical_cpus=64, affinity_cpus=64, usable_cores=64.0)
CONFINED = HostLimits(logical_cpus=64, affinity_cpus=2, usable_cores=2.0)
QUOTA = HostLimits(logical_cpus=64, cgroup_cpu_cores=2.0, usable_cores=2.0)
RANKS = HostLimits(logical_cpus=4, usable_cores=2.0, ranks_on_host=2)


@pytest.mark.parametrize(
    ('workers_s', 'others_s', 'host', 'workers_share'),
    [
        (3.0, 0.6, HOST, 5 / 6),
        (0.6, 3.0, HOST, 1 / 6),
        (3.6, 0.0, HOST, 1.0),
        (3.6, None, HOST, 1.0),
        (0.0, 3.0, HOST, 0.0),
        # less CPU than the wait
        (0.5, 0.0, HOST, None),
        # idle cores
        (20.0, 20.0, WIDE, None),
        # one suspect by elimination: workers that are pinned to this very core
        (3.6, 0.1, WIDE, 1.0),
        # others, on other cores of the host
        (0.0, 60.0, CONFINED, None),
        (0.0, 62 * 2.0 + 3.5, CONFINED, 0.0),
        # a quota is full when workers use it up
        (3.6, 50.0, QUOTA, 1.0),
        (None, 0.0, HOST, None),
        (None, None, HOST, None),
        (3.6, 0.0, HostLimits(), None),
        # the other rank, which has workers too
        (2.2, 4 * 2.0 - 2.6, RANKS, 1.0),
        (0.3, 4 * 2.0 - 0.7, RANKS, None),
    ],
)
def test_a_wait_for_a_core_is_divided_by_the_cpu_used_meanwhile(
    workers_s, others_s, host, workers_share
):
    save = make_contended(workers_cpu_s=workers_s, other_cpu_s=others_s)
    judged = judge(save, host=host)
    held_s = {}
    if workers_share is not None:
        shares = {'workers': workers_share, 'other_load': 1.0 - workers_share}
        held_s = {cause: 1.6 * share for cause, share in shares.items() if share}
    assert judged.is_slow
    assert judged.held_s == pytest.approx(held_s)
    assert judged.cause == max(held_s, key=lambda cause: held_s[cause], default=None)
    assert ('it is unknown' in judged.sentence) is (not held_s)


def test_blocking_that_cannot_be_placed_has_no_cause():
    judged = judge(make_save(blocked_s=2.0, phases={}))
    assert (judged.is_slow, judged.cause) == (True, None)
    assert judge(make_save(blocked_s=2.0, phases=STOLEN)).cause is None


def test_unreadable_scheduler_statistics_leave_a_save_unknown():
    save = replace(make_contended(), run_delay_s=None, blocked_s=None)
    judged = judge(save, make_calm(), make_after_save())
    assert (judged.is_slow, judged.cause, judged.gross_delay_s) == (False, None, None)
    assert 'cannot tell what held it' in judged.sentence


# 8 workers and 2 batches each make at most 16 ahead; a usual wait is 0.05 s.
@pytest.mark.parametrize(
    ('fields', 'won_back_s'),
    [
        ({}, 0.0),
        ({'waits_s': 0.3}, 0.5),
        ({'waits_s': 0.0}, 0.8),
        ({'waits_s': 2.0}, 0.0),
        ({'iterations': 40, 'waits_s': 0.0}, 0.8),
        ({'iterations': 0, 'waits_s': 0.0}, 0.0),
        ({'usual_wait_s': 1.0, 'waits_s': 0.0}, 1.6),
        ({'usual_wait_s': None}, None),
    ],
)
def test_the_net_delay_is_less_what_was_won_back(fields, won_back_s):
    judged = judge(make_contended(), after_save=make_after_save(**fields))
    assert judged.gross_delay_s == pytest.approx(1.6)
    if won_back_s is None:
        assert judged.net_delay_s is None
    else:
        assert judged.net_delay_s == pytest.approx(1.6 - won_back_s, abs=1e-9)
    # without workers nothing is won back
    loader = replace(LOADER, num_workers=0, prefetch_factor=None)
    judged = judge(
        make_contended(), after_save=make_after_save(**fields), loader=loader
    )
    assert judged.net_delay_s == judged.gross_delay_s


def test_each_of_the_last_saves_of_an_iteration_has_its_own_waits_after_it():
    saves = [make_contended(100), make_contended(100), make_contended(200)]
    after = [
        make_after_save(100, iterations=0, waits_s=0.0),
        make_after_save(100, waits_s=0.3),
        make_after_save(200, waits_s=0.0),
    ]
    judged = judge_saves(saves, after, HOST, LOADER)
    assert [entry.net_delay_s for entry in judged] == pytest.approx([1.6, 1.1, 0.8])
    # where only the last one was followed, the first one's is unknown
    judged = judge_saves(saves, after[1:], HOST, LOADER)
    assert judged[0].net_delay_s is None
    assert judged[1].net_delay_s == pytest.approx(1.1)


def test_a_slow_save_says_what_held_it_what_that_cost_and_what_to_do():
    after_save = make_after_save(waits_s=0.3)
    shared = make_contended(workers_cpu_s=2.4, other_cpu_s=1.2)
    sentence = judge(shared, make_calm(), after_save).sentence
    assert sentence.startswith('Saving iter_100.pth (200 MiB) at iteration 100')
    for part in (
        '1.067 s',
        '8.0 of 8 busy',
        '2 usable cores',
        '0.533 s',
        '1.600 s longer (gross)',
        '(net): 1.100 s',
        'worker_nice=10',
    ):
        assert part in sentence


SIMPLE = {
    int: st.sampled_from([0, 1, 16, 2**20, 2**28, 2**40]),
    float: st.sampled_from([0.0, 1e-9, 0.01, 0.3, 1.0, 9.0, 1e18]),
    str: st.sampled_from(['', 'LocalBackend', 'iter_1.pth']),
    bool: st.booleans(),
}


def records(
    kind: type[msgspec.Struct], **fixed: st.SearchStrategy
) -> st.SearchStrategy:
    """Returns a Hypothesis strategy for records of a class, some lacking values."""
    hints = typing.get_type_hints(kind)
    fields: dict[str, st.SearchStrategy[Any]] = dict(fixed)
    for name in kind.__struct_fields__:
        wanted = [t for t in typing.get_args(hints[name]) if t is not type(None)]
        simple = SIMPLE.get(wanted[0] if wanted else hints[name])
        if simple is not None and name not in fixed:
            fields[name] = st.none() | simple if wanted else simple
    return st.builds(kind, **fields)


SAVES = records(
    SaveRecord,
    phases=st.dictionaries(st.sampled_from(SAVE_PHASES), records(SavePhase)),
    error=st.none() | st.just('OSError'),
)


@settings(deadline=None)
@given(
    SAVES,
    st.lists(SAVES, max_size=5),
    st.none() | records(AfterSaveRecord),
    records(HostLimits),
    records(LoaderSettings),
)
def test_whatever_is_recorded_is_judged_soundly(save, earlier, after, host, loader):
    judged = judge_save(save, earlier, after, host, loader)
    gross_s, net_s = judged.gross_delay_s, judged.net_delay_s
    assert judged.cause in (*SAVE_CAUSES, None)
    assert judged.cause is None or (judged.is_slow and judged.cause in judged.held_s)
    assert judged.sentence.endswith('.')
    assert min(judged.held_s.values(), default=0.0) >= 0.0
    if gross_s is None:
        assert (judged.is_slow, net_s, judged.held_s) == (False, None, {})
    else:
        assert 0.0 <= gross_s <= save.wall_s
        assert sum(judged.held_s.values()) <= gross_s * (1 + 1e-9)
        assert net_s is None or 0.0 <= net_s <= gross_s
