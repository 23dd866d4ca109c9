from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.modeling.prediction import predict_setting
from mmgpu_hooks.modeling.scene import at_batch_size
from mmgpu_hooks.schema import BatchLine, Cost, LoaderWorkload, Prediction

LINE = BatchLine(constant_s=0.005, image_s=0.0025)


def predict(workload: LoaderWorkload, workers: int, **fields) -> Prediction:
    found = predict_setting(workload, workers, **fields)
    assert isinstance(found, Prediction)
    return found


def width(one: Prediction) -> float:
    return one.iter_time_high_s / one.iter_time_s


def test_a_setting_that_was_trained_is_predicted_as_it_was():
    # the run with 1 worker saw loading take a tenth longer than the one with 4
    few = make_workload(num_workers=1, occupancy=Cost(0.044, 0.0, 0.0001, 100))
    many = make_workload(num_workers=2, occupancy=Cost(0.040, 0.0, 0.0001, 100))
    together = replace(few, others=(many,))
    alone_s = predict(few, 1).iter_time_s
    assert predict(together, 1).iter_time_s == pytest.approx(alone_s, rel=0.02)
    alone_s = predict(many, 2).iter_time_s
    assert predict(together, 2).iter_time_s == pytest.approx(alone_s, rel=0.02)
    # and one that neither had lies between
    between_s = predict(together, 3).iter_time_s
    apart = sorted(predict(one, 3).iter_time_s for one in (few, many))
    assert apart[0] <= between_s <= apart[1]


def test_the_newest_run_alone_speaks_of_its_own_setting():
    newest = make_workload(step=Cost(0.06, 0.0, 0.0001, 100))
    older = make_workload(step=Cost(0.065, 0.0, 0.0001, 100))
    together = replace(newest, others=(older,))
    assert predict(together, 2).iter_time_s == predict(newest, 2).iter_time_s
    assert predict(together, 3).iter_time_s > predict(newest, 3).iter_time_s


def test_a_second_number_of_workers_makes_it_surer():
    few, many = make_workload(num_workers=1), make_workload(num_workers=4)
    alone, together = predict(few, 4), predict(replace(few, others=(many,)), 4)
    assert width(together) < width(alone)
    assert together.iter_time_s == pytest.approx(alone.iter_time_s)
    # a run without workers does not blur what one with workers knows
    blind = make_workload(num_workers=0, is_handover_known=False)
    assert width(predict(replace(blind, others=(many,)), 2)) < width(predict(blind, 2))


def test_runs_that_disagree_make_it_less_sure():
    one = make_workload(step=Cost(0.06, 0.0, 0.0001, 100))
    slower = make_workload(step=Cost(0.09, 0.0, 0.0001, 100))
    alone, together = predict(one, 2), predict(replace(one, others=(slower,)), 2)
    assert width(together) > 1.3 > width(alone)
    assert together.iter_time_low_s < alone.iter_time_s < together.iter_time_high_s


def test_the_wall_is_that_of_the_run_that_knows_best():
    bound = make_workload(num_workers=4, step=Cost(0.06, 0.0, 0.0001, 100))
    fed = make_workload(num_workers=1)
    assert predict(replace(fed, others=(bound,)), 4).limit == 'step'
    assert predict(replace(bound, others=(fed,)), 1).limit == 'workers'


def test_a_batch_size_that_was_trained_is_predicted_as_it_was():
    small = make_workload(num_workers=4, step_line=LINE)
    trained = make_workload(
        num_workers=4,
        batch_size=8,
        step_line=LINE,
        occupancy=Cost(0.088, 0.0, 0.0001, 100),
        batch_cpu=Cost(0.044, 0.0, 0.0001, 100),
        step=Cost(0.027, 0.0, 0.0001, 100),
    )
    scaled = at_batch_size(trained, 4)
    assert scaled is not None
    assert scaled.measured_batch_size == 8
    # there and back again
    back = at_batch_size(scaled, 8)
    assert back is not None
    assert back.measured_batch_size is None
    assert back.step.mean_s == pytest.approx(0.027)
    together = replace(small, others=(scaled,))
    found = predict(together, 4, batch_size=8)
    alone = predict(trained, 4)
    assert found.iter_time_s == pytest.approx(alone.iter_time_s, rel=0.02)
    assert found.batch_size == 8
    assert width(found) < width(predict(small, 4, batch_size=8))


def test_the_further_a_batch_size_is_the_less_sure():
    workload = make_workload(num_workers=4, step_line=LINE)
    widths = [width(predict(workload, 4, batch_size=size)) for size in (4, 8, 16)]
    assert widths[0] < widths[1] < widths[2]
    # and as far as the line itself is not known
    vague = replace(workload, step_line=replace(LINE, image_error_s=0.001))
    assert width(predict(vague, 4, batch_size=16)) > widths[2]
