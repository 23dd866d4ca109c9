"""Fake child process for tuning, with answers set by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import TunedRecord, TunedSettings
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

NOTHING = TuneAnswer(why=phrase('no other setting is surely faster'))
NOTHING_LEFT = TuneAnswer(why=phrase('nothing is left to be judged'))
"""Answer of the tuning process where no change may be proposed, as in a last epoch."""


def settings(workers: int, **more: Any) -> TunedSettings:
    """Returns loader settings with persistent workers."""
    return TunedSettings(num_workers=workers, **more)


def propose(
    old: TunedSettings, new: TunedSettings, *, cost_s: float = 0.0, **more: Any
) -> TuneAnswer:
    """Returns a tuner's answer that proposes new loader settings."""
    figures = {
        'iter_s': 0.3,
        'predicted_iter_s': 0.1,
        'gain_pct': 66.0,
        'gain_low_pct': 50.0,
        'gain_high_pct': 80.0,
        **more,
    }
    record = TunedRecord(
        iteration=0, action='change', reason='predicted', old=old, new=new, **figures
    )
    return TuneAnswer(proposed=record, cost_s=cost_s)


def judge(
    old: TunedSettings, new: TunedSettings, reason: str, **more: Any
) -> TuneAnswer:
    """Returns a tuner's answer that keeps or undoes the last loader change."""
    record = TunedRecord(
        iteration=0,
        action='keep' if old == new else 'roll_back',
        reason=reason,  # type: ignore[arg-type]
        old=old,
        new=new,
        iter_s=0.3,
        measured_iter_s=0.1,
        gain_pct=-50.0 if reason == 'loss' else 66.0,
        gain_low_pct=-60.0 if reason == 'loss' else 60.0,
        gain_high_pct=-40.0 if reason == 'loss' else 70.0,
        **more,
    )
    return TuneAnswer(judged=record)


class ScriptedAdviser:
    """Fake tuning process that gives the scripted answers, then proposes nothing."""

    def __init__(self, answers: Sequence[TuneAnswer | Exception]) -> None:
        self._answers: Iterator[TuneAnswer | Exception] = iter(answers)
        self.questions: list[TuneQuestion] = []
        self.is_free, self.is_ended = True, False

    def ask(self, question: TuneQuestion) -> None:
        self.questions.append(question)
        self.is_free = False

    def read(self) -> TuneAnswer | None:
        if self.is_free:
            return None
        self.is_free = True
        may_change = self.questions[-1].can_change
        answer = next(self._answers, NOTHING if may_change else NOTHING_LEFT)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def dismiss(self) -> None:
        self.is_ended = True

    def end(self) -> None:
        self.is_ended = True


class NoAdviser:
    """Fake tuning process that cannot be started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise SourceError('no process could be started (planted)')


Script = Callable[..., ScriptedAdviser]
