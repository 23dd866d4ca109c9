"""Tests ``mmgpu doctor`` on this machine, in a container, and with bound processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml import FakeGpu
from fakes.runs import make_evidence, make_loader, make_run, write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config.loading import load_config
from mmgpu_hooks.experiment import doctor
from mmgpu_hooks.judge.doctor import FAMILIES
from mmgpu_hooks.measure.host import FileSystem
from mmgpu_hooks.measure.installed import find_openmp, find_package, read_versions
from mmgpu_hooks.schema.checkup import OpenFiles

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
SPOILERS = (
    'OMP_PROC_BIND',
    'OMP_PLACES',
    'GOMP_CPU_AFFINITY',
    'KMP_AFFINITY',
    'OMP_NUM_THREADS',
    'CUDA_VISIBLE_DEVICES',
    'SLURM_CPUS_PER_TASK',
)
RESUME = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1

Rows = dict[str, dict[str, Any]]

needs_two = pytest.mark.skipif(CPUS < 2, reason='one CPU cannot be made fewer')


@pytest.fixture(autouse=True)
def environ(monkeypatch) -> Mapping[str, str]:
    """Environment variables of a training without any problem."""
    for name in SPOILERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RESUME, '1')
    return os.environ


@pytest.fixture
def host(tmp_path, monkeypatch) -> Path:
    """Fake container with 1.5 cores, 6 GiB and a folder in place of ``/dev/shm``."""
    own, group = tmp_path / 'proc' / 'self', tmp_path / 'sys' / 'fs' / 'cgroup'
    own.mkdir(parents=True)
    group.mkdir(parents=True)
    (own / 'cgroup').write_text('0::/\n')
    (own / 'mountinfo').write_text(
        '22 1 8:1 / / rw - ext4 /dev/root rw\n'
        f'40 22 0:50 / {tmp_path}/nfs\\040share rw - nfs4 store:/x rw\n'
    )
    (group / 'cpu.max').write_text('150000 100000\n')
    (group / 'memory.max').write_text(f'{6 * GIB}\n')
    places = doctor.Places(tmp_path / 'proc', tmp_path / 'sys', tmp_path)
    monkeypatch.setattr(doctor, 'PLACES', places)
    return tmp_path


@pytest.fixture
def check(capsys):
    """Function that runs ``mmgpu doctor`` in this process; returns its rows by name."""

    def run(*words: str | Path) -> Rows:
        code = main(['doctor', *map(str, words), '--format', 'json'])
        return read_rows(code, capsys.readouterr().out)

    return run


def read_rows(code: int, out: str) -> Rows:
    answer = json.loads(out)
    wrong = [row for row in answer['rows'] if row['level'] == 'problem']
    assert code == (1 if wrong else 0)
    assert answer['problems'] == len(wrong)
    assert all(row['cure'] for row in wrong)
    return {row['name']: row for row in answer['rows']}


def check_in_process(*before: str, **environ: str) -> Rows:
    """Runs ``mmgpu doctor`` as a process, e.g. under ``taskset``; returns its rows."""
    command = [*before, sys.executable, '-m', 'mmgpu_hooks', 'doctor', '--format=json']
    done = subprocess.run(
        command,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr == ''
    return read_rows(done.returncode, done.stdout)


def test_doctor_examines_this_machine_without_importing_torch():
    code = (
        'import sys\n'
        'from mmgpu_hooks.commands.main import main\n'
        'code = main(["doctor"])\n'
        'assert not {"torch", "mmcv", "mmdet", "cv2"} & set(sys.modules)\n'
        'sys.exit(code)\n'
    )
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode in (0, 1), done.stderr) == (True, '')
    title, *lines = done.stdout.splitlines()
    is_wrong = any(line.startswith('  ! ') for line in lines)
    assert done.returncode == is_wrong
    assert title.startswith('Nothing is wrong') is not is_wrong
    assert max(map(len, lines)) <= 80
    assert f'{CPUS:g} usable' in lines[0] or 'quota' in lines[0] or 'SLURM' in lines[0]


@needs_two
def test_limits_of_a_container_bound_cores_and_memory(host, check):
    rows = check()
    cores, memory = rows['cores'], rows['memory']
    assert cores['text'].startswith('1.5 usable of ')
    assert 'quota of the control group' in cores['text']
    assert memory['text'].startswith('6.0 GiB, limit of the control group')
    assert cores['level'] == memory['level'] == 'ok'
    group = host / 'sys' / 'fs' / 'cgroup'
    (group / 'memory.current').write_text(f'{3 * GIB}\n')
    (group / 'memory.stat').write_text(f'anon 0\ninactive_file {GIB}\n')
    assert '(a container, a job), 4.0 GiB of them free; ' in check()['memory']['text']


@needs_two
def test_cores_that_slurm_gave_are_the_usable_ones(host, check, monkeypatch):
    (host / 'sys' / 'fs' / 'cgroup' / 'cpu.max').write_text('max 100000\n')
    monkeypatch.setenv('SLURM_CPUS_PER_TASK', '1')
    assert '1 usable of ' in (text := check()['cores']['text'])
    assert text.endswith(': SLURM gave 1')


@pytest.fixture
def cpu_group():
    """Real control group (cgroup 1) with a quota of half a core."""
    folder = Path(f'/sys/fs/cgroup/cpu/mmgpu-doctor-{os.getpid()}')
    own = Path('/proc/self/cgroup')
    if not own.exists() or ':cpu:/\n' not in own.read_text():
        pytest.skip('this process is in no root group of the controller cpu (cgroup 1)')
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f'no control group may be made here: {error.strerror}')
    try:
        (folder / 'cpu.cfs_quota_us').write_text('50000')
        yield folder
    finally:
        folder.rmdir()


def test_a_real_cpu_quota_bounds_the_usable_cores(cpu_group):
    enter = f'echo $$ > {cpu_group}/cgroup.procs && exec "$@"'
    rows = check_in_process('sh', '-c', enter, 'sh')
    assert rows['cores']['text'].startswith('0.5 usable of ')
    assert 'quota of the control group' in rows['cores']['text']
    if CPUS > 1:
        assert rows['threads']['cure'] == 'export OMP_NUM_THREADS=1'


@needs_two
def test_a_process_that_was_bound_before_its_start_is_no_fault():
    cores = check_in_process('taskset', '-c', str(min(os.sched_getaffinity(0))))[
        'cores'
    ]
    assert cores['text'].startswith(f'1 usable of {os.cpu_count()}: affinity mask')
    assert 'taskset' in cores['text']
    assert (cores['level'], cores['cure']) == ('ok', None)


needs_openmp = pytest.mark.skipif(
    CPUS < 2 or not (torch := find_package('torch')) or not find_openmp(torch),
    reason="binding needs two CPUs and GNU's OpenMP library of torch",
)


@needs_openmp
@pytest.mark.parametrize(
    'variable', ['OMP_PROC_BIND=true', 'OMP_PLACES=threads', 'GOMP_CPU_AFFINITY=0']
)
def test_openmp_that_would_bind_a_training_is_a_problem_with_one_cure(variable):
    name, _, value = variable.partition('=')
    cores = check_in_process(**{name: value})['cores']
    assert cores['level'] == 'problem'
    assert f'{name} binds the training to 1 of {CPUS} CPUs' in cores['text']
    # the cure is one: a shell that follows it has nothing wrong with its cores
    cured, _, given = cores['cure'].removeprefix('export ').partition('=')
    assert check_in_process(**{name: value, cured: given})['cores']['level'] == 'ok'


@needs_openmp
def test_what_is_said_of_openmp_is_what_torch_does():
    code = 'import os, torch; print(len(os.sched_getaffinity(0)))'
    environ = {**os.environ, 'OMP_PROC_BIND': 'true'}
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    after = check_in_process(OMP_PROC_BIND='true')['cores']['text']
    assert f'to {int(done.stdout)} of {CPUS} CPUs' in after


@pytest.mark.parametrize(
    ('value', 'level', 'text'),
    [
        ('1', 'ok', 'OMP_NUM_THREADS=1'),
        ('4096', 'notice', 'on 1.5 usable cores'),
        ('many', 'notice', 'no number of threads'),
    ],
)
def test_a_bad_number_of_openmp_threads_is_a_notice(
    host, check, monkeypatch, value, level, text
):
    monkeypatch.setenv('OMP_NUM_THREADS', value)
    threads = check()['threads']
    assert threads['level'] == level
    assert text in threads['text']


def test_a_real_dev_shm_of_64_mib_is_a_problem():
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    inside = ['unshare', '-m', 'sh', '-c', mount, 'sh']
    tried = subprocess.run([*inside, 'true'], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f'no file system may be mounted here: {tried.stderr.strip()}')
    shm = check_in_process(*inside)['/dev/shm']
    assert shm['level'] == 'problem'
    assert shm['text'].startswith('64 MiB')
    assert '--shm-size=8g' in shm['cure']


def set_shm(monkeypatch, total: int, free: int) -> None:
    monkeypatch.setattr(
        'mmgpu_hooks.measure.host.read_file_system',
        lambda folder: FileSystem(total, free),
    )


LOADER = """
train_dataloader = dict(batch_size={images}, num_workers={workers}, dataset=dict(
    type='CocoDataset', pipeline=[dict(type='Resize', scale=(1000, 800)),
                                  dict(type='PackDetInputs')]))
work_dir = '{folder}/work'
"""


@pytest.mark.parametrize(
    ('images', 'workers', 'mib', 'free_mib', 'level', 'text'),
    [
        # 2 x 3 x 800 x 1000 bytes are 4.6 MiB, and 4 workers have 8 batches in flight
        (2, 4, 64, 64, 'ok', 'enough for 4 workers: 8 batches of up to 5 MiB'),
        (2, 8, 64, 64, 'problem', 'too small for 8 workers: 16 batches of up to 5 MiB'),
        (2, 0, 64, 64, 'ok', 'no worker needs it'),
        (2, 4, 1024, 100, 'problem', 'others have filled it'),
        (16, 8, 16384, 16384, 'ok', 'enough for 8 workers'),
    ],
)
def test_shared_memory_is_judged_by_the_batches_in_flight_of_a_config(
    host, check, monkeypatch, images, workers, mib, free_mib, level, text
):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    set_shm(monkeypatch, mib * 2**20, free_mib * 2**20)
    config = host / 'config.py'
    config.write_text(LOADER.format(images=images, workers=workers, folder=host))
    shm = check(config)['/dev/shm']
    assert shm['level'] == level
    assert text in shm['text']


def test_pixels_that_are_floats_take_four_bytes(host, check, monkeypatch):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    set_shm(monkeypatch, GIB, GIB)
    config = host / 'config.py'
    text = LOADER.format(images=2, workers=4, folder=host)
    distorted = text.replace('pipeline=[', "pipeline=[dict(type='Normalize'), ")
    config.write_text(distorted)
    assert '8 batches of up to 18 MiB' in check(config)['/dev/shm']['text']


def test_a_run_of_the_config_says_what_a_batch_takes(host, check, monkeypatch):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    monkeypatch.setattr(
        'mmgpu_hooks.experiment.doctor.read_open_files', lambda: OpenFiles(1024, 4096)
    )
    set_shm(monkeypatch, GIB, GIB)
    config = host / 'config.py'
    config.write_text(LOADER.format(images=4, workers=8, folder=host))
    rows = check(config)
    assert 'up to' in rows['/dev/shm']['text']
    assert 'at least 64 tensors' in rows['open files']['text']
    run = make_run(loader=make_loader(8))
    evidence = make_evidence(run=run, batch_bytes=100 * 2**20, batch_tensors=300)
    write_run(host / 'work', evidence)
    rows = check(config)
    shm, files = rows['/dev/shm'], rows['open files']
    assert (shm['level'], files['level']) == ('problem', 'problem')
    assert '16 batches of 100 MiB in flight' in shm['text']
    assert files['text'].startswith('1,024 (MMEngine raises it to 4,096)')
    assert 'too few for 8 workers: 4,800 tensors in flight' in files['text']
    # a run with other batches says nothing of these
    config.write_text(LOADER.format(images=2, workers=8, folder=host))
    assert 'up to' in check(config)['/dev/shm']['text']


@pytest.mark.parametrize(
    ('soft', 'hard', 'text'),
    [
        (1024, 1_048_576, '1,024 (MMEngine raises it to 4,096), hard limit 1,048,576'),
        (1024, 2048, '1,024 (MMEngine raises it to 2,048), hard limit 2,048'),
        (65_536, None, '65,536, no hard limit'),
        (None, None, 'no limit'),
    ],
)
def test_the_limit_of_open_files_is_shown_as_mmengine_raises_it(
    host, check, monkeypatch, soft, hard, text
):
    monkeypatch.setattr(
        'mmgpu_hooks.experiment.doctor.read_open_files', lambda: OpenFiles(soft, hard)
    )
    files = check()['open files']
    assert (files['level'], files['text']) == ('ok', text)


def test_data_and_work_dir_are_shown_with_their_file_systems(host, check, monkeypatch):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    monkeypatch.chdir(host)
    share = host / 'nfs share' / 'coco'
    (share / 'train2017').mkdir(parents=True)
    (share / 'train.json').write_text('{}')
    config = host / 'config.py'
    dataset = (
        "dict(type='CocoDataset', data_root='{}', ann_file='train.json',"
        " data_prefix=dict(img='train2017/'))"
    )
    wrapped = f"dict(type='RepeatDataset', times=2, dataset={dataset.format(share)})"
    config.write_text(f'train_dataloader = dict(num_workers=0, dataset={wrapped})\n')
    rows = check(config)
    assert rows['data']['level'] == 'ok'
    assert rows['data']['text'].endswith('train2017/ on nfs4 (network)')
    assert rows['work_dir']['text'].startswith('work_dirs/config on ext4')
    (share / 'train.json').unlink()
    data = check(config)['data']
    assert data['level'] == 'problem'
    assert f'{share}/train.json not found' in data['text']
    remote = dataset.format('s3://bucket/coco')
    config.write_text(f'train_dataloader = dict(num_workers=0, dataset={remote})\n')
    data = check(config)['data']
    assert data['level'] == 'ok'
    assert data['text'].startswith('s3://bucket/coco/train.json')


def test_a_work_dir_that_cannot_be_written_to_is_a_problem(host, check, monkeypatch):
    monkeypatch.setattr('os.access', lambda path, mode: mode != os.W_OK)
    work_dir = check()['work_dir']
    assert work_dir['level'] == 'problem'
    assert 'cannot be written to' in work_dir['text']


def test_a_file_system_that_does_not_answer_is_a_problem_and_not_waited_for(
    host, check, monkeypatch
):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    monkeypatch.setattr(doctor, 'PATIENCE_S', 0.2)
    answer, stat = threading.Event(), os.stat
    waiting: list[threading.Thread] = []

    def wait(path, **options) -> os.stat_result:
        if 'nfs share' in str(path):
            waiting.append(threading.current_thread())
            answer.wait(20)
        return stat(path, **options)

    monkeypatch.setattr('os.stat', wait)
    config = host / 'config.py'
    dataset = f"dict(type='CocoDataset', data_root='{host}/nfs share/coco')"
    config.write_text(
        f'train_dataloader = dict(num_workers=0, dataset={dataset})\n'
        f"work_dir = '{host}/nfs share/work'\n"
    )
    rows = check(config)
    answer.set()
    for name, folder in (('data', 'coco'), ('work_dir', 'work')):
        assert rows[name]['level'] == 'problem'
        end = f'{folder} on nfs4 (network): it does not answer'
        assert rows[name]['text'].endswith(end)
    # neither is its newest run read for the size of a batch
    assert waiting and threading.current_thread() not in waiting


H100 = FakeGpu(name='NVIDIA H100', memory=(80 * GIB, GIB), util=(0,))


def test_a_torch_without_cuda_is_a_problem_where_there_are_cards(
    site, check, fake_nvml
):
    fake_nvml.set(H100, FakeGpu(uuid='GPU-2', name='NVIDIA H100', memory=(80 * GIB, 0)))
    for cuda, level in ((None, 'problem'), ('12.4', 'ok')):
        version = f"__version__ = '2.5.0'\ncuda: str = {cuda!r}\n"
        make_package(site, 'torch', {'version.py': version})
        rows = check()
        assert rows['GPU']['text'] == '2 x NVIDIA H100, 80.0 GiB'
        assert rows['driver']['text'].startswith('550.90.07')
        found = rows['torch']
        assert found['level'] == level
        assert ('it cannot use the GPU' in found['text']) is (cuda is None)


def test_a_torch_for_rocm_is_named_so(site, check, fake_nvml):
    version = "__version__ = '2.5.0'\ncuda = None\nhip = '6.1.40091-a8dbc0c19'\n"
    make_package(site, 'torch', {'version.py': version})
    fake_nvml.set(init=9)
    found = check()['torch']
    assert found['text'].endswith('torch 2.5.0 (ROCm 6.1.40091-a8dbc0c19)')
    assert found['level'] == 'ok'
    # that of NVIDIA it cannot use
    fake_nvml.set(H100)
    rows = check()
    assert rows['torch']['level'] == 'problem'
    assert rows['driver']['level'] == 'ok'


@pytest.mark.parametrize(
    ('visible', 'level'),
    [('-1', 'problem'), ('', 'problem'), ('1', 'problem'), ('0', 'ok'), ('0,1', 'ok')],
)
def test_hiding_all_cards_from_cuda_is_a_problem(
    host, check, fake_nvml, monkeypatch, visible, level
):
    fake_nvml.set(H100)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
    card = check()['GPU']
    assert card['level'] == level
    assert 'CUDA_VISIBLE_DEVICES=' in card['text']


HOOK = "dict(type='GPUEfficiencyHook')"


@pytest.mark.parametrize(
    ('text', 'name', 'level', 'words'),
    [
        ("work_dir = 'a\\0b'", 'work_dir', 'problem', 'cannot be written to'),
        ('work_dir = 5', 'work_dir', 'ok', '5 on '),
        (f"default_hooks = {{'a.b': {HOOK}}}", 'hook', 'problem', 'default_hooks.a.b'),
        (f'default_hooks = {{7: {HOOK}}}', 'hook', 'problem', 'default_hooks.7'),
        (f'custom_imports = 5\ncustom_hooks = [{HOOK}]', 'hook', 'problem', 'hooks.0'),
        (
            f"custom_imports = dict(imports='mmgpu_hooks')\ncustom_hooks = [{HOOK}]",
            'hook',
            'ok',
            'in the config: custom_hooks.0',
        ),
        (
            f'custom_imports = dict(imports=5)\ndefault_hooks = dict(a={HOOK})',
            'hook',
            'problem',
            'MMEngine does not know that name',
        ),
        ('custom_hooks = 5', 'base hooks', 'ok', 'none is lost'),
        ('train_dataloader = 5', 'loader', 'unknown', 'no train_dataloader'),
        ('train_dataloader = [dict()]', 'loader', 'unknown', 'no train_dataloader'),
        ('train_dataloader = dict(num_workers=10**400)', 'loader', 'ok', 'no worker'),
        ("train_dataloader = dict(num_workers='4')", 'loader', 'ok', 'no worker'),
        (
            'train_dataloader = dict(num_workers=4, prefetch_factor=-1, batch_size=-2)',
            'loader',
            'notice',
            '4 workers, 2 batches of unknown size',
        ),
        (
            'train_dataloader = dict(num_workers=4, batch_size=10**400, dataset=dict('
            "pipeline=[dict(type='Resize', scale=(10**400, 5)), 'odd', None]))",
            '/dev/shm',
            'ok',
            'what a batch takes is unknown',
        ),
        (
            'train_dataloader = dict(num_workers=4, batch_size=2, dataset=dict('
            "pipeline=[dict(type='Resize', scale=(float('inf'), 5))]))",
            '/dev/shm',
            'ok',
            'what a batch takes is unknown',
        ),
        (
            "train_dataloader = dict(num_workers=4, batch_size=2, dataset='odd')",
            '/dev/shm',
            'ok',
            'what a batch takes is unknown',
        ),
        (
            "train_dataloader = dict(dataset=dict(data_root=7, ann_file='a\\0.json'))",
            'data',
            'problem',
            'not found',
        ),
        (
            "train_dataloader = dict(dataset=dict(ann_file=['a', 5], data_prefix=3))",
            'data',
            'unknown',
            'names no file or folder',
        ),
        ("env_cfg = dict(resource_limit='many')", 'open files', 'ok', ''),
        ('env_cfg = dict(resource_limit=10**400)', 'open files', 'ok', ''),
        ('env_cfg = dict(resource_limit=-5)', 'open files', 'ok', ''),
        ('env_cfg = 5\nval_evaluator = [[[5]]]', 'open files', 'ok', ''),
    ],
)
def test_a_config_with_odd_values_is_examined(
    host, check, monkeypatch, text, name, level, words
):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    monkeypatch.chdir(host)
    set_shm(monkeypatch, 16 * GIB, 16 * GIB)
    (host / 'odd.py').write_text(text + '\n')
    row = check('odd.py')[name]
    assert row['level'] == level
    assert words in row['text']


@pytest.mark.parametrize(
    ('variable', 'value', 'name', 'level', 'words'),
    [
        ('OMP_NUM_THREADS', '9' * 5000, 'threads', 'notice', 'no number of threads'),
        ('OMP_NUM_THREADS', '²', 'threads', 'notice', 'no number of threads'),
        ('OMP_NUM_THREADS', '\u0661', 'threads', 'notice', 'no number of threads'),
        ('OMP_NUM_THREADS', ' 1 ,4', 'threads', 'ok', 'OMP_NUM_THREADS= 1 ,4'),
        ('SLURM_CPUS_PER_TASK', '9' * 5000, 'cores', 'ok', '1.5 usable'),
        ('CUDA_VISIBLE_DEVICES', '9' * 5000, 'GPU', 'problem', '999... hides all'),
        ('CUDA_VISIBLE_DEVICES', '0,0', 'GPU', 'problem', 'hides all of them'),
        ('CUDA_VISIBLE_DEVICES', '\u0660', 'GPU', 'problem', 'hides all of them'),
        ('CUDA_VISIBLE_DEVICES', 'GPU-nowhere', 'GPU', 'problem', 'hides all of them'),
        ('CUDA_VISIBLE_DEVICES', 'NoDevFiles', 'GPU', 'problem', 'hides all of them'),
        ('CUDA_VISIBLE_DEVICES', 'gpu-8a56', 'GPU', 'ok', '=gpu-8a56'),
        ('CUDA_VISIBLE_DEVICES', 'MIG-8a56', 'GPU', 'ok', '=MIG-8a56'),
    ],
)
def test_odd_values_of_the_environment_are_no_traceback(
    host, check, fake_nvml, monkeypatch, variable, value, name, level, words
):
    fake_nvml.set(H100)
    monkeypatch.setenv(variable, value)
    row = check()[name]
    assert row['level'] == level
    assert words in row['text']
    assert len(row['text']) < 200


def test_a_number_may_name_any_of_unlike_cards(host, check, fake_nvml, monkeypatch):
    fake_nvml.set(H100, FakeGpu(uuid='GPU-2', name='NVIDIA A100', memory=(GIB, 0)))
    monkeypatch.delenv('CUDA_DEVICE_ORDER', raising=False)
    for visible, level in (('1', 'ok'), ('2', 'problem'), ('GPU-2', 'ok')):
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
        assert check()['GPU']['level'] == level


def test_a_card_that_is_lost_is_a_problem_beside_the_others(host, check, fake_nvml):
    fake_nvml.set(H100, FakeGpu(uuid='GPU-lost', fail={'name': (15, 0)}))
    card = check()['GPU']
    assert card['level'] == 'problem'
    assert '1 x NVIDIA H100, 80.0 GiB; GPU 1 cannot be read: ' in card['text']


def test_no_driver_is_unknown_and_no_fault(host, check, fake_nvml):
    fake_nvml.set(init=9)
    rows = check()
    assert rows['GPU']['level'] == 'unknown'
    assert 'the NVIDIA driver is not loaded' in rows['GPU']['text']
    assert 'driver' not in rows


def install(folder: Path, name: str, version: str) -> None:
    """Writes the ``dist-info`` folder of an installed distribution."""
    info = folder / f'{name.replace("-", "_")}-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')


def make_package(folder: Path, name: str, files: dict[str, str]) -> None:
    for path, text in {'__init__.py': '', **files}.items():
        place = folder / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


MMDET = """
mmcv_minimum_version = '2.0.0rc4'
mmcv_maximum_version = '2.2.0'
"""


@pytest.fixture
def site(host, monkeypatch) -> Path:
    """Folder of fake packages that hides all installed packages."""
    folder = host / 'site'
    folder.mkdir()
    monkeypatch.setattr(sys, 'path', [str(folder), *sys.path])
    monkeypatch.setattr(
        'mmgpu_hooks.measure.installed.find_package',
        lambda name: folder / name if (folder / name).is_dir() else None,
    )
    monkeypatch.setattr(
        'mmgpu_hooks.measure.installed.read_versions',
        lambda names: {
            info.name.partition('-')[0].replace('_', '-'): info.stem.partition('-')[2]
            for info in folder.glob('*.dist-info')
        },
    )
    return folder


@pytest.mark.parametrize(
    ('installed', 'level', 'text', 'cure'),
    [
        (
            {'mmengine': '0.10.7', 'mmcv': '2.1.0', 'mmdet': '3.3.0'},
            'ok',
            'mmengine 0.10.7, mmcv 2.1.0, mmdet 3.3.0 (upstream)',
            None,
        ),
        (
            {'mmcv': '2.2.0', 'mmdet': '3.3.0'},
            'problem',
            'mmdet takes mmcv from 2.0.0rc4 to below 2.2.0',
            "pip install 'mmcv>=2.0.0rc4,<2.2.0'",
        ),
        ({'mmcv': '2.0.0rc3', 'mmdet': '3.3.0'}, 'problem', 'mmdet takes', None),
        ({'mmcv': '2.0.0rc4', 'mmdet': '3.3.0'}, 'ok', '(upstream)', None),
        ({'mmcv': '2.1.0+cu121', 'mmdet': '3.3.0'}, 'ok', '(upstream)', None),
        (
            {'onedl-mmcv': '2.3.6', 'mmdet': '3.3.0'},
            'problem',
            'mmdet takes mmcv',
            "pip uninstall -y onedl-mmcv; pip install 'mmcv>=2.0.0rc4,<2.2.0'",
        ),
        (
            {'mmengine': '0.10.7', 'onedl-mmengine': '0.10.12'},
            'problem',
            'mmengine and onedl-mmengine install the same files',
            'pip uninstall -y mmengine onedl-mmengine; pip install onedl-mmengine',
        ),
        ({'onedl-mmengine': '0.10.12'}, 'ok', '(the maintained fork)', None),
        ({}, 'unknown', 'neither MMEngine nor MMDetection', None),
    ],
    ids=[
        'upstream',
        'mmcv too new',
        'a candidate too old',
        'the oldest candidate',
        'a local version',
        'a fork of one alone',
        'both of one',
        'a fork',
        'none',
    ],
)
def test_versions_of_openmmlab_that_do_not_fit_have_a_cure(
    site, check, installed, level, text, cure
):
    for name, version in installed.items():
        install(site, name, version)
    if 'mmdet' in installed:
        make_package(site, 'mmdet', {'__init__.py': MMDET})
    found = check()['OpenMMLab']
    assert found['level'] == level
    assert text in found['text']
    assert cure is None or found['cure'] == cure


def test_a_real_fork_installed_beside_upstream_is_a_problem(tmp_path):
    pytest.importorskip('mmengine', reason='what the fork is installed beside')
    if 'onedl-mmengine' in read_versions(FAMILIES['mmengine']):
        pytest.skip('the fork itself is installed here')
    install(tmp_path, 'onedl-mmengine', '0.10.12')
    found = check_in_process(PYTHONPATH=str(tmp_path))['OpenMMLab']
    assert found['level'] == 'problem'
    assert 'mmengine and onedl-mmengine install the same files' in found['text']


@pytest.mark.parametrize(
    ('torch', 'checkpoint', 'variable', 'level'),
    [
        ('2.6.0', 'torch.load(filename)', '', 'problem'),
        ('2.13.0+cpu', 'torch.load(filename)', '0', 'problem'),
        ('2.13.0+cpu', 'torch.load(filename)', '1', 'ok'),
        ('2.5.1', 'torch.load(filename)', '', None),
        ('2.13.0', 'torch.load(filename, weights_only=False)', '', None),
        # a version without a patch number is one, and text that is no version none
        ('2.6a0', 'torch.load(filename)', '', 'problem'),
        ('unknown', 'torch.load(filename)', '', None),
    ],
)
def test_a_torch_that_refuses_checkpoints_of_mmengine_is_a_problem(
    site, check, monkeypatch, torch, checkpoint, variable, level
):
    install(site, 'mmengine', '0.10.7')
    make_package(site, 'mmengine', {'runner/checkpoint.py': checkpoint})
    version = f'__version__ = {torch!r}\n'
    make_package(site, 'torch', {'version.py': version})
    monkeypatch.setenv(RESUME, variable)
    rows = check()
    assert f'torch {torch} (no CUDA)' in rows['torch']['text']
    assert rows.get('resume', {}).get('level') == level
    if level == 'problem':
        assert rows['resume']['cure'] == f'export {RESUME}=1'


@pytest.mark.parametrize(
    ('imports', 'has_it', 'cure'),
    [
        ('import pkg_resources', False, "pip install 'setuptools<81'"),
        ('import pkg_resources', True, None),
        ('from importlib import metadata', False, None),
    ],
)
def test_setuptools_without_pkg_resources_is_a_problem_where_mmengine_imports_it(
    site, check, imports, has_it, cure
):
    install(site, 'mmengine', '0.10.7')
    make_package(site, 'mmengine', {'utils/package_utils.py': imports})
    if has_it:
        make_package(site, 'pkg_resources', {'__init__.py': ''})
    row = check().get('setuptools', {})
    assert row.get('cure') == cure
    assert row.get('level') == ('problem' if cure else None)


def test_without_torch_and_mmengine_lines_of_a_config_are_unknown(site, check):
    config = site / 'config.py'
    config.write_text('a = 1\n')
    rows = check(config)
    for name in ('config', 'torch', 'OpenMMLab'):
        assert rows[name]['level'] == 'unknown'
    assert rows['config']['text'] == 'MMEngine, which loads it, is not installed here'
    assert not {'loader', 'hook'} & set(rows)
    assert 'torch is not installed' in rows['torch']['text']


@pytest.mark.parametrize(
    ('text', 'found'),
    [
        (None, 'found nothing there'),
        ('folder', 'found a folder'),
        ('1 / 0\n', 'ZeroDivisionError'),
        ('import sys\nsys.exit(3)\n', 'expected a config that MMEngine loads'),
        ('class Odd(BaseException): ...\nraise Odd\n', 'does not (Odd)'),
        ('a = []\na.append(a)\n', 'RecursionError'),
        ('a = (\n', 'SyntaxError'),
        ("_base_ = 'gone.py'\n", 'gone.py'),
        ('def main(): ...\n', 'found a Python file that sets nothing'),
    ],
)
def test_a_config_that_cannot_be_used_is_one_sentence(tmp_path, capsys, text, found):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    config = tmp_path / 'config.py'
    if text == 'folder':
        config.mkdir()
    elif text is not None:
        config.write_text(text)
    assert main(['doctor', str(config)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    assert err.startswith(f'mmgpu doctor: {config}: expected a config')
    assert found in err


RTMDET = "_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'\n"
OWN = "custom_hooks = [dict(type='CheckInvalidLossHook')]\n"


def test_a_real_config_gets_its_lost_ema_back_by_the_printed_cure(
    host, check, monkeypatch, capsys
):
    if find_package('mmdet') is None:
        pytest.skip('its base comes with MMDetection')
    monkeypatch.chdir(host)
    set_shm(monkeypatch, 64 * 2**20, 64 * 2**20)
    for name in ('train', 'val'):
        (host / f'data/coco/{name}2017').mkdir(parents=True)
        annotations = host / f'data/coco/annotations/instances_{name}2017.json'
        annotations.parent.mkdir(exist_ok=True)
        annotations.touch()
    (host / 'mine.py').write_text(RTMDET + OWN)
    rows = check('mine.py')
    lost, shm = rows['base hooks'], rows['/dev/shm']
    assert lost['level'] == 'problem'
    assert lost['text'] == (
        'custom_hooks of mine.py drops EMAHook and PipelineSwitchHook of '
        'mmdet::rtmdet/rtmdet_s_8xb32-300e_coco.py'
    )
    # 32 images of 640 x 640 pixels
    assert 'too small for 10 workers: 20 batches of up to 38 MiB' in shm['text']
    switched_on = 'mmgpu run tools/train.py mine.py (or mmgpu enable mine.py)'
    assert rows['hook']['cure'] == switched_on
    assert rows['hook']['level'] == 'ok'
    (host / 'mine.py').write_text(RTMDET + lost['cure'] + '\n')
    assert main(['enable', 'mine.py']) == 0
    capsys.readouterr()
    set_shm(monkeypatch, 8 * GIB, 8 * GIB)
    loaded = load_config(Path('mine.py'))
    types = ['EMAHook', 'PipelineSwitchHook', 'CheckInvalidLossHook']
    assert [hook['type'] for hook in loaded['custom_hooks']] == types
    rows = check('mine.py')
    assert {row['level'] for row in rows.values()} <= {'ok', 'notice', 'unknown'}
    assert rows['hook']['text'] == 'in the config: default_hooks.gpu_efficiency'


def test_hooks_that_a_base_dropped_may_be_meant(host, check):
    pytest.importorskip('mmengine.config', reason='MMEngine loads configs')
    (host / 'base.py').write_text("custom_hooks = [dict(type='EMAHook')]\n")
    between, leaf = host / 'between.py', host / 'leaf.py'
    between.write_text(f"_base_ = './base.py'\n{OWN}")
    leaf.write_text("_base_ = './between.py'\n")
    assert check(between)['base hooks']['level'] == 'problem'
    lost = check(leaf)['base hooks']
    assert lost['level'] == 'notice'
    assert f'custom_hooks of {between} drops EMAHook' in lost['text']
    assert lost['cure'].startswith('custom_hooks = [*_base_.custom_hooks, ')


def test_the_folder_of_parsed_annotations_is_shown(check, tmp_path, monkeypatch):
    folder = tmp_path / 'annotations'
    monkeypatch.setenv('MMGPU_CACHE', str(folder))
    assert 'annotations' not in check()
    folder.mkdir(mode=0o700)
    (folder / f'{"0" * 64}.annotations').write_bytes(bytes(3 * 2**20))
    row = check()['annotations']
    text = f'1 data set as parsed, 3 MiB in {folder}; deleting it is always safe'
    assert (row['level'], row['text']) == ('ok', text)
    folder.chmod(0o777)
    row = check()['annotations']
    assert row['level'] == 'notice'
    assert row['text'].startswith(f'{folder} may be written by others (mode 0777)')
    assert row['cure'] == f'chmod 700 {folder}, or export MMGPU_CACHE=DIR'


def plant_own_link(folder: Path) -> str:
    folder.rename(folder.with_name('elsewhere'))
    folder.symlink_to(folder.with_name('elsewhere'))
    return f'export MMGPU_CACHE={folder.with_name("elsewhere")} (where the link leads)'


def plant_bad_link(folder: Path) -> str:
    plant_own_link(folder)
    folder.chmod(0o777)
    return 'export MMGPU_CACHE=DIR, a folder of your own'


def plant_file(folder: Path) -> str:
    folder.rmdir()
    folder.touch()
    return f'move {folder} away, or export MMGPU_CACHE=DIR'


def plant_another_owner(folder: Path) -> str:
    if os.geteuid():
        pytest.skip('only root gives folders away')
    os.chown(folder, 4321, -1)
    return 'export MMGPU_CACHE=DIR, a folder of your own'


FAULTS = plant_own_link, plant_bad_link, plant_file, plant_another_owner


@pytest.mark.parametrize(
    'plant', FAULTS, ids=lambda plant: plant.__name__.split('_', 1)[1]
)
def test_the_cure_of_the_folder_of_parsed_annotations_helps(
    check, tmp_path, monkeypatch, plant
):
    folder = tmp_path / 'annotations'
    folder.mkdir(mode=0o700)
    cure = plant(folder)
    monkeypatch.setenv('MMGPU_CACHE', str(folder))
    row = check()['annotations']
    assert (row['level'], row['cure']) == ('notice', cure)
    named = re.match(r'export MMGPU_CACHE=(/\S+)', cure)
    if named:
        monkeypatch.setenv('MMGPU_CACHE', named[1])
        assert check()['annotations']['level'] == 'ok'
