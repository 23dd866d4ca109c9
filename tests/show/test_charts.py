from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_host_window, make_interval, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.show.charts import (
    Chart,
    chart_forecast,
    chart_growth,
    chart_timeline,
    draw,
)


def test_on_a_page_a_chart_has_its_own_ids_and_the_colours_of_the_page():
    chart = chart_timeline(Run(make_evidence()))
    assert chart is not None
    source = draw(Chart(quoted('"<b>'), chart.paint), 'c1')
    root = ET.fromstring(source)
    assert not [element for element in root.iter() if element.tag.endswith('script')]
    assert root.attrib['role'] == 'img'
    assert root.attrib['aria-label'] == '"<b>'
    ids = [element.attrib['id'] for element in root.iter() if 'id' in element.attrib]
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
    # the stall is cut off, and its height is written
    assert 'highest 25.0 s' in chart.description
    assert len(draw(chart, 'c1')) < 200_000
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
    full = re.search(r'full at iteration (\d+)', draw(chart, 'svg'))
    assert full is not None
    assert abs(int(full[1]) - (60 * 20 + 10_240)) < 100
    assert full[0] in chart.description
    assert chart_growth(Run(evidence)) is None


def test_predicted_iterations_have_a_band_and_both_settings_are_marked():
    points = [
        Prediction(workers, 2, 4, s, 0.9 * s, 1.1 * s, 0.0, 4 / s, 'step')
        for workers, s in ((0, 0.8), (1, 0.5), (2, 0.25))
    ]
    chart = chart_forecast(points, {0: quoted('now'), 2: quoted('new')}, 0.79)
    assert chart is not None
    said = (
        'An iteration against workers, ms: 0.250 s predicted with 2, 0.790 s measured'
    )
    assert chart.description.startswith(said)
    source = draw(chart, 'svg')
    for words in ('9 times in 10 within', 'this run, measured', 'recommended'):
        assert words in source
    assert 'var(--accent)' in source
    assert chart_forecast(points[:1], {0: quoted('now')}, 0.79) is None
