from __future__ import annotations

import typing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.judge.saves import judge_save
from mmgpu_hooks.schema import (
    SAVE_CAUSES,
    SAVE_PHASES,
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SavePhase,
    SaveRecord,
)

COUNTS = st.sampled_from([0, 1, 16, 2**20, 2**28, 2**40])
SECONDS = st.sampled_from([0.0, 1e-9, 0.01, 0.3, 1.0, 9.0, 1e18])
SIMPLE = {
    int: COUNTS,
    float: SECONDS,
    str: st.sampled_from(['', 'LocalBackend', 'iter_1.pth']),
    bool: st.booleans(),
}


def records(kind: type, **fixed: st.SearchStrategy) -> st.SearchStrategy:
    """Any record that a line of evidence can hold: what may be unknown often is."""
    hints = typing.get_type_hints(kind)
    given_to: dict[str, st.SearchStrategy[Any]] = dict(fixed)
    for name in kind.__struct_fields__:
        if name in fixed:
            continue
        wanted = [t for t in typing.get_args(hints[name]) if t is not type(None)]
        simple = SIMPLE.get(wanted[0] if wanted else hints[name])
        if simple is not None:
            given_to[name] = st.none() | simple if wanted else simple
    return st.builds(kind, **given_to)


PHASES = st.dictionaries(st.sampled_from(SAVE_PHASES), records(SavePhase))
SAVES = records(
    SaveRecord,
    phases=PHASES,
    error=st.none() | st.just('OSError'),
    unknown=st.just({}),
)


@given(
    SAVES,
    st.lists(SAVES, max_size=5),
    st.none() | records(SaveAftermathRecord),
    records(HostLimits),
    records(LoaderSettings),
)
def test_whatever_is_recorded_is_judged_soundly(save, earlier, after, host, loader):
    judged = judge_save(save, earlier, after, host, loader)
    gross_s, net_s = judged.gross_delay_s, judged.net_delay_s
    assert judged.cause in (*SAVE_CAUSES, None)
    assert judged.cause is None or (judged.is_slow and judged.cause in judged.held_s)
    assert judged.sentence.endswith('.')
    assert min(judged.held_s.values(), default=0.0) >= 0.0
    if gross_s is None:
        assert (judged.is_slow, net_s, judged.held_s) == (False, None, {})
    else:
        assert 0.0 <= gross_s <= save.wall_s
        assert sum(judged.held_s.values()) <= gross_s * (1 + 1e-9)
        assert net_s is None or 0.0 <= net_s <= gross_s
