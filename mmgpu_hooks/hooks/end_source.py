"""Forecasts when training will end, and logs it after validations and every 30 min."""

from __future__ import annotations

import math
import threading
from functools import partial

from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.judge.ending import EndForecaster
from mmgpu_hooks.measure.clock import Clock, local_time, monotonic_s, seconds_until
from mmgpu_hooks.measure.job_end import ask_end_unix_s
from mmgpu_hooks.schema.recorded import (
    IntervalRecord,
    RunRecord,
    SaveRecord,
    ValidationRecord,
)
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.ending import phrase_ending, phrase_limit
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.validation import phrase_validation
from mmgpu_hooks.show.words import say

END_SOURCE = 'end of training'
"""Name of the forecast of training's end in warnings and the evidence file."""

PERIOD_S = 1800.0
"""Seconds between two logged forecasts of training's end without a validation."""
SCALAR_S = 10.0
"""Seconds between two updates of the scalar ``hours_left``."""

_ASKING_THREAD = 'mmgpu-job-end'


class EndSource:
    """Forecasts the end of one training from the records of rank 0.

    Args:
        recording: The run.
        run: Its record.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, recording: Recording, run: RunRecord, clock: Clock = monotonic_s
    ) -> None:
        self._recording, self._clock = recording, clock
        self._forecaster = EndForecaster(run)
        self._due_s = clock() + PERIOD_S
        self._scalar_s = -math.inf
        self._hours_left: float | None = None
        self._limit_unix_s = run.slurm_end_unix_s
        if run.slurm_job_id is not None and self._limit_unix_s is None:
            ask = partial(recording.guard.run, END_SOURCE, self._ask, run.slurm_job_id)
            threading.Thread(target=ask, name=_ASKING_THREAD, daemon=True).start()

    def _ask(self, job: int) -> None:
        self._limit_unix_s = ask_end_unix_s(job)

    def add_interval(self, record: IntervalRecord) -> None:
        """Adds a log interval's record to the forecast; logs the forecast if due."""
        self._forecaster.add_interval(record)
        if self._clock() >= self._due_s:
            self._say()

    def add_save(self, record: SaveRecord) -> None:
        """Adds a checkpoint save's record to the forecast of training's end."""
        self._forecaster.add_save(record)

    def add_validation(self, record: ValidationRecord) -> None:
        """Logs a validation's duration and a new forecast of training's end."""
        self._forecaster.add_validation(record)
        said = phrase_validation(record)
        if said is not None:
            self._log(said)
        self._say()

    @property
    def hours_left(self) -> float | None:
        """Hours from now until training ends, by forecast; ``None`` if unknown."""
        now_s = self._clock()
        if now_s - self._scalar_s >= SCALAR_S:
            ending = self._forecaster.forecast(self._recording.iteration)
            self._hours_left = None if ending is None else ending.hours_left
            # what is not known yet may be known at the next line
            self._scalar_s = -math.inf if ending is None else now_s
        return self._hours_left

    def _say(self) -> None:
        self._due_s = self._clock() + PERIOD_S
        done, now = self._recording.iteration, local_time()
        ending = self._forecaster.forecast(done)
        if ending is None:
            return
        said = phrase_ending(ending, now)
        if self._limit_unix_s is not None:
            left_s = seconds_until(self._limit_unix_s)
            limit = self._forecaster.find_limit(left_s, done)
            if limit is not None:
                said = phrase(
                    '{ends}. {limit}',
                    ends=said,
                    limit=phrase_limit(limit, local_time(left_s), now),
                )
        self._log(said)

    def _log(self, said: Text) -> None:
        line = f'GPUEfficiencyHook: {say(said)}'
        self._recording.runner.logger.info(visible(line))
