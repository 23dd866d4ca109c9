"""Tests which figures of a batch have a reason in the evidence when unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.hooks.figure_source import IntervalEnd
from mmgpu_hooks.hooks.sources import BatchSource
from mmgpu_hooks.measure.loader.batches import IntervalContents

KNOWN = IntervalContents(*range(2, 2 + len(IntervalContents._fields)))
INTERVAL = IntervalEnd(10, 10, batch='neither images nor boxes')


def read_unknown(held: IntervalContents) -> set[str]:
    """Returns the names of figures with a reason, given what workers counted."""
    probe: Any = SimpleNamespace(read_contents=lambda iterations: held)
    source = BatchSource(SimpleNamespace(model=None), probe)
    source.read(INTERVAL)
    return set(source.unknown)


@pytest.mark.parametrize('figure', IntervalContents._fields)
def test_a_figure_of_batches_that_alone_is_unknown_leaves_a_reason(figure: str):
    reasons = read_unknown(KNOWN._replace(**{figure: None}))
    assert reasons == {'batch largest_batch_pixels', 'batch most_boxes'}


def test_a_batch_of_which_all_is_known_is_not_examined():
    assert read_unknown(KNOWN) == set()
