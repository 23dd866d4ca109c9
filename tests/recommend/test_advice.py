from __future__ import annotations

import io
import re
from typing import Any

import mmcv
import pytest
from PIL import Image

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.advice import advise

MAIN: dict[str, Any] = {'process_cpu_s': 4.0}

ORIENTATION = 0x0112
"""Number of the EXIF tag for a photo's orientation."""


def advice(**fields) -> str:
    evidence = make_evidence(**{**MAIN, **fields})
    return ' '.join(advise(Run(evidence)))


def test_the_costliest_transform_is_named_with_a_cheaper_one():
    inside = make_inside_workers(0.6, transforms_s={'Mosaic': 0.9, 'Pack': 0.1})
    said = advice(workers=inside)
    assert 'Mosaic takes 90 % of the pipeline' in said
    assert 'cheaper: CachedMosaic' in said


def test_amp_is_advised_for_a_step_in_full_precision_on_a_gpu():
    run = make_run(device='cuda', optim_wrapper='OptimWrapper')
    said = advice(run=run, data_wait_s=0.001)
    assert "optim_wrapper.type='AmpOptimWrapper'" in said
    mixed = make_run(device='cuda', optim_wrapper='AmpOptimWrapper')
    assert 'AmpOptimWrapper' not in advice(run=mixed, data_wait_s=0.001)
    assert advice(run=make_run(), data_wait_s=0.001) == ''


def advise_cudnn(sizes, *, device='cuda', data_wait_s=0.001, is_on=False) -> str:
    run = make_run(device=device, cudnn_benchmark=is_on)
    evidence = make_evidence(run=run, data_wait_s=data_wait_s, **MAIN)
    intervals = [
        replace(interval, new_batch_sizes=new)
        for interval, new in zip(evidence.intervals, sizes, strict=True)
    ]
    return ' '.join(advise(Run(replace(evidence, intervals=tuple(intervals)))))


SAME, COMING, SEEN = [1, *[0] * 7], [9, *[3] * 7], [30, *[0] * 7]
"""Numbers of new padded batch sizes per interval: one, ever more, all in the first."""
ON, OFF = 'env_cfg.cudnn_benchmark=True', 'env_cfg.cudnn_benchmark=False'


@pytest.mark.parametrize(
    ('sizes', 'changed', 'said'),
    [
        (SAME, {}, f'batches of 160 iterations have 1 padded size: {ON}'),
        # the last batch of an epoch
        ([1, 0, 0, 1, 0, 0, 0, 0], {}, f'2 padded sizes: {ON}'),
        ([1, 1, 1, 0, 0, 0, 0, 0], {}, None),
        (SAME, {'is_on': True}, None),
        (SAME, {'is_on': None}, None),
        (SAME, {'device': 'cpu'}, None),
        # the step is not what takes long
        (SAME, {'data_wait_s': 0.2}, None),
        ([*SAME[:-1], None], {}, None),
        ([None] * 8, {}, None),
        ([None] * 8, {'is_on': True}, None),
        (
            COMING,
            {'is_on': True},
            'batches have 30 padded sizes in 160 iterations, 12 of them new in the '
            'second half',
        ),
        ([*COMING[:-1], None], {'is_on': True}, OFF),
        # counting ended early, since there were so many
        (
            [600, 410, *[None] * 6],
            {'is_on': True},
            'batches have at least 1,010 padded sizes in 160 iterations: ',
        ),
        ([600, 410, *[None] * 6], {}, None),
        (COMING, {}, None),
        (COMING, {'is_on': True, 'device': 'cpu'}, None),
        # each was timed once, and there are no more
        (SEEN, {'is_on': True}, None),
        ([3, 0, 0, 0, 1, 0, 0, 1], {'is_on': True}, None),
    ],
)
def test_cudnn_times_its_algorithms_where_sizes_stay(sizes, changed, said):
    advised = advise_cudnn(sizes, **changed)
    assert (said or '') in advised
    assert ('cudnn' in advised) is (said is not None)


def test_a_short_run_gets_no_advice():
    assert advice(intervals=1, iterations=5) == ''


LOADING = make_inside_workers(0.6, transforms_s={'LoadImageFromFile': 1.0})


def advise_loading(decoder, ratio) -> str:
    run = make_run(loader=replace(make_run().loader, image_decoder=decoder))
    return advice(run=run, workers=LOADING, stored_pixel_ratio=ratio)


@pytest.mark.parametrize(
    ('decoder', 'ratio', 'ways'),
    [
        ('cv2', 11.4, ['11.4 times']),
        ('cv2', None, ['where they are larger']),
        ('cv2', 1.2, []),
        ('pillow', 11.4, ['11.4 times', "imdecode_backend='cv2'"]),
        ('pillow', 1.2, ["imdecode_backend='cv2'"]),
        ('turbojpeg', 11.4, ['11.4 times']),
        ('turbojpeg', 1.0, []),
    ],
)
def test_smaller_files_come_before_another_decoder(decoder, ratio, ways):
    said = advise_loading(decoder, ratio)
    places = [said.index(way) for way in ways]
    assert places == sorted(places)
    assert ('cheaper' in said) is bool(ways)
    assert said.count('; then ') == max(len(ways) - 1, 0)


@pytest.mark.parametrize('decoder', [None, 'cv2', 'pillow', 'tifffile', 'turbojpeg'])
def test_an_advised_decoder_reads_a_turned_photo_without_preparation(decoder):
    photo, exif = io.BytesIO(), Image.Exif()
    exif[ORIENTATION] = 6
    Image.new('RGB', (40, 30)).save(photo, 'jpeg', exif=exif)
    said = advise_loading(decoder, 11.4)
    advised = re.findall(r"imdecode_backend='(\w+)'", said)
    assert advised == (['cv2'] if decoder == 'pillow' else [])
    for backend in advised:
        assert mmcv.imfrombytes(photo.getvalue(), backend=backend).shape == (40, 30, 3)
