from __future__ import annotations

import base64
import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.show.html.packed import pack_figures


def unpacked(packed: dict) -> list[float | None]:
    codes = array('H', base64.b64decode(packed['codes']))
    figures = [packed['low'] * math.exp((c - 2) * packed['step']) for c in codes]
    return [
        None if code == 0 else 0.0 if code == 1 else figure
        for code, figure in zip(codes, figures)
    ]


@settings(deadline=None)
@given(st.lists(st.none() | st.just(0.0) | st.floats(1e-9, 1e6), max_size=50))
def test_packed_figures_read_back_as_exactly_as_they_claim(values):
    packed = pack_figures(values)
    back = unpacked(packed)
    assert packed['step'] < 6e-4
    assert [value is None for value in back] == [value is None for value in values]
    for was, now in zip(values, back):
        if was is not None:
            assert now == pytest.approx(was, rel=packed['step'] * 0.51 + 1e-12)
