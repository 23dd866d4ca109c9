"""When the trial of a setting ends, with a process that only tells."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.runs import make_evidence
from mmgpu_hooks.experiment import sweep_trial
from mmgpu_hooks.experiment.sweep_plan import SweepPace, TrialLimits
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import TrialSpec

OVER = {'event': 'over', 'status': 'completed', 'error': None}


class SlowTrial:
    """Trains an interval of 10 iterations in 100 s, when it has the word for it."""

    elapsed_s = 0.0

    def __init__(self, spec: TrialSpec, *, block: int, environ: Any) -> None:
        self.spec = spec
        self.words, self.trained = [block], 0
        self.is_ending = False

    def send(self, iterations: int) -> None:
        self.words.append(iterations)

    def finish(self) -> None:
        self.is_ending = True

    def close(self) -> None:
        pass

    def read_events(self) -> list[dict[str, Any]]:
        if not self.words:
            assert self.is_ending
            return [OVER]
        count = self.words.pop(0)
        self.trained += count
        return [
            {
                'event': 'block',
                'seconds': [10.0] * count,
                'is_loss_finite': None,
                'peak_rss_bytes': None,
            }
        ]


@pytest.mark.parametrize(
    ('measure_s', 'trained'),
    [
        # its time was up long before it had three
        (1.0, 50),
        (250.0, 50),
        (350.0, 60),
        # it settles with the sixth
        (9000.0, 80),
    ],
)
def test_a_slow_trial_ends_when_its_time_is_up(
    measure_s, trained, monkeypatch: pytest.MonkeyPatch
):
    trials = []

    def start(*args: Any, **words: Any) -> SlowTrial:
        trials.append(SlowTrial(*args, **words))
        return trials[0]

    monkeypatch.setattr(sweep_trial, 'RunningTrial', start)
    monkeypatch.setattr(
        sweep_trial,
        'read_run',
        lambda folder: Run(make_evidence(trials[0].trained // 10, step_s=5.0)),
    )
    pace = SweepPace(10, 1)
    outcome = sweep_trial.run_sweep_trial(
        TrialSpec('a.py', '/none'),
        pace,
        TrialLimits(measure_s, 1e6),
        clock=lambda: 10.0 * trials[0].trained,
    )
    assert (outcome.status, outcome.iterations) == ('completed', trained)
    assert outcome.iter_s is not None
    assert outcome.is_settled is (trained == 80)
    assert trained >= pace.least_iterations
