"""Tests the verdict's fields in W&B and MLflow, and trackers that fail or hang."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any, Callable

import pytest
from mmengine.visualization import (
    LocalVisBackend,
    MLflowVisBackend,
    Visualizer,
    WandbVisBackend,
)

from mmgpu_hooks.hooks.trackers import write_summary_fields
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import VerdictRecord

VERDICT = VerdictRecord(
    verdict='compute_bound',
    confidence='high',
    iterations=100,
    training_hours=1.0,
    ledger_pct={'step': 90.0},
)
TEXTS = {
    'mmgpu/verdict': 'compute_bound',
    'mmgpu/confidence': 'high',
    'mmgpu/recommendation': 'no change',
}
FIGURES = {'mmgpu/ledger/step_pct': 90.0}


class Wandb(WandbVisBackend):
    """User's own backend class with a fake W&B that records its summary.

    Args:
        update: Of the summary; ``None`` where the user has finished the run.
    """

    def __init__(self, update: Callable[[dict[str, Any]], None] | None) -> None:
        super().__init__('nowhere')
        summary = SimpleNamespace(update=update)
        run = None if update is None else SimpleNamespace(summary=summary)
        self._env_initialized, self._wandb = True, SimpleNamespace(run=run)


class MLflow(MLflowVisBackend):
    """User's own backend class with a fake MLflow that records values by run."""

    def __init__(self, run_id: str | None) -> None:
        super().__init__('nowhere')
        self.kept: dict[tuple[str, str], Any] = {}
        info = SimpleNamespace(run_id=run_id)
        run = None if run_id is None else SimpleNamespace(info=info)
        thread = threading.get_ident()
        # a run belongs to the thread that began it
        active = {thread: run}
        self._env_initialized = True
        self._mlflow = SimpleNamespace(
            active_run=lambda: active.get(threading.get_ident()),
            tracking=SimpleNamespace(MlflowClient=lambda: self),
        )

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        assert isinstance(value, str)
        self.kept[run_id, name] = value

    def log_metric(self, run_id: str, name: str, value: float) -> None:
        assert isinstance(value, float)
        self.kept[run_id, name] = value


def show(*backends: Any, limit_s: float = 10.0) -> None:
    """Writes a verdict into the given visualisation backends."""
    named = {f'backend {number}': each for number, each in enumerate(backends)}
    write_summary_fields(SimpleNamespace(_vis_backends=named), VERDICT, limit_s)


def test_each_tracker_gets_all_fields_whatever_its_backend_is_called(tmp_path):
    kept: dict[str, Any] = {}
    mlflow = MLflow('run 1')
    show(LocalVisBackend(str(tmp_path)), Wandb(kept.update), mlflow)
    assert kept == {**TEXTS, **FIGURES}
    assert mlflow.kept == {('run 1', name): kept[name] for name in kept}


def test_a_run_without_a_tracker_begins_no_thread(monkeypatch, tmp_path):
    monkeypatch.setattr(threading, 'Thread', None)
    show(LocalVisBackend(str(tmp_path)))
    show()
    write_summary_fields(SimpleNamespace(), VERDICT)
    write_summary_fields(Visualizer(), VERDICT)


def test_a_run_that_the_user_has_ended_gets_no_successor():
    mlflow = MLflow(None)
    show(Wandb(None), mlflow)
    assert mlflow.kept == {}


def test_one_that_fails_does_not_keep_the_next_one_from_its_fields():
    def refuse(fields: dict[str, Any]) -> None:
        raise ConnectionError('planted')

    mlflow = MLflow('run 1')
    with pytest.raises(ConnectionError, match='planted'):
        show(Wandb(refuse), mlflow)
    assert len(mlflow.kept) == 4


@pytest.fixture
def silent():
    """Fake W&B backend that blocks until the test is over."""
    released = threading.Event()

    def wait(fields: dict[str, Any]) -> None:
        released.wait(60)

    yield Wandb(wait)
    released.set()
    for thread in threading.enumerate():
        if thread.name == 'mmgpu-trackers':
            thread.join(10)


def test_one_that_does_not_answer_is_left(silent):
    with pytest.raises(SourceError, match=r'no answer in 0\.05 s'):
        show(silent, limit_s=0.05)


def test_ctrl_c_ends_the_wait_and_no_more(silent):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(SourceError, match='Ctrl-C ended the wait'):
        show(silent)
