"""Settings and requests that the host's memory asks for, whatever is predicted of
speed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.judge.holders import find_shares, find_slurm_memory
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.policy import KEY, PERSISTENT_KEY, WORKERS_KEY
from mmgpu_hooks.schema.figures import format_bytes, plural
from mmgpu_hooks.schema.judged import Change, Recommendation

_PREFETCH_KEY = f'{KEY}prefetch_factor'
_RULES = ('MG409',)


def limit_to_memory(found: Recommendation, run: Run) -> Recommendation:
    """Add what the host's memory demands to what is recommended anyway.

    A number of workers with which memory would have lasted needs no predicted gain.

    Args:
        found: What is recommended; its numbers of workers keep that limit already.
        run: The run it was made of.
    """
    shares, loader = find_shares(run), run.meta.loader
    told: tuple[str, ...] = ()
    # of a run that is long enough the verdict says it
    is_short = not run.figures.is_enough
    if shares is not None and shares.record.is_low and is_short:
        told = (f'Memory was nearly full: {shares.sentence}.',)
    found = replace(found, advice=(*told, *_advise_slurm(run), *found.advice))
    if shares is None or shares.holding is None or not loader.num_workers:
        return found
    holding, settings = shares.holding, {c.key: c.new for c in found.changes}
    workers = settings.get(WORKERS_KEY, loader.num_workers)
    needed: dict[str, tuple[object, object]] = {}
    if workers > holding.workers:
        needed[WORKERS_KEY] = (loader.num_workers, holding.workers)
        if not holding.workers and loader.prefetch_factor is not None:
            needed[_PREFETCH_KEY] = (loader.prefetch_factor, None)
    keeps = settings.get(PERSISTENT_KEY, loader.persistent_workers)
    if keeps and (holding.ends_workers or not holding.workers):
        needed[PERSISTENT_KEY] = (loader.persistent_workers, False)
    if not needed:
        return found
    reason = f'memory was nearly full: {shares.sentence}'
    kept = [change for change in found.changes if change.key not in needed]
    added = [
        Change(key, old, new, reason, 'medium', _RULES)
        for key, (old, new) in needed.items()
        if old != new
    ]
    # a gain was predicted of all of them together, with another number of workers
    changes = (*added, *map(_without_gain, kept))
    return replace(found, changes=changes, reason=None)


def _without_gain(change: Change) -> Change:
    if not change.key.startswith(KEY):
        return change
    return replace(
        change,
        predicted_iter_s=None,
        predicted_gain_pct=None,
        predicted_gain_low_pct=None,
        predicted_gain_high_pct=None,
    )


def _advise_slurm(run: Run) -> Iterator[str]:
    """Memory to ask SLURM for."""
    size = find_slurm_memory(run)
    if size is None:
        return
    had = run.meta.host.slurm_memory_bytes
    now = f'; it had {format_bytes(had)}' if had else ''
    seen = plural(len(run.validations), 'validation')
    yield (
        f"In SLURM's words: --mem={size}G for each node, the most that the training "
        f'held ({seen} included) and a fifth{now}.'
    )
