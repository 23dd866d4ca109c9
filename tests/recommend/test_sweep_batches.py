from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.swept_batches import EACH, GIB, STATIC, WORKSPACE, make_full, make_trial
from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.recommend.sweep_batches import (
    BatchSizes,
    PrecisionRow,
    compare_precisions,
    fold_batch_sizes,
)
from mmgpu_hooks.schema import MemoryFit, SweepRow


def fold_one(*rows: SweepRow) -> BatchSizes:
    (group,) = fold_batch_sizes(rows)
    return group


def fit_of(group: BatchSizes) -> MemoryFit:
    assert isinstance(group.memory, MemoryFit)
    return group.memory


def mixed(row: SweepRow, **fields: object) -> SweepRow:
    return replace(row, setting=replace(row.setting, amp=True), **fields)


def full(row: SweepRow, **fields: object) -> SweepRow:
    return replace(row, setting=replace(row.setting, amp=False), **fields)


def test_the_planted_line_is_found():
    group = fold_one(
        *(make_trial(batch, workers=w) for batch in (1, 3, 8) for w in (0, 2))
    )
    fit = fit_of(group)
    assert fit.fixed_bytes == pytest.approx(STATIC + WORKSPACE, rel=1e-6)
    assert fit.image_bytes == pytest.approx(EACH, rel=1e-6)
    assert fit.workspace_bytes == pytest.approx(WORKSPACE, rel=1e-5)
    assert [row.fit_error_pct for row in group.rules] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    # 3 and 8 times the 3.5 GiB of one image, of 7.5 and 17.5 GiB
    assert [row.proportional_error_pct for row in group.rules] == [
        None,
        pytest.approx(40),
        pytest.approx(60),
    ]
    assert group.source == 'cuda_allocator'
    assert group.card == CardRoom(24 * GIB, GIB // 2)


def test_the_knee_is_the_smallest_of_those_as_fast():
    rows = [make_trial(1, 0.1), make_trial(4, 0.2), make_trial(8, 0.395)]
    group = fold_one(*rows, make_trial(4, 0.4, workers=0))
    assert group.images_per_s == {1: 10.0, 4: 20.0, 8: pytest.approx(20.25, abs=0.01)}
    assert group.knee == 4


def test_what_the_host_does_not_carry_is_not_the_fastest():
    group = fold_one(
        make_trial(1, 0.1), make_trial(2, 0.1), make_trial(2, 0.01, workers=4)
    )
    assert group.images_per_s == {1: 10.0, 2: 20.0}


def test_a_batch_size_that_ran_out_of_memory_is_named_and_not_fitted():
    group = fold_one(
        *(make_trial(batch) for batch in (1, 3)),
        make_full(16, memory_peak_bytes=23 * GIB, memory_source='cuda_allocator'),
        make_full(3, workers=8),
        # its first batches were small enough
        make_trial(12, status='out_of_memory', memory_peak_bytes=23 * GIB),
    )
    assert group.without_room == (12, 16)
    assert [row.batch_size for row in group.rules] == [1, 3]
    assert list(group.images_per_s) == [1, 3]
    assert fit_of(group).image_bytes == pytest.approx(EACH, rel=1e-6)


def test_the_card_with_the_least_room_counts():
    group = fold_one(make_trial(1), make_trial(2, card_beside_bytes=4 * GIB))
    assert group.card == CardRoom(24 * GIB, 4 * GIB)


def test_memory_of_the_process_is_of_no_card():
    resident = {'memory_source': 'process_rss', 'card_bytes': None}
    group = fold_one(make_trial(1, **resident), make_trial(4, **resident))
    assert (group.source, group.card) == ('process_rss', None)
    assert fit_of(group).fixed_bytes == pytest.approx(STATIC + WORKSPACE, rel=1e-6)


def test_what_a_process_holds_that_loads_by_itself_is_no_activation():
    resident = {'memory_source': 'process_rss', 'card_bytes': None}
    alone = [
        make_trial(batch, workers=0, **{**resident, 'memory_peak_bytes': 90 * GIB})
        for batch in (1, 4, 8)
    ]
    beside = [make_trial(batch, **resident) for batch in (1, 4, 8)]
    group = fold_one(*alone, *beside)
    assert fit_of(group).fixed_bytes == pytest.approx(STATIC + WORKSPACE, rel=1e-6)
    # where only they tell of a batch size, they count
    group = fold_one(*alone, *beside[:2])
    assert [row.peak_bytes for row in group.rules] == [90 * GIB] * 3
    # a card holds no images that wait
    card = make_trial(4, workers=0, memory_peak_bytes=16 * GIB)
    assert fold_one(make_trial(1), make_trial(4), card).rules[1].peak_bytes == 16 * GIB


def test_peaks_of_a_card_and_of_a_process_are_not_one_line():
    rows = [make_trial(batch) for batch in (1, 2)]
    other = make_trial(4, memory_source='process_rss', memory_peak_bytes=GIB)
    group = fold_one(*rows, other)
    assert [row.batch_size for row in group.rules] == [1, 2]


@pytest.mark.parametrize(
    'rows',
    [
        [],
        [make_trial(4, workers=0), make_trial(4, workers=2)],
        [make_trial(1), mixed(make_trial(4))],
    ],
    ids=['none', 'one size', 'one size each'],
)
def test_one_batch_size_tells_nothing_of_others(rows):
    assert fold_batch_sizes(rows) == ()


def test_precisions_are_fitted_apart_and_compared():
    rows = [full(make_trial(batch)) for batch in (1, 3)]
    rows += [
        mixed(make_trial(batch), memory_peak_bytes=GIB + batch * GIB, images_per_s=40.0)
        for batch in (1, 3)
    ]
    groups = fold_batch_sizes(rows[::-1])
    assert [group.amp for group in groups] == [False, True]
    assert [round(fit_of(group).image_bytes / GIB, 6) for group in groups] == [2, 1]
    assert compare_precisions(rows) == (
        PrecisionRow(1, pytest.approx(2 / 3.5), pytest.approx(40 * 0.07)),
        PrecisionRow(3, pytest.approx(4 / 7.5), pytest.approx(40 * 0.09 / 3)),
    )
