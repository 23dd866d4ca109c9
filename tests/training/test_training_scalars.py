"""Our figures on the terminal line, in scalars.json, TensorBoard and its server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmgpu_hooks.experiment.training import find_train_script
from mmgpu_hooks.hooks.scalars import MAIN, SCALARS, fold_scalars
from training.conftest import CASES, DEFAULT_HOOKS, LOGGED, Detections
from training.detection import environ
from training.toy import build_runner, evidence_of, log_of, scalar_lines

# the evidence rounds to 1e-9, TensorBoard to single precision: hence the tolerance

# there is no GPU here; of a save, one case has an interval with one
EXPECTED = [
    n for n in SCALARS if n in MAIN and not n.startswith('gpu_') and n != 'save_s'
]


def published(work_dir: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and scalars of each interval, as the evidence has them."""
    return [
        (record.iteration, {n: v for n, v in fold_scalars(record).items() if n in MAIN})
        for record in evidence_of(work_dir).intervals
    ]


@pytest.mark.parametrize('case', CASES)
def test_scalars_json_has_each_interval_of_the_evidence(
    detections: Detections, case: str
) -> None:
    every = scalar_lines(detections.work_dir(case))
    # those of validations have none of ours
    lines = [line for line in every if 'loss' in line]
    assert not [line for line in every if 'loss' not in line and 'data_wait_s' in line]
    expected = published(detections.work_dir(case))
    assert [step for step, _ in expected] == LOGGED
    assert [line['step'] for line in lines] == LOGGED
    for line, (step, scalars) in zip(lines, expected):
        ours = {name: line[name] for name in SCALARS if name in line}
        assert ours == pytest.approx(scalars, rel=1e-6, abs=1e-9)
        # the save that ends the second epoch is in no interval
        is_saved = case == DEFAULT_HOOKS and step == LOGGED[2]
        assert list(ours) == EXPECTED + ['save_s'] * is_saved


def test_the_terminal_line_shows_them(detections: Detections) -> None:
    lines = re.findall(r'Epoch\(train\) .*', detections.log(DEFAULT_HOOKS))
    shown = [re.search(r'data_wait_s: ([\d.]+)', line) for line in lines]
    expected = published(detections.work_dir(DEFAULT_HOOKS))
    for match, (_, scalars) in zip(shown, expected, strict=True):
        assert match is not None
        assert float(match[1]) == pytest.approx(scalars['data_wait_s'], abs=6e-5)


def test_tensorboard_event_files_have_them(detections: Detections) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = detections.work_dir(DEFAULT_HOOKS).glob('*/vis_data')
    events = EventAccumulator(str(folder))
    events.Reload()
    expected = published(detections.work_dir(DEFAULT_HOOKS))
    for name in EXPECTED:
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert points == [
            (step, pytest.approx(scalars[name], rel=1e-6, abs=1e-9))
            for step, scalars in expected
        ]


@pytest.mark.parametrize(
    'words',
    [['plot_curve', '--keys', 'data_wait_s', '--out', 'curve.png'], ['cal_train_time']],
    ids=['plot_curve', 'cal_train_time'],
)
def test_analyze_logs_of_mmdetection_still_reads_the_log(
    detections: Detections, tmp_path: Path, words: list[str]
) -> None:
    tool = find_train_script().parent / 'analysis_tools/analyze_logs.py'
    (log,) = detections.work_dir(DEFAULT_HOOKS).glob('*/vis_data/scalars.json')
    # the tool wants seaborn for the style of its picture, and MMDetection does not
    # install it
    (tmp_path / 'seaborn.py').write_text('def set_style(style): pass\n')
    done = subprocess.run(
        [sys.executable, str(tool), words[0], str(log), *words[1:]],
        cwd=tmp_path,
        env={
            **environ(),
            'PYTHONPATH': str(tmp_path),
            'MPLBACKEND': 'Agg',
            'MPLCONFIGDIR': str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    if words[0] == 'plot_curve':
        assert (tmp_path / 'curve.png').stat().st_size > 0
    else:
        assert 'average iter time' in done.stdout


def test_checkpoints_hold_none_of_ours(detections: Detections) -> None:
    path = detections.work_dir(DEFAULT_HOOKS) / 'epoch_2.pth'
    checkpoint = torch.load(path, map_location='cpu', weights_only=False)
    hub = checkpoint['message_hub']
    assert 'train/loss' in hub['log_scalars']
    assert not {f'train/{name}' for name in SCALARS} & set(hub['log_scalars'])
    assert 'mmgpu' not in str(hub['runtime_info'].keys())


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_a_line_without_a_new_interval_repeats_no_value(
    tmp_path: Path, loop: str
) -> None:
    hook = {'type': 'mmgpu_hooks.GPUEfficiencyHook', 'interval': 7}
    runner = build_runner(tmp_path, loop=loop, iterations=24, log_interval=3, hook=hook)
    runner.train()
    intervals = evidence_of(tmp_path).intervals
    assert [record.iteration for record in intervals] == [7, 14, 21, 24]
    shown = {line['step']: line.get('data_wait_s') for line in scalar_lines(tmp_path)}
    assert {step for step, value in shown.items() if value is not None} == {9, 15, 21}
    for step, record in zip((9, 15, 21), intervals):
        assert shown[step] == pytest.approx(record.data_wait.mean_s, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize('interval', [1, 3])
def test_a_line_covers_all_records_since_the_last(
    tmp_path: Path, interval: int
) -> None:
    hook = {
        'type': 'mmgpu_hooks.GPUEfficiencyHook',
        'interval': interval,
        'scalars': 'all',
    }
    saving = {'interval': 2, 'by_epoch': False}
    runner = build_runner(
        tmp_path, iterations=24, log_interval=12, hook=hook, checkpoint=saving
    )
    runner.train()
    records = evidence_of(tmp_path).intervals
    lines = scalar_lines(tmp_path)
    assert [line['step'] for line in lines] == [12, 24]
    for line in lines:
        since = [r for r in records if line['step'] - 12 < r.iteration <= line['step']]
        assert sum(record.iterations for record in since) == 12
        steps_s = sum(record.step.total_s for record in since)
        assert line['step_s'] == pytest.approx(steps_s / 12, rel=1e-6, abs=1e-8)
        saves = sum(record.saves for record in since)
        # the last of them comes after the line's own iteration
        assert saves == (5 if line['step'] == 12 else 6)
        saves_s = sum(record.ledger_s['checkpoint_save'] for record in since)
        assert line['save_s'] == pytest.approx(saves_s / saves, rel=1e-6, abs=1e-8)


def test_values_are_in_the_message_hub_with_one_entry_each(tmp_path: Path) -> None:
    hook = {'type': 'mmgpu_hooks.GPUEfficiencyHook', 'scalars': 'all'}
    runner = build_runner(tmp_path, iterations=12, hook=hook)
    runner.train()
    last = evidence_of(tmp_path).intervals[-1]
    for name, value in fold_scalars(last).items():
        buffer = runner.message_hub.get_scalar(f'train/{name}')
        assert buffer.data[0].tolist() == [pytest.approx(value, rel=1e-6, abs=1e-9)]
    assert '  verdict    ' in log_of(runner)
