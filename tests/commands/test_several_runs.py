from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.pooled import make_pooled, write_pooled
from fakes.replaced import replace
from fakes.runs import GIB
from mmgpu_hooks.commands.main import main

CONFIG = """\
model = dict(type='A')
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(batch_size=2, num_workers=4, persistent_workers=True)
auto_scale_lr = dict(base_batch_size=16, enable=False)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG)
    return path


@pytest.fixture
def runs(tmp_path: Path, config: Path) -> list[str]:
    """Batch sizes 2, the newest, and 4."""
    folders = []
    for size in (2, 4):
        evidence = make_pooled(size, day=30 - size, run={'config_path': str(config)})
        text = CONFIG.replace('batch_size=2', f'batch_size={size}')
        folders.append(str(write_pooled(tmp_path / f'run{size}', evidence, text)))
    return folders


def ask(capsys, *arguments: str, code: int = 0) -> dict:
    assert main([*arguments, '--format', 'json']) == code
    return json.loads(capsys.readouterr().out)


def unwrapped(capsys: pytest.CaptureFixture[str]) -> str:
    return ' '.join(capsys.readouterr().out.split())


def test_several_batch_sizes_predict_others(runs, capsys):
    answer = ask(
        capsys, 'predict', *runs, '--batch-size', '2', '4', '8', '--num-workers', '4'
    )
    assert [one['batch_size'] for one in answer['predictions']] == [2, 4, 8]
    times = [one['iter_time_s'] for one in answer['predictions']]
    assert times == pytest.approx([0.081, 0.101, 0.141], rel=0.03)
    assert [run['batch_size'] for run in answer['fitted_runs']] == [2, 4]
    assert answer['run'].startswith(runs[0])
    memory = answer['memory']
    assert memory['peaks'][2]['peak_bytes'] == pytest.approx(17 * GIB, rel=1e-3)
    assert (memory['oom_batch_size'], memory['card_bytes']) == (40, 80 * GIB)
    # 5 GiB with 2: twice the batch is not twice the memory
    assert memory['rules'][1]['proportional_error_pct'] == pytest.approx(11.1, abs=0.1)
    assert not any('left out' in note for note in answer['notes'])


def test_what_was_fitted_is_shown(runs, capsys):
    assert main(['predict', *runs, '--batch-size', '2', '8', '24']) == 0
    out = unwrapped(capsys)
    assert 'fitted 81.0 ms per iteration over 140, num_workers=4, batch_size=2' in out
    assert 'batch 8 17.0 GiB at its peak (' in out
    assert 'out of memory is expected from a batch of 40 on' in out
    assert '4 9.0 GiB - 10.0 GiB (11 % above)' in out
    assert 'A batch size of 24 is more than twice the largest' in out


def test_one_run_predicts_no_other_batch_size(runs, capsys):
    assert main(['predict', runs[0], '--batch-size', '8']) == 2
    assert (
        'runs with several batch sizes that go together are needed'
        in capsys.readouterr().err
    )
    answer = ask(capsys, 'predict', runs[0], '--batch-size', '2', '8')
    assert {one['batch_size'] for one in answer['predictions']} == {2}
    assert 'fitted_runs' not in answer
    assert 'others' not in answer['workload']


def test_runs_of_another_config_are_left_out_by_name(runs, tmp_path, capsys):
    copy = next(Path(runs[1]).glob('*/vis_data/config.py'))
    copy.write_text(CONFIG.replace("type='A'", "type='B'"))
    answer = ask(capsys, 'predict', *runs)
    assert [run['batch_size'] for run in answer['fitted_runs']] == [2]
    assert any(
        "is left out: its config is another one (model.type 'A' -> 'B')." in note
        and runs[1] in note
        for note in answer['notes']
    )


def test_a_config_copy_that_does_not_load_is_passed_over(runs, capsys):
    next(Path(runs[1]).glob('*/vis_data/config.py')).write_text('model = dict(')
    assert len(ask(capsys, 'predict', *runs)['fitted_runs']) == 2


def test_what_cannot_be_read_is_left_out_and_a_slip_is_refused(runs, tmp_path, capsys):
    plain = tmp_path / 'plain' / '20261120_101500' / 'vis_data' / 'scalars.json'
    plain.parent.mkdir(parents=True)
    plain.write_text('{"lr": 0.1, "time": 0.2, "data_time": 0.1, "iter": 10}\n')
    broken = tmp_path / 'broken' / '20261120_101500' / 'vis_data'
    broken.mkdir(parents=True)
    (broken / 'gpu_efficiency.jsonl').write_text('garbage\n')
    folders = [*runs, runs[0], str(tmp_path / 'plain'), str(tmp_path / 'broken')]
    for command in (['predict'], ['recommend', '--dry-run']):
        answer = ask(capsys, *command, *folders)
        said = ' '.join(answer['notes'])
        assert len(answer['fitted_runs']) == 2
        assert 'it is counted once' in said
        assert f'{tmp_path}/plain is left out' in said
        assert f'Left out: {broken}' in said
        assert main([*command, runs[0], str(tmp_path / 'nothing')]) == 2
        assert 'found nothing there' in capsys.readouterr().err
        assert main([*command, *folders[-2:]]) == 2
        assert 'found none' in capsys.readouterr().err


def test_without_being_allowed_the_batch_size_is_left_alone(runs, config, capsys):
    answer = ask(capsys, 'recommend', *runs)
    assert not any('batch_size' in change['key'] for change in answer['changes'])
    assert 'batch_size' not in answer
    assert len(answer['fitted_runs']) == 2


def test_a_batch_size_is_rewritten_and_the_learning_rate_is_advice(
    runs, config, capsys
):
    assert main(['recommend', *runs, '--allow-batch-size']) == 0
    out = unwrapped(capsys)
    assert 'batch_size 2 8 ' in out
    assert 'the rate goes from 0.02 to 0.08 (4 times)' in out
    written = (config.parent / 'mine_recommended.py').read_text()
    assert 'batch_size=8' in written
    # nothing else: neither the rate nor its scaling
    assert 'lr=0.02' in written
    assert 'enable=False' in written


def test_a_learning_rate_that_is_scaled_follows(runs, config, capsys):
    config.write_text(CONFIG.replace('enable=False', 'enable=True'))
    answer = ask(capsys, 'recommend', *runs, '--allow-batch-size', '--dry-run')
    assert 'follows by itself, from 0.0025 to 0.01' in answer['batch_size'][1]


def test_one_batch_size_is_not_enough(runs, capsys):
    answer = ask(capsys, 'recommend', runs[0], '--allow-batch-size', '--dry-run')
    assert not any('batch_size' in change['key'] for change in answer['changes'])
    assert 'train a second run with another batch size' in answer['batch_size'][0]


def test_absurd_figures_change_nothing(tmp_path, config, capsys):
    folders = []
    for size in (2, 4):
        evidence = make_pooled(size, day=30 - size, run={'config_path': str(config)})
        absurd = replace(evidence.intervals[3], gpu_mem_peak_bytes=2**52)
        records = (*evidence.intervals[:3], absurd, *evidence.intervals[4:])
        edited = replace(evidence, intervals=records)
        folders.append(str(write_pooled(tmp_path / f'odd{size}', edited)))
    answer = ask(capsys, 'recommend', *folders, '--allow-batch-size', '--dry-run')
    assert 'bytes is absurd; was the evidence edited?' in answer['batch_size'][0]
    assert not any('batch_size' in change['key'] for change in answer['changes'])
