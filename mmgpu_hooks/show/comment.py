"""Shortens a verdict to fit into the comment of a SLURM job."""

from __future__ import annotations

from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.recorded import VerdictRecord

COMMENT_START = 'mmgpu:'
"""Prefix by which this package recognises its own SLURM job comments."""

_MOST_LETTERS = 250
_PART = {
    'startup_bound': 'startup',
    'validation_bound': 'validation',
    'save_bound': 'checkpoint_save',
    'hook_bound': 'hooks',
    'compute_bound': 'step',
}
"""Part of training time to name in a SLURM job's comment, by name of the verdict."""


def phrase_comment(verdict: VerdictRecord) -> str | None:
    """Phrases a SLURM job comment: ``mmgpu: data-bound 54 %, num_workers 0 -> 8``.

    Without ``|``, which separates the columns of ``sacct -P``.

    Returns:
        ``None`` where too little was recorded to say anything.
    """
    title = VERDICTS.get(verdict.verdict)
    if title is None or verdict.verdict == 'not_enough_evidence':
        return None
    name, part = title.partition(',')[0], _PART.get(verdict.verdict)
    if name.startswith('Data-bound'):
        part = 'data_wait'
    share = verdict.ledger_pct.get(part or '')
    # an abbreviation stays as it is
    words = [name if name[1:2].isupper() else f'{name[:1].lower()}{name[1:]}']
    if share is not None:
        words[0] += f' {share:.0f} %'
    for change in verdict.changes:
        key = change.key.rpartition('.')[2]
        loader = 'val ' if change.key.startswith('val_dataloader.') else ''
        words.append(f'{loader}{key} {change.old} -> {change.new}')
    text = f'{COMMENT_START} {", ".join(words)}'.replace('|', ' ')
    return text[:_MOST_LETTERS]
