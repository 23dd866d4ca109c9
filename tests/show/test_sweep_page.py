"""Tests the sweep's page: data and title of each chart."""

from __future__ import annotations

import re
from html import unescape

import pytest

from fakes.replaced import replace
from fakes.sweeps import MIB, make_sweep, make_sweep_row
from mmgpu_hooks.experiment.sweep_judge import fit_memory
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.tried import GpuSpan, ModelBytes, Sweep
from mmgpu_hooks.show.page import is_page, render_sweep_page
from mmgpu_hooks.show.sweep_charts import (
    chart_memory,
    chart_saves,
    chart_speed,
    chart_timelines,
    title_memory,
)

MODEL = ModelBytes(100 * MIB, 90 * MIB, 180 * MIB)


def make_spans(util_pct: float) -> tuple[GpuSpan, ...]:
    """Returns GPU utilisation in four spans of 5 s, the first of which is warm-up."""
    return tuple(
        GpuSpan(5.0 * n, 5.0 * (n + 1), util_pct, 100 - util_pct, 25, n == 0)
        for n in range(4)
    )


def make_full_sweep(**fields) -> Sweep:
    """Returns a sweep of three batch sizes with peaks of 400 MiB + 50 MiB per image."""
    rows = [
        make_sweep_row(
            workers,
            iter_s=0.1 * batch / (1 + workers),
            batch=batch,
            memory_peak_bytes=(400 + 50 * batch) * MIB,
            memory_reserved_bytes=(420 + 60 * batch) * MIB,
            model_bytes=MODEL,
            gpu_util_pct=40.0 + 20 * workers,
            gpu_zero_pct=60.0 - 20 * workers,
            gpu_samples=75,
            gpu_timeline=make_spans(40.0 + 20 * workers),
            saves_s=(0.2 + workers, 0.4 + workers),
            save_s=0.3 + workers,
        )
        for batch in (1, 3, 8)
        for workers in (0, 2)
    ]
    failed = make_sweep_row(0, None, batch=32, status='out_of_memory', error='no room')
    return make_sweep(*rows, failed, memory_lines=fit_memory(rows), **fields)


def words_of(page: str) -> str:
    return ' '.join(unescape(re.sub(r'<[^>]*>', ' ', page)).split()).replace(
        '\xa0', ' '
    )


def test_the_page_has_four_pictures_with_findings_for_titles():
    page = render_sweep_page(make_full_sweep(), 'rtmdet.py')
    assert is_page(page.encode()[:4096])
    assert page.count('<svg') == 4
    assert not re.search(r'<script|(src|href)="http', page)
    words = words_of(page)
    for title in (
        'Batch 8 takes 1.8 times what batch 1 takes, not 8 times: '
        '400 MiB are taken before the first image',
        'fitted: 400 MiB + 50 MiB an image, within 0.0 %',
        'optimizer state',
        'kept by the allocator beyond its peak',
        '★ 2 workers, batch 8',
        '80 %, 20 % of time at 0 (n=75)',
        'Fastest: 2 workers, batch 1, with 30.0 images/s',
        'mean and 95 % interval of 6 intervals',
        'best of its batch size',
        'A save takes 2.300 s beside 2 workers, 0.300 s beside 0 (batch 1)',
        'each of 2 saves',
        'out of',
    ):
        assert title in words, title


def test_memory_is_a_line_with_what_is_there_before_the_first_image():
    (line,) = make_full_sweep().memory_lines
    assert (line.source, line.group) == ('cuda', '')
    assert line.fixed_bytes == pytest.approx(400 * MIB)
    assert line.image_bytes == pytest.approx(50 * MIB)
    assert [point.batch_size for point in line.points] == [1, 3, 8]
    assert line.points[0].model_bytes == MODEL
    assert title_memory(replace(line, fixed_bytes=-1.0)).endswith('not 8 times')
    assert chart_memory(line, [32]).description == title_memory(line)


def test_without_a_card_memory_is_that_of_the_process_and_no_axes_are_empty():
    rows = [
        make_sweep_row(
            0,
            batch=batch,
            memory_peak_bytes=None,
            host_memory_bytes=(900 + 20 * batch) * MIB,
            gpu_unknown='training runs on the CPU',
        )
        for batch in (1, 4)
    ]
    sweep = make_sweep(*rows, memory_lines=fit_memory(rows))
    assert [line.source for line in sweep.memory_lines] == ['host']
    page = render_sweep_page(sweep, 'a.py')
    # memory and speed
    assert page.count('<svg') == 2
    words = words_of(page)
    assert 'No CUDA here: this is the training process' in words
    assert 'Unknown: training runs on the CPU.' in words
    assert 'Unknown: no checkpoint was saved (--saves 0).' in words


def test_other_settings_have_lines_of_their_own():
    amp = [make_sweep_row(0, batch=n, setting={'amp': True}) for n in (1, 4)]
    plain = [make_sweep_row(0, batch=n, setting={'amp': False}) for n in (1, 4)]
    lone = make_sweep_row(0, batch=9, setting={'gpus': 2})
    assert [line.group for line in fit_memory([*amp, *plain, lone])] == [
        'AMP on',
        'AMP off',
    ]


def test_what_was_not_measured_is_said():
    nothing = make_sweep(make_sweep_row(0, None))
    assert chart_timelines(nothing) is chart_speed(nothing) is chart_saves(nothing)
    words = words_of(render_sweep_page(nothing, 'a.py'))
    for said in (
        'A line needs two batch sizes',
        'no trial recorded a sample',
        'no trial was measured',
        'failed (ValueError: no)',
    ):
        assert said in words
    empty = render_sweep_page(make_sweep(asked=2, is_interrupted=True), 'a.py')
    assert '0 of 2 settings were trained' in words_of(empty)


def test_control_characters_of_an_error_are_written_out():
    row = make_sweep_row(0, None, error='\x1b[31m</style><script>')
    page = render_sweep_page(make_sweep(row), 'a.py')
    assert '<script>' not in page
    assert '\x1b' not in page


def test_a_best_whose_interval_overlaps_another_one_is_not_sure():
    wide = Estimate(0.4, 0.1, 2.0, 3)
    sweep = make_sweep(
        make_sweep_row(0, 0.5), replace(make_sweep_row(1, 0.4), iter_s=wide)
    )
    chart = chart_speed(sweep)
    assert chart is not None
    assert '(not sure: intervals overlap)' in chart.description
    assert 'cut off by the axis' in chart.description
    words = words_of(render_sweep_page(sweep, 'a.py'))
    assert 'Not sure: its interval overlaps that of 0 workers, batch 4' in words
    sure = make_sweep(make_sweep_row(0, 0.5), make_sweep_row(1, 0.4))
    assert 'ot sure' not in words_of(render_sweep_page(sure, 'a.py'))
