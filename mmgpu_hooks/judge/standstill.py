"""Finds why a training hangs, from the records of its ranks' watchdogs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.hanging_frames import HangingFrame, find_hanging_frame
from mmgpu_hooks.schema.judged import HostNow, Proof, Why
from mmgpu_hooks.schema.recorded import (
    START_PART,
    EndRecord,
    EvidenceLine,
    StuckRecord,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, phrase, sentences, worded

_NETWORK = re.compile(r'nfs|fuse|ceph|lustre|cifs|smb|9p|gpfs|beegfs|afs', re.I)
_OPENING = 'open', 'openat', 'read', 'pread64', 'readv'
_COLLECTIVE = re.compile(r'torch/distributed/(?!elastic/)|mmengine/dist/(?!utils\.py)')
"""Regex for a frame that waits in a collective of ``torch.distributed``.

Not one that wraps a whole script (``record``) or a save (``master_only``).
"""
_OTHERS_NEEDED = re.compile(r'torch/(?:autograd|cuda|nn/parallel)/|message_hub')
"""Regex for a frame in which a step waits for the gradients of other ranks."""
_IDLE = re.compile(r'multiprocessing/(?:queues|connection)|selectors')
_MOST_CALLS = 4
_SLOW_TIMES, _SLOW_S = 3.0, 1.0
"""Limits for a batch that is slow, not stuck: ratio of load times; seconds per sample.

The sample that is being loaded takes at most this ratio times the mean of the samples
before it in its batch, which took at least so many seconds each.
"""
_MUTE = phrase("C code that holds Python's lock, so that no thread can run")
_STATES = {
    'R': phrase('runs'),
    'S': phrase('is asleep'),
    'D': phrase('is in an uninterruptible sleep'),
    'T': phrase('was stopped (SIGSTOP)'),
    't': phrase('was stopped by a debugger'),
    'Z': phrase('is dead'),
}
_DOING = {
    'data_wait': phrase('waiting for data'),
    'step': phrase('in the step'),
    'checkpoint_save': phrase('in a checkpoint save'),
    'startup': phrase('starting'),
    'teardown': phrase('ending workers'),
    'resume': phrase('skipping batches that were trained on'),
    START_PART: phrase('before training began'),
}
_VALIDATING = {
    'data_wait': phrase('waiting for data in validation'),
    'forward': phrase('in the forward pass of validation'),
    'process': phrase("in the evaluator's process in validation"),
    'metric': phrase('in compute_metrics in validation'),
    'gather': phrase('gathering results of validation'),
    'rank_wait': phrase('waiting for other ranks in validation'),
    'save': phrase('saving the best after validation'),
    'rest': phrase('in validation'),
}


class LastSign(NamedTuple):
    """Last iteration that a rank recorded, and number of watchdog alarms since then."""

    iteration: int
    """Last iteration that the rank recorded."""
    alarms: int
    """Number of alarms of the watchdog after the last iteration."""


class Rank(NamedTuple):
    """Records of one rank's run, and the state of its process now."""

    evidence: RunEvidence
    host: HostNow = HostNow()
    """State of the rank's process, as its host shows it now."""

    @property
    def number(self) -> int | None:
        """Index of the rank; ``None`` in a run that has one rank."""
        run = self.evidence.run
        return run.rank if run.world_size > 1 else None

    @property
    def is_starting(self) -> bool:
        """True if the rank has not reached its train loop yet."""
        return self.evidence.run.loop is None

    @property
    def is_gone(self) -> bool:
        """True if the rank's process has ended and left no end record."""
        return self.host.is_alive is False and self.evidence.end is None

    @property
    def last_sign(self) -> LastSign:
        """Last iteration that the rank recorded, and its watchdog alarms since."""
        evidence = self.evidence
        last = evidence.intervals[-1].iteration if evidence.intervals else 0
        alarms = sum(stuck.iteration >= last for stuck in evidence.stuck)
        return LastSign(last, alarms)

    @property
    def batches(self) -> int | None:
        """Number of batches in a rank's epoch; ``None`` in iteration-based training."""
        stuck, run = self.stuck, self.evidence.run
        if stuck is not None and stuck.epoch_batches is not None:
            return stuck.epoch_batches
        return run.loader.batches_per_epoch if run.loop == 'epoch' else None

    @property
    def iterations(self) -> int:
        """Number of iterations of the whole training that the rank has done."""
        evidence, stuck = self.evidence, self.stuck
        known = [interval.iteration for interval in evidence.intervals[-1:]]
        known += [stuck.iteration] if stuck is not None else []
        if evidence.end is not None:
            known.append(evidence.run.start_iteration + evidence.end.iterations)
        return max(known, default=evidence.run.start_iteration)

    @property
    def has_ended_epoch(self) -> bool:
        """True if the rank is past the last batch of an epoch, and not in the next one.

        An epoch-based training validates there.
        """
        if self.evidence.run.loop != 'epoch':
            return False
        stuck = self.stuck
        if self.is_completed or stuck is None:
            return self.is_completed
        is_after = any(call.endswith(' in after_train_epoch') for call in stuck.stack)
        return is_after or stuck.part == 'validation'

    @property
    def is_in_iteration(self) -> bool:
        """True if the rank hangs or failed within an iteration of training."""
        stuck, end = self.stuck, self.evidence.end
        if end is not None:
            return any(line.endswith(', in run_iter') for line in end.traceback)
        return stuck is not None and stuck.part == 'step'

    @property
    def is_completed(self) -> bool:
        """True if the rank completed its training as planned."""
        end = self.evidence.end
        return end is not None and end.status == 'completed'

    @property
    def stuck(self) -> StuckRecord | None:
        """Record of the standstill that the rank is in; ``None`` if it trains.

        A wait for other ranks that was no alarm counts where there is no alarm.
        """
        evidence = self.evidence
        last = evidence.intervals[-1].iteration if evidence.intervals else 0
        for stuck in (*evidence.stuck[-1:], *evidence.notes_of_waits[-1:]):
            if not stuck.is_over and last <= stuck.iteration:
                return stuck
        if self.host.stack:  # the watchdog could not run
            calls = self.host.stack
            return StuckRecord(iteration=last, part=_MUTE, waited_s=0.0, stack=calls)
        return None


def find_first_gone(ranks: Sequence[Rank]) -> Rank | None:
    """Finds the rank whose process ended first, of those without an end record.

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


def describe_gone(ranks: Sequence[Rank]) -> list[Text]:
    """Returns a sentence on each rank whose process ended without an end record."""
    return [
        phrase('process {pid} is gone and left no end record', rank.evidence.run)
        if rank.number is None
        else phrase(
            'process {pid} of rank {rank} is gone and left no end record',
            rank.evidence.run,
        )
        for rank in ranks
        if rank.is_gone
    ]


def judge_standstill(ranks: Sequence[Rank]) -> Why | None:
    """Judges a standstill: what training waits for, and which rank the others wait for.

    Args:
        ranks: Those whose evidence is at hand.

    Returns:
        ``None`` where none of them stands still.
    """
    found = [(rank, stuck) for rank in ranks if (stuck := rank.stuck) is not None]
    if not any(stuck.is_alarm for _, stuck in found):
        return None
    own = [pair for pair in found if not _waits_for_ranks(*pair)]
    rank, stuck = (own or found)[0]
    gone, first_gone = describe_gone(ranks), find_first_gone(ranks)
    proof: list[str] = describe_stuck(stuck)
    named = name_cause(rank, stuck)
    cause, certainty = named.name, named.certainty
    if first_gone in [waiting for waiting, _ in found]:
        first_gone = None
    met = _name_starter(own) if len(own) < len(found) else None
    if not own:
        met = _name_meeting(ranks, found)
    waited_for = rank.number if own else None
    # where all are gone, somebody ended those that waited
    if not own and gone and (first_gone or len(gone) < len(ranks)):
        cause, proof = 'rank_lost', [*gone]
        certainty = 'sure' if len(gone) < len(ranks) else 'likely'
        rank, met = first_gone or rank, None
        waited_for = first_gone.number if first_gone is not None else None
    elif met is not None:
        cause, certainty, waited_for = met.cause, met.certainty, met.rank
        proof = [*met.proof, *proof]
    elif _is_work_on_one_rank(stuck, cause) and len(found) > 1:
        cause, certainty = 'work_on_one_rank', 'likely'
    proof += [
        _phrase_place(other.number, its) for other, its in found if other is not rank
    ]
    if any(_is_nccl(other) and _waits_for_ranks(other, its) for other, its in found):
        proof.append(_IN_OR_BEFORE)
    return Why(
        'running' if any(rank.host.is_alive for rank in ranks) else 'ended',
        cause,
        certainty,
        sentences(
            *_list_sentences(stuck, met, waited_for if len(found) > 1 else None, cause)
        ),
        tuple(Proof('watchdog', None, text) for text in proof),
        met.do if met is not None and met.do else _list_cures(stuck, cause),
        rank=waited_for,
        sample=None if stuck.sample is None else str(stuck.sample),
    )


def _list_sentences(
    stuck: StuckRecord, met: _Meeting | None, waited_for: int | None, cause: str
) -> list[Text]:
    """Lists sentences on a standstill: its place in the code, and its named cause.

    Args:
        stuck: The standstill that is judged.
        met: Why ranks that wait for one another do not meet.
        waited_for: The rank that others wait for.
        cause: A key of `CAUSES`.
    """
    said = [_phrase_standstill(stuck, cause)]
    if met is not None:
        said.append(met.sentence)
    elif waited_for is not None:
        said.append(phrase('The other ranks wait for rank {rank}.', rank=waited_for))
    if _loads_itself(stuck) and cause == 'worker_stuck':
        said.append(phrase('Loading a sample is stuck, in the training process.'))
    elif cause != 'unknown':
        said.append(phrase('{title}.', CAUSES[cause]))
    return said


def _phrase_standstill(stuck: StuckRecord, cause: str) -> Text:
    doing = phrase_part(stuck)
    if stuck.part != START_PART:
        doing = phrase(
            '{doing} (iteration {iteration})',
            doing=doing,
            iteration=stuck.iteration + 1,
        )
    facts = {'doing': doing, 'waited_s': stuck.waited_s}
    if cause == 'slow_loader':
        if not stuck.waited_s:
            return phrase('Slow, not stuck, {doing}.', doing=doing)
        return phrase(
            'Slow, not stuck for {waited_s:.0f} s and more, {doing}.', **facts
        )
    if not stuck.waited_s:
        return phrase('Stuck, {doing}.', doing=doing)
    return phrase('Stuck for {waited_s:.0f} s and more, {doing}.', **facts)


def _loads_itself(stuck: StuckRecord) -> bool:
    """Returns True if the training process loads a batch, without workers."""
    is_loading = any('torch/utils/data/_utils/fetch.py' in c for c in stuck.stack)
    return stuck.worker is None and is_loading


def _list_cures(stuck: StuckRecord, cause: str) -> tuple[Text, ...]:
    """Lists advice against a standstill; advice on the hanging call comes first."""
    if _loads_itself(stuck) and cause == 'worker_stuck':
        look, *rest = CAUSES[cause].do
        look = phrase(
            'Look at the sample and at the calls above: no worker loads it '
            '(num_workers=0).'
        )
        return (look, *rest)
    row = find_row(stuck)
    is_of_row = row is not None and row.cause == cause
    return (*([worded(row.do)] if row and is_of_row else []), *CAUSES[cause].do)


_IN_OR_BEFORE = phrase(
    'with NCCL a rank stands in the next wait for its GPU, and no longer in the '
    'collective: it is in that collective or before it'
)


def _is_nccl(rank: Rank) -> bool:
    return rank.evidence.run.device == 'cuda'


def _is_work_on_one_rank(stuck: StuckRecord, cause: str) -> bool:
    """True if one rank does additional work while the other ranks wait."""
    loop = 'data_wait', 'resume', 'step', 'startup', START_PART, _MUTE
    is_of_all = stuck.validation_part in ('data_wait', 'forward', 'process')
    return cause == 'unknown' and stuck.part not in loop and not is_of_all


class _Meeting(NamedTuple):
    """Reason why ranks wait for one another without end, and the rank at fault."""

    cause: str
    certainty: str
    sentence: Text
    rank: int | None = None
    proof: Sequence[Text] = ()
    do: tuple[Text, ...] = ()


_Found = Sequence[tuple[Rank, StuckRecord]]


def _name_starter(own: _Found) -> _Meeting | None:
    """Names the rank that the others wait for, if it has not begun to train."""
    if not own or any(stuck.part != START_PART for _, stuck in own):
        return None
    return _late(rank for rank, _ in own)


def _late(ranks: Iterable[Rank]) -> _Meeting:
    late = tuple(rank.evidence.run.rank for rank in ranks)
    if len(late) == 1:
        said = phrase('Rank {rank} has not begun to train.', rank=late[0])
        return _Meeting('rank_never_came', 'likely', said, late[0])
    said = phrase('Ranks {late:,} have not begun to train.', late=late)
    return _Meeting('rank_never_came', 'likely', said)


def _find_stopped(ranks: Sequence[Rank]) -> _Meeting | None:
    """Finds the rank whose process was stopped as a whole, by SIGSTOP or Ctrl-Z."""
    stopped = next((rank for rank in ranks if rank.host.is_stopped), None)
    if stopped is None or stopped.number is None:
        return None
    said = phrase(
        'Rank {rank} was stopped (SIGSTOP, Ctrl-Z): process {pid}.',
        stopped.evidence.run,
    )
    do = phrase('kill -CONT {pid} lets it go on.', stopped.evidence.run)
    return _Meeting('rank_waits', 'sure', said, stopped.number, (), (do,))


def _name_meeting(ranks: Sequence[Rank], found: _Found) -> _Meeting | None:
    stopped = _find_stopped(ranks)
    if stopped is not None:
        return stopped
    uneven = find_uneven(ranks)
    if uneven is not None:
        return _Meeting(
            'uneven_inputs',
            uneven.certainty,
            uneven.sentence,
            uneven.rank,
            uneven.proof,
        )
    return _find_missing(ranks, found) or _find_apart(found)


_OWN_CALL = re.compile(r'^(?!.*(?:/(?:site|dist)-packages/|/lib/python3|mmgpu_hooks/))')
"""Regex for a stack entry in the user's own code, not in an installed package."""


def _find_apart(found: _Found) -> _Meeting | None:
    """Detects ranks that wait in different collectives, so that they never meet."""
    calls = {
        rank.evidence.run.rank: next(filter(_OWN_CALL.match, stuck.stack), None)
        for rank, stuck in found
        if rank.number is not None
    }
    parts = {stuck.part for _, stuck in found}
    world_size = found[0][0].evidence.run.world_size
    # with NCCL a rank may stand behind the collective that it waits for
    if len(calls) < max(world_size, 2) or any(_is_nccl(rank) for rank, _ in found):
        return None
    if len(parts) < 2:
        return None
    said = phrase('They wait in different collectives, which never meet.')
    proof = [
        phrase('rank {rank} waits in {call}', rank=number, call=call)
        for number, call in calls.items()
        if call is not None
    ]
    do = phrase('Call each collective on every rank, or on none.')
    return _Meeting('rank_waits', 'likely', said, None, proof, (do,))


def _find_missing(ranks: Sequence[Rank], found: _Found) -> _Meeting | None:
    """Finds the rank that never came to the first collective."""
    run = ranks[0].evidence.run
    if any(stuck.has_met is not False for _, stuck in found):
        return None
    here = {rank.evidence.run.rank for rank in ranks}
    missing = [number for number in range(run.world_size) if number not in here]
    if missing and run.host.ranks_on_host == run.world_size:
        said = phrase('Rank {rank} left no evidence', rank=missing[0])
        if len(missing) > 1:
            said = phrase(
                'Ranks {missing} left no evidence',
                missing=tuple(str(number) for number in missing),
            )
        came = phrase(
            '{said}: {ranks} of {world_size} came', run, said=said, ranks=len(here)
        )
        number = missing[0] if len(missing) == 1 else None
        whole = phrase('{said}.', said=said)
        return _Meeting('rank_never_came', 'likely', whole, number, [came])
    waiting = {rank.evidence.run.rank for rank, _ in found}
    late = [
        rank
        for rank in ranks
        if rank.is_starting and rank.evidence.run.rank not in waiting
    ]
    if late:
        return _late(late)
    if not missing and len(found) < len(ranks):
        return None
    said = phrase('No iteration of the ranks together has ended.')
    return _Meeting('rank_never_came', 'likely', said)


class Uneven(NamedTuple):
    """Finding that ranks train different numbers of batches: rank and proof."""

    sentence: Text
    rank: int | None
    """Rank that trains fewest batches; ``None`` if several do."""
    proof: Sequence[Text]
    certainty: str = 'sure'
    """Certainty that ranks train different numbers of batches: ``sure`` or ``likely``.

    Without them, a rank may have been told to stop early."""


def find_uneven(ranks: Sequence[Rank]) -> Uneven | None:
    """Finds the rank that ended its epoch, or its training, before the others.

    Args:
        ranks: Those whose evidence is at hand.

    Returns:
        ``None`` where each trains as many batches as the others, or where the shortest
        has not come to the end of its own.
    """
    return _find_short_loader(ranks) or _find_short_epoch(ranks)


def _find_short_epoch(ranks: Sequence[Rank]) -> Uneven | None:
    """Finds the rank whose epoch ended after fewer batches than that of other ranks.

    An iterable data set and a batch sampler need not yield as many as they announce.
    """
    ended = [rank for rank in ranks if rank.has_ended_epoch]
    training = [rank for rank in ranks if rank.is_in_iteration]
    if not ended or not training or any(rank.number is None for rank in ranks):
        return None
    rank = min(ended, key=lambda rank: rank.iterations)
    # it waits in the iteration after those
    if min(other.iterations for other in training) < rank.iterations:
        return None
    taken = None if rank.stuck is None else rank.stuck.batches_taken
    theirs = [other.stuck.batches_taken for other in training if other.stuck]
    # they had as many, and wait in the next epoch
    if taken is not None and any(n is not None and n <= taken for n in theirs):
        return None
    number = rank.number if len(ended) == 1 else None
    facts = {'rank': rank.number, 'iterations': rank.iterations}
    proof = [phrase('rank {rank} trained {iterations}', **facts)]
    proof += [
        phrase(
            'rank {rank} stands in iteration {iteration}',
            rank=other.number,
            iteration=other.iterations + 1,
        )
        for other in training
    ]
    if rank.batches is not None:
        proof.append(
            phrase(
                "rank {rank}'s loader announces {batches} an epoch, which it need not "
                'yield',
                rank=rank.number,
                batches=rank.batches,
            )
        )
    if rank.is_completed:
        said = phrase(
            'Rank {rank} came to the end of training after {iterations}, others not.',
            **facts,
        )
        return Uneven(said, number, proof, 'likely')
    said = phrase(
        'Rank {rank} ended its epoch after iteration {iterations:d}, others wait in '
        'iteration {iteration}.',
        iteration=rank.iterations + 1,
        **facts,
    )
    return Uneven(said, number, proof, 'likely')


def _find_short_loader(ranks: Sequence[Rank]) -> Uneven | None:
    """Finds the rank that ended first because its DataLoader has fewer batches."""
    counts = {
        rank.evidence.run.rank: rank.batches
        for rank in ranks
        if rank.number is not None
    }
    known = {number: count for number, count in counts.items() if count is not None}
    if len(known) < 2 or len(set(known.values())) < 2:
        return None
    fewest = min(known.values())
    short = [
        rank for rank in ranks if known.get(rank.evidence.run.rank, math.inf) == fewest
    ]
    rank = short[0]
    proof = describe_batches(known)
    number = rank.number if len(short) == 1 else None
    if rank.is_completed:
        said = phrase(
            'Rank {rank} came to the end of training, others not.', rank=number
        )
        if number is None:
            said = phrase(
                '{ranks} came to the end of training, others not.', ranks=len(short)
            )
        return Uneven(said, number, proof)
    stuck = rank.stuck
    if stuck is None or stuck.batches_taken is None or stuck.batches_taken < fewest:
        return None
    if stuck.part in ('step', 'data_wait'):
        return None
    said = phrase(
        'Rank {rank} ended its epoch after {batches}, others wait in batch {batch}.',
        rank=number,
        batches=fewest,
        batch=fewest + 1,
    )
    if number is None:
        said = phrase(
            '{ranks} ended their epoch after {batches}, others wait in batch {batch}.',
            ranks=len(short),
            batches=fewest,
            batch=fewest + 1,
        )
    return Uneven(said, number, proof)


def describe_batches(batches: Mapping[int, int]) -> list[Text]:
    """Describes ranks' batches per epoch; ranks with equally many share one text."""
    groups: dict[int, list[int]] = {}
    for number, count in sorted(batches.items()):
        groups.setdefault(count, []).append(number)
    return [
        phrase('rank {rank}: {batches} an epoch', rank=group[0], batches=count)
        if len(group) == 1
        else phrase(
            'ranks {numbers:,}: {batches} an epoch',
            numbers=tuple(map(str, group)),
            batches=count,
        )
        for count, group in groups.items()
    ]


def is_late_by_others(words: Sequence[EvidenceLine | None]) -> bool:
    """True if other ranks show a hang: one ended or raised an alarm, or all are stuck.

    Args:
        words: The last interval, standstill or end of each.

    Returns:
        False while one of them works and has not said that it stands still itself: it
        knows its own patience.
    """
    standing = [
        word
        for word in words
        if isinstance(word, EndRecord)
        or (isinstance(word, StuckRecord) and not word.is_over)
    ]
    has_spoken = any(
        isinstance(word, EndRecord) or (isinstance(word, StuckRecord) and word.is_alarm)
        for word in standing
    )
    return has_spoken or len(standing) == len(words)


def _phrase_place(number: int | None, stuck: StuckRecord) -> Text:
    if stuck.part == START_PART:
        return phrase('rank {rank} stands before its first iteration', rank=number)
    return phrase(
        'rank {rank} is {doing} at iteration {iteration}',
        rank=number,
        doing=phrase_part(stuck),
        iteration=stuck.iteration + 1,
    )


def phrase_part(stuck: StuckRecord) -> Text:
    """Phrases in which part of training a rank stands still."""
    if stuck.validation_part is not None:
        return phrase_validation_part(stuck.validation_part, stuck.metric)
    return _DOING.get(stuck.part) or phrase('in {part}', part=stuck.part)


def phrase_validation_part(part: str, metric: str | None) -> Text:
    """Phrases in which part of a validation a rank stands still.

    Args:
        part: As in ``parts_s`` of a validation.
        metric: That it was of, where there is one.
    """
    if metric is not None:
        if part == 'process':
            return phrase('in process of {metric} in validation', metric=metric)
        if part == 'metric':
            return phrase('in compute_metrics of {metric} in validation', metric=metric)
        if part == 'gather':
            return phrase('gathering results of {metric} in validation', metric=metric)
    return _VALIDATING.get(part, _VALIDATING['rest'])


def waits_for_data(stuck: StuckRecord) -> bool:
    """True if the loop waits for a batch, of training or of validation."""
    is_wait = stuck.part in ('data_wait', 'resume')
    return is_wait or stuck.validation_part == 'data_wait'


def _waits_for_ranks(rank: Rank, stuck: StuckRecord) -> bool:
    return is_in_collective(stuck, rank.evidence.run.world_size)


def is_in_collective(stuck: StuckRecord, world_size: int) -> bool:
    """True if a rank waits in a collective, or for other ranks' gradients."""
    if any(_COLLECTIVE.search(call) for call in stuck.stack):
        return True
    innermost = '\n'.join(stuck.stack[:3])
    return world_size > 1 and bool(_OTHERS_NEEDED.search(innermost))


class NamedCause(NamedTuple):
    """Name of a standstill's cause, and how sure the cause is."""

    name: str
    """Name of the cause of a standstill, a key of `CAUSES`."""
    certainty: str
    """Certainty of a standstill's cause: ``sure``, ``likely`` or ``unknown``."""


class SlowBatch(NamedTuple):
    """Batch that a worker loads slowly, sample by sample."""

    number: int
    """Position in the batch, counted from 1, of the sample that is being loaded."""
    samples: int
    each_s: float
    """Mean seconds of loading each of the batch's samples before the current one."""

    @property
    def sentence(self) -> Text:
        """Sentence on a slow batch: ``slow, not stuck: sample 3 of 16 is ...``."""
        facts = {
            'number': self.number,
            'batch_samples': self.samples,
            'each_s': self.each_s,
            'batch_s': self.each_s * self.samples,
        }
        if self.number == 2:
            return phrase(
                'slow, not stuck: sample {number} of {batch_samples:d} is being '
                'loaded, the 1 before took {each_s}; at this rate the batch takes '
                '{batch_s}',
                **facts,
            )
        return phrase(
            'slow, not stuck: sample {number} of {batch_samples:d} is being loaded, '
            'the {before} before took {each_s} each; at this rate the batch takes '
            '{batch_s}',
            before=self.number - 1,
            **facts,
        )


def find_slow_batch(stuck: StuckRecord) -> SlowBatch | None:
    """Finds the batch that the loop waits for, if loading it is slow and not stuck.

    Returns:
        ``None`` where the sample that is being loaded takes longer than those before
        it would explain, and where it is the first.
    """
    number, samples = stuck.sample_number, stuck.batch_samples
    batch_s, sample_s = stuck.batch_s, stuck.sample_s
    if number is None or samples is None or batch_s is None or sample_s is None:
        return None
    is_stopped = stuck.state is not None and stuck.state in 'TtZX'
    if number < 2 or is_stopped or stuck.part not in ('data_wait', 'resume'):
        return None
    each_s = (batch_s - sample_s) / (number - 1)
    is_slow = sample_s <= _SLOW_TIMES * each_s and each_s >= _SLOW_S
    return SlowBatch(number, samples, each_s) if is_slow else None


def name_cause(rank: Rank, stuck: StuckRecord) -> NamedCause:
    """Names the cause of a standstill, and how sure that is."""
    unknown, is_idle = NamedCause('unknown', 'unknown'), stuck.state == 'S'
    if not waits_for_data(stuck):
        if _waits_for_ranks(rank, stuck):
            return NamedCause('rank_waits', 'likely')
        is_loading = _loads_itself(stuck)
        return NamedCause('worker_stuck', 'likely') if is_loading else unknown
    if stuck.state in ('Z', 'X'):
        return NamedCause('worker_killed', 'sure')
    if find_slow_batch(stuck) is not None:
        return NamedCause('slow_loader', 'likely')
    if stuck.state == 'D':
        return NamedCause('storage_stalled', 'sure')
    if stuck.mount and _NETWORK.search(stuck.mount):
        return NamedCause('storage_stalled', 'likely')
    # a file, and not a pipe or socket of the loader's
    path = '/' if stuck.path is None and stuck.call in _OPENING[:2] else stuck.path
    if is_idle and stuck.call in _OPENING and (path or '').startswith('/'):
        return NamedCause('storage_stalled', 'likely')
    workers = _count_workers(rank, stuck)
    is_at_lock = is_idle and stuck.call == 'futex' and stuck.is_forked is not False
    # one alone may wait for a lock of its own
    if is_at_lock and stuck.alike >= max(workers, 1):
        return NamedCause('worker_deadlock', 'likely')
    row = find_row(stuck)
    if row is not None:
        return NamedCause(row.cause, 'likely')
    if stuck.sample is not None:
        return NamedCause('worker_stuck', 'sure')
    # one that answers and loads nothing has sent its batch, and it was lost
    is_unknown = stuck.state is None or is_lost(stuck)
    return unknown if is_unknown else NamedCause('worker_stuck', 'likely')


def _count_workers(rank: Rank, stuck: StuckRecord) -> int:
    """Returns ``num_workers`` of the DataLoader that a rank waits for; 0 if unknown."""
    evidence = rank.evidence
    if stuck.validation_part is None:
        return evidence.run.loader.num_workers or 0
    last = evidence.validations[-1:]
    return max((record.loader.num_workers or 0 for record in last), default=0)


def find_row(stuck: StuckRecord) -> HangingFrame | None:
    """Looks up a worker's or the pin thread's stack in the table of hanging calls."""
    if not waits_for_data(stuck):
        return None
    of_worker = None
    # one that runs or was stopped waits for nothing
    is_waiting = stuck.state in ('S', None)
    path = stuck.path or ''
    # a write into a file waits for its storage, not for a reader
    is_file = path.startswith('/') and not path.startswith('/dev/')
    is_waiting &= not (is_file and stuck.call == 'write')
    if is_waiting and (stuck.worker is not None or stuck.sample is not None):
        of_worker = find_hanging_frame(
            stuck.stack, call=stuck.call, is_forked=stuck.is_forked
        )
    return of_worker or find_hanging_frame(stuck.pin_stack, is_pinning=True)


def is_lost(stuck: StuckRecord) -> bool:
    """True if the awaited batch was lost: its worker is idle."""
    is_known = stuck.worker is not None and stuck.sample is None
    return is_known and bool(_IDLE.search(''.join(stuck.stack[:3])))


def describe_stuck(stuck: StuckRecord) -> list[str]:
    """Describes a standstill in sentences and stack calls, for log and `mmgpu why`."""
    found: list[str] = []
    if stuck.idle_s is not None:
        found.append(
            phrase(
                'it waits: in {idle_s:.0f} s neither this process nor its children '
                'used a core',
                stuck,
            )
        )
    if stuck.worker is not None:
        state = _STATES.get(stuck.state or '') or phrase('is in state {state}', stuck)
        found.append(
            phrase(
                'Worker {worker} (pid {pid}) owes the next batch; it {state}',
                worker=stuck.worker,
                pid=stuck.pid,
                state=state,
            )
        )
    slow = find_slow_batch(stuck)
    if slow is not None:
        found.append(slow.sentence)
    if stuck.sample is not None:
        since = stuck.sample_s
        facts = {'sample': stuck.sample, 'waited_s': since, 'image': stuck.image}
        if since is not None and stuck.image:
            loading = phrase(
                'loading sample {sample} for {waited_s:.0f} s, {image}', **facts
            )
        elif since is not None:
            loading = phrase(
                'loading sample {sample} for {waited_s:.0f} s',
                sample=stuck.sample,
                waited_s=since,
            )
        elif stuck.image:
            loading = phrase('loading sample {sample}, {image}', stuck)
        else:
            loading = phrase('loading sample {sample}', stuck)
        found.append(loading)
    elif is_lost(stuck):
        found.append(
            phrase(
                'it waits for work: the batch was lost on its way, as when /dev/shm is '
                'full or files cannot be opened; the console says which (--log)'
            )
        )
    elif stuck.worker is not None:
        found.append(phrase('its sample is unknown: the worker was out of reach'))
    if stuck.call is not None:
        waits = phrase('it waits in {call}()', stuck)
        if stuck.path:
            waits = phrase('it waits in {call}() on {path} ({mount})', stuck)
            if not stuck.path.startswith('/'):
                waits = phrase('it waits in {call}() on {path}', stuck)
        found.append(waits)
    if stuck.alike > 1:
        found.append(
            phrase(
                '{alike_workers:d} workers stand at the same line',
                alike_workers=stuck.alike,
            )
        )
    row = find_row(stuck)
    if row is not None:
        found.append(worded(row.reason))
    return found + list(stuck.stack[:_MOST_CALLS])
