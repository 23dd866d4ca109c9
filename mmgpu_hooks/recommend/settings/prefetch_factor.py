"""The setting ``prefetch_factor``: batches that each worker makes ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.job import Choice, Decision, Job, Setting
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import Whole

DEPTHS = (2, 4, 8)


class PrefetchFactor(Setting):
    """Chooses a larger ``prefetch_factor`` if it bridges slow batches."""

    name = 'prefetch_factor'
    noun = phrase('Batches ahead of each worker')
    values = Whole(1, is_optional=True)
    most = 64
    resting = None
    is_bounded = True
    rules = ('MG101',)

    def read(self, run: Run) -> int | None:
        """Reads how many batches each worker makes ahead; ``None`` without workers."""
        loader = run.meta.loader
        return loader.prefetch_factor if loader.num_workers else None

    def candidates(self, job: Job, at: Choice) -> Iterator[int | None]:
        """Lists the run's prefetch factor and larger ones that the host can carry."""
        own, workers = at[self.name], at['num_workers']
        yield own
        for depth in DEPTHS if workers else ():
            is_deeper = depth > (own or DEFAULT_PREFETCH)
            if is_deeper and job.cap({**at, self.name: depth}).workers >= workers:
                yield depth

    def settle(self, job: Job, at: Choice) -> int | None:
        """Returns the prefetch factor; ``None`` without workers, as PyTorch demands."""
        return at[self.name] if at['num_workers'] else None

    def assume(self, job: Job, at: Choice) -> int | None:
        """Returns a prefetch factor to compare worker counts at; ``None`` if unset."""
        own: int | None = at[self.name]
        is_kept = at['num_workers'] == job.old['num_workers']
        return own if own is None or is_kept else max(own, DEFAULT_PREFETCH)

    def fill_in(self, job: Job, at: Choice) -> int | None:
        """Returns a prefetch factor to predict with: PyTorch's default or more."""
        own: int | None = at[self.name]
        return None if own is None else max(own, DEFAULT_PREFETCH)

    def apply(
        self, job: Job, then: Prospect, new: int | None, slip: float = 0.0
    ) -> Prospect:
        """Predicts training time (a `Prospect`) with another prefetch factor."""
        depth = new or DEFAULT_PREFETCH
        return replace(then, loader=replace(then.loader, prefetch_factor=depth))

    def why(self, decision: Decision) -> Text:
        """Phrases why the prefetch factor changes: late batches, or no workers."""
        if not decision.new['num_workers']:
            return phrase('There are no workers to make batches ahead.')
        return phrase(
            'Batches vary; more of them made ahead carry the loop over slow ones.'
        )

    def cite(self, decision: Decision) -> tuple[str, ...]:
        """Returns the codes of the rules on late batches; none without workers."""
        return self.rules if decision.new['num_workers'] else ()
