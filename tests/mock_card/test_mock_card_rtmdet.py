"""RTMDet of MMDetection on the mock card, by its own ``train.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mock_card.trainings import MockCards, Training
from training.detection import render_config
from training.toy import scalar_lines

ITERATIONS = 12

TAIL = """
custom_imports = dict(imports=['mock_card.card', 'mmgpu_hooks'])
custom_hooks = [dict(type='training.toy.LossTape', path='losses.json'), {hook}]
"""


@pytest.fixture(scope='module')
def detectors(
    mock_cards: MockCards, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Training]:
    images = tmp_path_factory.mktemp('mock_card_images')
    write_demo_dataset(images, images=ITERATIONS, width=128, height=96)
    hooks = {'hook': "dict(type='GPUEfficiencyHook')", 'no_hook': ''}
    started = {}
    for name, hook in hooks.items():
        text = render_config(
            images,
            batch_size=2,
            num_workers=2,
            log_interval=3,
            epochs=2,
            tail=TAIL.format(hook=hook),
        )
        busy = {'utilization': {'gpu': 71, 'memory': 0}}
        started[name] = mock_cards.start_config(f'rtmdet_{name}', text, driver=busy)
    for training in started.values():
        assert training.wait() == 0, training.printed
    return started


@pytest.mark.slow
def test_its_card_is_measured_and_its_losses_are_the_same(
    detectors: dict[str, Training], capsys: pytest.CaptureFixture[str]
) -> None:
    training = detectors['hook']
    run = training.run
    assert len(training.losses) == ITERATIONS
    assert training.losses == detectors['no_hook'].losses
    assert 'is switched off for this run' not in training.printed
    assert run.gpu is not None and run.run.gpu is not None
    assert run.run.gpu.name == 'NVIDIA H100 80GB HBM3'
    assert run.gpu.util_pct == pytest.approx(71)
    assert run.gpu_mem_peak_bytes is not None and run.model is not None
    assert run.model.parameter_bytes is not None
    assert run.gpu_mem_peak_bytes > run.model.parameter_bytes
    assert run.gpu_idle_pct is not None
    line = scalar_lines(Path(training.work_dir))[-1]
    assert line['gpu_util_pct'] == pytest.approx(71)
    assert line['gpu_mem_peak_mib'] > 0
    assert main(['recommend', str(training.work_dir)]) == 0
    assert 'NVIDIA H100' in capsys.readouterr().out
