from __future__ import annotations

import re
from html import unescape

import pytest

from fakes.replaced import replace
from fakes.reported import make_reported
from fakes.runs import make_evidence
from fakes.saves import (
    HOST,
    LOADER,
    make_aftermath,
    make_calm,
    make_contended,
    make_save,
)
from mmgpu_hooks.schema import Diagnosis, SaveRecord
from mmgpu_hooks.show.html.saves_section import render_saves
from mmgpu_hooks.show.pictures.all_charts import list_charts
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.slow_saves_chart import chart_slow_saves
from mmgpu_hooks.show.reported_run import ReportedRun

HOG = {'workers': 0, 'workers_cpu_s': 0.0, 'strangers_cpu_s': 8.0}


def run_with(*saves: SaveRecord) -> ReportedRun:
    evidence = make_evidence()
    return make_reported(
        replace(
            evidence,
            run=replace(evidence.run, host=HOST, loader=LOADER),
            save_records=saves,
            save_aftermaths=tuple(make_aftermath(save.iteration) for save in saves),
        )
    )


def chart_of(run: ReportedRun) -> Chart | NoChart:
    summary = run.answer.summary
    assert summary is not None
    return chart_slow_saves(summary, run.answer.diagnosis.saves)


def read_lines(run: ReportedRun) -> list[str]:
    """The section's text, one element a line."""
    text = unescape(re.sub(r'<[^>]+>', '\n', render_saves([run])))
    return [line for line in text.replace('\xa0', ' ').split('\n') if line]


def read_rows(run: ReportedRun, caption: str) -> list[list[str]]:
    """Cells of the table with this caption."""
    page = render_saves([run]).replace('\xa0', ' ')
    table = next(
        part
        for part in re.findall(r'<table>.*?</table>', page)
        if f'<caption>{caption}' in part
    )
    return [
        [unescape(cell) for cell in re.findall(r'<t[hd][^>]*>(.*?)</t[hd]>', row)]
        for row in re.findall(r'<tr>.*?</tr>', table)
    ]


def test_each_slow_save_has_its_cause_and_its_delays():
    run = run_with(
        *make_calm(3),
        make_contended(100, run_delay_s=2.0, workers_cpu_s=4.0),
        make_contended(110, run_delay_s=3.0, **HOG),
        make_save(120, blocked_s=1.5),
    )
    head, *rows = read_rows(run, 'The 3 of 3 slow save(s) that were held longest')
    assert head[3:] == [
        'took',
        'uncontended',
        'longer (gross)',
        'lost to the job (net)',
    ]
    assert rows == [
        [
            *('iter_110.pth', 'other programs had the cores', '110', '3.400 s'),
            *('0.400 s', '3.000 s', '3.000 s'),
        ],
        [
            *('iter_100.pth', 'loader workers had the cores', '100', '2.400 s'),
            *('0.400 s', '2.000 s', '2.000 s'),
        ],
        [
            *('iter_120.pth', 'blocked in the write to storage', '120', '1.900 s'),
            *('0.400 s', '1.500 s', '1.500 s'),
        ],
    ]
    lines = read_lines(run)
    for line in (
        '1 slow, loader workers had the cores: 2.000 s longer in all (gross), net '
        '2.000 s.',
        '1 slow, other programs had the cores: 3.000 s longer in all (gross), net '
        '3.000 s.',
    ):
        assert line in lines
    at = lines.index('What held each slow save, and what helps')
    assert [line.split(' took')[0] for line in lines[at + 1 : at + 4]] == [
        f'Saving iter_{n}.pth (200 MiB) at iteration {n}' for n in (110, 100, 120)
    ]


def test_a_bar_is_as_long_as_its_save_and_split_by_what_held_it():
    chart = chart_of(run_with(*make_calm(3), make_save(120, blocked_s=1.5)))
    assert isinstance(chart, Chart)
    assert chart.description == (
        '1 of 1 slow save(s): iter_120.pth 1.900 s (uncontended 0.400 s, storage '
        '1.500 s).'
    )


def test_what_no_cause_is_proven_for_is_shown_as_such():
    chart = chart_of(run_with(*make_calm(3), make_save(50, blocked_s=4.0, phases={})))
    assert isinstance(chart, Chart)
    assert '(uncontended 0.400 s, not proven 4.000 s)' in chart.description


def test_many_slow_saves_are_counted_and_the_worst_shown():
    slow = [
        make_contended(100 + n, run_delay_s=1.0 + n / 200, **HOG) for n in range(200)
    ]
    run = run_with(*make_calm(3), *slow)
    rows = read_rows(run, 'The 12 of 200 slow save(s)')
    assert [row[2] for row in rows[1:3]] == ['299', '298']
    assert len(rows) == 13
    assert '200 slow, other programs had the cores' in ' '.join(read_lines(run))
    assert len(render_saves([run])) < 100_000


@pytest.mark.parametrize(
    ('saves', 'reason'),
    [
        (make_calm(3), 'None of 3 save(s) was slow.'),
        (
            [*make_calm(2), make_save(90, error='OSError')],
            'None of 2 save(s) was slow; 1 could not be judged.',
        ),
        ([], 'No checkpoint was saved.'),
        ([make_save(90, error='OSError')], 'Cannot tell: Saving iter_90.pth'),
    ],
)
def test_without_a_slow_save_it_says_so(saves, reason):
    chart = chart_of(run_with(*saves))
    assert isinstance(chart, NoChart)
    assert chart.reason.startswith(reason)
    assert chart.reason in ' '.join(read_lines(run_with(*saves)))


def test_saves_that_were_not_judged_are_not_called_fine():
    run = run_with(*make_calm(3))
    diagnosis = Diagnosis(run.answer.diagnosis.verdict)
    unjudged = replace(run, answer=replace(run.answer, diagnosis=diagnosis))
    chart = chart_of(unjudged)
    assert isinstance(chart, NoChart)
    assert chart.reason == 'The 3 save(s) were not judged.'


def test_the_picture_is_among_those_for_papers():
    names = [name for name, _ in list_charts([run_with(*make_calm(3))], [None])]
    assert 'slow-saves-by-cause' in names
