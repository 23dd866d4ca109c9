"""Predicts a training's duration from measured times and loader settings; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmgpu_hooks.model.bounds import MOST_WORKERS
from mmgpu_hooks.model.prediction import (
    JobPlan,
    LoaderSetting,
    estimate_iter_s,
    estimate_job_s,
    predict_setting,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.judged import Prediction


@dataclass(frozen=True)
class Prospect:
    """Times, loader settings and length of a training, to predict its duration from."""

    workload: Workload
    loader: LoaderSetting
    plan: JobPlan

    @property
    def total_s(self) -> float:
        """Predicted seconds of a training: iterations, epoch starts and saves."""
        return estimate_job_s(self.workload, self.loader, self.plan)

    @property
    def image_s(self) -> float:
        """Predicted training seconds per image: total seconds over number of images.

        Per iteration, where the batch size is unknown.
        """
        # whole batches: an epoch of another size may see a few images more
        size = self.workload.batch_size or 1
        return self.total_s / (self.plan.epochs * self.plan.iterations * size)

    @property
    def iter_s(self) -> float:
        """Predicted seconds of a steady iteration."""
        loader = self.loader
        return estimate_iter_s(
            self.workload, loader.num_workers, loader.prefetch_factor
        )

    @property
    def prediction(self) -> Prediction:
        """Predicted seconds of a steady iteration (with interval) and of training."""
        loader = self.loader
        found = predict_setting(
            self.workload, loader.num_workers, loader.prefetch_factor
        )
        return replace(found, training_s=self.total_s)

    @property
    def bound_s(self) -> float:
        """Lower bound on the seconds of the training, for any number of workers."""
        plan, bound_s = self.plan, self.workload.bound_iter_s(MOST_WORKERS)
        return plan.epochs * plan.iterations * bound_s + plan.saves_s

    @property
    def most_gain(self) -> float:
        """Largest share (0 to 1) of training time that other loader settings can save.

        Without workers nothing is fetched and no worker is started, which can be less
        than the bound.
        """
        alone = replace(self, loader=replace(self.loader, num_workers=0))
        least_s = min(self.bound_s, alone.total_s)
        return max(1.0 - least_s / self.total_s, 0.0)

    @property
    def cpu_share(self) -> float:
        """Share (0 to 1) of the free cores' time that a steady iteration uses."""
        return min(self.workload.cpu_floor_s / self.iter_s, 1.0)

    @property
    def without_other_load(self) -> Prospect:
        """Copy of the prediction's input for a host without other programs."""
        alone = replace(self.workload, other_tasks=0.0, turns_s=0.0)
        return replace(self, workload=alone)

    def is_steady_alike(self, other: Prospect) -> bool:
        """True if this and another training differ at most in ``persistent_workers``.

        Only how their epochs start differs then; steady iterations take equally long.
        """
        persistent = other.loader.persistent_workers
        kept = replace(self.loader, persistent_workers=persistent)
        return replace(self, loader=kept) == other
