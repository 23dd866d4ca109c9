from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.runs import make_evidence, make_inside_workers, make_run, render_evidence
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import LoaderSettings, RunEvidence

# two workers of 0.4 s per batch; the step takes 0.1 s
STARVED = {
    'workers': make_inside_workers(0.4),
    'data_wait_s': 0.1,
    'step_s': 0.1,
    'process_cpu_s': 20 * 0.03,
}


def write_run(work_dir: Path, evidence: RunEvidence) -> Path:
    path = work_dir / '20261120_101500' / 'vis_data' / 'gpu_efficiency.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text(render_evidence(evidence))
    return work_dir


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / 'run1', make_evidence(**STARVED))


def test_the_table(work_dir, capsys):
    arguments = ['--num-workers', '0', '1', '2', '8', '--prefetch-factor', '2', '4']
    assert main(['predict', str(work_dir), *arguments]) == 0
    out = capsys.readouterr().out
    lines = [line.replace(' *', '').split() for line in out.splitlines()]
    settings = [words[:2] for words in lines if words and words[0].isdigit()]
    assert settings == [
        ['0', '-'],
        ['1', '2'],
        ['1', '4'],
        ['2', '2'],
        ['2', '4'],
        ['8', '2'],
        ['8', '4'],
    ]
    assert '0.200 s per iteration over 140, with num_workers=2' in out
    assert [line.split()[:3] for line in out.splitlines() if '2 *' in line] == [
        ['2', '*', '2']
    ]


def test_the_json(work_dir, capsys):
    assert main(['predict', str(work_dir), '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == [
        'version',
        'run',
        'status',
        'workload',
        'predictions',
        'reason',
        'notes',
    ]
    assert [one['num_workers'] for one in answer['predictions']] == [0, 1, 2, 4, 8]
    one = answer['predictions'][2]
    assert list(one) == [
        'num_workers',
        'prefetch_factor',
        'batch_size',
        'iter_time_s',
        'iter_time_low_s',
        'iter_time_high_s',
        'data_wait_s',
        'images_per_s',
        'worker_utilisation',
        'limit',
    ]
    assert one['iter_time_s'] == pytest.approx(0.2, rel=0.02)
    assert (one['batch_size'], one['limit']) == (4, 'workers')
    assert answer['workload']['num_workers'] == 2


def test_a_short_run_gives_the_reason_and_no_prediction(tmp_path, capsys):
    run = write_run(
        tmp_path / 'run1', make_evidence(intervals=1, iterations=5, **STARVED)
    )
    assert main(['predict', str(run), '--format', 'json']) == 2
    done = capsys.readouterr()
    assert 'mmgpu predict: Not enough evidence: 5 steady iterations' in done.err
    answer = json.loads(done.out)
    assert answer['predictions'] == []
    assert answer['workload'] is None
    assert answer['reason'].startswith('Not enough evidence')


def test_a_text_without_a_prediction_is_the_reason_alone(tmp_path, capsys):
    run = write_run(
        tmp_path / 'run1', make_evidence(run=make_run(loader=LoaderSettings()))
    )
    assert main(['predict', str(run)]) == 2
    done = capsys.readouterr()
    assert done.out == ''
    assert done.err.startswith('mmgpu predict: The live settings of the loader are')


def test_a_run_without_the_hook_is_refused(tmp_path, capsys):
    plain = tmp_path / 'run1' / '20261120_101500' / 'vis_data' / 'scalars.json'
    plain.parent.mkdir(parents=True)
    plain.write_text('{"lr": 0.1, "time": 0.2, "data_time": 0.1, "iter": 10}\n')
    assert main(['predict', str(tmp_path / 'run1')]) == 2
    assert 'expected evidence of GPUEfficiencyHook' in capsys.readouterr().err


def test_a_missing_folder_is_named(tmp_path, capsys):
    assert main(['predict', str(tmp_path / 'nothing')]) == 2
    assert 'found nothing there' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('option', 'value'),
    [
        ('--num-workers', '-1'),
        ('--num-workers', '513'),
        ('--num-workers', 'two'),
        ('--prefetch-factor', '0'),
    ],
)
def test_settings_out_of_range_are_refused(work_dir, option, value, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(['predict', str(work_dir), option, value])
    assert stopped.value.code == 2
    assert f'expected a whole number from {int(option[2] == "p")} to' in (
        capsys.readouterr().err
    )
