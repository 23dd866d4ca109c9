from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_host_window, make_interval, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.charts import Chart, Panel, Series, draw
from mmgpu_hooks.show.run_charts import chart_growth, chart_timeline

EVIL = '</svg><script>"\'&$x$\x00\x1b\u202e\ud800'
BAR = Chart(EVIL, EVIL, [(EVIL, 'step', 1.0), ('b', 'hooks', 0.5)])
LINES = Chart(
    EVIL,
    EVIL,
    x=[0.0, 1.0, 2.0],
    x_title=EVIL,
    marks=[(0.5, 'save'), (1.0, 'validation'), (1.5, 'epoch')],
    panels=[
        Panel(EVIL, [Series(EVIL, [1.0, math.nan, 3.0], 'step', [0, 0, 0], [2, 2, 4])]),
        Panel('b', [Series('b', [math.nan] * 3, 'gpu', style='dashed')]),
    ],
)


@pytest.mark.parametrize('chart', [BAR, LINES])
def test_on_a_page_a_chart_has_its_own_ids_and_the_colours_of_the_page(chart):
    source = draw(chart, 'c1')
    root = ET.fromstring(source)
    assert not [one for one in root.iter() if one.tag.endswith('script')]
    assert root.attrib['role'] == 'img'
    ids = [one.attrib['id'] for one in root.iter() if 'id' in one.attrib]
    assert len(set(ids)) == len(ids)
    assert all(name.startswith('c1-') for name in ids)
    assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', source)) <= set(ids)
    assert 'var(--step)' in source
    assert not set(re.findall('#[0-9a-f]{6}', source))


def test_a_long_run_is_merged_and_loses_no_extreme():
    evidence = make_evidence(2000)
    stall = replace(
        evidence.intervals[700],
        data_wait=replace(evidence.intervals[700].data_wait, total_s=500.0),
    )
    intervals = (*evidence.intervals[:700], stall, *evidence.intervals[701:])
    chart = chart_timeline(Run(replace(evidence, intervals=intervals)))
    assert chart is not None
    (wait,) = chart.panels[0].series
    assert len(chart.x) == len(wait.values) == len(wait.high) <= 401
    # the stall is cut off, and its height is written
    assert 'highest 25.0 s' in chart.panels[0].title
    factor = 1000 if ', ms' in chart.panels[0].title else 1
    assert max(value or 0 for value in wait.high) == pytest.approx(25.0 * factor)
    assert chart.panels[0].top < 25.0 * factor
    assert chart_timeline(Run(make_evidence(0))) is None


def test_memory_that_grows_is_drawn_up_to_where_it_is_full():
    host = make_host_window(ram_available_bytes=GIB)
    run = make_run(max_epochs=1000, max_iters=100_000)
    evidence = make_evidence(60, run=run)
    intervals = [
        make_interval(n, process_own_bytes=GIB + n * 2**21, host=host)
        for n in range(60)
    ]
    chart = chart_growth(Run(replace(evidence, intervals=tuple(intervals))))
    assert chart is not None
    # 2 MiB each 20 iterations, 1 GiB free
    assert chart.x[-1] == pytest.approx(60 * 20 + 10_240, rel=0.01)
    forecast = chart.panels[0].series[1].values
    assert forecast[-1] - forecast[-2] == pytest.approx(1.0, rel=0.01)
    assert 'full at iteration' in draw(chart, 'svg')
    assert chart_growth(Run(evidence)) is None
