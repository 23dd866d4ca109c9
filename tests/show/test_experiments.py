from __future__ import annotations

import pytest

from fakes.experiments import HARMED, SWEPT, VERIFIED
from fakes.replaced import replace
from fakes.save_bench import make_bench, make_row
from fakes.sweeps import make_sweep
from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.show.experiments import (
    describe_save_bench,
    describe_sweep,
    describe_verify,
)
from mmgpu_hooks.show.terminal import render


def lines_of(sections) -> list[str]:
    lines = render(sections).splitlines()
    assert max(map(len, lines)) <= 80
    return [' '.join(line.split()) for line in lines]


def words_of(sections) -> str:
    return ' '.join(lines_of(sections))


def test_a_sweep_answers_first_and_has_a_line_a_trial():
    lines = lines_of(describe_sweep(SWEPT))
    assert lines[0].startswith('Fastest that this host carries: 2 workers, batch 4')
    for line in (
        'workers batch iteration % wait /s memory cores',
        '0 4 0.800 s 2.0 0.160 s 5.0 800 MiB 1.5',
        '2 4 0.500 s 2.0 0.100 s 8.0 800 MiB 1.5 best',
        '4 4 0.400 s 2.0 80.0 ms 10.0 800 MiB 1.5 beyond the host',
        '8 4 - - - - - - out of memory',
    ):
        assert line in lines
    words = ' '.join(lines)
    assert 'MemoryError: no room' in words
    lines = lines_of(describe_sweep(make_sweep(row(1), row(2, 0.4, gpu_util_pct=61.6))))
    assert '2 4 0.400 s 2.0 80.0 ms 10.0 62 800 MiB 1.5 best' in lines


@pytest.mark.parametrize(
    ('sweep', 'words'),
    [
        (make_sweep(row(0, 0.8), asked=3, is_interrupted=True), '1 of 3 settings'),
        (make_sweep(is_interrupted=True, asked=3), '0 of 3 settings'),
        (make_sweep(row(0, None)), 'No setting can be recommended'),
        (make_sweep(row(0, 0.1, batch=1), row(0, 0.4, batch=8)), 'choose it first'),
        (make_sweep(row(0, status='timed_out', error='9 s')), 'timed out (9 s)'),
        (make_sweep(row(0, None, status='completed', error=None)), 'too short'),
        (make_sweep(row(0, external_cpu_cores=1.25)), '1.2 cores of the host'),
        (make_sweep(row(0), notes=('Something else.',)), '- Something else.'),
    ],
)
def test_a_sweep_says_what_was_not_measured_or_was_disturbed(sweep, words):
    assert words in words_of(describe_sweep(sweep))


def test_a_bench_of_saves_answers_first_and_has_a_line_a_setting():
    lines = lines_of(describe_save_bench(HARMED))
    assert lines[0].startswith('From 8 workers on, saves are harmed: 2.000 s')
    for line in (
        '0 6 0.400 s 0.400 s 0.0 ms 0.0 ms - - reference',
        '8 6 2.000 s 0.400 s 1.600 s 0.0 ms +1.600 s +1.100 s harmful',
        '32 0 - - - - - - out of memory',
    ):
        assert line in lines
    words = ' '.join(lines)
    assert '1.600 s longer for each (gross), and the job lost 1.100 s (net)' in words
    assert 'MemoryError: no room' in words
    unknown = make_bench(make_row(0, 0.4), make_row(8, 2, won_s=None))
    assert '+1.600 s harmful' in words_of(describe_save_bench(unknown))


@pytest.mark.parametrize(
    ('rows', 'words'),
    [
        (
            [make_row(0, 0.4), make_row(2, 0.39), make_row(8, 0.45)],
            'No number of workers is known to be harmful: saves took 0.400 s',
        ),
        ([make_row(8, 0.9)], 'Cannot tell which'),
        ([make_row(8, 0.9, noise=(1.0,))], 'Cannot tell which'),
    ],
    ids=['harmless', 'alone', 'alone, and noisy'],
)
def test_a_save_bench_says_which_numbers_of_workers_are_harmful(rows, words):
    assert words_of(describe_save_bench(make_bench(*rows))).startswith(words)
    bench = make_bench(*rows, interrupted=True)
    assert words_of(describe_save_bench(bench)).startswith('Stopped when ')


def test_the_measured_gain_stands_beside_the_predicted_one():
    lines = lines_of(describe_verify(VERIFIED))
    assert '+50.0 % (+45.0 to +55.0 %) images/s' in lines[0]
    assert '+52.0 %, inside' in lines[1]
    assert lines[2] == 'Time per iteration: -33.3 % (-35.5 to -31.0 %).'
    assert lines[4:10] == [
        'first second',
        'num_workers 0 4',
        'persistent_workers - True',
        'iteration, mean 0.300 s 0.200 s',
        'images/s 10.0 15.0',
        'an epoch start adds unknown unknown',
    ]
    assert '8 pairs' in lines[11]
    assert 'the second setting is faster' in lines[0]
    assert '0.3 cores' in ' '.join(lines)


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        ({'gain': Estimate(-0.2, -0.3, -0.1, 6)}, ['slower', 'outside']),
        ({'gain': Estimate(0.01, -0.01, 0.03, 6)}, ['no difference', 'outside']),
        # 0.6 s per iteration, starts included, against 0.199 s
        ({'before_start_s': 3.0, 'after_start_s': -0.01}, ['+201.5 %', '-10.0 ms']),
    ],
)
def test_a_loss_a_draw_and_starts_of_epochs_are_said(fields, words):
    answer = replace(VERIFIED, **fields, batches_per_epoch=10)
    text = words_of(describe_verify(answer))
    assert [word for word in words if word not in text] == []


OTHERS = {f'model.head.{n}': n for n in range(40)}


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        ({'after_config': 'b.py'}, ['second config is faster', 'first a.py', 'b.py']),
        ({'other_work': ('model',)}, ['Not the same work: model differs.']),
        (
            {'other_work': ('model', 'data set', 'batch size')},
            ['model, data set and batch size differ.'],
        ),
        ({'before': {}, 'after': {}}, ['Nothing differs between both']),
        (
            {'before': {}, 'after': OTHERS},
            ['model.head.11 - 11', '28 more settings differ; --format json lists'],
        ),
        (
            {'untrained': ('val_dataloader.num_workers', 'work_dir', 'a', 'b')},
            ['val_dataloader.num_workers, work_dir, a and 1 more.'],
        ),
        ({'after_images_per_s': None}, ['iterations/s', 'images/s 10.0 -']),
        (
            {'after_batches_per_epoch': 5, 'before_start_s': 3.0, 'after_start_s': 1.0},
            # 0.6 s per iteration of ten, against 0.4 s of five
            ['Over epochs of 10 and 5 iterations', '+50.0 %'],
        ),
    ],
)
def test_a_verification_says_what_differs_between_two_configs(fields, words):
    answer = replace(VERIFIED, batches_per_epoch=10, **fields)
    text = words_of(describe_verify(answer))
    assert [word for word in words if word not in text] == []


def test_long_keys_and_values_leave_the_table_whole():
    key = 'train_dataloader.dataset.datasets.0.pipeline.3.transforms.1.prob'
    answer = replace(VERIFIED, before={key: 'x' * 300}, after={'a': '[' * 90})
    lines = lines_of(describe_verify(answer))
    assert any(line.startswith('...') and 'xxx...' in line for line in lines)
