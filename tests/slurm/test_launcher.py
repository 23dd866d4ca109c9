"""Tests ``--slurm``: commands as jobs of a real SLURM, and how they end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fakes.cluster import PATH, Cluster
from fakes.prepared import make_starved
from fakes.runs import write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.commands.options import drop_option
from mmgpu_hooks.commands.slurm import read_ending, render_script
from mmgpu_hooks.experiment.store import STORE_NAME
from mmgpu_hooks.experiment.trial import EVENTS_NAME
from training.trial_toys import processes_of, write_config

SWEEP = 'sweep toy.py --seconds 1 --saves 0 --work-dir w --num-workers 0 1'


class Follower:
    """Process of a command with ``--slurm`` that follows its job."""

    def __init__(self, folder: Path, environ: Mapping[str, str], line: str) -> None:
        self.folder = folder
        self._paths = [folder / f'{name}.txt' for name in ('out', 'err')]
        with self._paths[0].open('w') as out, self._paths[1].open('w') as err:
            self.process = subprocess.Popen(
                # below nohup SIGHUP is ignored, and a child inherits that
                [
                    'env',
                    '--default-signal=HUP',
                    sys.executable,
                    '-m',
                    'mmgpu_hooks',
                    *shlex.split(line),
                ],
                cwd=folder,
                env=dict(environ),
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._paths[0].read_text()

    @property
    def err(self) -> str:
        return self._paths[1].read_text()

    @property
    def job(self) -> str:
        """Number of the submitted job."""
        self.wait_for(' job ')
        return self.err.partition(' job ')[2].split()[0].rstrip(';,:')

    def wait_for(self, words: str, limit_s: float = 90) -> None:
        """Waits until standard error contains some words."""
        until_s = time.monotonic() + limit_s
        while words not in self.err:
            is_over = self.process.poll() is not None
            assert words in self.err or not is_over, f'no {words!r} in {self.err}'
            assert time.monotonic() < until_s, f'no {words!r} in {self.err}'
            time.sleep(0.05)

    def wait_for_trial(self, limit_s: float = 90) -> Path:
        """Waits until the first trial is stored; returns the sweep's result file."""
        store = self.folder / 'w' / 'sweep' / STORE_NAME
        until_s = time.monotonic() + limit_s
        while not store.exists():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < until_s, self.err
            time.sleep(0.05)
        return store

    def end(self, limit_s: float = 90) -> int:
        """Waits until the command has ended; returns its exit code."""
        return self.process.wait(limit_s)


@pytest.fixture
def follow(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Function that starts a command with ``--slurm`` in a folder with ``toy.py``."""
    write_config(tmp_path, step_s=0.01, length=400)
    started: list[Follower] = []

    def start(
        line: str, options: str = '', folder: Path = tmp_path, **environ: str
    ) -> Follower:
        words = f'{line} --slurm={shlex.quote(options)}'
        started.append(Follower(folder, {**cluster.environ, **environ}, words))
        return started[-1]

    yield start
    for follower in started:
        if follower.process.poll() is None:
            follower.process.kill()
            follower.process.wait()
    cluster.run('scancel', '-u', str(os.getuid()))
    until_s = time.monotonic() + 20
    while cluster.run('squeue', '-h') or processes_of(tmp_path):
        assert time.monotonic() < until_s
        time.sleep(0.1)


def kill_command(folder: Path, limit_s: float = 30) -> None:
    """Kills the command that trains in a folder as a SLURM job."""
    until_s = time.monotonic() + limit_s
    while not (trials := processes_of(folder)):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    # its loader workers have the same words, and later numbers
    command = trials[0].parent()
    assert command is not None
    command.kill()


def count_jobs(cluster: Cluster) -> int:
    return len(cluster.run('squeue', '-h', '-t', 'PENDING,RUNNING').splitlines())


def test_without_slurm_it_says_so(tmp_path, monkeypatch, capsys):
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PATH', str(tmp_path))
    assert main(['sweep', 'toy.py', '--slurm=-p gpu']) == 2
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    assert err.startswith('mmgpu sweep: --slurm: expected the command squeue, found no')
    assert not (tmp_path / 'work_dirs').exists()


@pytest.mark.parametrize(
    ('options', 'found'),
    [
        ('gpu', "found 'gpu'"),
        ('-p gpu --array=0-3', 'found --array=0-3'),
        ('-a0-3', 'found -a0-3'),
        ('--arr 0-3', 'found --arr'),
        ('-o log.txt', 'found -o'),
        ('--error=log.txt', 'found --error=log.txt'),
        ('-J mine', 'found -J'),
        ('--wrap=hostname', 'found --wrap=hostname'),
        ('-W', 'found -W'),
        ('-c2 -Q', 'found -Q'),
        ('--chdir=/tmp', 'found --chdir=/tmp'),
        # it could not be followed there
        ('-M other', 'found -M'),
        # behind one that takes no value
        ('-Ha0-3', 'found -Ha0-3'),
        ('-sW', 'found -sW'),
        # sbatch prints all of its help, and submits nothing
        ('--help', 'type "sbatch --help"'),
        ('--usage', 'type "sbatch --usage"'),
        ('-p debug -V', 'type "sbatch -V"'),
        ('--hint=help', 'type "sbatch --hint=help"'),
        # sbatch would run these in the place of the command
        ('-p debug hello.sh', "found 'hello.sh'"),
        ('-c2 hello.sh', "found 'hello.sh'"),
        ('-H hello.sh', "found 'hello.sh'"),
        ('--time=1:00:00 hello.sh', "found 'hello.sh'"),
        ('-c2 -- hello.sh', "found '--'"),
        ('-c1 : -c1', "found ':'"),
        ("-p 'gpu", 'No closing quotation'),
    ],
)
def test_options_with_which_a_job_cannot_be_followed_are_refused(
    options, found, capsys
):
    assert main(['sweep', 'toy.py', f'--slurm={options}']) == 2
    err = capsys.readouterr().err
    assert err.count('\n') == 1
    assert err.startswith('mmgpu sweep: ')
    assert found in err


@pytest.mark.parametrize(
    ('line', 'kept'),
    [
        ('a.py --slurm=-c9 --fresh', 'a.py --fresh'),
        ("--slurm '-p gpu' a.py", 'a.py'),
        ('a.py --num-workers 0 4 --slurm=', 'a.py --num-workers 0 4'),
        ('-- --slurm=-c9', '-- --slurm=-c9'),
    ],
)
def test_the_job_is_the_same_line_without_the_option(line, kept):
    assert drop_option(shlex.split(line), '--slurm') == shlex.split(kept)


def run_script(words: list[str], folder: Path, **environ: str) -> str:
    """Runs the batch script with a program that prints its arguments."""
    script = render_script(['printf', '%s,', 'sweep'], words, folder)
    environ = {**os.environ, 'SLURM_JOB_ID': '7', **environ}
    subprocess.run(['sh'], input=script, text=True, env=environ, check=True)
    return (folder / '7.out').read_text()


def test_the_script_keeps_words_apart_and_is_fresh_once(tmp_path):
    folder = tmp_path / 'a b'
    folder.mkdir()
    words = ["it's.py", '--fresh', '--set', 'a=$HOME\n#SBATCH -a0-9', 'b="`id`"']
    said = run_script(words, folder)
    rest = 'it\'s.py,--set,a=$HOME\n#SBATCH -a0-9,b="`id`",'
    assert said == f'sweep,--fresh,{rest}'
    # shorter than before: a half answer does not stay
    said = run_script(words, folder, SLURM_RESTART_COUNT='1')
    assert said == f'sweep,{rest}'


@pytest.mark.parametrize(
    ('state', 'exit_code', 'code', 'is_cut_short'),
    [
        ('COMPLETED', '0:0', 0, False),
        ('FAILED', '2:0', 2, False),
        ('FAILED', '0:9', 137, True),
        ('CANCELLED', '130:0', 130, True),
        ('CANCELLED', '0:0', 130, True),
        ('CANCELLED', '0:15', 143, True),
        ('TIMEOUT', '0:0', 130, True),
        ('NODE_FAIL', '0:0', 130, True),
        ('OUT_OF_MEMORY', '0:125', 130, True),
    ],
)
def test_exit_codes_are_those_of_a_shell(state, exit_code, code, is_cut_short):
    job = {'JobState': state, 'ExitCode': exit_code}
    assert read_ending(job) == (code, is_cut_short)


@pytest.mark.slurm
def test_what_is_wrong_is_said_before_a_job_waits(cluster, follow, tmp_path):
    follower = follow('sweep nothing.py')
    assert follower.end() == 2
    expected = 'mmgpu sweep: nothing.py: expected a config file, found nothing there.\n'
    assert follower.err == expected
    follower = follow(SWEEP, '-p nowhere')
    assert follower.end() == 2
    assert follower.err == (
        'mmgpu sweep: sbatch: error: Batch job submission failed: Invalid partition '
        'name specified.\n'
    )
    assert count_jobs(cluster) == 0


@pytest.mark.slurm
@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('runs nowhere --judge', 'nowhere: expected a folder with runs, found nothing'),
        ('runs . --judge --page toy.py', 'found another file at toy.py'),
    ],
)
def test_runs_checks_its_places_before_a_job_waits(cluster, follow, line, said):
    follower = follow(line, '-H')
    assert follower.end() == 2
    assert (follower.err.count('\n'), said in follower.err) == (1, True)
    assert count_jobs(cluster) == 0


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch, capsys) -> Callable[[str], str]:
    """Function that runs ``sweep`` with a refused ``--slurm``; returns the error."""
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ('PATH', 'SLURM_CONF'):
        monkeypatch.setenv(name, cluster.environ[name])

    def type_options(options: str) -> str:
        assert main(['sweep', 'toy.py', f'--slurm={options}']) == 2
        out, err = capsys.readouterr()
        assert (out, err.count('\n')) == ('', 1)
        assert count_jobs(cluster) == 0
        return err.removeprefix('mmgpu sweep: ')

    return type_options


@pytest.mark.slurm
@pytest.mark.parametrize(
    'options',
    ['--exclusive hello.sh', '--requeue hello.sh', '-c2 --overcommit hello.sh'],
)
def test_a_word_behind_an_option_without_value_is_no_script(options, submit, tmp_path):
    (tmp_path / 'hello.sh').write_text('#!/bin/sh\ntouch started\n')
    said = f"--slurm: expected options of sbatch alone, found '{options}', of which"
    assert submit(options).startswith(said)
    assert not (tmp_path / 'started').exists()


@pytest.mark.slurm
@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ('-c', '--slurm: expected a value behind -c, found none.\n'),
        ('-c2 -p', '--slurm: expected a value behind -p, found none.\n'),
        ('--partition', '--slurm: expected a value behind --partition, found none.\n'),
        ('--nonsense', "sbatch: unrecognized option '--nonsense'.\n"),
    ],
)
def test_what_sbatch_refuses_is_said_with_its_reason(options, said, submit):
    assert submit(options) == said


@pytest.mark.slurm
def test_a_job_that_slurm_does_not_cancel_is_named(cluster, follow, tmp_path):
    scancel = tmp_path / 'bin' / 'scancel'
    scancel.parent.mkdir()
    scancel.write_text(
        '#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n'
    )
    scancel.chmod(0o755)
    follower = follow(SWEEP, '-H', PATH=f'{scancel.parent}{os.pathsep}{PATH}')
    follower.wait_for('PENDING (JobHeldUser)')
    follower.process.send_signal(signal.SIGINT)
    follower.wait_for(f'type "scancel {follower.job}" later')
    # a second one leaves it
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    assert cluster.read_state(follower.job) == 'PENDING'


def wrap_sbatch(folder: Path, after: str) -> dict[str, str]:
    """Writes an ``sbatch`` that hides job numbers; returns a ``PATH`` that finds it."""
    real = shutil.which('sbatch', path=PATH)
    wrapper = folder / 'bin' / 'sbatch'
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n{real} "$@" > /dev/null\n{after}\n')
    wrapper.chmod(0o755)
    return {'PATH': f'{wrapper.parent}{os.pathsep}{PATH}'}


@pytest.mark.slurm
@pytest.mark.parametrize(
    'after',
    [
        'echo You have 3 hours left.; echo 17 more jobs.',
        'echo sbatch: error: Socket timed out on send/recv operation >&2; exit 1',
    ],
    ids=['other words', 'time-out'],
)
def test_a_job_whose_number_is_not_printed_is_followed(
    after, cluster, follow, tmp_path
):
    follower = follow(SWEEP, '-H', **wrap_sbatch(tmp_path, after))
    follower.wait_for('PENDING (JobHeldUser)')
    assert cluster.run('squeue', '-h', '-o', '%A') == follower.job
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    assert count_jobs(cluster) == 0


@pytest.mark.slurm
def test_where_sbatch_prints_no_number_and_has_no_job_that_is_said(
    cluster, follow, tmp_path
):
    wrapped = wrap_sbatch(tmp_path, 'scancel -u "$(id -u)"; echo You have 3 hours.')
    follower = follow(SWEEP, '-H', **wrapped)
    assert follower.end() == 2
    said = "expected sbatch to print the number of a job, found 'You have 3 hours.' and"
    assert said in follower.err
    assert follower.err.count('\n') == 1


@pytest.mark.slurm
def test_where_slurm_does_not_say_if_it_has_the_job_the_same_line_follows_it(
    cluster, follow, tmp_path
):
    environ = wrap_sbatch(
        tmp_path, f'touch {tmp_path}/taken; echo timed out >&2; exit 1'
    )
    squeue = tmp_path / 'bin' / 'squeue'
    real = shutil.which('squeue', path=PATH)
    squeue.write_text(f'#!/bin/sh\n[ ! -e {tmp_path}/taken ] && exec {real} "$@"\n')
    squeue.chmod(0o755)
    unsure = follow(SWEEP, '-H', **environ)
    assert unsure.end() == 2
    said = 'expected sbatch to submit a job, found "timed out"; SLURM does not say'
    assert said in unsure.err
    job = cluster.run('squeue', '-h', '-o', '%A')
    follow(SWEEP, '-H').wait_for(f'following job {job}')


@pytest.mark.slurm
def test_ctrl_c_while_sbatch_works_leaves_no_job(cluster, follow, tmp_path):
    follower = follow(SWEEP, '-H', **wrap_sbatch(tmp_path, 'touch taken; sleep 60'))
    until_s = time.monotonic() + 60
    while not (tmp_path / 'taken').exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert count_jobs(cluster) == 1
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    assert count_jobs(cluster) == 0
    assert 'where SLURM has taken it, it is cancelled.' in follower.err


@pytest.mark.slurm
def test_the_job_is_one_with_all_of_the_environment_whatever_a_site_sets(
    cluster, follow, tmp_path
):
    (tmp_path / 'none').mkdir()
    set_by_site = {'SBATCH_EXPORT': 'NONE', 'SBATCH_ARRAY_INX': '0-1'}
    hiding = {'SBATCH_WAIT': '1', 'SQUEUE_PARTITION': 'urgent'}
    environ = {**set_by_site, **hiding, 'MMGPU_LANG': 'pseudo'}
    line = 'runs none --judge'
    first = follow(line, '--begin=now+3 -p debug', **environ)
    first.wait_for('PENDING')
    second = follow(line, '--begin=now+3 -p debug', **environ)
    second.wait_for('following job')
    assert count_jobs(cluster) == 1
    assert (first.end(), second.end()) == (2, 2)
    (said,) = (row for row in first.err.splitlines() if 'expected runs with' in row)
    # by the job, in the language of the environment
    assert '⟦' in said


@pytest.mark.slurm
def test_folders_and_files_may_have_any_name(follow, tmp_path):
    folder = tmp_path / "it's %j, $HOME"
    write_run(folder / 'my\nruns' / 'run', make_starved(tmp_path / 'toy.py'))
    words = ['runs', 'my\nruns', '--judge', '--page', 'a `b`.html', '--format', 'json']
    follower = follow(shlex.join(words), folder=folder)
    assert follower.end() == 0, follower.err
    assert len(json.loads(follower.out)['rows']) == 1
    assert (folder / 'a `b`.html').exists()


@pytest.mark.slurm
def test_ctrl_c_ends_a_job_that_waits(cluster, follow):
    follower = follow(SWEEP, '-H')
    follower.wait_for('PENDING (JobHeldUser)')
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    assert follower.out == ''
    assert f'cancelling job {follower.job}' in follower.err
    assert follower.err.endswith('the same command goes on from what is stored.\n')
    assert cluster.read_state(follower.job) == 'CANCELLED'


@pytest.mark.slurm
def test_after_a_lost_connection_the_same_line_follows_the_same_job(cluster, follow):
    lost = follow(SWEEP, '-H')
    lost.wait_for('PENDING (JobHeldUser)')
    job = lost.job
    lost.process.send_signal(signal.SIGHUP)
    assert lost.end() == -signal.SIGHUP
    again = follow(SWEEP, '-H')
    again.wait_for(f'following job {job}')
    assert count_jobs(cluster) == 1
    # another one's line is another job
    other = follow(f'{SWEEP} 2', '-H')
    other.wait_for('submitted job')
    assert count_jobs(cluster) == 2
    cluster.run('scancel', job)
    assert again.end() == 130
    assert f'job {job} ended as CANCELLED' in again.err


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(('how', 'code'), [('by itself', 0), ('killed', 137)])
def test_a_running_job_whose_connection_is_lost_is_followed_to_its_end(
    cluster, follow, tmp_path, how, code
):
    line = f'{SWEEP} 2 --format json'
    lost = follow(line, '-c2')
    store = lost.wait_for_trial()
    job = lost.job
    lost.process.send_signal(signal.SIGHUP)
    assert lost.end() == -signal.SIGHUP
    assert lost.out == ''
    assert cluster.read_state(job) == 'RUNNING'
    kept = json.loads(store.read_text())['trials'][0]
    again = follow(line, '-c2')
    again.wait_for(f'following job {job}')
    again.wait_for(f'job {job}: RUNNING')
    if how == 'killed':
        kill_command(tmp_path)
    assert again.end() == code, again.err
    assert json.loads(store.read_text())['trials'][0] == kept
    if how == 'by itself':
        rows = json.loads(again.out)['rows']
        assert [row['status'] for row in rows] == ['completed'] * 3


@pytest.mark.slurm
def test_the_answer_is_the_jobs_and_nothing_else_is_on_standard_output(
    cluster, follow, tmp_path
):
    # the trap for a step: the batch script itself has all of the job
    line = SWEEP.replace('--num-workers 0 1', '--num-workers 1')
    follower = follow(f'{line} --format json', '--hint=nomultithread')
    assert follower.end() == 0, follower.err
    answer = json.loads(follower.out)
    assert [row['status'] for row in answer['rows']] == ['completed']
    assert Path(answer['page']).parent == tmp_path / 'w' / 'sweep'
    assert f'job {follower.job}: RUNNING on ' in follower.err
    job = cluster.run('scontrol', 'show', 'job', '-o', follower.job)
    # the most workers, and the training process
    assert 'CPUs/Task=2' in job
    assert 'NumNodes=1' in job


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize('how', ['Ctrl-C', 'kill', 'scancel'])
def test_what_is_ended_prints_a_partial_table(cluster, follow, how):
    follower = follow(f'{SWEEP} 2', '-c2')
    follower.wait_for_trial()
    if how == 'scancel':
        cluster.run('scancel', follower.job)
    else:
        number = signal.SIGINT if how == 'Ctrl-C' else signal.SIGTERM
        follower.process.send_signal(number)
    assert follower.end() == 130
    assert 'of 3 settings were trained' in follower.out
    assert f'job {follower.job} ended as CANCELLED' in follower.err
    # it goes on from there
    follower = follow(f'{SWEEP} 2 --format json', '-c2')
    assert follower.end() == 0
    assert len(json.loads(follower.out)['rows']) == 3


@pytest.mark.slow
@pytest.mark.slurm
def test_a_time_limit_leaves_a_partial_table(follow, tmp_path):
    # -t 1 is the least, SLURM may look a minute later, and each of these trains 9 s on
    # any machine: 10 iterations of warm-up, and two intervals
    write_config(tmp_path, step_s=0.3)
    sizes = ' '.join(map(str, range(1, 21)))
    line = SWEEP.replace('--num-workers 0 1', f'--num-workers 0 --batch-size {sizes}')
    follower = follow(line, '-t 1 -c2')
    assert follower.end(200) == 130
    assert 'of 20 settings were trained' in follower.out
    assert 'ended as TIMEOUT (TimeLimit)' in follower.err


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize('how', ['requeue', 'preemption'])
def test_a_job_that_starts_again_goes_on(cluster, follow, how):
    line = f'{SWEEP} --fresh --format json'
    follower = follow(line, '-p debug -c2')
    store = follower.wait_for_trial()
    kept = json.loads(store.read_text())['trials'][0]
    if how == 'requeue':
        cluster.run('scontrol', 'requeue', follower.job)
    else:
        urgent = ('sbatch', '--parsable', '-p', 'urgent', '--exclusive', '-o/dev/null')
        cluster.run(*urgent, text='#!/bin/bash\nsleep 3\n')
    follower.wait_for(f'job {follower.job}: PENDING')
    assert follower.end(120) == 0, follower.err
    answer = json.loads(follower.out)
    assert len(answer['rows']) == 2
    assert json.loads(store.read_text())['trials'][0] == kept
    job = cluster.run('scontrol', 'show', 'job', '-o', follower.job)
    assert 'Restarts=1' in job


@pytest.mark.slow
@pytest.mark.slurm
def test_a_killed_job_is_no_success(follow, tmp_path):
    follower = follow(SWEEP.replace('--seconds 1', '--seconds 60'), '-c2')
    follower.wait_for('RUNNING')
    until_s = time.monotonic() + 90
    events = tmp_path / 'w' / 'sweep' / 'trials'
    while not any(path.stat().st_size for path in events.glob(f'*/{EVENTS_NAME}')):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    kill_command(tmp_path)
    assert follower.end() == 137
    assert 'ended as FAILED' in follower.err
    assert 'the same command goes on' in follower.err


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(
    ('line', 'key'),
    [
        ('verify run --max-minutes 1', 'gain'),
        ('profile toy.py --iterations 2 --work-dir w', 'iterations'),
        ('runs run --judge', 'rows'),
        ('save-bench toy.py --num-workers 0 --saves 3 --work-dir w', 'rows'),
    ],
)
def test_every_command_that_trains_can_be_a_job(follow, tmp_path, line, key):
    write_run(tmp_path / 'run', make_starved(tmp_path / 'toy.py'))
    # the run had more CPUs than this node has
    options = '-c2' if 'verify' in line else ''
    follower = follow(f'{line} --format json', options)
    assert follower.end(180) == 0, follower.err
    assert key in json.loads(follower.out)
