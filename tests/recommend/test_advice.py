from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.advice import advise

MAIN = {'process_cpu_s': 4.0}


def advice(**fields) -> str:
    evidence = make_evidence(**{**MAIN, **fields})
    return ' '.join(advise(Run(evidence)))


def test_the_costliest_transform_is_named_with_a_cheaper_one():
    inside = make_inside_workers(0.6, transforms_s={'Mosaic': 0.9, 'Pack': 0.1})
    said = advice(workers=inside)
    assert 'Mosaic takes 90 % of the pipeline' in said
    assert 'cheaper: CachedMosaic' in said


def test_a_step_in_full_precision_on_a_gpu():
    run = make_run(device='cuda', optim_wrapper='OptimWrapper')
    said = advice(run=run, data_wait_s=0.001)
    assert "optim_wrapper.type='AmpOptimWrapper'" in said
    mixed = make_run(device='cuda', optim_wrapper='AmpOptimWrapper')
    assert 'AmpOptimWrapper' not in advice(run=mixed, data_wait_s=0.001)
    assert advice(run=make_run(), data_wait_s=0.001) == ''


def test_a_short_run_gets_no_advice():
    assert advice(intervals=1, iterations=5) == ''


LOADING = make_inside_workers(0.6, transforms_s={'LoadImageFromFile': 1.0})


@pytest.mark.parametrize(
    ('decoder', 'ratio', 'ways'),
    [
        ('cv2', 11.4, ['11.4 times', 'turbojpeg']),
        ('cv2', None, ['stored at the size', 'turbojpeg']),
        ('cv2', 1.2, ['turbojpeg']),
        ('pillow', 11.4, ['11.4 times', "imdecode_backend='cv2'"]),
        ('turbojpeg', 11.4, ['11.4 times']),
        ('turbojpeg', 1.0, []),
    ],
)
def test_smaller_files_come_before_another_decoder(decoder, ratio, ways):
    run = make_run(loader=replace(make_run().loader, image_decoder=decoder))
    said = advice(run=run, workers=LOADING, stored_pixel_ratio=ratio)
    places = [said.index(way) for way in ways]
    assert places == sorted(places)
    assert ('cheaper' in said) is bool(ways)
    assert said.count('; then ') == max(len(ways) - 1, 0)
