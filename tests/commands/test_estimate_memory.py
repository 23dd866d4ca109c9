from __future__ import annotations

import json
from pathlib import Path

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import (
    ActivationFit,
    ActivationPoint,
    MemoryEstimate,
    StaticBytes,
)
from mmgpu_hooks.show.forecasts import describe_estimate, render_estimate_json
from mmgpu_hooks.show.terminal import render

MIB = 2**20
ESTIMATE = MemoryEstimate(
    model='RetinaNet',
    static=StaticBytes(
        parameters=2_000_000,
        parameter_bytes=8 * MIB,
        trainable_bytes=7 * MIB,
        gradient_bytes=7 * MIB,
        buffer_bytes=2048,
        ema_bytes=8 * MIB,
        optimizer_state_bytes={'SGD with momentum': 7 * MIB, 'Lion': None},
    ),
    image_size=(800, 1344),
    image_size_source='Resize, pad_size_divisor=32',
    mixed_precision=True,
    fit=ActivationFit(
        fixed_bytes=3 * MIB,
        image_bytes=30 * MIB,
        pixel_bytes=1200.4,
        squared_pixel_bytes=3e-4,
        residual_pct=0.12,
        points=(ActivationPoint(1, 256, 384, 9), ActivationPoint(2, 256, 384, 18)),
    ),
    activation_bytes={1: 1000 * MIB, 32: 20_000 * MIB},
    notes=('One thing.',),
)


def test_the_text_has_the_totals_and_keeps_to_the_width():
    for width in (60, 100):
        lines = render(describe_estimate(ESTIMATE), width=width).splitlines()
        assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines]
    # 1000 and 20,000 MiB of activations beside 30 of the rest
    assert ['1', '1000', 'MiB', '1.0', 'GiB', 'unknown'] in rows
    assert ['32', '19.5', 'GiB', '19.6', 'GiB', 'unknown'] in rows


def test_json_has_every_figure_and_null_for_the_unknown():
    body = json.loads(render_estimate_json(ESTIMATE))
    static = 8 + 7 + 8 + 7
    assert body['total_bytes'] == {
        'SGD with momentum': {
            '1': (1000 + static) * MIB + 2048,
            '32': (20_000 + static) * MIB + 2048,
        },
        'Lion': {'1': None, '32': None},
    }
    assert body['fit']['points'][0]['saved_bytes'] == 9


def test_what_is_missing_is_one_sentence(tmp_path: Path, capsys):
    missing = str(tmp_path / 'config.py')
    assert main(['estimate-memory', missing]) == 2
    told = capsys.readouterr()
    assert told.err == (
        f'mmgpu estimate-memory: expected a config file, found none at {missing}.\n'
    )
    assert told.out == ''
