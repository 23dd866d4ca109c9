from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import pytest

from benchmarks import predict_judge
from benchmarks.predict_judge import Case, Trial, judge_trials, quantile
from benchmarks.predict_pipelines import BLOCK, SEEN, draw_factors, draw_unseen
from fakes.workloads import make_workload
from mmgpu_hooks.schema import LoaderWorkload


def test_planted_costs_come_up_to_their_mean_in_every_block():
    factors = list(itertools.islice(draw_factors(1.0, seed=1), 2 * BLOCK))
    first, second = factors[:BLOCK], factors[BLOCK:]
    assert statistics.fmean(first) == pytest.approx(1.0)
    assert first != second
    assert sorted(first) == pytest.approx(sorted(second))
    # the far tail is beyond 64 quantiles
    assert 0.8 < statistics.pstdev(first) < 1.0


def test_the_unseen_pipelines_are_the_same_each_time():
    drawn = draw_unseen()
    assert drawn == draw_unseen()
    assert len(drawn) == 8
    assert all(pipeline.is_unseen for pipeline in drawn)
    names = [pipeline.name for pipeline in (*SEEN, *drawn)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ('predicted_s', 'error', 'is_covered'),
    [(0.11, 0.1, True), (0.1, 0.0, True), (0.2, 1.0, False)],
)
def test_a_case_is_judged_against_what_was_measured(predicted_s, error, is_covered):
    case = Case(
        pipeline=SEEN[0],
        run=(1, 2),
        setting=(2, 2),
        measured_s=0.1,
        predicted_s=predicted_s,
        low_s=0.9 * predicted_s,
        high_s=1.1 * predicted_s,
        bound_s=0.08,
        limit='step',
    )
    assert case.error == pytest.approx(error)
    assert case.bound_error == pytest.approx(-0.2)
    assert case.is_covered is is_covered


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """Three trainings of a pipeline and one of another, of other workers each."""

    def fit(workers: int) -> LoaderWorkload:
        return make_workload(num_workers=workers)

    monkeypatch.setattr(predict_judge, 'fit_workload', fit)
    drawn = [(SEEN[0], 1), (SEEN[0], 2), (SEEN[0], 4), (SEEN[1], 2)]
    # in place of the summary, what is fitted from it
    return [Trial(pipeline, n, 2, 0.1 * n, n, 0.0) for pipeline, n in drawn]


def settings_of(cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Workers of the training that was predicted from, and of the one predicted."""
    return sorted((case.run[0], case.setting[0]) for case in cases)


def test_each_training_predicts_all_others_of_its_pipeline(trials):
    cases, refused = judge_trials(trials)
    assert refused == []
    assert settings_of(cases) == [(1, 2), (1, 4), (2, 1), (2, 4), (4, 1), (4, 2)]
    assert {case.pipeline for case in cases} == {SEEN[0]}
    assert all(case.measured_s == 0.1 * case.setting[0] for case in cases)


def test_quantiles_are_interpolated():
    assert quantile([1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.9) == pytest.approx(0.9)
    assert quantile([5.0], 0.9) == 5.0
