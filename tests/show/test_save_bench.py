from __future__ import annotations

import json

import pytest

from fakes.save_bench import make_bench, make_row
from mmgpu_hooks.experiment.save_bench import plan_saves
from mmgpu_hooks.show.save_bench import (
    render_save_bench,
    render_save_bench_json,
    render_save_plan,
)

HARMED = make_bench(
    make_row(0, 0.4),
    make_row(2, 0.42),
    make_row(8, 2.0, cause='workers', won_s=0.5),
    make_row(32, None, status='out_of_memory', error='MemoryError: no room'),
    make_row(8, 0.45, nice=10),
)


def lines_of(text: str) -> list[str]:
    return [' '.join(line.split()) for line in text.splitlines()]


def test_the_answer_comes_first_then_the_table():
    text = render_save_bench(HARMED)
    lines = lines_of(text)
    assert lines[0].startswith('From 8 workers on, saves are harmed: 2.000 s')
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        '0 0.400 s 0.400 s 0.0 ms 0.0 ms 50.0 ms - - reference',
        '8 2.000 s 0.400 s 1.600 s 0.0 ms 50.0 ms +1.600 s +1.100 s harmful',
        '32 - - - - - - - out of',
    ):
        assert line in lines
    words = ' '.join(lines)
    assert '1.600 s longer for each (gross), and the job lost 1.100 s (net)' in words
    assert 'MemoryError: no room' in words
    unknown = make_bench(make_row(0, 0.4), make_row(8, 2, won_s=None))
    assert '+1.600 s harmful' in ' '.join(render_save_bench(unknown).split())


@pytest.mark.parametrize(
    ('rows', 'words'),
    [
        (
            [make_row(0, 0.4), make_row(2, 0.39), make_row(8, 0.45)],
            'None was harmful: the longest saves, beside 8 workers, took 0.450 s',
        ),
        (
            [make_row(0, 0.4), make_row(2, 0.39), make_row(8, 2.0, cause='strangers')],
            'No number of workers that could be judged was harmful',
        ),
        ([make_row(8, 0.9)], 'Saves took 0.900 s beside 8 workers; there is nothing'),
        ([make_row(8, 0.9, noise=(1.0,))], 'Cannot tell which'),
    ],
)
def test_the_answer_says_what_is_known(rows, words):
    assert ' '.join(render_save_bench(make_bench(*rows)).split()).startswith(words)


def test_a_stopped_experiment_says_what_there_is():
    bench = make_bench(make_row(0, 0.4), make_row(8, 2.0), interrupted=True)
    assert render_save_bench(bench).startswith('Stopped when 2 of 3 settings')


def test_the_answer_as_json():
    body = json.loads(render_save_bench_json(HARMED, 'a.py'))
    assert (body['version'], body['config'], body['harmful_workers']) == (1, 'a.py', 8)
    assert body['reference'] == {'num_workers': 0, 'worker_nice': None}
    row = body['rows'][2]
    assert row['gross_s'] == pytest.approx(1.6)
    assert len(row['saves']) == 6
    assert body['rows'][3]['save_s'] is None


def test_a_plan_says_what_and_how_long():
    plans = plan_saves([0, 8], saves=6, prefetch_factor=2, worker_nice=10)
    text = render_save_plan(
        plans, time_limit_s=600, checkpoint_bytes=80 * 2**20, folder='work_dirs'
    )
    lines = lines_of(text)
    assert {'0 workers 7 8 56', '8 workers, nice 10 7 24 184'} <= set(lines)
    rest = ' '.join(lines)
    assert '424 iterations and 3 starts, at most 30.0 min' in rest
    assert 'about 80 MiB' in rest
