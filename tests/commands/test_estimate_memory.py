from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.memory.estimate import fit_card, predict_activations
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.memory import (
    ActivationFit,
    ActivationPoint,
    CardFit,
    ImageSize,
    MeasuredPeak,
    MemoryEstimate,
    PeakFactors,
    StaticBytes,
)
from mmgpu_hooks.show.forecasts import describe_estimate, render_estimate_json
from mmgpu_hooks.show.terminal import render

MIB, GIB = 2**20, 2**30
ESTIMATE = MemoryEstimate(
    model='RetinaNet',
    static=StaticBytes(
        parameters=2_000_000,
        parameter_bytes=8 * MIB,
        gradient_bytes=7 * MIB,
        buffer_bytes=2048,
        ema_bytes=8 * MIB,
        optimizer='SGD',
        optimizer_state_bytes=7 * MIB,
    ),
    image_size=ImageSize(800, 1344),
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
    peak_factors=PeakFactors(1.06, 1.9),
    activation_bytes={1: 1000 * MIB, 32: 20_000 * MIB},
    notes=('One thing.',),
)


def test_the_text_has_the_totals_and_keeps_to_the_width():
    for width in (60, 100):
        lines = render(describe_estimate(ESTIMATE), width=width).splitlines()
        assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines]
    # 1000 and 20,000 MiB of activations beside 30 of the rest
    assert ['1', '1000', 'MiB', '1.0', 'GiB'] in rows
    assert ['32', '19.5', 'GiB', '19.6', 'GiB'] in rows


def test_json_has_every_figure_and_null_for_the_unknown():
    body = json.loads(render_estimate_json(ESTIMATE))
    static = 8 + 7 + 8 + 7
    assert body['total_bytes'] == {
        '1': (1000 + static) * MIB + 2048,
        '32': (20_000 + static) * MIB + 2048,
    }
    unknown = replace(ESTIMATE.static, optimizer_state_bytes=None)
    body = json.loads(render_estimate_json(replace(ESTIMATE, static=unknown)))
    assert body['total_bytes'] == {'1': None, '32': None}
    assert body['fit']['points'][0]['saved_bytes'] == 9


def activations(batch: int) -> int:
    assert ESTIMATE.fit is not None
    return predict_activations(ESTIMATE.fit, batch, 800 * 1344)


def card_of(card_bytes: int, measured: MeasuredPeak | None = None) -> CardFit:
    card = fit_card(ESTIMATE, card_bytes, measured).card
    assert card is not None
    return card


def largest(room: float, peak: Callable[[int], float]) -> int:
    return max(batch for batch in range(1000) if not batch or peak(batch) <= room)


@pytest.mark.parametrize('card_gib', [0, 8, 24, 80])
def test_the_largest_batch_of_a_card_leaves_a_margin(card_gib):
    card, static = card_of(card_gib * GIB), 30 * MIB + 2048
    room = max(0.9 * (card_gib * GIB - 600 * MIB), 0)  # CUDA's context, fragments
    total = [static + activations(batch) for batch in range(1000)]
    assert card.room_bytes == int(room)
    assert card.batch_size == largest(room, total.__getitem__)
    assert card.safe_batch_size == largest(room, lambda n: 1.9 * total[n])
    assert (card_gib >= 8) == bool(card.safe_batch_size)


def test_the_peak_of_a_run_takes_the_place_of_published_ones():
    peak = 9 * GIB
    exact = round(peak / 0.9 + 600 * MIB) + 1  # all the room, and no more
    assert card_of(exact, MeasuredPeak(4, peak)).safe_batch_size == 4
    card = card_of(24 * GIB, MeasuredPeak(4, peak))
    # gradients, 7 MiB, are gone while activations are most
    resident = 23 * MIB + 2048
    grown = (peak - resident) / activations(4)
    safe = largest(card.room_bytes, lambda n: resident + grown * activations(n))
    assert card.safe_batch_size == safe
    assert card.factor == pytest.approx(peak / (30 * MIB + 2048 + activations(4)))
    with pytest.raises(UserError, match='trained another'):
        fit_card(ESTIMATE, 24 * GIB, MeasuredPeak(4, 9 * MIB))
    with pytest.raises(UserError, match='unknown'):
        fit_card(replace(ESTIMATE, fit=None), 24 * GIB, MeasuredPeak(4, peak))


@pytest.mark.parametrize(
    ('estimate', 'run', 'line'),
    [
        (ESTIMATE, None, 'batch 13 by the estimate; 7 to be safe, with a peak of 1.9 '),
        (ESTIMATE, MeasuredPeak(4, 9 * GIB), 'batch 13 by the estimate; 9 to be safe'),
        (replace(ESTIMATE, image_size=None), None, 'unknown, see below'),
    ],
)
def test_a_card_is_answered_in_a_line(estimate, run, line):
    estimate = fit_card(estimate, 24 * GIB, run)
    text = ' '.join(render(describe_estimate(estimate), width=100).split())
    assert f'24.0 GiB card {line}' in text
    body = json.loads(render_estimate_json(estimate))['card']
    assert body['card_bytes'] == 24 * GIB


def test_what_is_missing_is_one_sentence(tmp_path: Path, capsys):
    missing = str(tmp_path / 'config.py')
    assert main(['estimate-memory', missing]) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        f'mmgpu estimate-memory: {missing}: expected a config file, found nothing '
        'there.\n'
    )
    assert printed.out == ''
