"""Tests the split of GPU memory, and if a larger batch explains its growth."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.reported import make_reported
from fakes.runs import GIB, make_evidence, make_gpu_fields, make_gpu_run, make_interval
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.recorded import GpuWindow
from mmgpu_hooks.show.recommendation import describe_answer
from mmgpu_hooks.show.run_sections import describe_details
from mmgpu_hooks.show.terminal import render


def make_card_run(grown: dict[str, Any], *, used: float = 15.8, size: int = 24) -> Any:
    """Returns a run with GPU memory peaks of 7 GiB, and given fields in interval 40."""
    base = {
        'gpu_mem_peak_bytes': 7 * GIB,
        'gpu_mem_reserved_bytes': int(14.3 * GIB),
        'largest_batch_pixels': 4_000_000,
        'most_boxes': 90,
    }
    fields = make_gpu_fields()
    window = GpuWindow(mem_used_bytes=int(used * GIB), samples=5, util_pct=90.0)
    fields = {**fields, **base, 'gpu': window}
    intervals = tuple(
        make_interval(n, **(fields if n != 40 else {**fields, **grown}))
        for n in range(50)
    )
    run = make_gpu_run()
    run = replace(run, gpu=replace(run.gpu, memory_total_bytes=size * GIB))
    return replace(make_evidence(run=run), intervals=intervals)


LARGER = {'gpu_mem_peak_bytes': int(9.1 * GIB), 'largest_batch_pixels': 7_100_000}


def find(evidence: Any) -> str:
    found = diagnose_run(Run(evidence)).findings
    return next((f.detail for f in found if f.code == 'MG410'), '')


def test_what_nvidia_smi_shows_is_a_sum_and_its_growth_is_explained():
    assert find(make_card_run({**LARGER, 'most_boxes': 212})) == (
        'nvidia-smi shows 15.8 GiB of 24.0 GiB = 9.1 in use at the peak + 5.2 that the '
        'allocator keeps + 1.5 CUDA context and other programs; it grew by iteration '
        '820, whose largest batch was the largest so far (7.1 M pixels, 212 boxes): no '
        'leak.'
    )


def test_the_largest_batch_is_named_by_its_height_and_width():
    sides = {'largest_batch_height': 1333, 'largest_batch_width': 800}
    said = find(make_card_run({**LARGER, **sides, 'most_boxes': 212}))
    assert 'the largest so far (1333 x 800, 212 boxes): no leak' in said
    said = find(make_card_run({**LARGER, **sides, 'most_boxes': 1}))
    assert 'the largest so far (1333 x 800, 1 box): no leak' in said


@pytest.mark.parametrize(
    ('grown', 'figures', 'words'),
    [
        ({}, {}, ''),
        ({}, {'size': 16}, 'has not grown since the first tenth'),
        ({'gpu_mem_peak_bytes': 9 * GIB}, {}, 'no larger than others before'),
        (
            {**LARGER, 'largest_batch_pixels': None, 'most_boxes': None},
            {},
            'the size of batches is unknown',
        ),
        # the driver was asked before the fullest moment
        (LARGER, {'used': 9.0}, 'The allocator holds 14.3 GiB'),
    ],
    ids=['enough is free', 'nearly full', 'no larger batch', 'unknown', 'no driver'],
)
def test_card_memory_is_a_finding_with_its_reason_once_it_grew_or_is_nearly_full(
    grown, figures, words
):
    said = find(make_card_run(grown, **figures))
    assert words in said if words else not said


@pytest.mark.parametrize('size', [24, 16], ids=['enough is free', 'nearly full'])
def test_card_memory_is_in_the_details_and_if_nearly_full_in_the_short_answer(size):
    answer = make_reported(make_card_run({}, size=size))
    long = ' '.join(render(describe_details(answer)).split())
    short = ' '.join(render(describe_answer(answer)).split())
    assert 'nvidia-smi shows 15.8 GiB' in long
    assert ('nvidia-smi shows 15.8 GiB' in short) is (size == 16)
