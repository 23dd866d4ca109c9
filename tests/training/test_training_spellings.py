"""Each way to name the hook in a config, trained by MMDetection's own train.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS

from training.conftest import (
    CASES,
    CFG_OPTIONS,
    CUSTOM_IMPORTS,
    DEFAULT_HOOKS,
    DOTTED,
    ITERATIONS,
    PLAIN,
    Detections,
)
from training.toy import evidence_of

SHIPPED_BASE = Path(__file__).parents[2] / 'configs/_base_/gpu_efficiency.py'


@pytest.mark.parametrize('case', CASES)
def test_every_spelling_leaves_evidence_of_its_run(
    detections: Detections, case: str
) -> None:
    evidence = evidence_of(detections.work_dir(case))
    loop, workers = CASES[case]
    assert evidence.run.loop == loop
    assert evidence.run.loader.num_workers == workers
    assert evidence.run.config_path == str(detections.folder / f'{case}_config.py')
    assert evidence.end is not None
    assert (evidence.end.status, evidence.end.iterations) == ('completed', ITERATIONS)
    assert 'mmdet' in evidence.run.versions


@pytest.mark.parametrize('case', CASES)
def test_a_plain_training_leaves_none(detections: Detections, case: str) -> None:
    assert not list(detections.work_dir(f'{PLAIN}_{case}').rglob('gpu_efficiency*'))


@pytest.mark.parametrize('case', [DEFAULT_HOOKS, CFG_OPTIONS])
def test_default_hooks_keep_the_hooks_of_the_base(
    detections: Detections, case: str
) -> None:
    log = detections.log(case)
    assert 'GPUEfficiencyHook' in log
    assert '(49          ) EMAHook' in log
    assert 'PipelineSwitchHook' in log


@pytest.mark.parametrize('case', [CUSTOM_IMPORTS, DOTTED])
def test_a_list_of_custom_hooks_replaces_that_of_the_base(
    detections: Detections, case: str
) -> None:
    # what the README warns of: were it not so, the warning would be wrong
    log = detections.log(case)
    assert 'GPUEfficiencyHook' in log
    assert 'EMAHook' not in log


def test_the_shipped_base_is_a_runtime_with_the_hook(tmp_path: Path) -> None:
    config = tmp_path / 'config.py'
    config.write_text(
        '_base_ = [\n'
        "    'mmdet::_base_/models/retinanet_r50_fpn.py',\n"
        "    'mmdet::_base_/datasets/coco_detection.py',\n"
        "    'mmdet::_base_/schedules/schedule_1x.py',\n"
        f'    {str(SHIPPED_BASE)!r},\n'
        ']\n'
    )
    loaded = Config.fromfile(config)
    hooks = loaded.default_hooks
    assert hooks.gpu_efficiency.type == 'mmgpu_hooks.GPUEfficiencyHook'
    assert {'timer', 'logger', 'checkpoint'} <= set(hooks)
    assert loaded.model.type == 'RetinaNet'
    hook = HOOKS.build(hooks.gpu_efficiency)
    assert type(hook).__name__ == 'GPUEfficiencyHook'
