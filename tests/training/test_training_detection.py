"""Tests MMDetection's ``train.py`` with and without the hook, with one seed.

The log line, ``scalars.json``, TensorBoard and checkpoints have what they should.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from mmgpu_hooks.hooks.scalars import MAIN, SCALARS
from mmgpu_hooks.schema.values import FAST_METRIC
from training.detection import Task, render_config, train_all
from training.toy import (
    evidence_of,
    load_checkpoint,
    scalar_lines,
    summarize_scalars,
)

ITERATIONS = 12
LOGGED = [3, 6, 9, 12]
"""Iterations with a log line, at 6 iterations per epoch."""

# a training for each way to name the hook; without it, one for each kind of loop
DEFAULT_HOOKS, CUSTOM_IMPORTS, CFG_OPTIONS = 'default_hooks', 'imports', 'cfg_options'
PLAIN = {
    DEFAULT_HOOKS: 'plain_epoch',
    CUSTOM_IMPORTS: 'plain_iter',
    CFG_OPTIONS: 'plain_iter',
}

_IMPORTS = (
    "custom_imports = dict(imports=['mmgpu_hooks'])\n"
    "custom_hooks = [dict(type='GPUEfficiencyHook')]"
)
_OURS = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'), "
_OPTION = 'default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook'

# of another loader than training's, and the test's by reference, as most configs
_VALIDATION = """
train_cfg = dict(max_epochs=2, val_interval=1, dynamic_intervals=None)
val_cfg, test_cfg = dict(type='ValLoop'), dict(type='TestLoop')
val_dataloader = dict(
    batch_size=1, num_workers=1, persistent_workers=True, drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset', test_mode=True,
        data_root='{images}/', ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(64, 64), keep_ratio=True),
            dict(type='Pad', size=(64, 64), pad_val=dict(img=(114, 114, 114))),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs'),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', metric='bbox', ann_file='{images}/annotations.json')
test_evaluator = val_evaluator
"""


class Detections(NamedTuple):
    """Results of several MMDetection trainings, by name."""

    folder: Path

    def losses(self, name: str) -> list[str]:
        """Returns the losses of one training as exact texts."""
        losses: list[str] = json.loads((self.folder / f'{name}.json').read_text())
        return losses

    def log(self, name: str) -> str:
        """Returns the log of one training."""
        return (self.folder / f'{name}.log').read_text()


def render_validation(images: Path, *, fast: bool) -> str:
    """Returns config text for a validation by FastCocoMetric or CocoMetric."""
    text = _VALIDATION.format(images=images)
    return text.replace("'CocoMetric'", f"'{FAST_METRIC}'") if fast else text


@pytest.fixture(scope='module')
def detections(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp('detections')
    tasks = {}
    for name in (*PLAIN, *dict.fromkeys(PLAIN.values())):
        by_epoch = name in (DEFAULT_HOOKS, PLAIN[DEFAULT_HOOKS])
        tape = f"dict(type='training.toy.LossTape', path='{folder / name}.json')"
        # MMEngine formats the whole config at each save, in seconds
        hooks = f'tape={tape}, checkpoint=dict(interval={1 if by_epoch else -1}), '
        text = render_config(
            images,
            default_hooks=hooks + _OURS * (name == DEFAULT_HOOKS),
            # it would sleep two seconds where it begins its images anew
            batch_size=2 if by_epoch else 1,
            num_workers=2,
            log_interval=LOGGED[0],
            epochs=2,
            iterations=None if by_epoch else ITERATIONS,
            tail=render_validation(images, fast=name == DEFAULT_HOOKS)
            if by_epoch
            else _IMPORTS * (name == CUSTOM_IMPORTS),
        )
        config = folder / f'{name}_config.py'
        config.write_text(text)
        options = ['--cfg-options', _OPTION] if name == CFG_OPTIONS else []
        words = [str(config), '--work-dir', str(folder / name), *options]
        tasks[name] = Task(words, str(folder / f'{name}.log'))
    codes = train_all(tasks)
    trained = Detections(folder)
    assert set(codes.values()) == {0}, [trained.log(n) for n in codes if codes[n]]
    return trained


CASES = pytest.mark.parametrize('case', PLAIN)


@CASES
def test_every_way_to_name_the_hook_leaves_evidence_and_the_losses(detections, case):
    losses = detections.losses(case)
    assert len(set(losses)) == len(losses) == ITERATIONS
    assert losses == detections.losses(PLAIN[case])
    evidence = evidence_of(detections.folder / case)
    assert evidence.run.loop == ('epoch' if case == DEFAULT_HOOKS else 'iter')
    assert evidence.run.loader.num_workers == 2
    assert evidence.run.config_path == str(detections.folder / f'{case}_config.py')
    assert (evidence.end.status, evidence.end.iterations) == ('completed', ITERATIONS)
    assert 'mmdet' in evidence.run.versions
    # what the README warns of: a list of custom hooks replaces that of the base
    log = detections.log(case)
    assert 'GPUEfficiencyHook' in log
    assert ('EMAHook' in log) == (case != CUSTOM_IMPORTS)
    assert not list((detections.folder / PLAIN[case]).rglob('gpu_efficiency*'))


def test_a_fast_metric_finds_the_figures_of_mmdetections(detections):
    logs = [detections.log(name) for name in (DEFAULT_HOOKS, PLAIN[DEFAULT_HOOKS])]
    figures = [re.findall(r'coco/bbox_mAP\w*: +\S+', log) for log in logs]
    # six of each of two validations
    assert len(figures[0]) == 12
    assert figures[0] == figures[1]
    assert 'FastCocoMetric: evaluates with ultrafast-pycocotools' in logs[0]


# there is no GPU here; of a save, one case has an interval with one
EXPECTED = [
    n for n in SCALARS if n in MAIN and not n.startswith('gpu_') and n != 'save_s'
]


def published(work_dir: Path) -> list[tuple[int, dict[str, float]]]:
    """Returns step and scalars of each log interval in the evidence."""
    return [
        (
            record.iteration,
            {n: v for n, v in summarize_scalars(record).items() if n in MAIN},
        )
        for record in evidence_of(work_dir).intervals
    ]


@CASES
def test_scalars_json_has_each_interval_of_the_evidence(detections, case):
    every = scalar_lines(detections.folder / case)
    # those of validations have none of ours
    lines = [line for line in every if 'loss' in line]
    assert not [line for line in every if 'loss' not in line and 'data_wait_s' in line]
    expected = published(detections.folder / case)
    assert [step for step, _ in expected] == LOGGED
    assert [line['step'] for line in lines] == LOGGED
    for line, (step, scalars) in zip(lines, expected):
        ours = {name: line[name] for name in SCALARS if name in line}
        assert ours == pytest.approx(scalars, rel=1e-6, abs=1e-9)
        # the save that ends the second epoch is in no interval
        is_saved = case == DEFAULT_HOOKS and step == LOGGED[2]
        assert list(ours) == EXPECTED + ['save_s'] * is_saved


def test_the_terminal_line_shows_them(detections):
    lines = re.findall(r'Epoch\(train\) .*', detections.log(DEFAULT_HOOKS))
    shown = [re.search(r'data_wait_s: ([\d.]+)', line) for line in lines]
    expected = published(detections.folder / DEFAULT_HOOKS)
    for match, (_, scalars) in zip(shown, expected, strict=True):
        assert float(match[1]) == pytest.approx(scalars['data_wait_s'], abs=6e-5)


def test_tensorboard_event_files_have_them(detections):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (detections.folder / DEFAULT_HOOKS).glob('*/vis_data')
    events = EventAccumulator(str(folder))
    events.Reload()
    for name in EXPECTED:
        points = [(event.step, event.value) for event in events.Scalars(name)]
        # TensorBoard keeps single precision
        assert points == [
            (step, pytest.approx(scalars[name], rel=1e-6, abs=1e-9))
            for step, scalars in published(detections.folder / DEFAULT_HOOKS)
        ]


def test_checkpoints_hold_none_of_ours(detections):
    path = detections.folder / DEFAULT_HOOKS / 'epoch_2.pth'
    checkpoint = load_checkpoint(path)
    hub = checkpoint['message_hub']
    assert 'train/loss' in hub['log_scalars']
    assert not {f'train/{name}' for name in SCALARS} & set(hub['log_scalars'])
    assert 'mmgpu' not in str(hub['runtime_info'].keys())


def test_a_detector_is_validated_as_it_is_without_us(detections, ask):
    scores = [
        re.findall(r'bbox_mAP[_a-z0-9]*: [-.0-9]+', detections.log(name))
        for name in (DEFAULT_HOOKS, PLAIN[DEFAULT_HOOKS])
    ]
    assert scores[0] and scores[0] == scores[1]
    folder = detections.folder / DEFAULT_HOOKS
    evidence = evidence_of(folder)
    assert [validation.iteration for validation in evidence.validations] == LOGGED[1::2]
    for validation in evidence.validations:
        assert validation.iterations == ITERATIONS
        assert (
            validation.loader.num_workers,
            validation.loader.persistent_workers,
        ) == (1, True)
    # a worker times every so many of its batches, the first among them
    workers = evidence.validations[0].workers
    assert workers is not None and 'LoadImageFromFile' in workers.transforms_s
    answer = ask('recommend', folder, '--dry-run')
    assert answer['validation']['validations'] == 2
