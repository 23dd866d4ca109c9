"""Tests the search for settings on random runs: choices, and rules that they obey."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.changed import changed
from fakes.drawn import draw_run
from fakes.workloads import make_workload
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import JobPlan, LoaderSetting
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import Cost, Workload
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.settings import SETTINGS

EXPECTED = json.loads((Path(__file__).parent / 'drawn_changes.json').read_text())
"""Setting changes that must be recommended, by seed of the random run."""
USUAL = 40
"""Number of seeds that every test run uses."""


@pytest.mark.parametrize(
    'seed',
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= USUAL else [])
        for seed in range(len(EXPECTED))
    ],
)
def test_drawn_runs_get_the_expected_settings_which_the_host_carries(seed: int) -> None:
    run = Run(draw_run(seed))
    found = recommend_settings(run)
    assert changed(found) == EXPECTED[seed]
    if run.workload is None or run.is_stalled or not found.changes:
        return
    job = Job.of(run, run.workload, SETTINGS)
    new = {setting.name: setting.read(run) for setting in SETTINGS}
    new.update((change.key.rpartition('.')[2], change.new) for change in found.changes)
    # what PyTorch refuses without workers is at rest, and the host carries the rest
    assert job.settle(new) == new
    if 'num_workers' in changed(found):
        assert new['num_workers'] <= job.cap(new).workers


LIGHT = make_workload(
    step=Cost(0.02),
    step_cpu_s=0.02,
    batch_time=Cost(0.004),
    batch_cpu=Cost(0.004),
    usable_cores=2.0,
    host_cores=2.0,
)
"""Workload whose workers do little per batch: 4 ms of CPU time, for a 20 ms step."""


@pytest.mark.parametrize('workload', [LIGHT, make_workload()], ids=['light', 'usual'])
def test_no_setting_saves_more_than_the_most(workload: Workload) -> None:
    plan = JobPlan(100, 2)
    now = Prospect(workload, LoaderSetting(2, 2, True), plan)
    for workers in (0, 1, 3, 4, 8):
        then = Prospect(workload, LoaderSetting(workers, 2, workers > 0), plan)
        assert 1.0 - then.total_s / now.total_s <= now.most_gain + 0.005
