"""Tests hourly verdicts by a fake clock and real judging processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import HandClock
from fakes.replaced import replace
from fakes.runs import make_evidence, make_run, write_run
from mmgpu_hooks.adviser import process
from mmgpu_hooks.adviser.process import HourlyAdviser
from mmgpu_hooks.hooks.verdict_source import VERDICT_PERIOD_S, VerdictSource
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import LoaderSettings, VerdictRecord
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME

NO_WORKERS = LoaderSettings(num_workers=0, persistent_workers=False, batch_size=4)
WAITS: dict[str, Any] = {
    'data_wait_s': 0.3,
    'data_wait_cpu_s': 6.0,
    'process_cpu_s': 10.0,
}


@pytest.fixture
def evidence(tmp_path) -> Path:
    """Evidence file of a data-bound run that is still training."""
    run = make_run(loader=NO_WORKERS, slurm_job_id=4711)
    still = replace(make_evidence(run=run, **WAITS), end=None)
    folder = write_run(tmp_path / 'run', still)
    return next(folder.rglob(EVIDENCE_NAME))


class Recording:
    """Fake of the hook's `Recording`, with the attributes that `VerdictSource` uses."""

    def __init__(self, evidence: Path) -> None:
        self.writer = SimpleNamespace(path=evidence)
        self.hook = SimpleNamespace(slurm_comment=False)
        self.written: list[VerdictRecord] = []


@pytest.fixture
def recording(evidence) -> Recording:
    return Recording(evidence)


def follow_until(source: VerdictSource, recording: Recording, count: int) -> None:
    """Lets log intervals end until the given number of verdicts is written."""
    until_s = time.monotonic() + 60
    while len(recording.written) < count:
        assert time.monotonic() < until_s
        source.follow()
        time.sleep(0.02)


def test_each_hour_a_verdict_is_written_and_no_interval_waits_for_it(recording):
    clock = HandClock()
    source = VerdictSource(recording, recording.written.append, clock)
    clock.turn(VERDICT_PERIOD_S - 1)
    source.follow()
    clock.turn(1)
    # it is started, and an interval that ends at once finds nothing
    source.follow()
    source.follow()
    assert recording.written == []
    follow_until(source, recording, 1)
    for _ in range(3):
        source.follow()
    assert len(recording.written) == 1
    clock.turn(VERDICT_PERIOD_S)
    follow_until(source, recording, 2)
    source.close()
    first, second = recording.written
    assert isinstance(first, VerdictRecord)
    assert (first.verdict, first.is_final) == ('data_bound_workers', False)
    assert first.changes[0].key == 'train_dataloader.num_workers'
    assert first.slurm_job_id == 4711
    assert second.ledger_pct == first.ledger_pct


def test_the_child_gives_way_to_training_and_dies_with_it(evidence, monkeypatch):
    seen: list[Any] = []
    opened = process.subprocess.Popen

    def note(words: Any, **more: Any) -> Any:
        child = opened(words, **more)
        until_s = time.monotonic() + 10
        while os.getpriority(os.PRIO_PROCESS, child.pid) != 19:
            assert time.monotonic() < until_s
        seen.append(child)
        return child

    monkeypatch.setattr(process.subprocess, 'Popen', note)
    adviser = HourlyAdviser(evidence)
    (child,) = seen
    # of a session of its own: Ctrl-C is for the training
    assert os.getsid(child.pid) != os.getsid(0)
    adviser.end()
    assert child.returncode == -signal.SIGKILL


def test_no_child_is_started_where_memory_is_short_but_in_the_next_hour(
    recording, monkeypatch
):
    clock = HandClock()
    source = VerdictSource(recording, recording.written.append, clock)
    with monkeypatch.context() as patch:
        patch.setattr(process, 'LEAST_FREE_BYTES', 2**60)
        with pytest.raises(SourceError, match='less than 1 GiB of memory would stay'):
            HourlyAdviser(recording.writer.path)
        clock.turn(VERDICT_PERIOD_S)
        source.follow()
    clock.turn(VERDICT_PERIOD_S / 2)
    source.follow()
    assert source._adviser is None
    clock.turn(VERDICT_PERIOD_S / 2)
    follow_until(source, recording, 1)


def test_long_evidence_takes_memory_that_must_be_free_too(evidence, monkeypatch):
    monkeypatch.setattr(process, 'read_free_bytes', lambda: 2**30 + 1000)
    with pytest.raises(SourceError, match='less than 1 GiB of memory would stay'):
        HourlyAdviser(evidence)


def answer_of(adviser: HourlyAdviser) -> VerdictRecord:
    until_s = time.monotonic() + 60
    while not adviser.is_over:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return adviser.read()


@pytest.mark.parametrize(
    ('script', 'said'),
    [
        ('exit 3', 'its process ended with exit code 3'),
        ('echo no JSON', 'its process ended with exit code 0'),
    ],
)
def test_a_child_that_gives_no_answer_is_a_reason(
    evidence, tmp_path, monkeypatch, script, said
):
    python = tmp_path / 'python'
    python.write_text(f'#!/bin/sh\n{script}\n')
    python.chmod(0o755)
    monkeypatch.setattr('sys.executable', str(python))
    with pytest.raises(SourceError, match=said):
        answer_of(HourlyAdviser(evidence))


def test_a_child_that_takes_too_long_is_ended_by_the_kernel(
    evidence, tmp_path, monkeypatch
):
    slow = tmp_path / 'modules'
    slow.mkdir()
    slow.joinpath('numpy.py').write_text('import time\ntime.sleep(60)\n')
    monkeypatch.syspath_prepend(slow)
    with pytest.raises(SourceError, match='it took longer than 1 s'):
        answer_of(HourlyAdviser(evidence, limit_s=1))
