"""Predicts iteration and training time for setting values that a user asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.recommend.job import Choice, Job
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.text import Text

Asked = Mapping[str, Sequence[Any]]
"""Values that a user asked for, by the setting's name."""


class Predicted(NamedTuple):
    """Time predictions for asked values of settings, and reasons for missing ones."""

    predictions: list[Prediction]
    reasons: list[Text]
    """Reasons why some values cannot be predicted, a sentence each."""


def predict_asked(job: Job, asked: Asked) -> Predicted:
    """Predicts iteration and training seconds for each combination of asked values.

    Args:
        job: The run, and the values that it had.
        asked: Settings without a value keep the run's, or what follows from others.
    """
    values = {name: dict.fromkeys(some) for name, some in asked.items() if some}
    found, reasons, seen = list[Prediction](), dict[Text, None](), list[Choice]()
    for combination in product(*values.values()):
        try:
            choice = _complete(job, dict(zip(values, combination)))
            if choice not in seen:
                seen.append(choice)
                found.append(_predict_choice(job, choice, values))
        except NoPredictionError as error:
            reasons[error.said] = None
    return Predicted(found, [*reasons])


def _complete(job: Job, given: Choice) -> Choice:
    """Adds values of settings that the user did not ask for: derived or the run's own.

    Raises:
        NoPredictionError: If what a value makes of the training is unknown.
    """
    followed: Choice = {**job.old, **given}
    if not job.base.loader.num_workers:
        # of what only workers have, the run has no value of its own
        followed = job.settle(followed)
    filled = {setting.name: setting.fill_in(job, followed) for setting in job.settings}
    # what follows otherwise is as it was asked for, where it can be had
    return job.rest({**filled, **given})


def _predict_choice(job: Job, choice: Choice, names: Iterable[str]) -> Prediction:
    """Predicts iteration and training seconds with one value for every setting.

    Args:
        job: The run.
        choice: Of every setting.
        names: Of the settings that were asked for.

    Raises:
        NoPredictionError: If what a value makes of the training is unknown.
    """
    for setting in job.settings:
        reason = setting.why_unknown(job, choice[setting.name])
        if reason is not None:
            raise NoPredictionError(reason)
    then = job.at(choice)
    found = then.prediction
    error = (found.iter_time_high_s / found.iter_time_s - 1.0) / COVERAGE
    slips = [
        job.at(choice, slipping=setting.name).iter_s / then.iter_s - 1.0
        for setting in job.settings
        # the workload itself knows how unsure the step of another recipe is
        if not setting.is_recipe and choice[setting.name] != job.old[setting.name]
    ]
    reach = COVERAGE * math.hypot(error, *slips)
    return replace(
        found,
        iter_time_low_s=found.iter_time_s / (1.0 + reach),
        iter_time_high_s=found.iter_time_s * (1.0 + reach),
        settings={name: choice[name] for name in names},
    )
