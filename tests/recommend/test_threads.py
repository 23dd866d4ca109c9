"""Threads of OpenCV in workers: when one each is written, and what is said else."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_loader, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.policy import pair_settings, recommend_settings
from mmgpu_hooks.schema.judged import THREADS_KEY

CPU_S, ITER_S = 0.8, 0.41


def make(opencv: int | None = 64, cores: float = 2.0, beside: float = 0.5) -> Run:
    """Four workers of ten threads that use all of two cores."""
    window = replace(
        make_inside_workers(4 * ITER_S, count=4),
        cpu_s=20 * CPU_S,
        run_delay_s=20 * 0.6,
        thread_cpu_s=20 * beside * CPU_S,
        fetch_cpu_s=CPU_S,
        opencv_threads=opencv,
    )
    window = replace(window, batch_cpu=replace(window.batch_cpu, mean_s=CPU_S))
    host = replace(make_run().host, logical_cpus=2, usable_cores=cores)
    run = make_run(loader=make_loader(4), host=host)
    fields = {'workers': window, 'worker_threads': 10, 'process_cpu_s': 0.2}
    return Run(make_evidence(run=run, data_wait_s=ITER_S - 0.01, step_s=0.01, **fields))


def test_one_thread_each_is_written_where_that_gains_for_sure():
    run = make()
    found = recommend_settings(run)
    change = found.changes[0]
    assert (change.key, change.old, change.new) == (THREADS_KEY, 64, 0)
    assert change.rules == ('MG115',)
    assert 0 < change.predicted_gain_low_pct < change.predicted_gain_pct
    assert change.predicted_iter_s < run.iter_s
    assert [one[THREADS_KEY] for one in pair_settings(run, found)] == [64, 0]


@pytest.mark.parametrize(
    'fields',
    [{'opencv': 1}, {'opencv': None}, {'cores': 64.0}, {'beside': 0.05}],
    ids=['not of OpenCV', 'no OpenCV', 'cores enough', 'idle threads'],
)
def test_threads_stay_where_they_are_not_what_takes_the_cores(fields):
    found = recommend_settings(make(**fields))
    assert THREADS_KEY not in {change.key for change in found.changes}


def test_threads_of_others_than_opencv_are_advice():
    assert 'OMP_NUM_THREADS=1' in recommend_settings(make(opencv=1)).advice[0]


def test_a_gain_that_may_be_none_is_advice():
    found = recommend_settings(make(opencv=8))
    assert THREADS_KEY not in {change.key for change in found.changes}
    assert 'opencv_num_threads 8 -> 0 would save' in found.advice[0]
    assert 'too unsure to be written' in found.advice[0]
