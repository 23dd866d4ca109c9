"""Adds to a recommendation the changes that keep host memory from running out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.judge.holders import (
    MemoryShares,
    find_shares,
    find_slurm_memory,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.job import TRAIN
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.text import Text, phrase

_WORKERS_KEY = BY_NAME['num_workers'].key()
_PREFETCH_KEY = BY_NAME['prefetch_factor'].key()
_PERSISTENT_KEY = BY_NAME['persistent_workers'].key()
_RULES = ('MG409',)


def limit_to_memory(found: Recommendation, run: Run) -> Recommendation:
    """Adds changes to a recommendation that keep a run within host memory.

    A number of workers with which memory would have lasted needs no predicted gain.

    Args:
        found: What is recommended; its numbers of workers keep that limit already.
        run: The run it was made of.
    """
    shares, loader = find_shares(run), run.meta.loader
    told: tuple[Text, ...] = ()
    # of a run that is long enough the verdict says it
    is_short = not run.figures.is_enough
    if shares is not None and shares.record.is_low and is_short:
        told = (_phrase_full(shares),)
    found = replace(found, advice=(*told, *_advise_slurm(run), *found.advice))
    if shares is None or shares.holding is None or not loader.num_workers:
        return found
    holding, settings = shares.holding, {c.key: c.new for c in found.changes}
    workers = settings.get(_WORKERS_KEY, loader.num_workers)
    needed: dict[str, tuple[object, object]] = {}
    if workers > holding.workers:
        needed[_WORKERS_KEY] = (loader.num_workers, holding.workers)
        if not holding.workers and loader.prefetch_factor is not None:
            needed[_PREFETCH_KEY] = (loader.prefetch_factor, None)
    keeps = settings.get(_PERSISTENT_KEY, loader.persistent_workers)
    if keeps and (holding.ends_workers or not holding.workers):
        needed[_PERSISTENT_KEY] = (loader.persistent_workers, False)
    if not needed:
        return found
    reason = _phrase_full(shares)
    kept = [change for change in found.changes if change.key not in needed]
    added = [
        Change(key, old, new, reason, 'medium', _RULES)
        for key, (old, new) in needed.items()
        if old != new
    ]
    # a gain was predicted of all of them together, with another number of workers
    changes = (*added, *map(_without_gain, kept))
    return replace(found, changes=changes, reason=None)


def _phrase_full(shares: MemoryShares) -> Text:
    return phrase('Memory was nearly full: of {shares}.', shares)


def _without_gain(change: Change) -> Change:
    if not change.key.startswith(f'{TRAIN}.'):
        return change
    return replace(
        change,
        predicted_iter_s=None,
        predicted_gain_pct=None,
        predicted_gain_low_pct=None,
        predicted_gain_high_pct=None,
    )


def _advise_slurm(run: Run) -> Iterator[Text]:
    """Advises how much memory to ask SLURM for, in GiB."""
    size = find_slurm_memory(run)
    if size is None:
        return
    had = run.meta.host.slurm_memory_bytes
    facts = {'memory_gib': size, 'validations': len(run.validations)}
    if had:
        yield phrase(
            "In SLURM's words: --mem={memory_gib}G for each node, the most that the "
            'training held ({validations} included) and a fifth; it had {had_bytes}.',
            had_bytes=had,
            **facts,
        )
        return
    yield phrase(
        "In SLURM's words: --mem={memory_gib}G for each node, the most that the "
        'training held ({validations} included) and a fifth.',
        **facts,
    )
