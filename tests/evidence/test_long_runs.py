from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_run import make_intervals
from fakes.holey_runs import write_holey
from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.evidence.parser import LineError, parse_line
from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.row_decoder import decode_interval, decode_row

ODD = [-1, -0.5, 1e300, 10**18, 10**18 + 1, 10**400, True, None, 'x', [], {}, 1.5, 3]


def places(body: Any) -> list[tuple[Any, Any]]:
    """Every place in a decoded line, as container and key."""
    found = []
    for key in body if isinstance(body, dict) else range(len(body)):
        found.append((body, key))
        if isinstance(body[key], (dict, list)):
            found += places(body[key])
    return found


@pytest.mark.parametrize('odd', ODD, ids=lambda odd: f'{odd!r:.12}')
def test_the_fast_decoder_takes_nothing_that_the_parser_refuses(odd):
    (record,) = make_intervals(random.Random(1), 1)
    body = json.loads(render_line(record))
    taken = 0
    for container, key in places(body):
        whole, container[key] = container[key], odd
        line = json.dumps(body)
        container[key] = whole
        row = decode_row(line.encode())
        if row is not None:
            taken += 1
            assert decode_interval(line.encode()) == parse_line(line)
    assert taken < len(places(body))


@pytest.mark.parametrize(
    'line',
    [
        b'{"kind":"interval"}',
        b'{"kind":"interval","kind":"end",',
        b'{"iteration":NaN,',
        b'{"iteration":1e999,',
        b'{"iteration":1.0,',
        b'{"extra":01,',
        b'{"extra":"\x01",',
        b'{"extra":tru,',
        b'{"hooks_s":{"a":1,"a":-1},',
    ],
)
def test_nor_a_line_that_is_no_json_or_says_two_things(line: bytes):
    (record,) = make_intervals(random.Random(1), 1)
    edited = line + render_line(record).encode()[1:] if line[-1:] == b',' else line
    row = decode_row(edited)
    try:
        parsed = parse_line(edited.decode())
    except LineError:
        parsed = None
    assert row is None or decode_interval(edited) == parsed


def test_a_damaged_line_is_named_and_others_are_used(tmp_path: Path):
    path = tmp_path / 'evidence.jsonl'
    lines = write_holey(path, 0, 30)
    lines[7] = lines[7].replace('"iteration":350', '"iteration":-350')
    path.write_text(''.join(lines))
    read = read_evidence(path)
    assert len(read.intervals) == 29
    assert (
        'first line 8: "iteration": expected a whole number from 0 on, found -350'
    ) in read.notes[0]
