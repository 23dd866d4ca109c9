from __future__ import annotations

import statistics

import pytest

from mmgpu_hooks.model.stats import student_t


@pytest.mark.parametrize(
    ('share', 'degrees', 'quantile'),
    [
        # tables: Abramowitz and Stegun, 26.10
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 30, 2.042),
        (0.95, 4, 2.132),
        (0.995, 10, 3.169),
        (0.5, 3, 0.0),
    ],
)
def test_quantiles_are_those_of_the_tables(share, degrees, quantile):
    assert student_t(share, degrees) == pytest.approx(quantile, abs=6e-4)


def test_many_degrees_are_the_normal_distribution():
    normal = statistics.NormalDist().inv_cdf(0.975)
    assert student_t(0.975, 1e6) == pytest.approx(normal, abs=1e-5)


def test_degrees_need_not_be_whole():
    assert student_t(0.975, 2) > student_t(0.975, 2.5) > student_t(0.975, 3)


@pytest.mark.parametrize(('share', 'degrees'), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_what_has_no_quantile_is_refused(share, degrees):
    with pytest.raises(ValueError, match='expected a share from'):
        student_t(share, degrees)
