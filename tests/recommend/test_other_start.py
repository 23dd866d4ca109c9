"""Tests the predictions for starting a run with more cores."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_run
from fakes.validations import make_validation
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation import find_loops
from mmgpu_hooks.recommend.other_start import expect_cores, with_cores
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.recorded import HostLimits

HAD = HostLimits(logical_cpus=8, affinity_cpus=2, usable_cores=2.0)
STARVED: dict[str, Any] = {
    'workers': make_inside_workers(0.4),
    'data_wait_s': 0.1,
    'step_s': 0.1,
    'process_cpu_s': 20 * 0.03,
}


def test_costs_are_fitted_to_the_cores_that_the_run_had():
    run = Run(make_evidence(run=make_run(host=HAD), **STARVED))
    other = with_cores(run, 8.0)
    expected = replace(run.workload, usable_cores=8.0, host_cores=8.0)
    assert other.workload == expected
    # fitted anew from its evidence, it is the same
    assert Run(other.evidence).workload == expected
    assert (other.cores_had, other.meta.host.usable_cores) == (2.0, 8.0)


def test_validation_is_fitted_to_them_too():
    evidence = make_evidence(run=make_run(host=HAD), **STARVED)
    run = Run(replace(evidence, validations=(make_validation(0), make_validation(1))))
    before, after = map(find_loops, (run, with_cores(run, 8.0)))
    assert before is not None and after is not None
    assert (before.cores_had, after.cores_had) == (2.0, 2.0)
    assert after.workload == replace(before.workload, usable_cores=8.0)


@pytest.mark.parametrize(
    ('ranks', 'cores', 'said'),
    [
        (1, 2.0, None),
        (1, 8.0, None),
        (4, 2.0, None),
        (1, 1.5, 'at least the 2 usable cores'),
        (1, 8.5, 'at most the 8 CPUs of the host, found 8.5'),
        (4, 2.5, 'at most the 8 CPUs of the host for 4 ranks, found 2.5'),
    ],
)
def test_cores_that_the_host_cannot_give_each_rank_are_refused(ranks, cores, said):
    run = Run(make_evidence(run=make_run(host=replace(HAD, ranks_on_host=ranks))))
    if said is None:
        expect_cores(run, cores)
        return
    with pytest.raises(UserError, match=said):
        expect_cores(run, cores)
