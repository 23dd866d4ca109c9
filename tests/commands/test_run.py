"""Tests ``mmgpu run`` by real processes, such as MMDetection's ``train.py``."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import click
import pytest

from fakes.forked import run_forked
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.commands.run import run
from mmgpu_hooks.config.hook_arguments import ARGUMENTS
from mmgpu_hooks.config.switches import INJECTED, render_options, switch_on
from training.detection import environ, find_tools
from training.recommended import write_configs
from training.toy import HOOK, AfterIteration, build_runner, evidence_of, log_of, train
from training.trial_toys import write_config

MMGPU = [sys.executable, '-m', 'mmgpu_hooks', 'run']

# no ranks of a training that nobody validates
TRAINING = """
custom_imports = dict(imports=['training.toy'])
val_cfg = val_dataloader = val_evaluator = None
"""
RANKS = """
custom_imports = dict(imports=['training.gloo_here', 'training.toy'])
model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)
val_cfg = val_dataloader = val_evaluator = None
"""


def start(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``mmgpu run`` with the given arguments and more environment variables."""
    env = {**environ(), **more.pop('env', {})}
    command = [*MMGPU, *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, **more)


def ask_python(
    *words: str, env: dict[str, str], python: str | Path = sys.executable
) -> tuple[int, str, str]:
    """Runs Python with arguments; returns exit code, standard output and error."""
    command = [str(python), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# --- trainings


def test_a_training_has_the_hook_and_no_file_is_touched(tmp_path, capsys):
    config = write_config(tmp_path, more=TRAINING, epochs=3)
    before, folder = config.read_bytes(), tmp_path / 'run'
    done = start(
        '--interval',
        '5',
        '--no-summary',
        find_tools() / 'train.py',
        config,
        '--work-dir',
        folder,
        '--cfg-options',
        'train_cfg.max_epochs=1',
    )
    assert done.returncode == 0, done.stderr[-2000:]
    evidence = evidence_of(folder)
    record, end = evidence.run, evidence.end
    assert (end.status, end.iterations) == ('completed', 20)
    assert [interval.iterations for interval in evidence.intervals] == [5] * 4
    assert record.hook_added_by == 'mmgpu run'
    assert record.config_path == str(config)
    assert list(record.before_hook_s) == ['imports', 'config', 'model']
    assert 0.1 < record.before_hook_s['imports'] < 100
    printed = done.stdout + done.stderr
    assert printed.count('switched on by mmgpu run with interval=5, summary=Fal') == 1
    assert 'GPUEfficiencyHook: completed' not in printed
    # what others load or train later does not need us
    assert config.read_bytes() == before
    assert 'GPUEfficiency' not in (folder / 'toy.py').read_text()
    assert b'mmgpu' not in (folder / 'epoch_1.pth').read_bytes()
    assert main(['recommend', str(folder), '--dry-run', '--details']) == 0
    shown = capsys.readouterr().out
    assert re.search(r'hook switched on by +mmgpu run\n', shown)
    assert re.search(r'start, before the hook .* s: imports ', shown)


@pytest.fixture(scope='module')
def spellings(tmp_path_factory):
    """Hooks found in differently written scripts that ran under ``mmgpu run``."""
    done = start(
        '--stuck-after',
        '7',
        '-m',
        'training.spellings',
        tmp_path_factory.mktemp('spellings'),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_bare_name_of_the_hook_is_known(spellings):
    assert spellings['is registered']


@pytest.mark.parametrize('name', ['none', 'from_cfg', 'flexible, none'])
def test_where_a_config_has_no_hook_one_is_added(spellings, name):
    added = {'interval': None, 'stuck_after_s': 7.0, 'added_by': 'mmgpu run'}
    assert spellings[name] == [added]


@pytest.mark.parametrize(
    'name', ['bare', 'dotted', 'listed', 'class', 'object', 'flexible, bare']
)
def test_a_hook_of_the_config_stays_the_only_one(spellings, name):
    kept = {'interval': 3, 'stuck_after_s': 7.0, 'added_by': None}
    assert spellings[name] == [kept]


def test_what_never_trains_has_no_hook(spellings):
    assert spellings['validates only'] == []


def test_a_hook_that_a_script_registers_records_in_place_of_ours(spellings):
    assert [hook['interval'] for hook in spellings['late']] == [None, 3]
    assert spellings['log of late'].count('GPUEfficiencyHook: completed after') == 1
    assert 'found several' not in spellings['log of late']


def test_hooks_that_a_script_registers_later_change_nothing_of_ours(spellings):
    # the start of the process is of the first Runner that trains
    assert spellings['start'] == ['imports', 'config', 'model']
    kept = {'interval': 3, 'stuck_after_s': 7.0, 'added_by': None}
    assert spellings['again'] == {'hooks': [kept], 'iterations': 12, 'lines': 1}


def test_the_summary_says_what_to_type_next_with_the_same_options(tmp_path):
    config = write_configs(tmp_path)
    options = ['--interval', '4', '--stuck-after', '60.0', '--summary']
    done = start(*options, '-m', 'training.recommended', config, tmp_path / 'run')
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = (tmp_path / 'run').glob('*/mine_recommended.py')
    (line,) = re.findall('^  next +(.*)$', done.stdout, re.MULTILINE)
    assert line == f'mmgpu run {" ".join(options)} -m training.recommended {path}'


def test_what_the_summary_says_are_options_of_the_command():
    arguments = {
        **{'interval': 20, 'gpu_sample_period_s': 0.5, 'worker_nice': 3},
        **{'stuck_after_s': 7.0, 'scalars': 'all', 'slurm_comment': True},
        **{'summary': False, 'write_config': True, 'optimize': 'ema,history'},
        'tune': True,
    }
    assert arguments.keys() == {*ARGUMENTS}
    words = [*render_options(arguments), 'true']
    given = run.make_context('run', words).params
    assert {name: given[name] for name in arguments} == arguments


@pytest.mark.slow
@pytest.mark.parametrize('context', ['spawn', 'forkserver'])
def test_workers_that_import_all_have_no_hook(context, tmp_path):
    config = write_config(tmp_path, more=TRAINING, epochs=1, num_workers=2)
    done = start(
        find_tools() / 'train.py',
        config,
        '--work-dir',
        tmp_path / 'run',
        '--cfg-options',
        f'train_dataloader.multiprocessing_context={context}',
    )
    assert done.returncode == 0, done.stderr[-2000:]
    evidence = evidence_of(tmp_path / 'run')
    assert (evidence.end.status, evidence.run.loader.num_workers) == ('completed', 2)
    assert (done.stdout + done.stderr).count('switched on by mmgpu run') == 1


@pytest.mark.slow
@pytest.mark.parametrize('launcher', ['torchrun', 'dist_train.sh', 'launch'])
def test_every_rank_has_the_hook(launcher, tmp_path):
    config = write_config(tmp_path, more=RANKS, epochs=1)
    tools, bin_folder = find_tools(), Path(sys.executable).parent
    script, port = tools / 'train.py', f'29{os.getpid() % 1000:03}'
    ranks = ['--nproc_per_node=2', f'--master_port={port}']
    words: dict[str, list[str | Path]] = {
        'torchrun': ['torchrun', *ranks, script, config, '--launcher', 'pytorch'],
        'launch': [
            'python',
            '-m',
            'torch.distributed.launch',
            *ranks,
            script,
            config,
            '--launcher',
            'pytorch',
        ],
        'dist_train.sh': ['bash', tools / 'dist_train.sh', config, '2'],
    }
    env = {'PORT': port, 'PATH': f'{bin_folder}:{os.environ["PATH"]}'}
    more = ['--work-dir', tmp_path / 'run', '--cfg-options']
    more += ['default_hooks.logger.interval=2']
    done = start(*words[launcher], *more, env=env, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    names = ('gpu_efficiency.jsonl', 'gpu_efficiency_rank1.jsonl')
    for rank, name in enumerate(names):
        evidence = evidence_of(tmp_path / 'run', name)
        assert (evidence.run.rank, evidence.run.world_size) == (rank, 2)
        assert evidence.run.hook_added_by == 'mmgpu run'
        assert [interval.iterations for interval in evidence.intervals] == [2] * 5
    assert (done.stdout + done.stderr).count('switched on by mmgpu run') == 1


# --- all that is no training


SHOW = 'import os, sys; print(sys.argv[1:], sorted(sys.modules)); sys.exit(7)'


def test_another_program_runs_as_it_does_without_us(tmp_path):
    script = tmp_path / 'mine.py'
    script.write_text(SHOW)
    words = [str(script), '--interval', '3', '-m', '--', '--help']
    code, printed, said = ask_python(*words, env=environ())
    done = start('--interval', '5', '--scalars', 'all', *words)
    assert code == 7
    # of ours there is one module, and none that it imports; Debian's Python has its own
    ours, plain = (
        text.replace("'sitecustomize', ", '') for text in (done.stdout, printed)
    )
    assert (done.returncode, ours, done.stderr) == (7, plain, said)
    assert "'mmgpu_hooks" not in ours


def test_signals_and_output_are_the_programs(tmp_path):
    script = 'grep SigIgn /proc/self/status; kill -TERM $$'
    done = start('sh', '-c', script)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, '')
    assert not int(done.stdout.split()[1], 16) >> (signal.SIGPIPE - 1) & 1
    waiting = tmp_path / 'waiting.py'
    waiting.write_text(
        'import os, time\n'
        'try:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n'
        'except KeyboardInterrupt:\n    print("Ctrl-C")\n    os._exit(5)\n'
    )
    with subprocess.Popen(
        [*MMGPU, str(waiting)],
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        # in our place, not below us
        assert int(process.stdout.readline()) == process.pid
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30) == ('Ctrl-C\n', '')
    assert process.returncode == 5


@pytest.mark.parametrize('flags', [['-S'], ['-I'], ['-E']])
def test_a_python_that_is_told_to_be_alone_stays_so(flags):
    code = 'import sys; print("sitecustomize" in sys.modules, len(sys.meta_path))'
    before = ask_python(*flags, '-c', code, env=environ())
    assert before[0] == 0
    done = start(sys.executable, *flags, '-c', code)
    assert (done.returncode, done.stdout, done.stderr) == before


def test_a_module_is_run_as_by_python():
    done = start('-m', 'platform', 'terse')
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout.startswith('Linux')


def test_a_script_that_writes_configs_is_no_config(tmp_path):
    script = tmp_path / 'mine.py'
    script.write_text(
        'TEMPLATE = """\n_base_ = ["mmdet::rtmdet.py"]\nwith read_base():\n"""\n'
        'train_dataloader = dict(batch_size=1)\n'
        'print(TEMPLATE[1:7])\n'
    )
    done = start(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, '_base_\n', '')
    # it does its work where it sets a name
    script.write_text('train_dataloader = dict(shown=print("loaded"))\n')
    done = start(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, 'loaded\n', '')


IMPORT_RUNNER = 'import mmengine.runner.runner as module; print(module.Runner.__name__)'

OTHERS = {
    'none': None,
    'one': 'import sys\nwhere = sys.path\nprint("theirs")',
    'it raises': 'raise ValueError("theirs")',
    'it lacks a module': 'import no_such_module',
    'it ends the process': 'import os; print("gone", flush=True); os._exit(3)',
    'it is no Python': 'def',
}
"""Contents of a user's own ``sitecustomize`` module, by test case."""


@pytest.mark.parametrize('case', OTHERS)
def test_a_sitecustomize_of_the_users_still_runs(case, tmp_path):
    text = OTHERS[case]
    if text is not None:
        (tmp_path / 'sitecustomize.py').write_text(text)
    env = {**environ(), 'PYTHONPATH': str(tmp_path)}
    code = (
        'import sys\ntry:\n    import sitecustomize\n'
        '    print(sitecustomize.__file__, hasattr(sitecustomize, "where"))\n'
        'except BaseException as error:\n    print(repr(error))\n'
        'print(sys.path)'
    )
    before = ask_python('-c', code, env=env)
    after = ask_python('-c', code, env=switch_on(env, {}))
    # Debian's Python has one of its own
    if case == 'none' and 'ModuleNotFoundError' in before[1]:
        ours = INJECTED / 'sitecustomize.py'
        expected = f'{ours} False\n{before[1].splitlines()[1]}\n'
        assert after == (0, expected, '')
    else:
        assert after == before


@pytest.fixture(scope='module')
def other_python(tmp_path_factory):
    """Python of a virtual environment with ``sitecustomize`` and a tiny MMEngine."""
    folder = tmp_path_factory.mktemp('other')
    venv.create(folder, symlinks=True)
    (site,) = folder.glob('lib/python*/site-packages')
    (site / 'sitecustomize.py').write_text('import builtins; builtins.its_own = 1')
    for name in ('__init__', 'runner/__init__', 'runner/runner'):
        module = site / 'mmengine' / f'{name}.py'
        module.parent.mkdir(exist_ok=True)
        module.write_text('class Runner: pass\n')
    return folder / 'bin' / 'python'


@pytest.mark.parametrize(('rank', 'warnings'), [('0', 1), ('1', 0)])
def test_a_python_without_our_package_trains_with_one_warning(
    other_python, rank, warnings
):
    code = 'import mmengine.runner.runner as r, sys; print(r.Runner.__name__, its_own)'
    (site,) = other_python.parents[1].glob('lib/python*/site-packages')
    # before the standard library, where Debian's Python has a sitecustomize
    env = {'RANK': rank, 'PYTHONPATH': str(site)}
    done = start(
        other_python, '-c', code, env=env, cwd=Path(__file__).parents[2] / 'docs'
    )
    assert (done.returncode, done.stdout) == (0, 'Runner 1\n'), done.stderr
    assert done.stderr.count('\n') == warnings
    sentence = f'mmgpu run: expected mmgpu_hooks to be installed for {other_python}, '
    assert done.stderr.startswith(sentence) == bool(warnings)


@pytest.mark.parametrize(
    ('held', 'said'),
    [
        ('{"interval": 0}', 'ValueError: GPUEfficiencyHook: expected interval'),
        ('{"interval": ', 'ValueError: MMGPU_RUN is not as mmgpu run left it'),
        ('{"speed": 1}', 'ValueError: MMGPU_RUN is not as mmgpu run left it'),
    ],
)
def test_arguments_that_are_none_of_ours_are_named_as_the_reason(held, said):
    env = {**switch_on(environ(), {}), 'MMGPU_RUN': held}
    code, printed, warning = ask_python('-c', IMPORT_RUNNER, env=env)
    assert (code, printed, warning.count('\n')) == (0, 'Runner\n', 1)
    assert f'GPUEfficiencyHook cannot be added ({said}' in warning
    assert 'installed' not in warning


# --- switched off


def test_disabled_the_program_runs_plainly():
    code = 'import os; print(os.environ.get("PYTHONPATH"), "MMGPU_RUN" in os.environ)'
    env = {'MMGPU_DISABLE': '1'}
    done = start('--interval', '5', sys.executable, '-c', code, env=env)
    assert (done.returncode, done.stdout) == (0, f'{environ()["PYTHONPATH"]} False\n')
    assert done.stderr.splitlines() == [
        'mmgpu run: MMGPU_DISABLE is set, so the program runs without '
        'GPUEfficiencyHook.'
    ]


@pytest.mark.parametrize('value', ['1', '0'])
def test_disabled_a_hook_of_a_config_does_nothing(value, tmp_path, monkeypatch):
    from mmengine.runner import BaseLoop

    monkeypatch.setenv('MMGPU_DISABLE', value)
    original, is_off = BaseLoop.__init__, value == '1'
    seen: list[bool] = []
    runner = build_runner(tmp_path, hook={**HOOK, 'worker_nice': 5})
    assert (BaseLoop.__init__ is original) == is_off
    watcher = AfterIteration(lambda runner: seen.append('call_hook' in vars(runner)))
    runner.register_hook(watcher)
    train(runner)
    assert set(seen) == {not is_off}
    found = [*tmp_path.rglob('gpu_efficiency*')]
    assert len(found) == 1 - is_off
    said = re.findall('GPUEfficiencyHook: .*', log_of(runner))
    if is_off:
        assert said == ['GPUEfficiencyHook: off, since MMGPU_DISABLE is set.']
    assert 'data_wait_s' not in log_of(runner) or not is_off


# --- the command line


BAD = {
    '': 'PROGRAM',
    '--interval 0 true': "'--interval': expected interval",
    '--stuck-after nan true': "'--stuck-after': expected a number, found 'nan'",
    '--stuck-after 1e999 true': "'--stuck-after': expected a number, found '1e999'",
    '--stuck-after -1 true': "'--stuck-after': expected stuck_after_s",
    '--gpu-sample-period inf true': "'--gpu-sample-period': expected a number",
    '--interval 1_000 true': "'--interval': expected a whole number, found '1_000'",
    '--interval ² true': "'--interval': expected a whole number, found '²'",
    '--worker-nice \u0661 true': "'--worker-nice': expected a whole number, found",
    '--worker-nice 20 true': "'--worker-nice': expected worker_nice",
    '--scalars some true': '--scalars',
    '--bogus true': '--bogus',
    'no_such.py': "found 'No such file or directory' for 'no_such.py'",
    'tools/train.py rtmdet.py': "for 'tools/train.py'; MMDetection's is ",
    'rtmdet.py --work-dir .': 'write "mmgpu run tools/train.py rtmdet.py"',
    'dumped.py': 'write "mmgpu run tools/train.py dumped.py"',
    'no-such-program': "'no-such-program' could not be started: No such file",
    './plain.sh': 'write "bash ./plain.sh ..." in its place',
    '-m': 'PROGRAM',
    '-- -x.py': "found 'No such file or directory' for '-x.py'",
    'empty.py': "found 'a folder without __main__.py' for 'empty.py'",
    './empty.py/': "found the folder './empty.py/'; name a file in it",
    './bare.sh': 'without a first line such as #!/bin/sh; if it is a shell script',
    './windows.sh': "names '/bin/sh\\r', which is none; its lines end as on Windows",
    './gone.sh': "names '/no/such/sh', which is none; mend that line.",
    "-m ''": 'expected the name of a module, found an empty one',
    # of a variable that is not set
    "''": "'' cannot be one; is a variable of the shell not set?",
}


DUMPED = """\
model = dict(type='RTMDet')
train_dataloader = dict(batch_size=32, sampler=dict(type='DefaultSampler'))
val_cfg = None
"""


@pytest.mark.parametrize('line', BAD)
def test_what_cannot_be_run_is_one_sentence(line, tmp_path):
    (tmp_path / 'plain.sh').write_text('echo\n')
    (tmp_path / 'empty.py').mkdir()
    for name, first in (
        ('bare', ''),
        ('windows', '#!/bin/sh\r'),
        ('gone', '#! /no/such/sh -e'),
    ):
        script = tmp_path / f'{name}.sh'
        script.write_bytes(f'{first}\necho\n'.encode())
        script.chmod(0o755)
    (tmp_path / 'rtmdet.py').write_text("_base_ = ['mmdet::rtmdet.py']\n")
    # as MMEngine leaves it in a work_dir
    (tmp_path / 'dumped.py').write_text(DUMPED)
    code, printed, said = run_forked(
        ['run', *shlex.split(line)], first=lambda: os.chdir(tmp_path)
    )
    assert (code, printed, said.count('\n')) == (2, '', 1)
    assert said.startswith('mmgpu run: ')
    assert BAD[line] in said


def test_a_script_that_may_not_be_read_is_one_sentence(tmp_path):
    if os.getuid():
        pytest.skip('only root can become a user who may not read it')
    (tmp_path / 'mine.py').touch(0o600)

    def enter() -> None:
        tmp_path.chmod(0o755)
        os.chdir(tmp_path)
        os.seteuid(65534)

    code, printed, said = run_forked(['run', 'mine.py'], first=enter)
    assert (code, printed, said.count('\n')) == (2, '', 1)
    assert "found 'Permission denied' for 'mine.py'" in said


def test_odd_names_that_python_can_run_are_run(tmp_path):
    (tmp_path / '-x.py').write_text('import sys\nprint(sys.argv)\n')
    done = start('--', '-x.py', '-v', cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['./-x.py', '-v']\n", '')
    folder = tmp_path / 'folder.py'
    folder.mkdir()
    (folder / '__main__.py').write_text('print("inside")\n')
    done = start(folder)
    assert (done.returncode, done.stdout) == (0, 'inside\n')
    # what is read here would be lost to Python
    script = ['sh', '-c', 'mkfifo p.py && { echo "print(5)" > p.py & "$@" p.py; }']
    command = [*script, 'sh', *MMGPU]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '5\n', '')


def test_sitecustomize_is_compiled_once_where_python_writes_no_compiled_files(tmp_path):
    env = {'PYTHONPYCACHEPREFIX': str(tmp_path), 'PYTHONDONTWRITEBYTECODE': '1'}
    done = start('true', env=env)
    assert (done.returncode, done.stderr) == (0, '')
    (compiled,) = tmp_path.rglob('sitecustomize*.pyc')
    before = compiled.stat().st_ino
    done = start(
        '-m', 'timeit', '-n1', '-r1', 'pass', env={**env, 'PYTHONVERBOSE': '1'}
    )
    assert f"code object from '{compiled}'" in done.stderr
    assert compiled.stat().st_ino == before
    # what it cannot be written to costs time alone
    done = start('true', env={**env, 'PYTHONPYCACHEPREFIX': '/proc/none'})
    assert (done.returncode, done.stderr) == (0, '')


def test_every_argument_of_the_hook_is_an_option():
    names = {option.name for option in run.params if isinstance(option, click.Option)}
    assert names == {*ARGUMENTS, 'is_module'}


def test_children_inherit_the_hook_by_their_python_path():
    once = switch_on({'PYTHONPATH': '/a:/b', 'HOME': '/h'}, {'interval': 5})
    assert once == {
        'HOME': '/h',
        'MMGPU_RUN': '{"interval": 5}',
        'PYTHONPATH': f'{INJECTED}:/a:/b',
    }
    # the inner of two commands wins
    twice = switch_on(once, {})
    assert twice == {**once, 'MMGPU_RUN': '{}'}
    # an empty entry would be the current folder
    assert switch_on({'PYTHONPATH': ''}, {})['PYTHONPATH'] == str(INJECTED)
    held = [path.name for path in INJECTED.iterdir() if path.name != '__pycache__']
    assert held == ['sitecustomize.py']
