"""Tests ``mmgpu why --log``: banners, glued and long lines, encodings, speed."""

from __future__ import annotations

import calendar
import codecs
import io
import os
import re
import subprocess
import sys
import time

import pytest

from fakes.calm import ARITHMETIC_S, time_arithmetic_s
from mmgpu_hooks.judge.console_log import read_log
from mmgpu_hooks.judge.console_matchers import MATCHERS, Matcher, blur
from mmgpu_hooks.judge.console_patterns import Sign
from mmgpu_hooks.judge.why import NamedLog, judge_end

ITERATION = 'Epoch(train)  [1][{:3d}/100]  lr: 1.0e-02  eta: 1:00:00  loss: 0.5'
ITERATIONS = '\n'.join(ITERATION.format(number) for number in range(1, 6))
ENVIRONMENT = 'System environment:\n' + '    sys.platform: linux\n' * 12
FRAME = '  File "tools/train.py", line 121, in <module>\n'
TRACEBACK = 'Traceback (most recent call last):\n' + FRAME
REGISTRY = "KeyError: 'RTMDett is not in the mmdet::model registry. Please check'"
OUT_OF_MEMORY = (
    'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'
)
KILLED = 'RuntimeError: DataLoader worker (pid 88) is killed by signal: Killed.'
TIMED_OUT = (
    '[rank7]:[E419 10:42:28.8 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught '
    'collective operation timeout: WorkNCCL(SeqNum=4486, OpType=ALLTOALL) ran for '
    '600013 milliseconds before timing out.'
)
REAL = {
    'config_error': TRACEBACK + REGISTRY,
    'oom_gpu': TRACEBACK + OUT_OF_MEMORY,
    'oom_host': TRACEBACK + KILLED,
    'rank_waits': TIMED_OUT,
}
BANNERS = """
NOTE: this job may be preempted at any time.
INFO: jobs of this queue: your job can be preempted
Press ^C to stop.
^C stops it, ^Z suspends it
To leave this shell type ^D, to stop a program ^C
Press Ctrl-C for KeyboardInterrupt
slurmstepd: /scratch: Disk quota exceeded for user bob
Disk quota exceeded for 3 users of /home
Your job has a memory limit of 10G; exceeding processes are being killed
OUT_OF_MEMORY policy: kill
If a job is OOMKilled, ask for more memory.
Jobs over their memory limit of 10G end as OUT_OF_MEMORY
Cluster news: nodes with Xid (0): 79 were replaced
News: GPU is lost errors are now detected by the prolog
News: a GPU has fallen off the bus on gpu17; it was replaced
Hint: spot instances may be terminated
Using preemptible nodes; they can be reclaimed
Using spot capacity; interruptions are possible
Jobs are CANCELLED DUE TO TIME LIMIT after 24 hours
When you see "CANCELLED AT 10:00 DUE TO TIME LIMIT", ask for more time
A step that hit memory limit is listed by sacct
If you see "Out of memory: Killed process", use --mem
earlyoom is active here: it may kill the largest process
systemd-oomd kills at 90 % memory pressure
TERM_RUNLIMIT and TERM_MEMLIMIT are explained in the wiki
PBS: job killed: see the FAQ
Reserved nodes: jobs there can be Preempted by their owners
"OOMKilled": false
Welcome to gpu7. Killed jobs are listed by seff.
Too many open files may be a matter of ulimit -n
Received SIGTERM handlers are installed
exit code 137 means out of memory
This node was Preempted by nobody
Reason: Preempted is shown by kubectl
Segmentation fault reports go to the administrators
Timeouts: NCCL 1800000 ms
slurmstepd: Detected 0 oom_kill events in StepId=1.batch.
failed (exitcode: 0) local_rank: 3 (pid: 8) of binary: /env/bin/python
Exceeded attempts: 0, memory limit: none
memory pressure: 0, killed: 0, exit code 0
Loading /data/films/Killed
disk is 81 % full, quota: 2 TB
Volatile Uncorr. ECC 0, Xid errors: none
Mounted by NFS: server filer01, timeout 600
Ctrl-C raises KeyboardInterrupt; press it twice to stop
signal SIGTERM handler set
/dev/shm has 64 MiB, no problem found
The container has insufficient shared memory settings: none
To avoid "CUDA out of memory" lower the batch size
2024/05/01 10:00:00 - mmengine - WARNING - CUDA out of memory, batch skipped
find_unused_parameters=True: reduction of all parameters is expected
TensorBoard failed to bind: [Errno 98] Address already in use, going on without
pin_memory: True, the pin memory thread starts
Iter(val) [100/100]  failed: 0.0  loss_error: nan
check_nan: the loss is checked for NaN
The registry has 12 modules; timeout option: 0
[W] reading took 61 s, timeout is 120 s
Exceptions in DataLoader worker processes are caught
Warning: NCCL_BLOCKING_WAIT is deprecated, timeout 1800000ms (function operator())
Connections closed by the gateway: 0
num errors: 0, killed: 0, interrupt handler installed
""".strip().split('\n')


def cause_of(ask, tmp_path, text):
    (tmp_path / 'log').write_text(text)
    return ask('why', '--log', tmp_path / 'log')['cause']


@pytest.mark.parametrize('head', ['', ENVIRONMENT])
@pytest.mark.parametrize('cause', REAL)
def test_a_banner_does_not_win_over_the_error_below(ask, tmp_path, cause, head):
    wrong = []
    for banner in BANNERS:
        for text in (
            f'{banner}\n{head}{REAL[cause]}\n',
            f'{head}{banner}\n{REAL[cause]}',
        ):
            found = cause_of(ask, tmp_path, text)
            if found != cause:
                wrong.append((banner, found))
    assert not wrong


def test_a_banner_at_the_end_of_a_healthy_log_is_no_cause(ask, tmp_path):
    wrong = {
        banner: cause
        for banner in BANNERS
        if (cause := cause_of(ask, tmp_path, f'{ITERATIONS}\n{banner}\n'))
    }
    assert not wrong


@pytest.mark.parametrize('head', ['', f'{ITERATIONS}\n'])
@pytest.mark.parametrize(
    ('error', 'cause'),
    [
        *((error, cause) for cause, error in REAL.items()),
        (f'{TRACEBACK}RuntimeError: DataLoader timed out after 60 seconds',
         'worker_stuck'),
    ],
)  # fmt: skip
def test_a_quota_that_another_met_does_not_win(ask, tmp_path, head, error, cause):
    text = f'{head}cp: error writing a: Disk quota exceeded\n{error}\n'
    assert cause_of(ask, tmp_path, text) == cause


@pytest.mark.parametrize('later', ['oom_host', 'rank_waits'])
def test_a_quota_that_the_training_met_wins(ask, tmp_path, later):
    error = '[rank0]: OSError: [Errno 122] Disk quota exceeded'
    text = f'{ITERATIONS}\n{TRACEBACK}{error}\n{REAL[later]}\n'
    assert cause_of(ask, tmp_path, text) == 'disk_full'


@pytest.mark.parametrize(
    'stated',
    [
        'slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-05-01T10:00:00 DUE TO '
        'PREEMPTION ***',
        'slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch cgroup.',
        'NVRM: Xid (PCI:0000:02:00): 79, pid=1, GPU has fallen off the bus.',
        'cp: error writing /scratch/a.tar: Disk quota exceeded',
    ],
)
@pytest.mark.parametrize('error', ['config_error', 'oom_gpu', 'rank_waits'])
def test_an_old_event_at_the_head_does_not_win(ask, tmp_path, stated, error):
    text = f'{stated}\n{ENVIRONMENT}{REAL[error]}\n'
    assert cause_of(ask, tmp_path, text) == error


@pytest.mark.parametrize(
    ('last', 'cause'),
    [
        ('slurmstepd: error: *** JOB 1 ON n CANCELLED AT 10:00 DUE TO TIME LIMIT ***\n'
         'slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 10:00 DUE TO TIME LIMIT ***'
         f'\n{KILLED}', 'preempted'),
        (f'^C{TRACEBACK}KeyboardInterrupt', 'interrupted'),
        ('    5/100  loss: 0.5^C', 'interrupted'),
        ('cp: error writing a: Disk quota exceeded', 'disk_full'),
        # words of banners are none in a path or in a host's name
        ("cp: error writing '/scratch/news/a.tar': Disk quota exceeded", 'disk_full'),
        ('*** JOB 17 ON gpu-tip CANCELLED AT 08:00 DUE TO PREEMPTION ***', 'preempted'),
        ('/home/bob/policy/run.sh: line 28: 8156 Killed python train.py', 'oom_host'),
        (f'Out of memory: Killed process 88 (python)\n{KILLED}', 'oom_host'),
        (f'{TRACEBACK}ValueError: x\nMemory cgroup out of memory: Killed process 8',
         'oom_cgroup'),
    ],
)  # fmt: skip
@pytest.mark.parametrize('head', ['', f'{ITERATIONS}\n'])
def test_real_ends_still_win(ask, tmp_path, head, last, cause):
    assert cause_of(ask, tmp_path, f'{head}{last}\n') == cause


@pytest.mark.parametrize(
    ('number', 'head', 'cause'),
    [
        pytest.param(1, '', 'rank_never_came', id='the first collective'),
        # of a group that was made while training
        pytest.param(1, f'{ITERATIONS}\n', 'rank_waits', id='the first of a group'),
        pytest.param(12, '', 'rank_waits', id='a later one'),
    ],
)
def test_a_first_collective_that_never_ended_has_its_own_cause(
    ask, tmp_path, number, head, cause
):
    said = TIMED_OUT.replace('SeqNum=4486', f'SeqNum={number}')
    assert cause_of(ask, tmp_path, f'{head}{said}\n') == cause


INDENTED = (TRACEBACK + '    main()\n' + OUT_OF_MEMORY).replace('\n', '\n\t')
GLUED = (
    '[rank0]: Traceback (most recent call last):[rank1]: Traceback (most recent call '
    'last):[rank3]: Traceback (most recent call last):\n[rank0]:   File "a.py", line '
    '1, in f[rank1]:   File "a.py", line 1, in f\n[rank0]:     main()[rank1]: '
    f'{REGISTRY}\n'
)


@pytest.mark.parametrize(
    ('text', 'cause'),
    [
        ('\t' + INDENTED, 'oom_gpu'),
        (f'{TRACEBACK}OSError: [Errno 5] Input/output error', 'storage_stalled'),
        (f"{TRACEBACK}OSError: [Errno 5] Input/output error: '/n/1.jpg'",
         'storage_stalled'),
        (GLUED, 'config_error'),
        (TRACEBACK * 4 + f'    main(){OUT_OF_MEMORY}', 'oom_gpu'),
        (TRACEBACK + 'RuntimeErrorRuntimeError: : CUDA out of memory.', 'oom_gpu'),
        ('Exception in thread Thread-2:\nTraceback (most recent call last):\n  File '
         '"/e/torch/utils/data/_utils/pin_memory.py", line 28, in _pin_memory_loop\n'
         'ValueError: not enough values to unpack (expected 2, got 0)',
         'pin_thread_lost'),
        (f'{TRACEBACK}torch.distributed.DistNetworkError: The server socket has failed '
         'to listen on any local network address. port: 29500, useIpv6: false, code: '
         '-98, name: EADDRINUSE, message: address already in use', 'port_in_use'),
        ('WARNING: [Errno 98] Address already in use; trying 6007', None),
        ('accept4: Too many open files', 'open_files'),
        ('database or disk is full', 'disk_full'),
        ('this job is timed-out', 'preempted'),
        ('Traceback (most recent call last):\n  File '
         '"/e/torch/multiprocessing/spawn.py", line 140, in join\n'
         'torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated '
         'with signal SIGKILL', 'oom_host'),
    ],
    ids=[
        'an indented line',
        'errno 5',
        'errno 5 of a file',
        'glued to the next',
        'behind a call',
        'doubled by two ranks',
        'pinning thread',
        'port in use',
        'another port is tried',
        'open files',
        'a full database',
        'a job timed out',
        'a rank ended by SIGKILL',
    ],
)  # fmt: skip
def test_error_lines_have_their_cause_in_each_form_found_in_logs(
    ask, tmp_path, text, cause
):
    assert cause_of(ask, tmp_path, text + '\n') == cause


def test_new_causes_are_explained(ask, tmp_path):
    text = f'{TRACEBACK}RuntimeError: unable to write to file </torch_1_2>\n'
    (tmp_path / 'log').write_text(text)
    do = ask('why', '--log', tmp_path / 'log')['do']
    assert any('mount -o remount,size=8G /dev/shm' in step for step in do)


ENCODINGS = [
    *((name, b'') for name in ('utf-16-le', 'utf-16-be', 'utf-32-le', 'utf-32-be')),
    ('utf-32-le', codecs.BOM_UTF32_LE),
    ('utf-32-be', codecs.BOM_UTF32_BE),
]


@pytest.mark.parametrize(('encoding', 'mark'), ENCODINGS)
def test_a_log_in_utf_16_or_utf_32_has_its_cause_and_line(
    ask, tmp_path, encoding, mark
):
    path = tmp_path / 'log'
    path.write_bytes(mark + f'start\n{REAL["oom_gpu"]}\n'.encode(encoding))
    answer = ask('why', '--log', path)
    assert (answer['cause'], answer['proof'][0]['line']) == ('oom_gpu', 4)


def test_a_log_that_is_no_text_is_said_to_be_unreadable(ask, tmp_path):
    path = tmp_path / 'epoch_3.pth'
    path.write_bytes(bytes(range(256)) * 400)
    assert 'It could not be read' in ask('why', '--log', path)['sentence']
    path.write_bytes(f'{ITERATION}\n'.encode() * 90 + b'\0' * 900)
    assert 'Nothing in ' in ask('why', '--log', path)['sentence']


def test_a_bar_is_shown_on_a_terminal_alone(tmp_path):
    (tmp_path / 'log').write_text(f'{ITERATION}\n' * 2**13)
    words = [sys.executable, '-m', 'mmgpu_hooks', 'why', str(tmp_path / 'log')]
    piped = subprocess.run(words, capture_output=True, text=True, check=True)
    assert not piped.stderr and 'Nothing in 8192 lines' in piped.stdout
    ours, theirs = os.openpty()
    shown = subprocess.run(words, stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    assert shown.stdout.decode() == piped.stdout
    assert 'reading ' in os.read(ours, 2**16).decode()
    os.close(ours)


class Growing(io.BytesIO):
    """Log file that grows by as many bytes as are read of it."""

    def read(self, size=-1):
        at = self.tell()
        self.seek(0, io.SEEK_END)
        self.write(b'Killed\n' * (2**18 // 7))
        self.seek(at)
        return super().read(size)


def test_a_log_that_grows_is_read_up_to_its_size_at_the_start():
    shares: list[float] = []
    log = read_log(Growing(b'one\ntwo\n'), 8, shares.append)
    assert (log.lines, log.events(), shares) == (2, [], [1.0])


@pytest.mark.parametrize(
    ('line', 'cause'),
    [
        (OUT_OF_MEMORY + 'x' * 2**20, 'oom_gpu'),
        ('x' * 2**20 + '^C', 'interrupted'),
    ],
)
def test_of_a_long_line_both_ends_are_read(ask, tmp_path, line, cause):
    (tmp_path / 'log').write_text(f'start\n{line}\n')
    answer = ask('why', '--log', tmp_path / 'log')
    assert (answer['cause'], answer['proof'][0]['line']) == (cause, 2)


REPEATED = [
    'Error',
    '1',
    '1%|',
    '[',
    '/',
    'step',
    'iter 1',
    'epoch=',
    'loss:',
    'gloo',
    '━',
    'NCCL ',
    'c10d ',
    '[rank1]:',
    'A.',
    'A.b.',
    '[00:00<',
    '/dev/shm ',
    '[ 1/2] ',
    'No space left ',
    '%|1/1',
    'DataLoader worker ',
    '^C',
    'NVRM: ',
    'timed out ',
    'task/s, elapsed: 1s',
    'Ended, Run time ',
    'STEP x ON y ',
    '\x1b[',
    'E ',
    '(',
]


def list_worst_lines(example: str) -> list[str]:
    """Returns 64 KB lines that nearly match a pattern's example, to test its speed."""
    line = example.rpartition('\n')[2]
    words = line.split(' ')
    step = max(len(words) // 3, 1)
    starts = [' '.join(words[:count]) + ' ' for count in range(1, len(words), step)]
    repeated = [*starts, *(f'{word} ' for word in words[::step]), line[:-1], line[1:]]
    worst = [part * (2**16 // max(len(part), 1)) + '!' for part in repeated]
    start = starts[len(starts) // 2] if starts else line[:-1]
    gap = 2**16 - len(line)
    return [*worst, *(start + fill * gap + line[len(start) : -1] for fill in ' 1a')]


@pytest.mark.timing
@pytest.mark.parametrize('cause', sorted({m.sign.cause for m in MATCHERS}))
def test_no_line_that_nearly_matches_takes_long(cause):
    slow = {}
    for matcher in MATCHERS:
        if matcher.sign.cause != cause:
            continue
        for worst in list_worst_lines(matcher.sign.example):
            start = time.process_time()
            # below a traceback everything is looked for
            read_log(io.BytesIO(f'{TRACEBACK}{worst}\n'.encode()))
            seconds = time.process_time() - start
            if seconds > 0.2:
                slow[matcher.sign.pattern, worst[:60]] = seconds
    assert not slow


@pytest.mark.timing
def test_no_line_takes_long():
    parts = {*REPEATED, *(word for matcher in MATCHERS for word in matcher.words)}
    heads = ['', TRACEBACK, '[']
    slow = {}
    for part in sorted(parts):
        for head in heads:
            line = head + (part * (2**16 // len(part) + 1))[: 2**16] + '!\n'
            start = time.process_time()
            read_log(io.BytesIO(line.encode()))
            seconds = time.process_time() - start
            if seconds > 0.2:
                slow[head, part] = seconds
    assert not slow


CAUGHT = (
    'Traceback (most recent call last):\n'
    '  File "/w/data/loading.py", line {0}, in load\n'
    '    image = read(path)\nValueError: cannot read /data/train/{0:06d}.jpg\n'
    'Epoch(train)  [1][{0:5d}/90000]  lr: 1.0e-02  eta: 1:00:00  loss: 0.5\n'
)
FAMILIES = {
    'libjpeg': 'Corrupt JPEG data: premature end of data segment, unexpected marker '
    '0x{0:x}\n',
    'libpng': 'libpng error: IDAT: CRC error in /data/train/{0:06d}.png\n',
    'libpng warnings': 'libpng warning: iCCP: known incorrect sRGB profile\n',
    'ffmpeg': '[h264 @ 0x55d0c5{0:06x}] error while decoding MB {0} 20, bytestream -7\n'
    '[mjpeg @ 0x55d0c5{0:06x}] overread 8\n',
    'nfs': '[{0}.{0:06d}] nfs: server filer01 not responding, still trying\n'
    '[{0}.{0:06d}] nfs: server filer01 OK\n',
    'tracebacks': CAUGHT,
    'one traceback': CAUGHT.partition('Epoch')[0],
    'exit codes': 'worker {0} finished with exit code 0\n'
    'child {0}: exit code 0, exit status: 0\n',
    'failures': 'child {0} exited with exit code 1\n',
    'cuda': '[W CUDACachingAllocator.cpp:{0}] Warning: CUDA out of memory, retrying '
    'after {0} MiB (function operator())\n',
    'python': '/e/torch/nn/functional.py:{0}: UserWarning: Failed to do so: error, '
    'killed, exit {0}, No space left, timed out\n',
    'iterations': '2024/05/01 10:00:00 - mmengine - INFO - Epoch(train)  [1]'
    '[{0:5d}/90000]  lr: 1.0e-02  eta: 1:00:00  loss: 0.5{0}  loss_cls: 0.{0}\n',
    'prose': 'The {0:x} of {0:o} may be {0:b} when error and exit are not known\n',
}


@pytest.mark.timing
@pytest.mark.parametrize('family', FAMILIES)
def test_long_logs_are_read_quickly(family):
    form, numbers = FAMILIES[family], range(1, 100_000, 7)
    lines = ''.join(form.format(number) for number in numbers).encode()
    log = (lines * (2**20 // len(lines) + 1))[: 2**20]

    def read_once() -> float:
        before_s = time_arithmetic_s()
        start = time.process_time()
        read_log(io.BytesIO(log), len(log))
        used_s = time.process_time() - start
        # on a core that is slower now, as long as it would take on the usual one
        core_s = (before_s + time_arithmetic_s()) / 2
        return used_s / max(core_s / ARITHMETIC_S, 1.0)

    # the fastest of three: whatever else the machine does only adds to it
    used_s = min(read_once() for _ in range(3))
    # 64 MiB within 15 s; lines shorter than most count by the line
    assert used_s < max(15 / 64, 12e-6 * log.count(b'\n'))


def test_a_shape_hides_no_line_of_a_pattern():
    shift = str.maketrans('0123456789', '1234567890')
    for matcher in MATCHERS:
        source = matcher.expression.pattern
        blurred = re.compile(blur(source))
        line = matcher.sign.example.rpartition('\n')[2].strip()
        assert matcher.expression.search(line), line
        for _ in range(10):
            shape = line.translate(str.maketrans('123456789', '0' * 9))
            if matcher.expression.search(line):
                assert blurred.search(shape), (source, line)
                assert any(word in shape.lower() for word in matcher.words)
            line = line.translate(shift)


def name_pattern(matcher: Matcher) -> str:
    """Returns the test id of a failure pattern: its cause and its example's words."""
    words = re.findall('[A-Za-z]+', matcher.sign.example.replace('\n', ' '))
    return f'{matcher.sign.cause}: {" ".join(words)[-90:]}'


def list_signs(text: str) -> list[Sign]:
    return [event.sign for event in read_log(io.BytesIO(text.encode())).events()]


@pytest.mark.parametrize('matcher', MATCHERS, ids=name_pattern)
def test_a_pattern_knows_its_example_from_what_is_well(matcher):
    """Tests that a failure pattern matches its example, and no harmless line."""
    sign = matcher.sign
    assert sign in list_signs(f'{sign.example}\n')
    log = read_log(io.BytesIO(sign.example.encode()))
    assert judge_end([NamedLog('console', log)]).cause == sign.cause
    if isinstance(sign.healthy, str):
        assert not matcher.expression.search(sign.healthy)
        for head in ('', f'{ITERATIONS}\n'):
            assert list_signs(f'{head}{sign.healthy}\n') == []


@pytest.mark.parametrize('month', calendar.month_abbr[1:])
@pytest.mark.parametrize(
    'form',
    ['{}  1 10:00:00 gpu7 kernel: {}', '[Wed {}  1 10:00:00 2024] {}', '1 {} 2024 {}'],
    ids=['syslog', 'dmesg -T', 'a date'],
)
def test_a_month_is_no_word_of_a_banner(form, month):
    """Tests that the month May does not mark a line as a banner ("may fail")."""
    line = 'Out of memory: Killed process 991 (python) total-vm:61kB, UID:1000'
    assert [sign.cause for sign in list_signs(form.format(month, line))] == ['oom_host']


@pytest.mark.parametrize(
    ('line', 'cause'),
    [
        ('[1]  + 4123 killed     python tools/train.py', 'oom_host'),
        ('[2]    killed     python tools/train.py', 'oom_host'),
        ('[1]  - 4123 segmentation fault  python tools/train.py', 'unknown'),
        ('zsh: abort      python tools/train.py', 'unknown'),
        ('zsh: illegal hardware instruction  python tools/train.py', 'unknown'),
        ('Illegal instruction: 4', 'unknown'),
        ('Floating point exception (core dumped)', 'unknown'),
        ('zsh: terminated  python tools/train.py', 'interrupted'),
        ('[1]+  Terminated              python tools/train.py', 'interrupted'),
        ('[1]  + 4123 suspended  python tools/train.py', None),
        ('[1]  + 4123 running    killed --list', None),
        ('[1] killed workers: 0', None),
        ('[1]+  Running                 python tools/abort.py', None),
    ],
)
def test_job_messages_of_shells_have_their_cause(line, cause):
    for head in ('', f'{ITERATIONS}\n'):
        assert [sign.cause for sign in list_signs(f'{head}{line}\n')] == (
            [cause] if cause else []
        )
