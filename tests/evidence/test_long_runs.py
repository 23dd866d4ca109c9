from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_run import make_intervals, write_run
from fakes.holey_runs import write_holey
from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.evidence.parser import LineError, parse_line
from mmgpu_hooks.evidence.pooled_percentile import Quantiles, pool_percentile
from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.row_decoder import decode_interval, decode_row
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.records import RunEvidence

PEAK_OF_READING = """
import resource, sys
from pathlib import Path
from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.summary import fold_run
assert 'torch' not in sys.modules
peaks = []
for path in sys.argv[1:]:
    fold_run(read_evidence(Path(path)))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
assert 'torch' not in sys.modules
print(peaks[1] - peaks[0])
"""


@pytest.mark.parametrize('seed', range(5))
def test_a_file_folds_as_the_records_of_its_lines(tmp_path: Path, seed: int):
    path = tmp_path / 'evidence.jsonl'
    run, *intervals = map(parse_line, write_holey(path, seed, 300))
    read = read_evidence(path)
    assert read.intervals == intervals
    kept = RunEvidence(str(path), run, tuple(intervals))  # type: ignore[arg-type]
    assert fold_run(read) == fold_run(kept)


@pytest.mark.parametrize('seed', range(5))
def test_columns_fold_as_records_one_after_the_other(tmp_path: Path, seed: int):
    path = tmp_path / 'evidence.jsonl'
    write_holey(path, seed, 300)
    evidence = read_evidence(path)
    summary, steady = fold_run(evidence), evidence.intervals[1:]
    calm = [
        r
        for r in steady
        if not r.ledger_s.get('validation') and not r.ledger_s.get('checkpoint_save')
    ]
    cards = [r for r in calm if r.gpu and r.gpu.power_w is not None]
    windows = [r.workers for r in steady if r.workers]
    busy = [w for w in windows if w.occupancy]
    asked = [
        r.workers for r in steady if r.workers and r.workers.ready_mean is not None
    ]
    known = [r.system_cpu_pct for r in calm if r.system_cpu_pct is not None]
    assert summary.gpu is not None
    assert summary.loader is not None
    assert 0 < len(known) < len(calm) < len(steady)
    assert summary.data_wait_usual_p95_s == statistics.median(
        r.data_wait.p95_s for r in steady
    )
    waits = [r.data_wait for r in steady]
    kept = [Quantiles(w.count, w.mean_s, w.p50_s, w.p95_s, w.max_s) for w in waits]
    assert summary.data_wait_p95_s == pool_percentile(kept, 0.95)
    assert summary.gpu.power_w == pytest.approx(
        math.fsum(r.gpu.power_w * r.duration_s for r in cards)
        / math.fsum(r.duration_s for r in cards),
        rel=1e-12,
    )
    assert summary.loader.occupancy_s == pytest.approx(
        math.fsum(w.occupancy.mean_s * w.occupancy.count for w in busy)
        / sum(w.occupancy.count for w in busy),
        rel=1e-12,
    )
    assert summary.loader.ready_mean == pytest.approx(
        math.fsum(w.ready_mean * w.asks for w in asked) / sum(w.asks for w in asked),
        rel=1e-12,
    )
    every = [r.workers for r in evidence.intervals if r.workers]
    calls = {t.name: t.calls for t in summary.loader.transforms}
    for name in calls:
        costs = [w.transforms[name] for w in windows if name in w.transforms]
        assert calls[name] == sum(cost.calls for cost in costs)
    slowest = sorted((s.seconds for w in every for s in w.slowest), reverse=True)
    assert [s.seconds for s in summary.loader.slowest] == slowest[:5]
    for part, seconds in summary.ledger_s.items():
        parts = [r.ledger_s.get(part, 0.0) for r in evidence.intervals]
        assert seconds == pytest.approx(math.fsum(parts), rel=1e-12)


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


def test_without_msgspec_the_parser_reads_all(tmp_path: Path):
    path = tmp_path / 'evidence.jsonl'
    write_holey(path, 0, 40)
    command = [
        *(sys.executable, '-c'),
        "import sys; sys.modules['msgspec'] = None\n"
        'from pathlib import Path\n'
        'from mmgpu_hooks.evidence.reader import read_evidence\n'
        'from mmgpu_hooks.evidence.summary import fold_run\n'
        'read = read_evidence(Path(sys.argv[1]))\n'
        'print([read.intervals[-1], fold_run(read)])',
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    read = read_evidence(path)
    assert done.stdout == f'{[read.intervals[-1], fold_run(read)]}\n', done.stderr


def test_intervals_of_a_file_that_is_gone_are_refused(tmp_path: Path):
    path = tmp_path / 'evidence.jsonl'
    write_holey(path, 0, 3)
    read = read_evidence(path)
    path.unlink()
    with pytest.raises(EvidenceError, match='the file was changed meanwhile'):
        read.intervals[0]
    assert fold_run(read).iterations == 150


def test_a_long_run_needs_little_memory_and_no_torch(tmp_path: Path):
    for count in (200, 2200):
        write_run(tmp_path / str(count), tmp_path / 'config.py', count)
    paths = [str(tmp_path / name / 'gpu_efficiency.jsonl') for name in ('200', '2200')]
    command = [sys.executable, '-c', PEAK_OF_READING, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # eight bytes for each of some 190 figures, and what folding takes for a moment
    assert int(done.stdout) / 2000 < 3000
