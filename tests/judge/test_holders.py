"""Tests sentences on who holds host memory, how many workers fit, and memory kills."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_interval, make_loader, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.judge.why import judge_end
from mmgpu_hooks.judge.why_memory import add_start
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.judged import HostNow, Why
from mmgpu_hooks.schema.recorded import MemoryRecord, ValidationRecord
from mmgpu_hooks.schema.text import quoted

GONE = HostNow(is_alive=False)
MIB = 2**20


def make_memory(used: float = 60, **fields: Any) -> MemoryRecord:
    """Returns a memory record of a 62 GiB host; eight workers hold 41 GiB."""
    record = MemoryRecord(
        phase='train',
        elapsed_s=360.0,
        iteration=1000,
        epoch=1,
        bound='host',
        total_bytes=62 * GIB,
        used_bytes=int(used * GIB),
        shm_bytes=6 * GIB,
        process_bytes=9 * GIB,
        workers=8,
        worker_bytes=41 * GIB,
        is_low=used > 58,
    )
    return replace(record, **fields)


def make_ranks(*memory: MemoryRecord, grows: float = 0, **run: Any) -> list[Any]:
    """Returns ranks of a killed run whose workers grow by some MiB per minute."""
    intervals = tuple(
        make_interval(
            n,
            worker_own_bytes=int(41 * GIB + grows * MIB * n / 10),
            process_own_bytes=9 * GIB,
        )
        for n in range(60)
    )
    if memory[0].workers and memory[0].worker_bytes is not None:
        memory = (replace(memory[0], elapsed_s=0.3, is_low=False), *memory)
    meta = make_run(**{'loader': make_loader(8), 'hostname': 'a', 'pid': 7, **run})
    evidence = make_evidence(run=meta)
    return [replace(evidence, memory=memory, intervals=intervals, end=None)]


def judge(*memory: MemoryRecord, **run: Any) -> str:
    """Returns the sentence of finding MG409, or an empty text."""
    (evidence,) = make_ranks(*memory, **run)
    found = {f.code: f for f in diagnose_run(Run(evidence)).findings}
    return found['MG409'].detail if 'MG409' in found else ''


def test_one_sentence_names_who_holds_memory_and_the_number_that_holds():
    results: dict[str, Any] = {
        'result_bytes': 3 * GIB,
        'result_name': 'CocoMetric.results',
    }
    record = make_memory(**{**results, 'process_bytes': 6 * GIB})
    assert judge(record) == (
        'Of 62 GiB: 8 workers 41 (5.1 each), /dev/shm 6.0, training process 3.0, '
        'results of CocoMetric 3.0, other programs 7.0; with 7 workers it would have '
        'held.'
    )


@pytest.mark.parametrize(
    ('record', 'words'),
    [
        (make_memory(used=50), ''),
        (make_memory(bound='group'), 'of 62 GiB of its control group:'),
        (make_memory(is_pss=False), 'pages that processes share count in each'),
        (
            make_memory(validation_workers=2, validation_worker_bytes=3 * GIB),
            '2 validation workers 3.0 (1.5 each)',
        ),
        (make_memory(worker_bytes=2 * GIB), 'other programs 43.'),
        (make_memory(workers=0, worker_bytes=None), 'training process 9.0'),
    ],
    ids=[
        'enough is free',
        'control group',
        'no PSS',
        'validation',
        'small workers, of which no number holds',
        'no workers',
    ],
)
def test_the_sentence_names_bound_holders_and_how_they_were_counted(record, words):
    said = judge(record)
    assert words.lower() in said.lower() if words else not said


@pytest.mark.parametrize(
    ('mib_a_minute', 'max_iters', 'persistent', 'words'),
    [
        (6000, 4000, True, 'with 3 workers and persistent_workers=False it would have'),
        (9000, 4000, True, 'no number of workers would have held: the workers grow'),
        (6000, 1210, True, 'with 3 workers it would have held'),
        (1500, 1210, False, 'with 7 workers it would have held'),
        (1500, 40_000, False, 'with 7 workers it would have held'),
    ],
    ids=[
        'ending epochs',
        'until training ends',
        'which is soon',
        'and soon',
        'until an epoch does',
    ],
)
def test_what_leaks_with_each_sample_is_the_same_with_fewer_workers(
    mib_a_minute, max_iters, persistent, words
):
    loader = make_loader(8, persistent_workers=persistent, batches_per_epoch=1210)
    run = {'loader': loader, 'max_iters': max_iters}
    assert words in judge(make_memory(), grows=mib_a_minute, **run)


def test_a_worker_that_was_killed_meanwhile_ends_no_growth():
    (evidence,) = make_ranks(make_memory(elapsed_s=350.0), grows=6000, max_iters=4000)
    last = replace(evidence.intervals[-1], worker_own_bytes=3 * GIB)
    evidence = replace(evidence, intervals=(*evidence.intervals[:-1], last))
    found = diagnose_run(Run(evidence)).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert 'growing' in said


def test_a_growing_process_is_helped_by_no_number_of_workers():
    intervals = tuple(
        make_interval(n, process_own_bytes=int(GIB + n * 300 * MIB)) for n in range(60)
    )
    (evidence,) = make_ranks(make_memory(), max_iters=9000)
    found = diagnose_run(Run(replace(evidence, intervals=intervals))).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert 'no number of workers would have held: the training process grows' in said
    assert 'growing 2.9 GiB a minute' in said


def test_what_workers_share_with_the_training_process_goes_with_none_of_them():
    (evidence,) = make_ranks(make_memory(process_bytes=GIB))
    # of 25 GiB each of eight workers counts 3, and adds 2.1 of its own
    found = diagnose_run(Run(with_process(evidence, [25.0] * 60))).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert '8 workers 41 (5.1 each)' in said
    assert 'with 6 workers it would have held' in said


def with_process(evidence: Any, sizes: list[float]) -> Any:
    """Returns a run whose training process holds the given GiB in each log interval."""
    intervals = tuple(
        replace(interval, process_own_bytes=int(size * GIB))
        for interval, size in zip(evidence.intervals, sizes)
    )
    return replace(evidence, intervals=intervals)


@pytest.mark.parametrize(
    ('sizes', 'fields', 'says', 'holds'),
    [
        ([9.0] * 60, {}, '', True),
        (
            [3.0] * 48 + [3 + n / 2 for n in range(12)],
            {},
            '(growing 5.0 GiB a minute)',
            False,
        ),
        ([3.0] * 59 + [9.0], {}, '(up from at most 3.0 within 114 s)', False),
        ([3.0] * 60, {}, '(up from at most 3.0 within 114 s)', False),
        ([9.0] * 2, {}, '', False),
        ([9.0] * 60, {'used_bytes': 50 * GIB}, '', False),
    ],
    ids=[
        'settled',
        'grows late',
        'one leap',
        'a leap after the last interval',
        'hardly read',
        'others grew',
    ],
)
def test_nothing_is_promised_where_something_else_rose_at_the_end(
    sizes, fields, says, holds
):
    (evidence,) = make_ranks(make_memory())
    first, *later = evidence.memory
    evidence = replace(evidence, memory=(replace(first, **fields), *later))
    found = diagnose_run(Run(with_process(evidence, sizes))).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert ('with 7 workers it would have held' in said) is holds
    assert says in said and ('(up ' in said or '(gr' in said) is bool(says)
    assert 'no number' not in said


@pytest.mark.parametrize(
    ('sizes', 'said'),
    [
        ([2, 2, 2], '3 training processes 6.0 (2.0 each)'),
        ([1, 8], '2 training processes 9.0 (rank 1 8.0, rank 0 1.0)'),
        ([8, 1], '2 training processes 9.0 (rank 0 8.0, rank 1 1.0)'),
        ([2, 8, 2], '3 training processes 12 (rank 1 8.0, the others 2.0 each)'),
        ([8, 1, 8], '3 training processes 17 (rank 1 1.0, the others 8.0 each)'),
        ([1, 2, 8], '3 training processes 11 (1.0 to 8.0 each, most on rank 2)'),
    ],
    ids=str,
)
def test_the_rank_that_is_unlike_the_others_is_named(sizes, said):
    ranks = [
        make_ranks(make_memory(process_bytes=size * GIB), rank=rank, world_size=3)[0]
        for rank, size in enumerate(sizes)
    ]
    first, *others = map(Run, ranks)
    found = diagnose_run(Run(first.evidence, others)).findings
    assert said in next(f.detail for f in found if f.code == 'MG409')


def test_a_rank_that_alone_grows_is_named():
    ranks = [make_ranks(make_memory(), rank=rank, world_size=2)[0] for rank in (0, 1)]
    grown = with_process(ranks[1], [3 + n / 5 for n in range(60)])
    found = diagnose_run(Run(ranks[0], [Run(grown)])).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert 'rank 1 growing 2.0 GiB a minute' in said


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        (
            {'largest_worker_bytes': 13 * GIB},
            '8 workers 41 (the largest 13, the others 4.0 on average)',
        ),
        ({'largest_worker_bytes': 6 * GIB}, '8 workers 41 (5.1 each)'),
        ({'children': 1, 'child_bytes': GIB}, '1 program that training started 1.0'),
        ({'children': 2, 'child_bytes': GIB}, '2 programs that training started 1.0'),
        ({'bound': 'group'}, 'shared memory (/dev/shm and any other tmpfs) 6.0'),
        ({}, ', /dev/shm 6.0'),
    ],
    ids=['a large worker', 'alike', 'a child', 'children', 'group', 'host'],
)
def test_holders_are_named_for_what_was_read(fields, said):
    assert said in judge(make_memory(**fields))


def test_ranks_of_a_host_are_added_up_and_what_each_parsed_is_named():
    two = make_run(loader=make_loader(4)).host
    run: dict[str, Any] = {'world_size': 2, 'host': replace(two, ranks_on_host=2)}
    record = make_memory(workers=4, worker_bytes=20 * GIB)
    ranks = [
        make_ranks(record, rank=rank, dataset_bytes=4 * GIB, **run)[0]
        for rank in range(2)
    ]
    others = [Run(ranks[1])]
    found = diagnose_run(Run(ranks[0], others)).findings
    said = next(f.detail for f in found if f.code == 'MG409')
    assert '8 workers 40 (5.0 each), 2 training processes 18' in said
    assert '(9.0 each, 4.0 of it the data set, parsed by each rank)' in said
    # the other rank is unknown: it is none of the other programs for sure
    alone = diagnose_run(Run(ranks[0])).findings
    said = next(f.detail for f in alone if f.code == 'MG409')
    assert 'other programs and 1 rank of this training' in said


def test_recommend_takes_the_number():
    (evidence,) = make_ranks(make_memory())
    run = Run(evidence)
    found = limit_to_memory(recommend_settings(run), run)
    changes = {change.key: change for change in found.changes}
    change = changes['train_dataloader.num_workers']
    assert change.old == 8
    assert change.new <= 7
    # twin: memory was never low
    (evidence,) = make_ranks(make_memory(used=50))
    run = Run(evidence)
    plain = recommend_settings(run)
    assert limit_to_memory(plain, run) == plain


def test_slurm_is_asked_for_what_a_run_with_a_validation_showed():
    record = make_memory(used=40, worker_bytes=16 * GIB)
    validation = ValidationRecord(iteration=400, wall_s=9.0)

    def advise(evidence: Any) -> str:
        run = Run(evidence)
        found = limit_to_memory(recommend_settings(run), run).advice
        return ' '.join(text for text in found if '--mem' in text)

    limits = replace(make_run().host, slurm_memory_bytes=40 * GIB)
    (evidence,) = make_ranks(record, host=limits)
    assert not advise(evidence)
    seen = replace(evidence, validations=(validation,))
    # 9 + 16 + 6, and a fifth
    assert '--mem=38G' in advise(seen)
    killed = make_memory(worker_bytes=16 * GIB)
    limits = replace(limits, cgroup_memory_bytes=40 * GIB)
    (evidence,) = make_ranks(killed, host=limits)
    assert '--mem=48G' in advise(replace(evidence, validations=(validation,)))
    (evidence,) = make_ranks(record)
    assert not advise(replace(evidence, validations=(validation,)))


@pytest.mark.parametrize(
    ('memory', 'cause', 'has_sentence'),
    [
        (make_memory(), 'oom_host', True),
        (make_memory(bound='group'), 'oom_cgroup', True),
        (make_memory(used=20), 'interrupted', False),
    ],
    ids=['host', 'group', 'twin: enough is free'],
)
def test_a_kill_names_who_held_memory(memory, cause, has_sentence):
    (evidence,) = make_ranks(memory)
    limits = replace(evidence.run.host, ram_total_bytes=62 * GIB)
    interval = replace(evidence.intervals[-1], host=None)
    evidence = replace(
        evidence,
        run=replace(evidence.run, host=limits),
        intervals=(*evidence.intervals[:-1], interval),
    )
    why = judge_end([], [Rank(evidence, GONE)])
    said = [proof.text for proof in why.proof if '8 workers' in proof.text]
    assert bool(said) is has_sentence
    if has_sentence:
        assert why.cause == cause
        assert 'num_workers=7' in why.do[0]
    else:
        assert why.cause not in ('oom_host', 'oom_cgroup')


def test_a_start_that_was_killed_says_that_each_rank_held_a_data_set():
    record = make_memory(phase='start', workers=0, worker_bytes=None)
    ranks = [[replace(record, process_bytes=20 * GIB)] for _ in range(2)]
    why = add_start(Why('unknown', 'unknown', 'unknown', quoted('It ended.')), ranks)
    assert (why.cause, why.certainty) == ('oom_host', 'likely')
    said = why.proof[-1].text
    assert '2 training processes 40 (20 each, building data set and model)' in said
    enough = [[replace(record, is_low=False, used_bytes=GIB)]]
    unknown = Why('unknown', 'unknown', 'unknown', quoted('It ended.'))
    assert add_start(unknown, enough) == unknown
