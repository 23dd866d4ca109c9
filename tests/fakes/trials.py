"""Fake trial processes that follow a test's script, on a fake clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mmgpu_hooks.experiment import engine
from mmgpu_hooks.schema.tried import TrialBlock, TrialEnd, TrialEvent, TrialSpec


class ScriptedTrial:
    """Fake `RunningTrial` whose iterations take the scripted time.

    The class holds the script, so that a test can set it.
    """

    iteration_s: Callable[[TrialSpec], float] = staticmethod(lambda spec: 0.1)
    ending: Callable[[TrialSpec], tuple[str, str | None] | None] = staticmethod(
        lambda spec: None
    )
    """Function: status and error of a trial that never trains; ``None`` for others."""
    batch_size: Callable[[TrialSpec], int | None] = staticmethod(lambda spec: 2)
    clock_s = 0.0
    is_loss_finite = True
    started: list[ScriptedTrial]

    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.words, self.trained = list[int](), 0
        self.is_finishing = self.is_closed = self.is_held = False
        type(self).started.append(self)

    def hold(self) -> None:
        self.is_held = True

    def resume(self) -> None:
        self.is_held = False

    def read_cpu_s(self) -> float:
        return 0.0

    def send(self, iterations: int) -> None:
        self.words.append(iterations)

    def finish(self) -> None:
        self.is_finishing = True

    def close(self) -> None:
        self.is_closed = True

    def read_events(self) -> list[TrialEvent]:
        assert not self.is_held
        end = self.ending(self.spec)
        if end is not None or (not self.words and self.is_finishing):
            status, error = end or ('completed', None)
            return [TrialEnd(status, error)]
        if not self.words:
            return []
        count, seconds = self.words.pop(0), self.iteration_s(self.spec)
        self.trained += count
        ScriptedTrial.clock_s += count * seconds
        return [
            TrialBlock(
                seconds=[seconds] * count,
                batch_size=self.batch_size(self.spec),
                is_loss_finite=self.is_loss_finite,
            )
        ]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedTrial]:
    """Replaces the processes of trials by scripted ones."""

    class Trial(ScriptedTrial):
        started: list[ScriptedTrial] = []  # noqa: RUF012

    monkeypatch.setattr(ScriptedTrial, 'clock_s', 0.0)
    monkeypatch.setattr(engine, 'RunningTrial', Trial)
    monkeypatch.setattr(
        engine, 'monotonic_s', lambda: time.monotonic() + ScriptedTrial.clock_s
    )
    return Trial
