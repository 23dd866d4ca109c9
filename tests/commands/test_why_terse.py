"""Tests ``mmgpu why`` on terse logs: harmless banners, and real failures."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mmgpu_hooks.judge.console_log import read_log
from mmgpu_hooks.judge.why import NamedLog, judge_end

HERE = Path(__file__).parent
BANNERS = (HERE / 'console_banners.txt').read_text().splitlines()
"""Harmless console lines: messages of the day, news, help texts, health checks."""
LINES = [
    line.split(': ', 1)
    for line in (HERE / 'console_lines.txt').read_text().splitlines()
]
"""Expected causes of failure, each with a console line that some program prints."""

FRAME = '  File "tools/train.py", line 121, in <module>\n    main()\n'
TRACEBACK = f'Traceback (most recent call last):\n{FRAME}'
FETCH = (
    'Traceback (most recent call last):\n  File "/e/torch/utils/data/_utils/fetch.py", '
    'line 51, in fetch\n'
)
WORKER = 'RuntimeError: DataLoader worker (pid 88) is killed by signal: '
CANCELLED = 'slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-05-01T10:00:00'
ENDS = [
    ('unknown', f'{TRACEBACK}ValueError: no boxes'),
    ('unknown', f'{TRACEBACK}IndexError: index 81 is out of bounds'),
    ('unknown', f'{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was'),
    ('unknown', 'Segmentation fault (core dumped)'),
    ('unknown', 'Aborted (core dumped)'),
    ('unknown', 'Bus error (core dumped)'),
    ('unknown', 'run.sh: line 1:  1234 Segmentation fault      (core dumped) python'),
    ('unknown', 'Fatal Python error: Segmentation fault'),
    ('unknown', 'ERROR: Job failed: command terminated with exit code 1'),
    ('unknown', 'srun: error: gpu1: task 2: Exited with exit code 1'),
    ('config_error', f"{TRACEBACK}KeyError: 'RTM is not in the model registry.'"),
    ('config_error', 'train.py: error: unrecognized arguments: --wrok-dir x'),
    ('config_error', f"{TRACEBACK}AttributeError: 'ConfigDict' object has no attribute "
     "'train_dataloder'"),
    ('resume_refused', f'{TRACEBACK}_pickle.UnpicklingError: Weights only load '
     'failed.'),
    ('oom_gpu', f'{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to'),
    ('oom_gpu', 'RuntimeError: CUDA error: out of memory'),
    ('oom_host', 'Killed'),
    ('oom_host', 'run.sh: line 28:  8156 Killed                  python train.py'),
    ('oom_host', 'trainer-1 exited with code 137'),
    ('oom_host', 'Process finished with exit code 137 (interrupted by signal 9: '
     'SIGKILL)'),
    ('oom_host', f'{TRACEBACK}{WORKER}Killed.'),
    ('oom_host', '[81234.6] Out of memory: Killed process 991 (python) total-vm:61kB\n'
     'Killed'),
    ('oom_host', f'{TRACEBACK}MemoryError'),
    ('oom_cgroup', 'slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch.'),
    ('oom_cgroup', 'srun: error: gpu04: task 0: Out Of Memory'),
    ('oom_cgroup', 'Memory cgroup out of memory: Killed process 8 (python)\nKilled'),
    ('oom_cgroup', '      Reason:       OOMKilled\n      Exit Code:    137'),
    ('oom_cgroup', 'TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n'
     'Exited with exit code 137.'),
    ('worker_killed', f'{TRACEBACK}{WORKER}Segmentation fault.'),
    ('worker_killed', f'{TRACEBACK}RuntimeError: DataLoader worker (pid(s) 4, 5) '
     'exited unexpectedly'),
    ('worker_stuck', f'{TRACEBACK}RuntimeError: DataLoader timed out after 60 seconds'),
    ('shm_full', 'ERROR: Unexpected bus error encountered in worker. This might be '
     'caused by insufficient shared memory (shm).'),
    ('shm_full', f'{TRACEBACK}RuntimeError: unable to write to file </torch_1_2>'),
    ('open_files', f'{TRACEBACK}RuntimeError: received 0 items of ancdata'),
    ('open_files', f'{TRACEBACK}OSError: [Errno 24] Too many open files'),
    ('disk_full', f'{TRACEBACK}OSError: [Errno 28] No space left on device'),
    ('disk_full', "cp: error writing 'epoch_3.pth': Disk quota exceeded"),
    ('sample_raised', f'{FETCH}ValueError: cannot reshape array of size 0'),
    ('rank_waits', '[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective '
     'operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE)'),
    ('rank_lost', f'{TRACEBACK}RuntimeError: [../gloo/transport/tcp/pair.cc:598] '
     'Connection closed by peer [127.0.0.1]:10895'),
    ('rank_lost', 'srun: error: Node failure on gpu17'),
    ('gpu_lost', '[347.1] NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off '
     f'the bus.\n{TRACEBACK}RuntimeError: CUDA error: unspecified launch failure'),
    ('gpu_lost', 'Unable to determine the device handle for GPU 0000:02:00.0: GPU is '
     'lost.  Reboot the system to recover this GPU'),
    ('storage_stalled', '[99.1] nfs: server filer01 not responding, still trying'),
    ('storage_stalled', f"{TRACEBACK}OSError: [Errno 116] Stale file handle: '/n/1'"),
    ('interrupted', f'^C{TRACEBACK}KeyboardInterrupt'),
    ('interrupted', f'{CANCELLED} ***\nsrun: error: gpu7: task 0: Killed'),
    ('preempted', f'{CANCELLED} DUE TO TIME LIMIT ***\n{WORKER}Terminated.'),
    ('preempted', f'{CANCELLED} DUE TO PREEMPTION ***'),
    ('preempted', '=>> PBS: job killed: walltime 3611 exceeded limit 3600\nTerminated'),
    ('nan_loss', 'Loss is nan, stopping training'),
    ('device_assert', f'{TRACEBACK}RuntimeError: CUDA error: device-side assert '
     'triggered'),
    ('port_in_use', f'{TRACEBACK}OSError: [Errno 98] Address already in use'),
    ('unused_parameters', f'{TRACEBACK}RuntimeError: Expected to have finished '
     'reduction in the prior iteration before starting a new one.'),
]  # fmt: skip
LATER = [
    'wandb: Waiting for W&B process to finish... (failed 1).',
    'Job 17 finished at 2024-05-01 10:00:00 on gpu3',
    'srun: Terminating StepId=1.0',
    'Epilog: cleaning /tmp/bob',
]
"""Console lines that programs or a cluster print after the end of a training."""


def judge(*lines: str) -> str | None:
    text = '\n'.join(lines) + '\n'
    return judge_end([NamedLog('console', read_log(io.BytesIO(text.encode())))]).cause


def test_there_are_150_banners_and_50_ends_at_least():
    assert len(set(BANNERS)) >= 150 and len(set(ENDS)) >= 50


@pytest.mark.parametrize(('number', 'banner'), list(enumerate(BANNERS)))
def test_what_a_site_says_is_no_end(number, banner):
    wrong = {
        (place, end): found
        for cause, end in ENDS[number % 3 :: 3]
        for place, lines in (
            ('head', (banner, end)),
            ('foot', (end, banner)),
            ('both', (banner, 'Starting', banner, end, banner)),
        )
        if (found := judge(*lines)) != cause
    }
    assert not wrong
    assert judge(banner) is None


@pytest.mark.parametrize(('cause', 'end'), ENDS)
def test_a_real_end_counts_wherever_it_stands(ask, tmp_path, cause, end):
    (tmp_path / 'log').write_text(f'{end}\n')
    assert ask('why', tmp_path / 'log')['cause'] == cause
    assert judge('Loading modules', 'Starting', end) == cause
    for line in LATER:
        assert judge(end, line) == cause


@pytest.mark.parametrize(('cause', 'line'), LINES)
def test_real_lines_have_their_cause_wherever_they_stand(cause, line):
    for lines in ((line,), ('Starting', line), (line, 'Epilog: done')):
        assert judge(*lines) == cause


ERRORS = {
    'unknown': f'{TRACEBACK}ValueError: no boxes',
    'config_error': f"{TRACEBACK}KeyError: 'RTM is not in the mmdet::model registry.'",
    'oom_gpu': f'{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to',
    'sample_raised': f'{FETCH}ValueError: cannot reshape array of size 0',
}


@pytest.mark.parametrize('cause', ERRORS)
@pytest.mark.parametrize(
    'head',
    [
        f'{CANCELLED} DUE TO TIME LIMIT ***',
        'NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off the bus.',
        'slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch cgroup.',
        '[99.1] nfs: server filer01 not responding, still trying',
        'prepare.sh: line 3:   811 Killed                  python tools/cache.py',
        'tar: a.tar: Cannot write: No space left on device',
    ],
)
def test_what_ended_something_else_does_not_win_over_a_traceback_below(head, cause):
    assert judge(head, ERRORS[cause]) == cause


STARTS = '2024/05/01 12:00:00 - mmengine - INFO - \n{}\nSystem environment:\n'.format(
    '-' * 60
)
ATTEMPTS = [
    ('config_error', 'oom_gpu'),
    ('oom_gpu', 'config_error'),
    ('oom_gpu', 'unknown'),
    ('sample_raised', 'unknown'),
]


@pytest.mark.parametrize('start', ['', STARTS])
@pytest.mark.parametrize(('first', 'last'), ATTEMPTS)
def test_the_last_of_two_attempts_in_one_console_counts(
    ask, tmp_path, first, last, start
):
    if first == 'sample_raised':
        earlier = (
            f'{TRACEBACK}ValueError: Caught ValueError in DataLoader worker process '
            '0.\n'
            f'Original {FETCH}ValueError: no boxes in 12.jpg'
        )
    else:
        earlier = ERRORS[first]
    path = tmp_path / 'train.out'
    path.write_text(f'{start}{earlier}\n{start}{ERRORS[last]}\n')
    answer = ask('why', path)
    assert answer['cause'] == last
    line = path.read_text().splitlines().index(ERRORS[last].rpartition('\n')[2]) + 1
    assert answer['proof'][0]['line'] == line


def test_attempts_that_ended_otherwise_count_in_turn():
    killed = 'run.sh: line 28:  8156 Killed                  python tools/train.py'
    assert judge(STARTS, killed, STARTS, ERRORS['unknown']) == 'unknown'
    assert judge(killed, ERRORS['config_error']) == 'config_error'
    assert judge(ERRORS['oom_gpu'], STARTS, killed) == 'oom_host'
    usage = 'usage: train.py [-h] config\ntrain.py: error: unrecognized arguments: --x'
    assert judge(ERRORS['oom_gpu'], usage) == 'config_error'
    agent = 'INFO:torch.distributed.elastic.agent.server.api:[default] Worker group '
    restarts = f'{agent}FAILED. 3/3 attempts left; will restart worker group'
    assert judge(ERRORS['oom_gpu'], restarts, ERRORS['config_error']) == 'config_error'


def test_exceptions_of_one_attempt_are_not_taken_for_two():
    chained = '\nDuring handling of the above exception, another exception occurred:\n'
    assert judge(ERRORS['oom_gpu'], chained, ERRORS['unknown']) == 'oom_gpu'
    # a launcher, whose ranks raise one after the other
    other = f'{TRACEBACK}RuntimeError: NCCL error in: x.cpp:12, unhandled system error'
    assert judge(ERRORS['oom_gpu'], other) == 'oom_gpu'
    launcher = (
        'Traceback (most recent call last):\n  File "/e/bin/torchrun", line 8, in '
        '<module>\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:'
    )
    assert judge(ERRORS['oom_gpu'], launcher) == 'oom_gpu'
    labelled = ERRORS['unknown'].replace('\n', '\n[rank1]: ')
    assert judge(ERRORS['oom_gpu'], f'[rank1]: {labelled}') == 'oom_gpu'
    child = (
        'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
        'ValueError: x'
    )
    assert judge(child, ERRORS['oom_gpu'], child) == 'oom_gpu'


CLOSED = (
    '[rank0]: Traceback (most recent call last):\n'
    '[rank0]:   File "/w/tools/train.py", line 121, in <module>\n'
    '[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] '
    'Connection closed by peer [127.0.0.1]:10895\n'
)
FAILED = (
    'E0325 20:57:27 torch/distributed/elastic/multiprocessing/api.py:869] failed '
    '(exitcode: -9) local_rank: 1 (pid: 2633) of binary: /env/bin/python\n'
)
SUMMARY = (
    'tools/train.py FAILED\n'
    'Failures:\n  <NO_OTHER_FAILURES>\n'
    'Root Cause (first observed failure):\n[0]:\n  time      : 2024-01-01_10:00:00\n'
    '  host      : gpu7\n  rank      : 1 (local_rank: 1)\n'
    '  exitcode  : -9 (pid: 2633)\n'
    '  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 2633\n'
)


@pytest.mark.parametrize(
    ('text', 'rank'),
    [
        (CLOSED, None),
        (CLOSED + FAILED, None),
        (CLOSED + FAILED + SUMMARY, 1),
        (CLOSED + SUMMARY, 1),
        (FAILED + SUMMARY, 1),
        (f'{CLOSED}mpirun noticed that process rank 3 with PID 11920 on node gpu7 '
         'exited on signal 9 (Killed).\n', 3),
        (f'[rank2]: {ERRORS["oom_gpu"]}\n'.replace('\n', '\n[rank2]: '), 2),
        ('[rank7]:[E419 10:42:28 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught '
         'collective operation timeout: WorkNCCL(SeqNum=4486)\n', None),
    ],
    ids=[
        'complains',
        'complains, ended by torchrun',
        'complains, in the summary',
        'complains, summary alone',
        'summary',
        'mpirun',
        'a prefix on each line',
        'a watchdog',
    ],
)  # fmt: skip
def test_the_rank_that_complains_is_not_taken_for_the_one_that_failed(
    ask, tmp_path, text, rank
):
    (tmp_path / 'log').write_text(text)
    answer = ask('why', tmp_path / 'log')
    assert answer['rank'] == rank and answer['cause'] not in (None, 'unknown')


OOM = ERRORS['oom_gpu']
WIDE = 'utf-16-le'


@pytest.mark.parametrize(
    'data',
    [
        '\ufeffstart\r\nloading\r\n'.encode(WIDE) + f'{OOM}\n'.encode(),
        '\ufeffstart\r\n'.encode(WIDE) + f'{OOM}\n'.encode()
        + 'done\r\n'.encode(WIDE),
        '\ufeffstart\r\n'.encode('utf-16-be') + f'{OOM}\n'.encode(),
        b'start\nloading 1.jpg\n' + f'{OOM}\r\n'.encode(WIDE),
        b'start\nloading 1.jpg\n' + f'\ufeff{OOM}\r\n'.encode(WIDE),
        f'start\n\0\0\0\0\0\0\0\0{OOM}\n'.encode(),
        f'start\r 1%|# | 1/9 [00:01<00:09, 1.0it/s]\r{OOM}\r\n'.replace(
            '\n', '\r').encode(),
        f'start\n12/90 [=>....]\b\b\b\b\b{OOM}\n'.encode(),
        f'start\n{OOM}'.encode() + b'\xff\xfe\n',
    ],
    ids=['utf-8 after utf-16', 'utf-8 within utf-16', 'utf-8 after utf-16-be',
         'utf-16 after utf-8', 'utf-16 with a mark after utf-8', 'zeros',
         'carriage returns alone', 'steps back', 'bytes'],
)  # fmt: skip
def test_a_console_in_mixed_encodings_still_has_its_cause(ask, tmp_path, data):
    (tmp_path / 'log').write_bytes(data)
    answer = ask('why', tmp_path / 'log')
    assert (answer['cause'], answer['certainty']) == ('oom_gpu', 'sure')


def test_a_log_of_zeros_is_said_to_be_no_text(ask, tmp_path):
    (tmp_path / 'log').write_bytes(b'\0' * 5000)
    assert 'It could not be read' in ask('why', tmp_path / 'log')['sentence']


def log_losses(first: int, count: int, loss: str) -> str:
    """Returns log lines with a loss, as MMEngine's LoggerHook prints them."""
    lines = [
        f'05/01 10:{number // 60:02d}:{number % 60:02d} - mmengine - INFO - '
        f'Epoch(train) [1][{10 * number}/900]  lr: 1.0e-03  loss: {loss}\n'
        for number in range(first, first + count)
    ]
    return ''.join(lines)


NAN = log_losses(0, 9, '0.5') + log_losses(9, 9, 'nan')
OOM = (
    f'{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n'
)
KILLED_RANK = (
    'Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n'
    '  exitcode  : -9 (pid: 4711)\n'
    '  traceback : Signal 9 (SIGKILL) received by PID 4711\n'
)


@pytest.mark.parametrize(
    ('text', 'cause'),
    [
        (NAN, 'nan_loss'),
        (NAN + OOM, 'oom_gpu'),
        (NAN + 'Killed\n', 'oom_host'),
        (NAN + KILLED_RANK, 'oom_host'),
        (f'{NAN}{TRACEBACK}ValueError: matrix contains NaN\n', 'nan_loss'),
        # the launcher ended the others
        (f'{NAN}{TRACEBACK}ValueError: no boxes\n{KILLED_RANK}', 'nan_loss'),
    ],
    ids=['alone', 'card full', 'killed', 'rank killed', 'raised', 'raised, killed'],
)
def test_a_loss_that_is_nan_does_not_hide_another_death(text, cause):
    log = read_log(io.BytesIO(text.encode()))
    assert judge_end([NamedLog('log', log)]).cause == cause


def test_a_traceback_that_was_survived_lends_no_frame():
    text = f'{OOM}{log_losses(0, 3, "0.5")}Killed\n'
    log = read_log(io.BytesIO(text.encode()))
    answer = judge_end([NamedLog('log', log)])
    assert [proof.text for proof in answer.proof] == ['Killed']
