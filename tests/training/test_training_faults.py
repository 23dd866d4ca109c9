"""Sources that fail where the toy training alone does not take them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.measure.cuda import CudaEvents, CudaMemory
from training.faults import patch, train_and_look
from training.toy import HOOK, evidence_of, log_of, losses_of

BYTES = {'all': {'peak': 1000, 'current': 500}}


class Event:
    """Passed as soon as it is asked."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Any) -> float:
        return 1.0


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and an allocator, as a training on a card has them."""
    events = CudaEvents(Event, SimpleNamespace)
    memory = CudaMemory(lambda: {'allocated_bytes': BYTES, 'reserved_bytes': BYTES})
    source = 'mmgpu_hooks.hooks.sources.open_cuda_'
    monkeypatch.setattr(f'{source}events', lambda: events)
    monkeypatch.setattr(f'{source}memory', lambda: memory)


@pytest.mark.parametrize(
    ('source', 'target', 'good_calls'),
    [
        ('GPU idle', 'measure.cuda.CudaEvents.begin_step', 3),
        ('GPU idle', 'measure.cuda.CudaEvents.end_step', 3),
        ('GPU idle', 'measure.cuda.CudaEvents.interrupt', 1),
        ('GPU idle', 'measure.cuda.CudaEvents.drain', 1),
        ('GPU memory', 'measure.cuda.CudaMemory.observe', 2),
        ('GPU memory', 'measure.cuda.CudaMemory.drain', 1),
        ('GPU memory', 'measure.cuda.CudaMemory.begin_validation', 0),
        ('GPU memory', 'measure.cuda.CudaMemory.end_validation', 0),
    ],
)
def test_what_cuda_tells_fails_once_it_is_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain_losses: list[str],
    on_cuda: None,
    source: str,
    target: str,
    good_calls: int,
) -> None:
    patch(monkeypatch, target, good_calls)
    trained = train_and_look(tmp_path, evaluation_s=0.0)
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        f'{source} is switched off for this run (RuntimeError: planted); '
        'training goes on.'
    ]
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == [source]
    last = evidence.intervals[-1]
    is_idle_known = last.gpu_idle_pct is not None
    is_memory_known = last.gpu_mem_peak_bytes is not None
    assert (is_idle_known, is_memory_known) == (
        source != 'GPU idle',
        source != 'GPU memory',
    )


def test_a_nice_value_that_cannot_be_set_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    patch(monkeypatch, 'hooks.sources.write_nice', 0)
    trained = train_and_look(tmp_path, hook={**HOOK, 'worker_nice': 10})
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        'worker_nice is switched off for this run (RuntimeError: planted); '
        'training goes on.'
    ]
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == ['worker_nice']
    assert evidence.intervals[-1].workers is not None


def test_ranks_that_cannot_be_compared_cost_the_comparison_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    patch(monkeypatch, 'hooks.gpu_efficiency_hook._compare_ranks', 0)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        'comparison of ranks is switched off for this run (RuntimeError: planted); '
        'training goes on.'
    ]
    assert '  verdict    ' in log_of(trained.runner)
