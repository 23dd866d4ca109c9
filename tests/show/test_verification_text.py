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

TEXT = """\
Measured: +50.0 % (+45.0 to +55.0 %) images/s; the second setting is faster.
Predicted: +52.0 %, inside the measured interval.

                      first   second
num_workers               0        4
persistent_workers        -     True
iteration, mean     0.300 s  0.200 s
an epoch start adds unknown  unknown

8 pairs of blocks in turns, 120 measured iterations of each, 75.0 s in all; the
gain is known well enough.
Others used 0.1 cores of the host meanwhile."""


def squeeze(text: str) -> list[str]:
    return [' '.join(line.split()) for line in text.splitlines()]


def test_the_measured_gain_stands_beside_the_predicted_one():
    assert squeeze(render_verify_text(ANSWER, width=80)) == squeeze(TEXT)


@pytest.mark.parametrize(
    ('gain', 'sentence'),
    [
        (Estimate(-0.2, -0.3, -0.1, 6), 'the second setting is slower.'),
        (Estimate(0.01, -0.01, 0.03, 6), 'no difference can be told from noise.'),
    ],
)
def test_a_loss_and_a_draw_are_called_so(gain, sentence):
    answer = replace(ANSWER, verification=replace(VERIFICATION, gain=gain))
    first, second, *_ = render_verify_text(answer).splitlines()
    assert first.endswith(sentence)
    assert 'outside the measured interval' in second


def test_epoch_starts_count_where_they_were_seen():
    verification = replace(VERIFICATION, before_start_s=3.0, after_start_s=-0.01)
    answer = replace(ANSWER, verification=verification, batches_per_epoch=10)
    text = render_verify_text(answer)
    # 0.6 s per iteration, starts included, against 0.199 s
    assert 'Over whole epochs of 10 iterations, their starts included: about' in text
    assert '+201.5 %.' in text
    assert '-10.0 ms' in text
    assert 'Over whole epochs' not in render_verify_text(
        replace(answer, batches_per_epoch=None)
    )


def test_without_a_prediction_none_is_claimed():
    verification = replace(VERIFICATION, predicted_gain=None, notes=('A caveat.',))
    text = render_verify_text(replace(ANSWER, verification=verification))
    assert 'Nothing was predicted of it.' in text
    assert squeeze(text)[-2:] == ['Notes', '- A caveat.']


def test_the_answer_as_json():
    body = json.loads(render_verify_json(ANSWER))
    assert body['version'] == 1
    assert body['gain'] == {'value': 0.5, 'low': 0.45, 'high': 0.55, 'count': 8}
    assert body['after']['train_dataloader.num_workers'] == 4
    assert (body['predicted_gain'], body['pairs'], body['notes']) == (0.52, 8, [])
