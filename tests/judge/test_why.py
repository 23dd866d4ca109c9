"""Tests how measured values of a run affect the cause found in its console."""

from __future__ import annotations

import io
import os

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_run
from fakes.saves import make_save
from mmgpu_hooks.hooks.alarms import list_causes
from mmgpu_hooks.judge.console_log import read_log
from mmgpu_hooks.judge.rules.training import judge_standstills
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import NamedLog, judge_end
from mmgpu_hooks.measure import now
from mmgpu_hooks.measure.process_start import parse_process_start
from mmgpu_hooks.schema import recorded
from mmgpu_hooks.schema.judged import HostNow

WORKER = 'RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.'
RANK = 'failed (exitcode: -9) local_rank: 3 (pid: 8) of binary: python'
FETCH = '/x/torch/utils/data/_utils/fetch.py'
GONE, ALIVE = HostNow(is_alive=False), HostNow(is_alive=True)


def stands_in(*calls):
    return HostNow(is_alive=True, stack=calls)


def make_end(said=None, **fields):
    """Returns the end record of a run, completed or with the given exception."""
    if said is not None:
        lines = ('Traceback (most recent call last):', *said.split('\n'))
        error = lines[-1].partition(':')[0].rpartition('.')[2]
        fields = {'status': 'failed', 'error': error, 'traceback': lines, **fields}
    fields = {'status': 'completed', **fields}
    return recorded.EndRecord(iterations=0, duration_s=0.0, ledger_s={}, **fields)


def judge(text, *, free=None, limit=None, kills=None, end=None, host=GONE):
    """Returns what ``mmgpu why`` finds of a run on a host of 64 GiB by its console."""
    run = make_run(pid=7, oom_kills=None if kills is None else 2)
    limits = replace(run.host, ram_total_bytes=64 * GIB, cgroup_memory_bytes=limit)
    evidence = replace(make_evidence(run=replace(run, host=limits)), end=end)
    window = recorded.HostWindow(
        ram_available_bytes=None if free is None else free * GIB
    )
    last = replace(evidence.intervals[-1], host=window)
    evidence = replace(evidence, intervals=(*evidence.intervals[:-1], last))
    if kills is not None:
        host = replace(host, oom_kills=2 + kills)
    logs = [NamedLog('console', read_log(io.BytesIO(text.encode())))] if text else []
    return judge_end(logs, [Rank(evidence, host)])


@pytest.mark.parametrize(
    ('text', 'figures', 'cause', 'certainty'),
    [
        (WORKER, {}, 'oom_host', 'likely'),
        (WORKER, {'kills': 1}, 'oom_host', 'sure'),
        (WORKER, {'kills': 1, 'limit': 8 * GIB}, 'oom_cgroup', 'sure'),
        (WORKER, {'kills': 0}, 'worker_killed', 'likely'),
        (WORKER, {'free': 40}, 'worker_killed', 'likely'),
        # the limit may have been reached, whatever the host had
        (WORKER, {'free': 40, 'limit': 8 * GIB}, 'oom_host', 'likely'),
        (WORKER, {'free': 1}, 'oom_host', 'likely'),
        (RANK, {'kills': 0}, 'rank_lost', 'likely'),
        ('Killed', {'kills': 0}, 'interrupted', 'likely'),
        ('Killed', {'free': 1}, 'oom_host', 'likely'),
        ('', {}, 'unknown', 'unknown'),
        ('', {'kills': 2, 'limit': GIB}, 'oom_cgroup', 'sure'),
        ('', {'free': 1}, 'oom_host', 'likely'),
        ('', {'free': 40}, 'interrupted', 'likely'),
        ('', {'host': HostNow()}, 'unknown', 'unknown'),
        ('', {'host': HostNow(is_alive=True)}, None, 'sure'),
        # of what came after training
        (WORKER, {'end': make_end()}, 'oom_host', 'likely'),
        ('', {'end': make_end()}, None, 'sure'),
        # C code that holds Python's lock
        ('', {'host': stands_in('re.py:1 in match', FETCH)}, 'worker_stuck', 'likely'),
        ('', {'host': stands_in('numpy/core.py:1 in dot')}, 'unknown', 'unknown'),
    ],
)
def test_recorded_figures_confirm_or_refute_the_cause_in_the_log(
    text, figures, cause, certainty
):
    why = judge(text, **figures)
    assert (why.cause, why.certainty) == (cause, certainty)


LOST_WORKER = 'RuntimeError: DataLoader worker (pid(s) 4) exited unexpectedly'
FULL = 'RuntimeError: [enforce fail at inline_container.cc:1] . unexpected pos 1'
CTRL_C = {'status': 'interrupted'}
EXIT = {'status': 'interrupted', 'error': 'SystemExit'}
CLOSED = 'RuntimeError: gloo/transport/tcp/pair.cc:5] Connection closed by peer [x]:1'


@pytest.mark.parametrize(
    ('said', 'fields', 'cause', 'certainty'),
    [
        ('KeyboardInterrupt', CTRL_C, 'interrupted', 'sure'),
        ('SystemExit: 3', EXIT, 'unknown', 'unknown'),
        ('SystemExit: 143', EXIT, 'interrupted', 'likely'),
        ('torch.OutOfMemoryError: CUDA out of memory. Tried', {}, 'oom_gpu', 'sure'),
        (f'{WORKER}\n{LOST_WORKER}', {'oom_kills': 3}, 'oom_host', 'sure'),
        (FULL, {}, 'disk_full', 'likely'),
        ('ValueError: x', {}, 'unknown', 'unknown'),
        ('SystemExit: x', {'sample': 'index 37'}, 'unknown', 'unknown'),
        (
            f'  File "{FETCH}", line 5, in fetch\nBadImage: x',
            {'sample': 'index 7'},
            'sample_raised',
            'sure',
        ),
    ],
)
def test_the_end_record_alone_gives_cause_and_certainty(said, fields, cause, certainty):
    end = make_end(said, **fields)
    evidence = replace(make_evidence(run=make_run(oom_kills=2)), end=end)
    why = judge_end([], [Rank(evidence, GONE)])
    assert (why.cause, why.certainty) == (cause, certainty)
    assert why.sample == fields.get('sample')


@pytest.mark.parametrize(
    ('saves', 'start', 'said'),
    [
        ((), 0, 'It has saved no checkpoint to resume from: train anew.'),
        ((), 80, 'Resume from the last checkpoint'),
        ((make_save(),), 0, 'Resume from the last checkpoint'),
        ((make_save(error='KeyboardInterrupt'),), 0, 'It has saved no checkpoint'),
    ],
    ids=['nothing was saved', 'it was resumed itself', 'it has saved', 'a save failed'],
)
def test_nobody_is_told_to_resume_from_what_was_not_saved(saves, start, said):
    evidence = make_evidence(run=make_run(start_iteration=start))
    end = make_end('KeyboardInterrupt', **CTRL_C)
    evidence = replace(evidence, save_records=saves, end=end)
    assert judge_end([], [Rank(evidence, GONE)]).do[0].startswith(said)


@pytest.mark.parametrize(
    ('module', 'said'),
    [
        ('mmdet', 'python -m pip install mmdet.'),
        ('mmcv.runner', 'mmcv.runner is in no version of mmcv that is here'),
        ('pkg_resources', "python -m pip install 'setuptools<81'."),
        ('cv2', 'python -m pip install opencv-python.'),
        ('mmcv._ext', 'Install MMCV with its operators, built for the torch'),
    ],
)
def test_a_missing_package_is_named_in_what_to_do(module, said):
    text = f"ModuleNotFoundError: No module named '{module}'"
    logs = [NamedLog('console', read_log(io.BytesIO(text.encode())))]
    why = judge_end(logs)
    assert why.cause == 'package_missing' and said in why.do[0]


def test_a_console_without_a_reason_sends_nobody_back_to_the_console():
    logs = [NamedLog('console', read_log(io.BytesIO(b'Epoch(train) [1][5/40]')))]
    (do,) = judge_end(logs).do
    assert '--log' not in do and 'mmgpu why WORK_DIR' in do


@pytest.mark.parametrize(
    ('free', 'cause', 'certainty'),
    [(40, 'unknown', 'unknown'), (2, 'oom_host', 'sure'), (None, 'oom_host', 'likely')],
    ids=['much was free', 'little was free', 'never read'],
)
def test_an_allocation_that_failed_is_no_proof_where_memory_was_free(
    free, cause, certainty
):
    evidence = replace(make_evidence(), end=make_end('MemoryError'))
    if free is not None:
        record = recorded.MemoryRecord(
            phase='train',
            elapsed_s=9.0,
            bound='host',
            total_bytes=62 * GIB,
            used_bytes=(62 - free) * GIB,
        )
        evidence = replace(evidence, memory=(record,))
    why = judge_end([], [Rank(evidence, GONE)])
    assert (why.cause, why.certainty) == (cause, certainty)
    assert ('too much at once' in why.sentence) is (cause == 'unknown')


def test_memory_of_another_rank_says_nothing_of_an_allocation_that_failed():
    free = recorded.MemoryRecord(
        phase='train',
        elapsed_s=9.0,
        bound='host',
        total_bytes=62 * GIB,
        used_bytes=2 * GIB,
    )
    first = replace(make_evidence(run=make_run(rank=0, world_size=2)), end=None)
    other = replace(make_evidence(run=make_run(rank=1, world_size=2)), end=None)
    ranks = [Rank(replace(first, memory=(free,)), GONE), Rank(other, GONE)]
    said = b'[rank1]: MemoryError'
    logs = [NamedLog('console', read_log(io.BytesIO(said)))]
    assert judge_end(logs, ranks).cause == 'oom_host'
    assert judge_end(logs, ranks[:1]).cause == 'oom_host'


IN_ALLREDUCE = ('torch/autograd/graph.py:9 in _engine_run_backward',)


def make_stuck(part, **fields):
    return recorded.StuckRecord(iteration=40, part=part, waited_s=70.0, **fields)


def make_rank(number, *, stuck=None, end=None, host=ALIVE):
    """Returns one of two ranks with the given standstill and end records."""
    evidence = make_evidence(run=make_run(rank=number, world_size=2, pid=7 + number))
    last = replace(evidence.intervals[-1], iteration=40)
    stuck = () if stuck is None else (stuck,)
    evidence = replace(evidence, intervals=(last,), stuck=stuck, end=end)
    return Rank(evidence, host)


STEP = make_stuck('step', stack=IN_ALLREDUCE)
LOADING = make_stuck('data_wait', worker=1, pid=9, state='S', sample=118)
RAISED = make_end('ValueError: no boxes')


@pytest.mark.parametrize(
    ('other', 'cause', 'rank'),
    [
        ({'stuck': LOADING}, 'worker_stuck', 1),
        ({'host': GONE}, 'rank_lost', 1),
        ({'end': RAISED}, 'rank_lost', 1),
        ({'stuck': STEP}, 'rank_waits', None),
        ({'stuck': make_stuck('checkpoint_save')}, 'work_on_one_rank', 1),
    ],
)
def test_a_stuck_or_lost_rank_is_named_where_the_others_wait(other, cause, rank):
    why = judge_end([], [make_rank(0, stuck=STEP), make_rank(1, **other)])
    assert (why.state, why.cause, why.rank) == ('running', cause, rank)
    if 'stuck' in other and rank is not None:
        assert 'rank 0 is in the step' in why.proof[-1].text
        assert why.sample == ('118' if cause == 'worker_stuck' else None)


def test_the_log_names_the_rank_where_the_cause_is_unknown():
    own = make_stuck('step', stack=('net.py:3 in forward',))
    ranks = [make_rank(0, stuck=STEP), make_rank(1, stuck=own)]
    said = list_causes(ranks[0].evidence, [ranks[1].evidence])
    assert said[:2] == ['Rank 1:', 'net.py:3 in forward']


def test_a_standstill_that_is_over_is_a_finding():
    over = make_stuck('data_wait', is_over=True)
    evidence = replace(make_evidence(), stuck=(LOADING, over))
    finding = judge_standstills(Run(evidence))
    assert finding is not None and finding.severity == 'notice'
    assert '70.0 s' in finding.detail and 'sample 118 (worker_stuck)' in finding.detail
    assert judge_standstills(Run(replace(evidence, stuck=(LOADING,)))) is None


def test_a_batch_that_was_lost_is_no_stuck_worker():
    idle = ('multiprocessing/connection.py:9 in wait',)
    lost = replace(LOADING, sample=None, stack=idle)
    assert judge_end([], [make_rank(0, stuck=lost)]).cause == 'unknown'


OOM_KILLED = HostNow(is_alive=False, kernel=('Out of memory: Killed process 8 (py)',))


ELASTIC = 'failed (exitcode: -9) local_rank: 1 (pid: 8) of binary: python'


@pytest.mark.parametrize('text', [ELASTIC, ELASTIC.replace(' local_rank: 1', '')])
def test_the_rank_is_the_one_whose_process_the_line_names(text):
    # torchrun ends the others by SIGTERM, and they are gone, too
    ranks = [make_rank(0, host=GONE), make_rank(1, host=GONE)]
    logs = [NamedLog('console', read_log(io.BytesIO(text.encode())))]
    assert judge_end(logs, ranks).rank == 1


def make_gone(number, iteration, stuck=None):
    rank = make_rank(number, stuck=stuck, host=GONE)
    last = replace(rank.evidence.intervals[-1], iteration=iteration)
    evidence = replace(rank.evidence, intervals=(last,), end=None)
    return Rank(evidence, GONE)


@pytest.mark.parametrize(
    ('first', 'second', 'rank', 'cause', 'said'),
    [
        ((60,), (40,), 1, 'unknown', 'Rank 1 ended first'),
        ((40, STEP), (40,), 1, 'rank_lost', 'Stuck for 70 s'),
        ((40,), (40,), None, 'unknown', 'ended first is unknown'),
    ],
)
def test_the_rank_that_ended_first_is_named_or_unknown(
    first, second, rank, cause, said
):
    why = judge_end([], [make_gone(0, *first), make_gone(1, *second)])
    assert (why.rank, why.cause) == (rank, cause)
    assert said in why.sentence
    assert 'process 7 of rank 0' in why.proof[0].text
    assert 'process 8 of rank 1' in why.proof[1].text


@pytest.mark.parametrize(
    ('first', 'second', 'cause'),
    [
        (CLOSED, {'end': make_end('RuntimeError: CUDA out of memory')}, 'oom_gpu'),
        (None, {'end': make_end('OddError: boom')}, 'unknown'),
        # by what its peer saw
        (CLOSED, {'host': GONE}, 'rank_lost'),
        (CLOSED, {'host': OOM_KILLED}, 'oom_host'),
    ],
)
def test_the_rank_that_ended_the_others_is_named(first, second, cause):
    ranks = [make_rank(0, end=make_end(first), host=GONE), make_rank(1, **second)]
    why = judge_end([], ranks)
    assert (why.state, why.cause, why.rank) == ('ended', cause, 1)


def test_a_cuda_error_of_a_lost_card_is_put_down_to_the_card():
    off = recorded.SourceOffRecord(
        source='GPU', reason='NVML: GPU is lost', iteration=3
    )
    end = make_end('RuntimeError: CUDA error: x')
    evidence = replace(make_evidence(), sources_off=(off,), end=end)
    assert judge_end([], [Rank(evidence, GONE)]).cause == 'gpu_lost'
    evidence = replace(evidence, end=make_end())
    why = judge_end([], [Rank(evidence, GONE)])
    assert (why.state, why.cause) == ('completed', 'gpu_lost')
    assert why.sentence == 'It came to its end, but: The GPU is lost.'


def test_a_loss_that_is_nan_until_the_end_is_the_cause():
    lines = [
        f'Epoch(train) [1][{n}/90]  loss: {"nan" if n > 3 else 1}' for n in range(9)
    ]
    log = read_log(io.BytesIO('\n'.join(lines).encode()))
    evidence = replace(make_evidence(), end=make_end())
    why = judge_end([NamedLog('log', log)], [Rank(evidence, GONE)])
    assert (why.state, why.cause) == ('completed', 'nan_loss')


def test_the_kernel_log_tells_a_kill_by_the_control_group(tmp_path):
    log = (
        '6,1,1000000,-;Out of memory: Killed process 5 (old)\n'
        '6,2,9000000,-;Memory cgroup out of memory: Killed process 7 (python)\n'
        ' SUBSYSTEM=x\n6,3,9000001,-;eth0: link is up\n'
    )
    (tmp_path / 'kmsg').write_text(log)
    (line,) = now.read_kernel_log(5 * os.sysconf('SC_CLK_TCK'), tmp_path / 'kmsg')
    assert judge('', host=HostNow(is_alive=False, kernel=(line,))).cause == 'oom_cgroup'
    assert now.read_kernel_log(0, tmp_path / 'none') == ()


def test_process_start_and_oom_kills_are_read_from_proc_and_cgroup(tmp_path):
    stat = '41 (a) b) S ' + ' '.join(str(n) for n in range(4, 53))
    assert parse_process_start(stat) == ('S', 22)
    events = 'low 0\noom 3\noom_kill 2\noom_group_kill 0\n'
    for name, text, kills in (
        ('memory.oom_control', 'under_oom 0\n', None),
        ('memory.events', events, 2),
    ):
        (tmp_path / name).write_text(text)
        assert now.read_oom_kills(str(tmp_path), tmp_path) == kills
    # evidence names the folder, and may name any
    assert now.read_oom_kills(str(tmp_path)) is None
    assert now.read_oom_kills('/sys/fs/cgroup/a\0b') is None
    assert now.read_oom_kills(None) is None
