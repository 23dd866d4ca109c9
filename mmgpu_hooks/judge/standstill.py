"""Judges a run that stood still and did not go on, by what its watchdogs recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.schema.judged import HostNow, Proof, Why
from mmgpu_hooks.schema.recorded import StuckRecord
from mmgpu_hooks.schema.run import RunEvidence

_NETWORK = re.compile(r'nfs|fuse|ceph|lustre|cifs|smb|9p|gpfs|beegfs|afs', re.I)
_OPENING = 'open', 'openat', 'read', 'pread64', 'readv'
_COLLECTIVE = re.compile(r'torch/distributed/|mmengine/dist/')
_OTHERS_NEEDED = re.compile(r'torch/(?:autograd|cuda|nn/parallel)/|message_hub')
"""Where a step of several ranks waits for the gradients of the others."""
_IDLE = re.compile(r'multiprocessing/(?:queues|connection)|selectors')
_MOST_CALLS = 4
_MUTE = "C code that holds Python's lock, so that no thread can run"
_STATES = {
    'R': 'runs',
    'S': 'is asleep',
    'D': 'is in an uninterruptible sleep',
    'T': 'was stopped (SIGSTOP)',
    't': 'was stopped by a debugger',
    'Z': 'is dead',
}
_DOING = {
    'data_wait': 'waiting for data',
    'step': 'in the step',
    'checkpoint_save': 'in a checkpoint save',
    'startup': 'starting',
    'teardown': 'ending workers',
    'resume': 'skipping batches that were trained on',
}


class LastSign(NamedTuple):
    """End of a rank's evidence; sorts by time."""

    iteration: int
    """The last one of which it has figures."""
    alarms: int
    """Alarms of the watchdog after it."""


class Rank(NamedTuple):
    """One rank of a run."""

    evidence: RunEvidence
    host: HostNow = HostNow()
    """State that its host shows now."""

    @property
    def number(self) -> int | None:
        """``None`` of a run that has one rank."""
        run = self.evidence.run
        return run.rank if run.world_size > 1 else None

    @property
    def is_gone(self) -> bool:
        """True if its process ended without a word."""
        return self.host.is_alive is False and self.evidence.end is None

    @property
    def last_sign(self) -> LastSign:
        """End of its evidence."""
        evidence = self.evidence
        last = evidence.intervals[-1].iteration if evidence.intervals else 0
        alarms = sum(stuck.iteration >= last for stuck in evidence.stuck)
        return LastSign(last, alarms)

    @property
    def stuck(self) -> StuckRecord | None:
        """Standstill that it is in; ``None`` where it went on after that."""
        evidence = self.evidence
        last = evidence.intervals[-1].iteration if evidence.intervals else 0
        for stuck in evidence.stuck[-1:]:
            if not stuck.is_over and last <= stuck.iteration:
                return stuck
        if self.host.stack:  # the watchdog could not run
            calls = self.host.stack
            return StuckRecord(iteration=last, part=_MUTE, waited_s=0.0, stack=calls)
        return None


def find_first_gone(ranks: Sequence[Rank]) -> Rank | None:
    """The rank whose process ended first without a word, the others after it.

    Ranks keep step: one whose evidence ends earlier than that of the others did not
    end with them.

    Returns:
        ``None`` where none is gone, or where evidence of several ends alike.
    """
    gone = [rank for rank in ranks if rank.is_gone]
    gone.sort(key=lambda rank: rank.last_sign)
    if len(gone) > 1 and gone[0].last_sign == gone[1].last_sign:
        return None
    return gone[0] if gone else None


def describe_gone(ranks: Sequence[Rank]) -> list[str]:
    """A sentence for each process that ended without a word."""
    return [
        f'process {rank.evidence.run.pid}'
        + ('' if rank.number is None else f' of rank {rank.number}')
        + ' is gone and left no end record'
        for rank in ranks
        if rank.is_gone
    ]


def judge_standstill(ranks: Sequence[Rank]) -> Why | None:
    """Say what a run stands still in, and which of its ranks the others wait for.

    Args:
        ranks: Those whose evidence is at hand.

    Returns:
        ``None`` where none of them stands still.
    """
    found = [(rank, stuck) for rank in ranks if (stuck := rank.stuck) is not None]
    if not found:
        return None
    own = [pair for pair in found if not _waits_for_ranks(*pair)]
    rank, stuck = (own or found)[0]
    gone, first_gone = describe_gone(ranks), find_first_gone(ranks)
    proof = describe_stuck(stuck)
    named = name_cause(rank, stuck)
    cause, certainty = named.name, named.certainty
    if first_gone in [waiting for waiting, _ in found]:
        first_gone = None
    # where all are gone, somebody ended those that waited
    if not own and gone and (first_gone or len(gone) < len(ranks)):
        cause, proof = 'rank_lost', gone
        certainty = 'sure' if len(gone) < len(ranks) else 'likely'
        rank = first_gone or rank
    proof += [
        f'rank {other.number} is {phrase_part(its)} at iteration {its.iteration + 1}'
        for other, its in found
        if other is not rank
    ]
    waited = f' for {stuck.waited_s:.0f} s and more' if stuck.waited_s else ''
    where = f'{phrase_part(stuck)} (iteration {stuck.iteration + 1})'
    sentence = f'Stuck{waited}, {where}.'
    is_named = bool(own) or (cause == 'rank_lost' and first_gone is not None)
    if len(found) > 1 and is_named:
        sentence += f' The other ranks wait for rank {rank.number}.'
    if cause != 'unknown':
        sentence += f' {CAUSES[cause].title}.'
    return Why(
        'running' if any(rank.host.is_alive for rank in ranks) else 'ended',
        cause,
        certainty,
        sentence,
        tuple(Proof('watchdog', None, text) for text in proof),
        CAUSES[cause].do,
        rank=rank.number if is_named else None,
        sample=None if stuck.sample is None else str(stuck.sample),
    )


def phrase_part(stuck: StuckRecord) -> str:
    """Words for the part of training that it was in."""
    return _DOING.get(stuck.part, f'in {stuck.part}')


def _waits_for_ranks(rank: Rank, stuck: StuckRecord) -> bool:
    """True if it stands in a collective."""
    if any(_COLLECTIVE.search(call) for call in stuck.stack):
        return True
    innermost = '\n'.join(stuck.stack[:3])
    return rank.number is not None and bool(_OTHERS_NEEDED.search(innermost))


class NamedCause(NamedTuple):
    """Why training stands still."""

    name: str
    """A key of `CAUSES`."""
    certainty: str
    """``sure``, ``likely`` or ``unknown``."""


def name_cause(rank: Rank, stuck: StuckRecord) -> NamedCause:
    """Name the cause of a standstill, and how sure that is."""
    unknown, is_idle = NamedCause('unknown', 'unknown'), stuck.state == 'S'
    if stuck.part != 'data_wait':
        if _waits_for_ranks(rank, stuck):
            return NamedCause('rank_waits', 'likely')
        is_loading = any('torch/utils/data/_utils/fetch.py' in c for c in stuck.stack)
        return NamedCause('worker_stuck', 'likely') if is_loading else unknown
    if stuck.state in ('Z', 'X'):
        return NamedCause('worker_killed', 'sure')
    if stuck.state == 'D':
        return NamedCause('storage_stalled', 'sure')
    if stuck.mount and _NETWORK.search(stuck.mount):
        return NamedCause('storage_stalled', 'likely')
    # a file, and not a pipe or socket of the loader's
    path = '/' if stuck.path is None and stuck.call in _OPENING[:2] else stuck.path
    if is_idle and stuck.call in _OPENING and (path or '').startswith('/'):
        return NamedCause('storage_stalled', 'likely')
    workers = rank.evidence.run.loader.num_workers or 0
    if is_idle and stuck.call == 'futex' and stuck.alike >= max(workers, 1):
        return NamedCause('worker_deadlock', 'likely')
    if stuck.sample is not None:
        return NamedCause('worker_stuck', 'sure')
    # one that answers and loads nothing has sent its batch, and it was lost
    is_unknown = stuck.state is None or is_lost(stuck)
    return unknown if is_unknown else NamedCause('worker_stuck', 'likely')


def is_lost(stuck: StuckRecord) -> bool:
    """True if the worker that owes the batch waits for work itself."""
    is_known = stuck.worker is not None and stuck.sample is None
    return is_known and bool(_IDLE.search(''.join(stuck.stack[:3])))


def describe_stuck(stuck: StuckRecord) -> list[str]:
    """Sentences and calls that were seen of it, for the log and `mmgpu why`."""
    found = []
    if stuck.worker is not None:
        state = _STATES.get(stuck.state or '', f'is in state {stuck.state}')
        found.append(
            f'Worker {stuck.worker} (pid {stuck.pid}) owes the next batch; it {state}'
        )
    if stuck.sample is not None:
        image = f', {stuck.image}' if stuck.image else ''
        since = f'for {stuck.sample_s or 0.0:.0f} s'
        found.append(f'loading sample {stuck.sample} {since}{image}')
    elif is_lost(stuck):
        found.append(
            'it waits for work: the batch was lost on its way, as when /dev/shm is '
            'full or files cannot be opened; the console says which (--log)'
        )
    elif stuck.worker is not None:
        found.append('its sample is unknown: the worker was out of reach')
    if stuck.call is not None:
        where = f' on {stuck.path} ({stuck.mount})' if stuck.path else ''
        found.append(f'it waits in {stuck.call}(){where}')
    if stuck.alike > 1:
        found.append(f'{stuck.alike} workers stand at the same line')
    return found + list(stuck.stack[:_MOST_CALLS])
