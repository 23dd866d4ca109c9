"""Tests the child process for tuning: real processes, asked through their pipes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import HandClock
from fakes.replaced import replace
from fakes.runs import make_evidence, make_loader, make_run, write_run
from mmgpu_hooks.adviser.process import ANSWER_LIMIT_S, TuningAdviser
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

QUESTION = TuneQuestion(iterations_left=10_000)


@pytest.fixture(scope='module')
def evidence(tmp_path_factory) -> Path:
    """Evidence file of a data-bound run without workers that is still training."""
    loader = make_loader(0, persistent_workers=False, prefetch_factor=None)
    waits = make_evidence(
        run=make_run(loader=loader),
        data_wait_s=0.3,
        data_wait_cpu_s=6.0,
        process_cpu_s=10.0,
    )
    folder = tmp_path_factory.mktemp('run')
    write_run(folder, replace(waits, end=None))
    return folder / EVIDENCE_NAME


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def adviser(evidence, clock) -> Iterator[TuningAdviser]:
    adviser = TuningAdviser(evidence, clock=clock)
    yield adviser
    adviser.end()
    assert adviser._child.returncode is not None


def wait_for(adviser: TuningAdviser) -> TuneAnswer:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        answer = adviser.read()
        if answer is not None:
            return answer
        time.sleep(0.02)
    raise AssertionError('no answer')


def test_the_adviser_answers_as_often_as_it_is_asked(adviser):
    for _ in range(2):
        assert adviser.is_free
        adviser.ask(QUESTION)
        assert not adviser.is_free
        answer = wait_for(adviser)
        assert answer.proposed is not None
        assert answer.proposed.new.num_workers > 0


def test_a_child_that_is_killed_is_an_error_and_no_wait(adviser):
    os.kill(adviser._child.pid, signal.SIGKILL)
    adviser._child.wait()
    with pytest.raises(SourceError, match='exit code -9'):
        adviser.ask(QUESTION)
    adviser._asked_s = 0.0
    with pytest.raises(SourceError, match='exit code -9'):
        adviser.read()


def test_an_answer_that_does_not_come_is_given_up(adviser, clock):
    os.kill(adviser._child.pid, signal.SIGSTOP)
    adviser.ask(QUESTION)
    assert adviser.read() is None
    clock.turn(ANSWER_LIMIT_S + 1)
    with pytest.raises(SourceError, match='longer than 120 s'):
        adviser.read()
