"""Tests ``sweep``, ``save-bench`` and ``verify`` by real trainings."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fakes.runs import make_evidence, make_loader, make_run, render_evidence
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.experiment.engine import Plan, Turn, run_plan
from mmgpu_hooks.experiment.trial import ENDLESS, read_trial_run
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME
from mmgpu_hooks.schema.tried import TrialSpec
from training.detection import environ, render_config
from training.trial_toys import processes_of, write_config

TOYS = 'training.trial_toys.'


@pytest.fixture
def ask(ask, tmp_path, monkeypatch):
    """Function that runs a command in its own folder; returns the JSON answer."""
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    monkeypatch.setenv('OMP_NUM_THREADS', '1')

    def run(command: str, target: Path, *words: str) -> dict[str, Any]:
        answer = ask(command, target, *words, '--work-dir', tmp_path / 'w')
        assert processes_of(tmp_path) == []
        assert not list(tmp_path.rglob('*.pth'))
        return answer

    return run


@pytest.mark.timing
def test_settings_are_swept_kept_and_not_trained_again(ask, tmp_path):
    # an epoch of ten batches: the training is made longer
    config = write_config(tmp_path, item_s=0.004, step_s=0.004, epochs=1)
    words = ['--seconds', '0.5', '--num-workers', '2', '0']
    body = ask('sweep', config, *words)
    alone, beside = body['rows']
    assert [row['setting']['num_workers'] for row in body['rows']] == [0, 2]
    # two images of 4 ms in the loop, then a step of 4 ms; never shorter
    assert alone['iter_s']['value'] >= 0.012
    assert alone['data_wait_s'] >= 0.008
    assert beside['iter_s']['value'] < alone['iter_s']['value']
    for row in body['rows']:
        assert row['status'] == 'completed'
        assert row['iter_s']['count'] >= 6
        assert row['iterations'] >= 60
        assert row['images_per_s'] == pytest.approx(2 / row['iter_s']['value'], rel=0.2)
        assert row['cpu_cores'] > 0
    folder = tmp_path / 'w' / 'sweep'

    # a trial neither validates nor writes what lasts, and keeps the training's hooks
    trial = Path(alone['folder'])
    assert not list(trial.rglob('events.out.*'))
    summary = read_trial_run(trial)
    assert summary is not None and summary.figures.ledger_s['validation'] == 0
    log = (trial / 'training.log').read_text()
    assert 'EMAHook' in log
    # after all that is measured it makes saves, the first of which does not count
    assert len(alone['saves_s']) == len(beside['saves_s']) == 2
    assert alone['save_s'] == pytest.approx(sum(alone['saves_s']) / 2)
    saved = [save.iteration for save in summary.save_records]
    assert saved[0] == summary.intervals[-1].iteration - 2 * 8
    assert [saved[1] - saved[0], saved[2] - saved[1]] == [8, 8]
    assert alone['iterations'] <= saved[0]

    # what the model holds is counted: 3 x 3 x 3 weights at least
    counted = alone['model_bytes']
    assert counted['parameters'] >= counted['gradients'] > 100
    assert alone['host_memory_bytes'] > 2**26
    assert alone['gpu_timeline'] == []
    assert 'CPU' in alone['gpu_unknown']
    page = Path(body['page']).read_text()
    assert page.count('<svg') == 2
    assert 'Unknown: training runs on the CPU' in page

    # nothing of it is trained again
    before = sorted(folder.glob('trials/*/*/*.log'))
    again = ask('sweep', config, *words)
    assert again['rows'][0]['iter_s'] == alone['iter_s']
    assert sorted(folder.glob('trials/*/*/*.log')) == before


@pytest.mark.slow
def test_several_ranks_train_the_same_blocks_and_one_reports(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    # gloo, as there is no card; torchrun and its ranks are real
    more = "custom_imports = dict(imports=['training.gloo_here'])\n"
    more += (
        "model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)"
    )
    config = write_config(tmp_path, step_s=0.002, more=more)
    spec = TrialSpec(str(config), str(tmp_path / 'trial'), ranks=2, last_saves=2)
    rest = iter([7, 0])
    asked = Turn('2', spec, (10, 5), more=lambda _: next(rest), time_limit_s=120.0)
    (trial,) = run_plan(Plan([asked])).trials
    assert (trial.status, trial.error) == ('completed', None)
    run = read_trial_run(tmp_path / 'trial')
    assert run.meta.world_size == 2
    assert len(run.save_records) == 2
    assert processes_of(tmp_path) == []


@pytest.mark.timing
def test_saves_are_measured_beside_each_number_of_workers(ask, tmp_path):
    # an epoch has 20 iterations, so the trainings are made longer
    config = write_config(tmp_path, item_s=0.005, step_s=0.002, epochs=1)
    body = ask('save-bench', config, '--saves', '3', '--num-workers', '2', '0')
    alone, beside = body['rows']
    assert body['reference'] == 0
    assert [row['num_workers'] for row in body['rows']] == [0, 2]
    for row, gap in zip(body['rows'], (8, 12)):
        assert row['status'] == 'completed'
        # the first one is left out
        at = [save['iteration'] for save in row['saves']]
        assert at == [2 * gap, 3 * gap, 4 * gap]
        assert row['save_s'] == sorted(save['wall_s'] for save in row['saves'])[1]
        assert row['cpu_s'] > 0
        assert min(save['bytes'] for save in row['saves']) > 1000
    assert [save['workers'] for save in beside['saves']] == [2, 2, 2]
    assert beside['gross_s'] == pytest.approx(beside['save_s'] - alone['save_s'])
    assert 0 <= beside['net_s'] <= max(beside['gross_s'], 0.0) + 1e-9


def write_starved_run(config: Path) -> Path:
    """Writes a run of a config that was data-bound without workers."""
    loader = make_loader(
        0, persistent_workers=False, prefetch_factor=None, pin_memory=False
    )
    folder = config.with_name('run')
    folder.mkdir()
    run = make_run(config_path=str(config), loader=loader, work_dir=str(folder))
    evidence = make_evidence(run=run, data_wait_s=0.04, step_s=0.02)
    (folder / EVIDENCE_NAME).write_text(render_evidence(evidence))
    return folder


@pytest.mark.timing
def test_a_gain_is_verified_beside_what_was_predicted(ask, tmp_path):
    config = write_config(tmp_path, item_s=0.01, step_s=0.01, length=240, epochs=1)
    answer = ask('verify', write_starved_run(config))
    # two images of 10 ms before each step of 10 ms, or at once beside it; a busy
    # machine only adds to it
    assert answer['before_s'] >= 0.03
    assert answer['gain']['value'] > 0.2
    assert answer['after_s'] < answer['before_s']
    assert answer['gain']['count'] >= 4
    assert answer['before']['train_dataloader.num_workers'] == 0
    assert answer['after']['train_dataloader.num_workers'] > 0
    assert answer['predicted_gain'] > 0.5
    assert answer['external_cpu_cores'] >= 0


# a training of 60 iterations, which ends it after a few seconds
SHORT: dict[str, Any] = {'length': 120, 'epochs': 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('setting', 'word'),
    [
        # the model sleeps in each step, and the loader for each image
        ('model.step_s=0.05', 'slower'),
        ('train_dataloader.num_workers=2', 'faster'),
    ],
)
def test_the_effect_of_a_setting_has_its_sign(
    tmp_path, capsys, monkeypatch, setting, word
):
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    config = write_config(tmp_path, item_s=0.02, step_s=0.005, **SHORT)
    words = [str(config), '--set', setting, '--work-dir', str(tmp_path / 'w')]
    assert main(['verify', *words]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert f'the second setting is {word}' in out
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_of_two_equal_configs_none_is_faster(ask, tmp_path):
    config = write_config(tmp_path, step_s=0.02, **SHORT)
    copy = tmp_path / 'copy.py'
    copy.write_text(config.read_text())
    found = []
    # an interval at 95 % misses the truth once in twenty: three in a row are a fault
    for _ in range(3):
        gain = ask('verify', config, str(copy), '--allow-equal')['gain']
        found.append(gain)
        assert abs(gain['value']) < 0.05
        if gain['low'] <= 0 <= gain['high']:
            return
    pytest.fail(f'a gain of nothing: {found}')


@pytest.mark.slow
def test_a_hook_of_ours_that_is_measured_trains_in_one_alone(ask, tmp_path):
    config = write_config(tmp_path, step_s=0.01, **SHORT)
    hook = 'default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook'
    answer = ask('verify', config, '--set', hook)
    # it sleeps for 10 ms in each, and the hook takes microseconds
    assert abs(answer['gain']['value']) < 0.2
    sides = [Path(answer['folder'], side) for side in ('first', 'second')]
    assert [read_trial_run(side) is not None for side in sides] == [False, True]


@pytest.mark.timing
def test_a_step_is_profiled_by_part_and_by_module(ask, tmp_path):
    # an epoch of ten batches: the training is made longer
    config = write_config(tmp_path, item_s=0.01, step_s=0.02, length=20, epochs=1)
    body = ask('profile', config, '--iterations', '5')
    assert body['iterations'] == 5
    # the model sleeps in its forward pass; loading is no part of a step
    assert 0.02 <= body['plain_step_s'] < 0.04
    assert sum(body['parts'].values()) == pytest.approx(body['step_s'], rel=0.05)
    assert body['parts'].pop('idle') >= 0.02
    busy = {name for name, seconds in body['parts'].items() if seconds > 0}
    assert busy >= {'preprocessor', 'forward', 'backward', 'optimizer'}
    assert set(body['modules']) == {'convolution', 'data_preprocessor'}
    assert 0 < body['modules']['convolution'] < 0.02
    assert (body['device'], body['bound'], body['kernels']) == ('CPU', None, None)
    assert 'CPU' in body['bound_reason']
    assert body['amp'] is None
    assert body['flags']['float32_matmul_precision'] == 'highest'
    assert (Path(body['folder']) / 'trace.json.gz').stat().st_size > 1000


@pytest.mark.slow
def test_mmdetection_is_profiled(ask, images, tmp_path):
    config = tmp_path / 'detector.py'
    config.write_text(render_config(images))
    body = ask('profile', config, '--iterations', '3')
    assert sum(body['parts'].values()) == pytest.approx(body['step_s'], rel=0.05)
    # MMEngine's schedulers have put a function in the place of the optimizer's step
    assert body['parts']['optimizer'] > 10 * body['parts']['other']
    # of the largest ones, which are alike here, each run has others
    assert len(body['modules']) == 5
    roots = {name.split('.')[0] for name in body['modules']}
    assert roots <= {'backbone', 'neck', 'bbox_head'}
    assert 'bbox_head' in roots
    assert body['products_pct'] > 10


@pytest.mark.slow
def test_a_trial_that_hangs_or_lacks_memory_is_a_record(tmp_path):
    config = write_config(tmp_path, dataset=TOYS + 'TroubledDataset', num_workers=2)
    # what each worker of a training does is in the names of its settings
    turns = [
        Turn(
            trouble,
            TrialSpec(
                config=str(config),
                folder=str(tmp_path / trouble),
                settings={'train_dataloader.dataset.trouble': trouble},
            ),
            (ENDLESS,),
            time_limit_s=limit_s,
        )
        for trouble, limit_s in (('hang', 7), ('memory', 100))
    ]
    hung, greedy = run_plan(Plan(turns)).trials
    assert (hung.status, hung.error) == (
        'timed_out',
        'killed after 7 s, 0 iterations done',
    )
    assert (greedy.status, greedy.error) == (
        'out_of_memory',
        'MemoryError: no memory for an image',
    )
    assert processes_of(tmp_path) == []


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, 'it did not come'
        time.sleep(0.05)


def is_held(folder: Path) -> bool:
    states = [process.info['status'] for process in processes_of(folder)]
    return psutil.STATUS_STOPPED in states


def has_first_trial(folder: Path) -> bool:
    kept = folder / 'w' / 'sweep' / 'trials.json'
    return kept.is_file() and bool(processes_of(folder))


def has_saved(folder: Path) -> bool:
    return bool(list(folder.rglob('iter_*.pth')))


WORKERS = ('--num-workers', '0', '1')


@pytest.mark.parametrize(
    ('command', 'words', 'is_due', 'number'),
    [
        # one of them is held in its tracks, and its worker with it
        ('verify', ['run'], is_held, signal.SIGINT),
        pytest.param(
            'verify', ['run'], is_held, signal.SIGKILL, marks=pytest.mark.slow
        ),
        pytest.param(
            'verify',
            ['toy.py', '--set', 'model.step_s=0.02'],
            is_held,
            signal.SIGINT,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'sweep',
            ['toy.py', *WORKERS, '--seconds', '2'],
            has_first_trial,
            signal.SIGINT,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            'save-bench',
            ['toy.py', *WORKERS],
            has_saved,
            signal.SIGTERM,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_stopping_a_command_leaves_nothing_running(
    tmp_path, command, words, is_due, number
):
    config = write_config(tmp_path, item_s=0.02, step_s=0.01, num_workers=1, length=400)
    if words == ['run']:
        write_starved_run(config)
    given = [sys.executable, '-m', 'mmgpu_hooks', command, *words]
    process = subprocess.Popen(
        [*given, '--work-dir', 'w'],
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: is_due(tmp_path))
        process.send_signal(number)
        # on a busy machine too: one that trains on is no noise
        output = process.communicate(timeout=20)[0]
    finally:
        process.kill()
        process.communicate()
    wait_for(lambda: not processes_of(tmp_path), 30.0)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert 'Traceback' not in output
    if command == 'save-bench':
        files = [path for path in tmp_path.rglob('*') if path.is_file()]
        assert [path.name for path in files if path.stat().st_size] == ['toy.py']


@pytest.mark.slow
@pytest.mark.parametrize('words', [['save-bench', '--num-workers', '0'], ['profile']])
def test_a_config_that_does_not_train_is_given_up_early(
    tmp_path, capsys, monkeypatch, words
):
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    config = write_config(tmp_path, more="model['step_s'] = 'never'\n")
    options = [str(config), *words[1:], '--work-dir', str(tmp_path / 'w')]
    assert main([words[0], *options]) == 2
    assert processes_of(tmp_path) == []
    out, err = capsys.readouterr()
    assert (out, err.count('\n')) == ('', 1)
    assert 'expected a config that trains' in err
    assert 'TypeError: ' in err
