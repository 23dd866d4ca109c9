"""Tests that a warning of full host memory lists how much each rank holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_run, render_evidence
from mmgpu_hooks.hooks.memory_source import MemorySource
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import MemoryRecord
from mmgpu_hooks.schema.run_folder import evidence_name

RECORD = MemoryRecord(
    phase='train',
    elapsed_s=60.0,
    iteration=40,
    bound='host',
    total_bytes=62 * GIB,
    used_bytes=60 * GIB,
    process_bytes=20 * GIB,
    is_low=True,
)


@pytest.mark.parametrize('rank', [0, 1])
def test_each_rank_knows_the_shares_of_the_others(tmp_path, rank):
    for number in range(2):
        run = make_run(rank=number, world_size=2)
        evidence = replace(make_evidence(intervals=3, run=run), end=None)
        lines = render_evidence(evidence) + encode_line(RECORD).decode()
        (tmp_path / evidence_name(number)).write_text(lines)
    said = list[str]()
    logger: Any = SimpleNamespace(warning=said.append)
    source: Any = SimpleNamespace(
        _recording=SimpleNamespace(
            writer=SimpleNamespace(path=tmp_path / evidence_name(rank)),
            runner=SimpleNamespace(logger=logger),
        )
    )
    MemorySource._say(source)
    assert '2 training processes 40 (20 each)' in said[0]
