from __future__ import annotations

from fakes.replaced import replace
from fakes.runs import make_evidence
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.demo_comparison import render_comparison


def test_two_runs_are_compared_over_the_whole_training():
    before = Run(make_evidence(data_wait_s=0.2, step_s=0.2))
    after = Run(make_evidence(data_wait_s=0.05, step_s=0.2))
    text = render_comparison(before, after)
    assert 'Measured: 10.00 -> 16.00 images/s, 1.60 times as fast' in text
    assert 'data wait, mean' in text


def test_a_run_that_cannot_be_compared_says_so():
    before = Run(make_evidence())
    loader = replace(before.run.loader, batch_size=None)
    after = before.altered(run=replace(before.run, loader=loader))
    text = render_comparison(before, after)
    assert 'The gain is unknown' in text
    assert 'unknown' in text
