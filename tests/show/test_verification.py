from __future__ import annotations

import json

import pytest

from fakes.replaced import replace
from mmgpu_hooks.schema import Estimate, Verification
from mmgpu_hooks.show.verification import (
    VerifyAnswer,
    render_verify_json,
    render_verify_text,
)

VERIFICATION = Verification(
    gain=Estimate(0.5, 0.45, 0.55, 8),
    before_s=0.3,
    after_s=0.2,
    pairs=8,
    iterations=120,
    seconds=75.0,
    ending='the gain is known well enough',
    external_cpu_cores=0.13,
    predicted_gain=0.52,
)
ANSWER = VerifyAnswer(
    VERIFICATION,
    before={'train_dataloader.num_workers': 0},
    after={
        'train_dataloader.num_workers': 4,
        'train_dataloader.persistent_workers': True,
    },
    folder='work_dirs/run/verify/1',
)


def lines_of(answer: VerifyAnswer) -> list[str]:
    return [' '.join(line.split()) for line in render_verify_text(answer).splitlines()]


def test_the_measured_gain_stands_beside_the_predicted_one():
    lines = lines_of(ANSWER)
    assert '+50.0 % (+45.0 to +55.0 %) images/s' in lines[0]
    assert '+52.0 %, inside' in lines[1]
    assert lines[3:8] == [
        'first second',
        'num_workers 0 4',
        'persistent_workers - True',
        'iteration, mean 0.300 s 0.200 s',
        'an epoch start adds unknown unknown',
    ]
    assert '8 pairs' in lines[9]
    assert '0.1 cores' in lines[11]


@pytest.mark.parametrize(
    ('gain', 'word'),
    [
        (Estimate(-0.2, -0.3, -0.1, 6), 'slower'),
        (Estimate(0.01, -0.01, 0.03, 6), 'no difference'),
    ],
)
def test_a_loss_and_a_draw_are_called_so(gain, word):
    answer = replace(ANSWER, verification=replace(VERIFICATION, gain=gain))
    text = ' '.join(lines_of(answer))
    assert word in text
    assert 'outside' in text


def test_epoch_starts_count_where_they_were_measured():
    verification = replace(VERIFICATION, before_start_s=3.0, after_start_s=-0.01)
    answer = replace(ANSWER, verification=verification, batches_per_epoch=10)
    # 0.6 s per iteration, starts included, against 0.199 s
    assert '+201.5 %' in ' '.join(lines_of(answer))
    assert '-10.0 ms' in ' '.join(lines_of(answer))
    verification = replace(VERIFICATION, predicted_gain=None)
    assert 'Predicted' not in ' '.join(
        lines_of(replace(ANSWER, verification=verification))
    )


def test_the_answer_as_json():
    body = json.loads(render_verify_json(ANSWER))
    assert body['version'] == 1
    assert body['gain'] == {'value': 0.5, 'low': 0.45, 'high': 0.55, 'count': 8}
    assert body['after']['train_dataloader.num_workers'] == 4
    assert (body['predicted_gain'], body['pairs'], body['notes']) == (0.52, 8, [])
