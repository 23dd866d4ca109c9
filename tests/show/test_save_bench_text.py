from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from fakes.save_bench import make_bench, make_row
from mmgpu_hooks.experiment.save_bench import plan_saves
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.chart import NoChart
from mmgpu_hooks.show.pictures.save_bench_chart import chart_save_bench
from mmgpu_hooks.show.pictures.shapes import Box
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.save_bench_text import (
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

TEXT = """\
From 8 workers on, saves are harmed: 2.000 s instead of 0.400 s beside 0
workers.
Training stood still 1.600 s (+400 %) longer for each (gross); the workers went
on meanwhile, so the job lost 1.100 s (net). 6 of 6 were slow: loader workers
had the cores.
With worker_nice=10, a save beside 8 workers took 0.450 s instead of 2.000 s.

          save    on a wants a blocked workers    data gross  net
workers      s core, s core, s       s    busy wait, s     s    s
0         0.40    0.40    0.00    0.00     0.0    0.05     -    - reference
2         0.42    0.40    0.02    0.00     2.0    0.05  0.02 0.02 harmless
8         2.00    0.40    1.60    0.00     8.0    0.05  1.60 1.10 harmful
32           -       -       -       -       -       -     -    - out of memory
8 nice 10 0.45    0.40    0.05    0.00     8.0    0.05  0.05 0.05 harmless

Medians of 6 saves of 200 MiB, the first of each training left out. Gross is how
much longer than the reference, net what the job lost of that; data wait is per
iteration. 5 training(s) in random order, 95.0 s in all.

Notes
  -  32 workers: out of memory (MemoryError: no room), 0 save(s) measured until
     then."""


def squeeze(text: str) -> list[str]:
    return [' '.join(line.split()) for line in text.splitlines()]


def test_the_answer_comes_first_then_the_table():
    assert render_save_bench(HARMED, width=80) == TEXT


def first_line(*rows, **options) -> str:
    return render_save_bench(make_bench(*rows, **options), width=200).splitlines()[0]


def test_where_none_was_harmful_the_longest_is_told():
    line = first_line(make_row(0, 0.4), make_row(2, 0.39), make_row(8, 0.45))
    assert line == (
        'None was harmful: the longest saves, beside 8 workers, took 0.450 s, those '
        'beside 0 workers 0.400 s.'
    )


def test_what_could_not_be_judged_is_not_declared_harmless():
    rows = make_row(0, 0.4), make_row(2, 0.39), make_row(8, 2.0, cause='strangers')
    text = render_save_bench(make_bench(*rows), width=200)
    assert text.startswith('No number of workers that could be judged was harmful')
    assert '8 workers: other programs held these saves up.' in text
    assert 'cannot tell' in text


def test_one_setting_has_nothing_to_be_set_against():
    line = first_line(make_row(8, 0.9))
    assert line.startswith('Saves beside 8 workers took 0.900 s; there is nothing to')


def test_too_few_saves_are_said_to_be():
    assert first_line(make_row(8, 0.9, noise=(1.0,))).startswith('Cannot tell which')


def test_a_stopped_experiment_says_what_there_is():
    bench = make_bench(make_row(0, 0.4), make_row(8, 2.0), interrupted=True)
    first, second, *_ = render_save_bench(bench).splitlines()
    assert first == 'Stopped when 2 of 3 settings were trained.'
    assert second.startswith('From 8 workers on')
    assert first_line(interrupted=True) == 'Stopped when 0 of 1 settings were trained.'


def test_an_unknown_net_is_no_zero():
    text = render_save_bench(make_bench(make_row(0, 0.4), make_row(8, 2, won_s=None)))
    assert 'what the job lost (net) is not known.' in ' '.join(text.split())
    assert any(line.endswith('1.60 - harmful') for line in squeeze(text))


def test_short_saves_get_another_digit_and_zeros_no_sign():
    text = render_save_bench(make_bench(make_row(0, 0.5), make_row(2, 0.4999)))
    assert '0       0.500 ' in text
    assert '-0.000' not in text
    assert '0.000' in text


def test_the_answer_as_json():
    body = json.loads(render_save_bench_json(HARMED, 'a.py'))
    assert (body['version'], body['config'], body['harmful_workers']) == (1, 'a.py', 8)
    assert body['reference'] == {'num_workers': 0, 'worker_nice': None}
    row = body['rows'][2]
    assert row['setting']['num_workers'] == 8
    assert row['gross_s'] == pytest.approx(1.6)
    assert len(row['saves']) == 6
    assert body['rows'][3]['save_s'] is None


def test_a_plan_says_what_and_how_long():
    plans = plan_saves([0, 8], saves=6, prefetch_factor=2, worker_nice=10)
    text = render_save_plan(
        plans, time_limit_s=600, checkpoint_bytes=80 * 2**20, folder='work_dirs'
    )
    lines = squeeze(text)
    assert lines[2:6] == [
        'saves iterations between iterations in all',
        '0 workers 7 8 56',
        '8 workers 7 24 184',
        '8 workers, nice 10 7 24 184',
    ]
    rest = ' '.join(lines[6:])
    assert '424 iterations and 3 starts, at most 30.0 min' in rest
    assert 'Checkpoints of about 80 MiB' in rest
    assert 'Nothing was trained.' in rest


def test_the_picture_has_a_bar_a_setting_as_long_as_its_save():
    picture = chart_save_bench(HARMED).draw(WIDTHS['wide'])
    ET.fromstring(render_svg(picture))
    boxes = [shape for shape in picture.shapes if isinstance(shape, Box) and shape.tip]
    lengths: dict[str, float] = {}
    for box in boxes:
        name = box.tip.partition(':')[0]
        lengths[name] = lengths.get(name, 0.0) + box.width
    assert list(lengths) == [
        '0 workers',
        '2 workers',
        '8 workers',
        '8 workers, nice 10',
    ]
    assert lengths['8 workers'] / lengths['0 workers'] == pytest.approx(5, rel=0.02)


def test_without_a_save_there_is_no_picture():
    assert isinstance(chart_save_bench(make_bench(make_row(0, None))), NoChart)
