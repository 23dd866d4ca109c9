from __future__ import annotations

import random

import pytest

from fakes.replaced import replace
from fakes.saves import (
    HOST,
    LOADER,
    MIB,
    make_aftermath,
    make_calm,
    make_contended,
    make_save,
)
from mmgpu_hooks.judge.saves import judge_save, judge_saves
from mmgpu_hooks.schema import HostLimits, SaveJudgement, SavePhase, SaveRecord

ALONE = {'workers': 0, 'workers_busy': 0.0, 'workers_cpu_s': 0.0}


def judge(save, earlier=(), aftermath=None, host=HOST, loader=LOADER) -> SaveJudgement:
    return judge_save(save, earlier, aftermath, host, loader)


def hub(save: SaveRecord, mib: int) -> SaveRecord:
    return replace(save, message_hub_bytes=mib * MIB)


def remote(save: SaveRecord) -> SaveRecord:
    return replace(save, is_remote=True, backend='PetrelBackend')


def short_of_memory(save: SaveRecord, **fields) -> SaveRecord:
    pressed = {'memory_pressure_pct': 60.0, 'major_faults': 900, **fields}
    return replace(save, **pressed)


# 0.4 s of CPU: a delay by the CPU counts from 0.2 s on, others from 0.6 s on, beyond
# the 0.2 s of blocking that are usual.
@pytest.mark.parametrize(
    ('save', 'cause'),
    [
        pytest.param(make_contended(run_delay_s=0.21), 'workers', id='workers'),
        pytest.param(make_contended(run_delay_s=0.19), None, id='hardly workers'),
        pytest.param(
            make_save(run_delay_s=0.21, strangers_cpu_s=0.9, **ALONE),
            'strangers',
            id='strangers',
        ),
        pytest.param(
            make_save(run_delay_s=0.19, strangers_cpu_s=0.9, **ALONE),
            None,
            id='hardly strangers',
        ),
        pytest.param(make_save(blocked_s=0.81), 'storage', id='storage'),
        pytest.param(make_save(blocked_s=0.79), None, id='hardly storage'),
        pytest.param(remote(make_save(blocked_s=0.81)), 'remote', id='remote'),
        pytest.param(remote(make_save(blocked_s=0.79)), None, id='hardly remote'),
        pytest.param(
            short_of_memory(make_save(blocked_s=1.3)), 'memory', id='memory pressure'
        ),
        pytest.param(
            short_of_memory(make_save(blocked_s=1.3), major_faults=0),
            'storage',
            id='somebody else is short of memory',
        ),
        pytest.param(
            make_save(blocked_s=1.3, major_faults=12000, memory_pressure_pct=None),
            'memory',
            id='page faults',
        ),
        pytest.param(hub(make_save(cpu_s=1.0), 101), 'size', id='histories'),
        pytest.param(hub(make_save(cpu_s=1.0), 99), None, id='hardly histories'),
        pytest.param(hub(make_save(cpu_s=0.4), 190), None, id='a small delay by size'),
    ],
)
def test_a_cause_is_named_from_its_threshold_on(save, cause):
    judged = judge(save)
    assert (judged.is_slow, judged.cause) == (cause is not None, cause)


@pytest.mark.parametrize('cause', ['workers', 'storage', 'size', 'memory', 'remote'])
def test_the_cause_holds_against_calm_saves_of_the_run_too(cause):
    slow = {
        'workers': make_contended(),
        'storage': make_save(blocked_s=1.5),
        'size': hub(make_save(cpu_s=1.5), 150),
        'memory': short_of_memory(make_save(blocked_s=1.5)),
        'remote': remote(make_save(blocked_s=1.5)),
    }[cause]
    earlier = [
        replace(save, backend=slow.backend)
        for save in make_calm(cpu_s=1.5 if cause == 'size' else 0.4)
    ]
    judged = judge(slow, earlier)
    assert judged.cause == cause
    assert 'median of 5 uncontended saves' in judged.sentence


def test_the_uncontended_save_is_the_median_of_the_runs_own():
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


def test_saves_are_measured_by_saves_of_like_size_per_byte():
    slow = make_contended(bytes=220 * MIB)
    earlier = [*make_calm(3), *make_calm(9, cpu_s=0.05, bytes=20 * MIB)]
    assert judge(slow, earlier).uncontended_s == pytest.approx(0.44)


@pytest.mark.parametrize(
    ('fields', 'shares'),
    [
        (
            {'workers_cpu_s': 3.0, 'strangers_cpu_s': 0.6},
            {'workers': 5, 'strangers': 1},
        ),
        (
            {'workers_cpu_s': 0.6, 'strangers_cpu_s': 3.0},
            {'workers': 1, 'strangers': 5},
        ),
        ({'workers_cpu_s': 3.6, 'strangers_cpu_s': 0.0}, {'workers': 6}),
        ({'workers_cpu_s': 3.6, 'strangers_cpu_s': None}, {'workers': 6}),
        (
            {'workers_cpu_s': None, 'workers': 0, 'strangers_cpu_s': 3.0},
            {'strangers': 6},
        ),
    ],
)
def test_a_wait_for_a_core_is_divided_by_the_cpu_used_meanwhile(fields, shares):
    judged = judge(make_contended(**fields))
    whole = sum(shares.values())
    expected = {cause: 1.6 * share / whole for cause, share in shares.items()}
    assert judged.held_s == pytest.approx(expected)
    assert judged.cause == max(shares, key=lambda cause: shares[cause])


WIDE = HostLimits(logical_cpus=64, affinity_cpus=64, usable_cores=64.0)
CONFINED = HostLimits(logical_cpus=64, affinity_cpus=2, usable_cores=2.0)
UNKNOWN = HostLimits()


@pytest.mark.parametrize(
    ('fields', 'host'),
    [
        pytest.param({'workers_cpu_s': 0.5}, HOST, id='less CPU than the wait'),
        pytest.param(
            {'workers_cpu_s': 20.0, 'strangers_cpu_s': 20.0}, WIDE, id='idle cores'
        ),
        pytest.param(
            {'workers_cpu_s': 0.0, 'strangers_cpu_s': 60.0},
            CONFINED,
            id='strangers elsewhere',
        ),
        pytest.param({'workers_cpu_s': None}, HOST, id='workers unknown'),
        pytest.param(
            {'workers_cpu_s': None, 'strangers_cpu_s': None}, HOST, id='both unknown'
        ),
        pytest.param({}, UNKNOWN, id='cores unknown'),
    ],
)
def test_a_wait_for_a_core_without_proof_accuses_nobody(fields, host):
    judged = judge(make_contended(**fields), host=host)
    assert judged.is_slow
    assert judged.cause is None
    assert judged.held_s == {}
    assert 'cannot be told' in judged.sentence


def test_idle_cores_leave_one_suspect_by_elimination():
    # workers that a library has pinned to the core of the training process
    judged = judge(make_contended(strangers_cpu_s=0.1), host=WIDE)
    assert judged.cause == 'workers'


def test_a_quota_is_full_when_workers_use_it_up():
    quota = HostLimits(logical_cpus=64, cgroup_cpu_cores=2.0, usable_cores=2.0)
    judged = judge(make_contended(strangers_cpu_s=50.0), host=quota)
    assert judged.held_s == pytest.approx({'workers': 1.6})


@pytest.mark.parametrize(('workers_cpu_s', 'cause'), [(2.2, 'workers'), (0.3, None)])
def test_other_ranks_of_the_run_are_no_strangers(workers_cpu_s, cause):
    host = HostLimits(logical_cpus=4, usable_cores=2.0, ranks_on_host=2)
    others = 4 * 2.0 - 0.4 - workers_cpu_s
    save = make_contended(workers_cpu_s=workers_cpu_s, strangers_cpu_s=others)
    assert judge(save, host=host).cause == cause


def test_blocking_in_every_phase_is_no_disk():
    # as a hypervisor's stealing looks
    phases = {
        'serialise': SavePhase(wall_s=1.2, cpu_s=0.3, run_delay_s=0.0, blocked_s=0.9),
        'write': SavePhase(wall_s=1.2, cpu_s=0.1, run_delay_s=0.0, blocked_s=1.1),
    }
    save = make_save(blocked_s=2.0, phases=phases)
    assert judge(save).cause is None


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({'phases': {}}, 'the write was not measured on its own'),
        ({'is_remote': None}, 'it is unknown where the file backend writes to'),
    ],
)
def test_blocking_that_nobody_can_place_has_no_cause(fields, reason):
    judged = judge(make_save(blocked_s=2.0, **fields))
    assert (judged.is_slow, judged.cause) == (True, None)
    assert reason in judged.sentence


def test_unreadable_scheduler_statistics_tell_nothing_more():
    why = {'run_delay_s': '/proc/thread-self/schedstat: no such file'}
    save = replace(make_contended(), run_delay_s=None, blocked_s=None, unknown=why)
    judged = judge(save, make_calm(), make_aftermath())
    assert (judged.is_slow, judged.cause, judged.gross_delay_s) == (False, None, None)
    assert '0.40 s of it on a core' in judged.sentence
    assert why['run_delay_s'] in judged.sentence


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
    judged = judge(make_contended(), aftermath=make_aftermath(**fields))
    assert judged.gross_delay_s == pytest.approx(1.6)
    expected = None if won_back_s is None else 1.6 - won_back_s
    assert judged.net_delay_s == (
        None if expected is None else pytest.approx(expected, abs=1e-9)
    )


def test_without_workers_nothing_is_won_back():
    loader = replace(LOADER, num_workers=0, prefetch_factor=None)
    save = make_save(run_delay_s=1.6, strangers_cpu_s=3.6, **ALONE)
    judged = judge(save, loader=loader)
    assert judged.net_delay_s == judged.gross_delay_s


def test_two_hundred_healthy_saves_raise_no_alarm():
    noise = random.Random(4)
    saves = []
    for number in range(200):
        jitter = noise.lognormvariate(0.0, 0.2)
        cpu_s = (0.9 if number == 0 else 0.3) * jitter * (1 + number / 400)
        saves.append(
            make_save(
                number,
                cpu_s=cpu_s,
                run_delay_s=cpu_s * noise.choice([0.0, 0.02, 0.1, 0.3]),
                # now and then the page cache is written back first
                blocked_s=noise.choice([0.0, 0.01, 0.05, 0.45]),
                bytes=int(200 * MIB * (1 + number / 400)),
                message_hub_bytes=number * MIB // 20,
                workers_cpu_s=cpu_s * noise.random(),
                strangers_cpu_s=cpu_s * noise.random(),
                major_faults=noise.choice([0, 0, 3, 40]),
                memory_pressure_pct=noise.choice([0.0, 1.0, 5.0]),
            )
        )
    judged = judge_saves(saves, (), HOST, LOADER)
    assert [entry.sentence for entry in judged if entry.is_slow] == []


def test_each_save_of_an_iteration_has_its_own_aftermath():
    saves = [make_contended(100), make_contended(100), make_contended(200)]
    after = [
        make_aftermath(100, iterations=0, waits_s=0.0),
        make_aftermath(100, waits_s=0.3),
        make_aftermath(200, waits_s=0.0),
    ]
    judged = judge_saves(saves, after, HOST, LOADER)
    assert [entry.net_delay_s for entry in judged] == pytest.approx([1.6, 1.1, 0.8])
    # where only the last one was followed, the first one's is unknown
    judged = judge_saves(saves, after[1:], HOST, LOADER)
    assert judged[0].net_delay_s is None
    assert judged[1].net_delay_s == pytest.approx(1.1)


def test_what_ran_on_other_cores_of_the_host_is_not_said_to_have_run_here():
    host = replace(HOST, logical_cpus=64)
    save = make_contended(10, workers_cpu_s=0.0, strangers_cpu_s=62 * 2.0 + 3.5)
    judged = judge(save, host=host)
    assert judged.cause == 'strangers'
    assert 'other programs used 3.50 s of CPU on 2 usable cores' in judged.sentence


def test_a_slow_save_says_what_held_it_what_that_cost_and_what_to_do():
    aftermath = make_aftermath(waits_s=0.3)
    shared = make_contended(workers_cpu_s=2.4, strangers_cpu_s=1.2)
    sentence = judge(shared, make_calm(), aftermath).sentence
    assert sentence.startswith('Saving iter_100.pth (200 MiB) at iteration 100 took 2')
    for part in ('For 1.07 s', '8.0 of 8 loader workers', '2 usable cores', '0.53 s'):
        assert part in sentence
    assert '1.60 s longer (gross); the job lost 1.10 s (net)' in sentence
    assert 'GPUEfficiencyHook(worker_nice=10)' in sentence


def test_where_nothing_was_won_back_the_net_of_all_saves_of_an_iteration_is_known():
    saves = [make_contended(100), make_contended(100)]
    after = [make_aftermath(100, iterations=0, waits_s=0.0)]
    judged = judge_saves(saves, after, HOST, LOADER)
    assert [entry.net_delay_s for entry in judged] == pytest.approx([1.6, 1.6])
