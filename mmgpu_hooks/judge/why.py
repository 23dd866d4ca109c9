"""Judges why a run ended or stands still, from its logs and records; no I/O.

Lines of logs become events (see `console_log`), one of them leads, and figures of
memory confirm or refute it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.console_log import ConsoleLog, Event
from mmgpu_hooks.judge.console_patterns import Order
from mmgpu_hooks.judge.console_shapes import FRAME
from mmgpu_hooks.judge.standstill import (
    Rank,
    describe_gone,
    find_first_gone,
    find_uneven,
    judge_standstill,
)
from mmgpu_hooks.judge.why_memory import add_holders
from mmgpu_hooks.judge.why_validation import add_validation
from mmgpu_hooks.schema.judged import Proof, Why
from mmgpu_hooks.schema.recorded import EndRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, phrase, sentences

_SCARCE = 0.03
"""Share (0 to 1) of free host memory below which the kernel may soon kill processes."""
_AMPLE = 0.15
"""Share (0 to 1) of free host memory above which memory was not the cause of a kill."""
_MOST_PROOF = 4
_GIVEN_UP = {Order.ENDED, Order.KILLED, Order.KILLED_TOO, Order.AFTER}
"""Priority classes of log lines that may report that the run was ended on purpose."""
_OWN_REASONS = {order for order in Order if order < Order.CRASHED}
_OWN_REASONS -= {Order.AFTER, Order.ENDED}
"""Priority classes of log lines that may report a failure before the run was ended."""
_UNNAMED = {Order.RAISED, Order.CRASHED, Order.WRAPPER}
"""Priority classes of log lines that report a run's end but not its reason."""
_PATH = re.compile(
    r'[\'"]([^\'"]*[/\\][^\'"]+|[^\'"/]+\.\w{2,5})[\'"]'
    r'|(?<!at )(\b[^\s\'"]*[/\\][^\s\'"]+\.(?!py\b)\w{2,5})\b'
)
_INDEX = re.compile(r'\b((?:index|idx|sample|img_id|image)[ =:#]{1,2}\d+)\b(?! is out)')
_PID = re.compile(r'\(pid(?:\(s\))?:? [\d, ]+\)')
_ANY_PID = re.compile(r'(?i)\bpid[ :=]+(\d{1,10})')
_LOCAL_RANK = re.compile(r'\blocal_rank: (\d+)')
_KILLED = re.compile(r'Killed process (\d+)')
_FIRST_COLLECTIVE = re.compile(r'\bWorkNCCL\(SeqNum=1,')
_UNCLEAR = 'oom_host', 'worker_killed', 'unknown'
"""Causes of a run's end that memory measurements of the run would confirm or refute."""
_HEAD = 10
"""Number of ordinary log lines after an error that show that the run continued."""
_OUTSIDE = Order.STATED, Order.ENDED
"""Priority classes of log lines that kernel, scheduler or terminal print about a run.
"""
_CONSEQUENCES = {
    Order.LOST,
    Order.KILLED,
    Order.KILLED_TOO,
    Order.AFTER,
    Order.PEERS,
    Order.PEER_GONE,
    Order.CRASHED,
    Order.WRAPPER,
}
"""Priority classes of lines that workers and ranks print because the program ended."""
_OF_OTHERS = Order.PEERS, Order.PEER_GONE, Order.CRASHED, Order.WRAPPER
"""Priority classes of console lines that report the end of another process."""
_OF_MEMORY = 'oom_host', 'oom_cgroup'
_NEVER_BY_NAN = *_OF_MEMORY, 'oom_gpu', 'shm_full', 'disk_full'
"""Causes of a failure that a NaN in the losses does not lead to."""
_WITHOUT_MEMORY = {
    'worker': 'worker_killed',
    'rank': 'rank_lost',
    'terminated': 'unknown',
}
"""Cause of a kill when memory was not short, by the victim of the kill."""
_CARD_LOST = re.compile(r'GPU is lost|fallen off the bus', re.I)
_PYTHON_ERROR = re.compile(r'(?:\w+\.)*\w*Error\b')
"""Regex for the start of a Python exception, which only the training prints."""
_BROKEN = re.compile(
    r'(?:\w+\.)*(?:Connection\w*Error|BrokenPipeError|EOFError|KeyboardInterrupt'
    r'|SystemExit|SignalException)\b'
)
"""Regex for exceptions that are raised because the program, or a peer, was ended."""
_OF_SIGTERM = re.compile(r'^SystemExit: 143$')
"""Regex for the exit code of a SIGTERM handler: 143, 128 plus the signal's number."""
_OF_A_CARD = re.compile(r'CUDA|NCCL|cuDNN|cuBLAS|NVML|GPU|HIP', re.I)
_NCCL_ERROR = re.compile(r'(?:\w+\.)*(?:DistBackendError|nccl\w+Error)\b')
_NAMED_RANK = re.compile(r'\bprocess rank (\d+) with PID')
"""Regex for the name of a rank as mpirun prints it."""
_TIMED_OUT = 'worker_stuck', 'rank_waits', 'rank_never_came'
"""Causes of a failure by time-out: a worker or another rank was awaited in vain."""

_OF_A_STANDSTILL = None, 'unknown', 'interrupted', 'rank_waits', 'rank_lost'
"""Causes found in logs that a recorded standstill of the training's start overrules."""
_OF_OTHER_RANKS = 'rank_waits', 'rank_never_came', 'rank_lost'
"""Causes that a rank's log blames on other ranks, whose own records take precedence."""
_OF_NO_END = ('uneven_inputs',)
"""Causes of a hang or failure that apply even if one rank completed its training."""
_JOINED = (
    'uneven_inputs',
    'work_on_one_rank',
    'rank_never_came',
    'slow_loader',
    'worker_stuck',
    'worker_deadlock',
    'worker_killed',
    'storage_stalled',
)
"""Causes in one rank's own record that explain a time-out of the other ranks."""


class NamedLog(NamedTuple):
    """Log of a training that was read, and its kind."""

    source: str
    """Kind of log, as in a :class:`Proof`: ``console``, ``log`` or ``evidence``.

    ``log`` is MMEngine's own.
    """
    log: ConsoleLog


class _Lead(NamedTuple):
    """Event in a log that caused the log's other events."""

    read: NamedLog
    event: Event


def judge_end(logs: Sequence[NamedLog], ranks: Sequence[Rank] = ()) -> Why:
    """Judges why a training run ended badly or hangs.

    Args:
        logs: What was read of console, MMEngine's log and kernel; the console's first.
        ranks: Evidence of its ranks, where it has some; the first is judged.

    Returns:
        The cause and how sure it is. A cause is named only where a line or a figure
        says it; anything else is ``unknown``.
    """
    evidence = [rank.evidence for rank in ranks]
    why = _resume_if_saved(_judge_end(logs, ranks), evidence)
    return add_validation(add_holders(why, evidence), evidence)


def _resume_if_saved(why: Why, evidence: Sequence[RunEvidence]) -> Why:
    """Replaces the advice to resume if the training has saved no checkpoint."""
    resume = (
        phrase('Resume from the last checkpoint: tools/train.py CONFIG --resume.'),
        phrase('Resume on another card: tools/train.py CONFIG --resume.'),
    )
    has_saved = any(
        any(save.error is None for save in rank.save_records)
        or rank.run.start_iteration
        or rank.sources_off
        for rank in evidence
    )
    if has_saved or not evidence:
        return why
    anew = phrase('It has saved no checkpoint to resume from: train anew.')
    return replace(why, do=tuple(anew if do in resume else do for do in why.do))


def _judge_end(logs: Sequence[NamedLog], ranks: Sequence[Rank]) -> Why:
    first = ranks[0] if ranks else None
    ended = [
        (rank, end)
        for rank in ranks
        if (end := rank.evidence.end) and end.status != 'completed'
    ]
    standstill = judge_standstill(ranks)
    if standstill and standstill.cause in _OF_NO_END and not ended:
        return standstill
    # rank 0 may have passed the last collective when another fails
    if first and first.evidence.end and not ended:
        return _judge_completed(logs, ranks)
    retold = [NamedLog('evidence', _retell(end, rank)) for rank, end in ended]
    logs = [*logs, *retold]
    leads = [
        _Lead(read, event)
        for read in logs
        if (event := _lead(read.log.events(), has_records=bool(ranks)))
    ]
    # a rank's own record says whose line it is
    lead = min(
        leads,
        key=lambda lead: (lead.event.sign.order, lead.event.rank is None),
        default=None,
    )
    exit_ = _find_exit(ended, standstill, any(rank.is_gone for rank in ranks))
    if exit_ and (lead is None or lead.event.sign.order in _OF_OTHERS):
        return _judge_exit(*exit_, lead or standstill)
    if lead is None:
        return standstill or _judge_silence(logs, ranks)
    event = lead.event
    is_unnamed = event.sign.order in _UNNAMED
    if standstill and (event.sign.order in _GIVEN_UP or (is_unnamed and not ended)):
        return standstill
    line = Proof(lead.read.source, event.line or None, event.text)
    met = _judge_peers(standstill, ranks, line)
    if event.sign.cause in _OF_OTHER_RANKS and met is not None:
        return met
    state = 'running' if first and first.host.is_alive else 'ended'
    # what other ranks recorded is in logs of their own
    is_waited_for = standstill is not None or any(map(_tells_of_another, leads))
    why = _name(lead, state, is_waited_for and len(ranks) > 1)
    if first is None:
        why = _complete(why)
        if why.certainty != 'sure' and why.cause in _UNCLEAR:
            more = phrase(
                'With GPUEfficiencyHook on, the next run shows memory per worker.'
            )
            why = replace(why, do=(*why.do, more))
        return why
    why = _weigh_ranks(why, event, ranks)
    lost = _find_lost_card(ranks) if is_unnamed else []
    if lost:
        why = _with(why, 'sure', lost[0], 'gpu_lost')
    if why.cause == 'unused_parameters':
        why = _name_parameters(why, ended)
    samples = [end.sample for rank, end in ended if event.rank in (None, rank.number)]
    return _complete(why, next(filter(None, samples), None))


def _weigh_ranks(why: Why, event: Event, ranks: Sequence[Rank]) -> Why:
    """Checks a diagnosis by measurements of the rank at fault, and names that rank."""
    named = _find_named(ranks, event.text)
    own = (rank for rank in ranks if event.rank in (None, rank.number))
    said, measured = why, named or next(own, None)
    # the memory of another host says nothing
    why = why if measured is None else _weigh(why, event, measured)
    is_told = why.cause != 'rank_lost' or event.sign.order == Order.RAISED
    gone = named if named or is_told else find_first_gone(ranks)
    if gone is not None:
        if not is_told:
            why = _weigh_kill(said, 'rank', gone, event.text)
        why = replace(why, rank=gone.number)
    elif not is_told and len(several := describe_gone(ranks)) > 1:
        text = phrase('{several}; which ended first is unknown', several=tuple(several))
        why = replace(why, rank=None, proof=(*why.proof, Proof('host', None, text)))
    return why


def _judge_peers(
    standstill: Why | None, ranks: Sequence[Rank], line: Proof
) -> Why | None:
    """Judges a run by its ranks' own records if its log only blames other ranks."""
    if standstill and standstill.cause in _JOINED:
        return replace(standstill, state='ended')
    uneven = find_uneven(ranks)
    if uneven is None:
        return None
    proof = [Proof('evidence', None, text) for text in uneven.proof]
    cause = CAUSES['uneven_inputs']
    return Why(
        'ended',
        cause.name,
        uneven.certainty,
        sentences(phrase('{title}.', cause), uneven.sentence),
        (*proof, replace(line, text=line.text[:200])),
        cause.do,
        uneven.rank,
    )


def _name_parameters(why: Why, ended: Sequence[tuple[Rank, EndRecord]]) -> Why:
    """Adds to a diagnosis which parameters had no gradient, and on which rank."""
    proof, missed = list[Proof](), [pair for pair in ended if pair[1].without_gradient]
    for rank, end in missed:
        said = phrase('no gradient: {without_gradient}', end)
        if rank.number is not None:
            said = phrase(
                'no gradient on rank {rank}: {without_gradient}', end, rank=rank.number
            )
        proof.append(Proof('evidence', None, said))
    if missed:
        # the ranks may all take the same way through the model
        number = missed[0][0].number if len(missed) == 1 else None
        why = replace(why, rank=number)
    return replace(why, proof=(*proof, *why.proof))


def judge_attempt(logs: Sequence[NamedLog], ranks: Sequence[Rank] = ()) -> Why:
    """Judges why a training left no evidence file, by MMEngine's log and the console.

    It ended before its first iteration, or has not come to it yet.

    Args:
        logs: What was read of console and MMEngine's log.
        ranks: What its ranks have of their start.
    """
    why, names = judge_end(logs), [read.source for read in logs]
    standstill = judge_standstill(ranks)
    # the console may say what the watchdog said
    if standstill is not None and why.cause in (*_OF_A_STANDSTILL, standstill.cause):
        return standstill
    if why.cause is not None or any(read.log.progress for read in logs):
        return why
    if not names:
        said = phrase(
            "It left no evidence, and MMEngine's log is empty or cannot be read: it "
            'ended before its first iteration, or is still starting.'
        )
        do = phrase('Look whether it is still running, or add the console: --log FILE.')
        return Why('unknown', 'unknown', 'unknown', said, do=(do,))
    read = tuple(
        phrase('what the console showed')
        if name == 'console'
        else phrase("MMEngine's log")
        for name in names
    )
    said = phrase(
        'It left no evidence, and {read:&} shows no exception and no iteration: it '
        'ended before the first one, or is still starting.',
        read=read,
    )
    do = phrase('Look whether it is still running.')
    if 'console' not in names:
        do = phrase(
            "MMEngine's log never has a traceback: add what the console showed, --log "
            'FILE.'
        )
    return Why('unknown', 'unknown', 'unknown', said, do=(do,))


def _find_named(ranks: Sequence[Rank], text: str) -> Rank | None:
    """Finds the rank that a log line names by process id or by local rank."""
    pids, local = map(int, _ANY_PID.findall(text)), _LOCAL_RANK.search(text)
    by_pid = {rank.evidence.run.pid: rank for rank in ranks if rank.number is not None}
    for pid in pids:
        if pid in by_pid:
            return by_pid[pid]
    for rank in ranks if local is not None else ():
        run = rank.evidence.run
        is_one_host = run.host.ranks_on_host == run.world_size
        if local is not None and is_one_host and rank.number == int(local[1]):
            return rank
    return None


def _judge_completed(logs: Sequence[NamedLog], ranks: Sequence[Rank]) -> Why:
    spoiled = [
        (event.sign.cause, Proof(read.source, event.line, event.text))
        for read in logs
        for event in read.log.events()
        if event.sign.cause == 'nan_loss'
    ]
    lost = _find_lost_card(ranks, by_kernel=False)
    spoiled += [('gpu_lost', Proof('evidence', None, text)) for text in lost]
    for cause, proof in spoiled:
        said = phrase('It came to its end, but: {title}.', title=CAUSES[cause].title)
        return Why('completed', cause, 'sure', said, (proof,), CAUSES[cause].do)
    for read in logs:
        event = _lead(read.log.events(), has_records=True)
        # launchers and other ranks end untidily, and training lost nothing by it
        if event is not None and event.sign.order <= Order.RAISED:
            why = _complete(_name(_Lead(read, event), 'completed', False))
            said = phrase(
                'Training came to its end; what came after it did not: {sentence}',
                sentence=why.sentence,
            )
            return replace(why, sentence=said)
    speed = phrase('mmgpu recommend says what it spent its time on.')
    return Why('completed', None, 'sure', phrase('It ended as planned.'), do=(speed,))


def _find_lost_card(ranks: Sequence[Rank], by_kernel: bool = True) -> list[str]:
    """Lists the lines of driver and kernel log that report the loss of a GPU."""
    said = list[str]()
    for rank in ranks:
        off = rank.evidence.sources_off
        said += [source.reason for source in off if source.source == 'GPU']
        said += rank.host.kernel if by_kernel else ()
    return [text for text in said if _CARD_LOST.search(text)]


def _find_exit(
    ended: Sequence[tuple[Rank, EndRecord]], standstill: Why | None, has_lost_rank: bool
) -> tuple[Rank, EndRecord] | None:
    """Finds the first rank that ended itself by ``sys.exit``, of its own accord.

    One that stood still, or that a launcher ended beside a lost rank, was made to.
    """
    for rank, end in ended:
        was_made = standstill is not None and rank.stuck is not None
        was_made |= has_lost_rank and _is_by_sigterm(end)
        if end.error == 'SystemExit' and not was_made:
            return rank, end
    return None


def _judge_exit(rank: Rank, end: EndRecord, others: object) -> Why:
    """Judges a run that ended itself by ``sys.exit``, or whose signal handler did.

    Args:
        rank: The rank that ended so.
        end: Its end record.
        others: What other ranks say of it; ``None`` where they say nothing.
    """
    lines = end.traceback or (end.error or '',)
    proof = [Proof('evidence', None, lines[-1])]
    frames = [found for line in lines if (found := FRAME.match(line))]
    if frames:
        path, number, function = frames[-1].groups()
        frame = f'{path}:{number} in {function}'
        proof.append(Proof('evidence', None, phrase('raised at {frame}', frame=frame)))
    said = phrase('The program ended itself: {exit}.', exit=lines[-1])
    if rank.number is not None:
        said = phrase(
            'Rank {rank} ended itself: {exit}.', rank=rank.number, exit=lines[-1]
        )
    name, certainty = 'unknown', 'unknown'
    if _is_by_sigterm(end):
        name, certainty = 'interrupted', 'likely'
        said = phrase('Its handler of SIGTERM ended it: {exit}.', exit=lines[-1])
    elif others is not None:
        name, certainty = 'rank_lost', 'likely'
    title = phrase('{title}.', CAUSES[name])
    why = Why('ended', name, certainty, said, tuple(proof), rank=rank.number)
    if name != 'unknown':
        why = replace(why, sentence=sentences(title, said))
    return _complete(why, end.sample)


def _is_by_sigterm(end: EndRecord) -> bool:
    """Returns True if a handler of SIGTERM ended the run, by its exit code."""
    return bool(_OF_SIGTERM.search((end.traceback or ('',))[-1]))


def _retell(end: EndRecord, rank: Rank) -> ConsoleLog:
    """Converts a run's end record into the lines that the console showed."""
    lines = end.traceback or (end.error or '',)
    label = '' if rank.number is None else f'[rank{rank.number}]: '
    log = ConsoleLog()
    for line in lines:
        log.feed(0, f'{label}{line}')
    return log


def _lead(events: Sequence[Event], has_records: bool) -> Event | None:
    """Finds the event of a log that caused the log's other events."""
    if has_records:  # they say it better than the log's own warning
        events = [event for event in events if event.sign.order != Order.WATCHED]
    if any(event.sign.cause == 'rank_never_came' for event in events):
        # what else NCCL raises of it names no reason
        events = [
            event
            for event in events
            if event.sign.cause == 'rank_never_came'
            or not _NCCL_ERROR.match(event.text)
        ]
    events = [
        event for event in events if not any(_went_on(event, later) for later in events)
    ]
    failed = min(
        (event.order for event in events if _is_failure(event)), default=math.inf
    )
    events = [
        event
        for event in events
        if not any(_outlived(event, later, failed) for later in events)
    ]
    # srun cancels the step once one task has failed
    events = [
        event
        for event in events
        if event.sign.order != Order.ENDED
        or event.sign.is_sure
        or event.order <= failed
    ]
    ending = next((event for event in events if event.sign.order == Order.ENDED), None)
    if ending is not None:
        # what comes after Ctrl-C or a cancelled job is its consequence
        before = [
            event
            for event in events
            if event.sign.order == Order.STATED
            or (event.order < ending.order and event.sign.order in _OWN_REASONS)
        ]
        return min(before, key=_urgency, default=ending)
    asked = [
        event.order
        for event in events
        if event.sign.order == Order.AFTER and event.sign.cause == 'interrupted'
    ]
    asked_at = min(asked, default=math.inf)
    # a launcher ends the other ranks by SIGKILL once one has failed, and docker stop
    # sends it some time after SIGTERM
    asked_or_failed = min(failed, asked_at)
    own = [
        event
        for event in events
        if event.sign.order not in (Order.KILLED, Order.KILLED_TOO)
        or event.order < (asked_or_failed if event.sign.victim == 'process' else failed)
    ]
    return min(own, key=_urgency, default=None)


def _went_on(event: Event, later: Event) -> bool:
    """True if a later failure shows that an event did not end the run.

    Banners of a site and a shell's complaints stand at the head of a log. A process
    that was ended from outside raises nothing of its own afterwards, and a program
    whose parent said that it was killed says nothing at all.
    """
    is_outside = event.sign.order in _OUTSIDE
    if event.order >= later.order or event.sign.is_raised:
        return False
    is_own = later.is_traced and not event.is_traced and not _follows(event, later)
    if event.sign.victim == 'process':
        return event.progress == 0 and is_own
    if event.sign.order > Order.HINTED and not is_outside:
        return False
    if event.sign.cause in _OF_MEMORY and later.sign.cause in _OF_MEMORY:
        return False
    is_named = later.sign.is_raised and later.sign.order == Order.RESOURCE
    if is_outside and (is_named or later.sign.cause == 'sample_raised'):
        return True
    if event.sign.cause == 'disk_full' and event.sign.order != Order.STATED:
        # a shell or another user met the quota
        is_foreign = not _PYTHON_ERROR.match(event.text)
        is_unrelated = later.sign.victim == 'worker' or later.sign.cause in _TIMED_OUT
        if is_named or (is_foreign and is_unrelated):
            return True
    is_failure = later.sign.order not in (*_OUTSIDE, Order.AFTER, Order.WRAPPER)
    is_apart = later.progress > 0 or later.calm - event.calm >= _HEAD
    return event.progress == 0 and is_failure and (is_apart or is_own)


def _outlived(event: Event, later: Event, failed: float) -> bool:
    """True if a later failure is not a consequence of a NaN in the losses."""
    if event.sign.cause != 'nan_loss' or event.sign.is_raised:
        return False
    is_full = later.is_traced and later.sign.cause in _NEVER_BY_NAN
    is_killed = later.sign.order in (Order.KILLED, Order.KILLED_TOO)
    return event.order < later.order and (
        is_full or (is_killed and later.order < failed)
    )


def _follows(event: Event, later: Event) -> bool:
    """True if a later failure may follow from an event outside the program."""
    sign = later.sign
    if sign.victim or sign.order in _CONSEQUENCES or _BROKEN.match(later.text):
        return True
    if event.sign.cause == 'gpu_lost':
        return bool(_OF_A_CARD.search(later.text))
    if event.sign.order in (Order.RESOURCE, Order.HINTED):
        is_of_files = later.text.startswith(('OSError', 'IOError'))
        return is_of_files or sign.cause in (*_TIMED_OUT, event.sign.cause)
    return False


def _urgency(event: Event) -> tuple[int, int]:
    return event.sign.order, event.order


def _is_failure(event: Event) -> bool:
    is_exit = event.sign.order == Order.WRAPPER and 'xited with exit code' in event.text
    return event.sign.order == Order.RAISED or is_exit


def _tells_of_another(lead: _Lead) -> bool:
    """True if a log event is a rank's report that another rank is gone."""
    sign = lead.event.sign
    return Order.PEERS <= sign.order <= Order.CRASHED and sign.cause != 'unknown'


def _name(lead: _Lead, state: str, is_waited_for: bool) -> Why:
    source, log = lead.read
    event, events = lead.event, log.events()
    sign = event.sign
    cause, certainty = sign.cause, 'sure' if sign.is_sure else 'likely'
    is_waited_for |= any(_tells_of_another(_Lead(lead.read, each)) for each in events)
    if sign.order == Order.RAISED and is_waited_for:
        # the others stand, or say that a rank left them: this is what that rank met
        cause, certainty = 'rank_lost', 'likely'
    # a group that is made later counts from 1, too; evidence retells no iterations
    is_first = not event.progress and source != 'evidence'
    if cause == 'rank_waits' and is_first and _FIRST_COLLECTIVE.search(event.text):
        cause, certainty = 'rank_never_came', 'likely'
    same = [
        other
        for other in events
        if other.sign.cause in (sign.cause, cause) and other is not event
    ]
    proof = [
        Proof(source, alike.line or None, alike.text[:200]) for alike in (event, *same)
    ]
    if event.frame:
        proof.insert(
            1, Proof(source, None, phrase('raised at {frame}', frame=event.frame))
        )
    return Why(
        state,
        cause,
        'unknown' if cause == 'unknown' else certainty,
        phrase('{title}.', CAUSES[cause]),
        tuple(dict.fromkeys(proof))[:_MOST_PROOF],
        rank=_find_failed(event, log),
    )


def _find_failed(event: Event, log: ConsoleLog) -> int | None:
    """Finds the rank whose failure a log line reports; another may have logged it."""
    named = _NAMED_RANK.search(event.text)
    if named is not None:
        return int(named[1])
    # a launcher speaks of another, and so does a rank that misses its peer
    is_of_others = event.sign.victim == 'rank' or event.sign.order in _OF_OTHERS
    return log.failed_rank if is_of_others else event.rank


def _judge_silence(logs: Sequence[NamedLog], ranks: Sequence[Rank]) -> Why:
    """Judges a run whose logs give no reason for its end."""
    if not ranks:
        log = logs[0].log if logs else ConsoleLog()
        if log.done:
            done = phrase('training is complete')
            proof = Proof(logs[0].source, log.done, done)
            return Why(
                'completed', None, 'sure', phrase('Nothing ended badly.'), (proof,)
            )
        read, last = phrase('{lines}', log), log.last_progress
        if log.unread_bytes:
            read = phrase(
                'what follows the first {unread_bytes}, which were not read,', log
            )
        said = phrase('Nothing in {read} says that it ended badly.', read=read)
        if last:
            said = phrase(
                'Nothing in {read} says that it ended badly; the last iteration stands '
                'in line {line}.',
                read=read,
                line=last,
            )
        if not log.is_text:
            said = phrase(
                'It could not be read: expected a text in UTF-8, UTF-16 or UTF-32.'
            )
        do = phrase(
            "MMEngine's log has no traceback; the console has: --log FILE reads it."
        )
        is_console = bool(logs) and logs[0].source == 'console'
        if is_console and log.is_text and not log.unread_bytes:
            do = phrase(
                "No line of it says why. If it is a log of MMEngine's, the traceback "
                'is in what the console showed; a process that is killed prints none, '
                'and then what the hook recorded says more: mmgpu why WORK_DIR.'
            )
        return Why('unknown', None, 'unknown', said, do=(do,))
    rank = ranks[0]
    is_alive, end = rank.host.is_alive, rank.evidence.end
    if end is not None:
        text = end.traceback[-1] if end.traceback else end.error or ''
        state = 'running' if is_alive else 'ended'
        why = Why(state, 'unknown', 'unknown', Text(''))
        return _complete(_with(why, 'unknown', text), end.sample)
    if is_alive:
        return Why(
            'running', None, 'sure', phrase('It is running; no line says otherwise.')
        )
    if is_alive is None:
        unknown = phrase(
            'It has no end record: it still trains elsewhere, or was killed.'
        )
        return _complete(Why('unknown', 'unknown', 'unknown', unknown))
    return _judge_gone(ranks)


def _judge_gone(ranks: Sequence[Rank]) -> Why:
    """Judges a run whose processes ended without a sign of the cause."""
    first, gone = find_first_gone(ranks), describe_gone(ranks)
    proof = tuple(Proof('host', None, text) for text in gone[:_MOST_PROOF])
    why = Why('ended', 'unknown', 'unknown', Text(''), proof)
    why = _complete(_weigh_kill(why, 'process', first or ranks[0], ''))
    if len(gone) < 2:
        return why
    said = phrase(
        'Which of them ended first is unknown: the console says it, --log FILE.'
    )
    if first is not None:
        said = phrase(
            "Rank {number} ended first: its evidence ends before the others'.",
            number=first.number,
        )
        why = replace(why, rank=first.number)
    return replace(why, sentence=sentences(why.sentence, said))


def _weigh(why: Why, event: Event, rank: Rank) -> Why:
    """Checks the cause that a log line names against measurements of the run."""
    if event.sign.victim:
        return _weigh_kill(why, event.sign.victim, rank, event.text)
    if why.cause == 'oom_host' and event.sign.is_raised:
        return _weigh_refusal(why, rank)
    end, images = rank.evidence.end, rank.evidence.run.loader.batch_size
    if why.cause == 'oom_gpu' and end is not None and images is not None:
        text = phrase(
            'after {iterations}, with {images} in a batch', end, images=images
        )
        return _with(why, why.certainty, text)
    return why


def _weigh_refusal(why: Why, rank: Rank) -> Why:
    """Judges an allocation that failed: memory ran out, unless much of it was free."""
    memory = rank.evidence.memory
    if not memory:
        return why
    last = memory[-1]
    free = max(last.total_bytes - last.used_bytes, 0)
    text = phrase(
        '{free_bytes} of {total_bytes} of memory were left at last',
        free_bytes=free,
        total_bytes=last.total_bytes,
    )
    if free <= _AMPLE * last.total_bytes:
        return _with(why, 'sure', text)
    said = phrase(
        'An allocation failed though much memory was free: it asked for too much at '
        'once, or a limit of the process (ulimit -v) stood in its way.'
    )
    return replace(_with(why, 'unknown', text, 'unknown'), sentence=said)


def _with(why: Why, certainty: str, text: str, cause: str | None = None) -> Why:
    cause = cause or why.cause or 'unknown'
    proof = (*why.proof, Proof('evidence', None, text))
    title = phrase('{title}.', CAUSES[cause])
    return replace(why, cause=cause, certainty=certainty, sentence=title, proof=proof)


def _weigh_kill(why: Why, victim: str, rank: Rank, text: str) -> Why:
    """Judges a SIGKILL: memory ran out, unless memory measurements show otherwise.

    Args:
        why: What is known.
        victim: See `Sign`.
        rank: Whose figures count.
        text: The line that says so, which may name processes.
    """
    evidence, host = rank
    pids = {str(evidence.run.pid), *re.findall(r'\d+', ''.join(_PID.findall(text)))}
    for line in host.kernel:
        killed = _KILLED.search(line)
        if killed is not None and killed[1] in pids:
            cause = 'oom_cgroup' if 'emory cgroup' in line else 'oom_host'
            return _with(why, 'sure', line, cause)
    limits, end = evidence.run.host, evidence.end
    last = evidence.memory[-1] if evidence.memory else None
    kills, before = host.oom_kills, evidence.run.oom_kills
    if kills is None and end is not None:
        kills = end.oom_kills
    is_limited = limits.cgroup_memory_bytes is not None
    other = _WITHOUT_MEMORY.get(victim, 'interrupted')
    # guards of memory in user space send SIGTERM, which the kernel does not count
    is_counted = victim != 'terminated' or kills != before
    if is_counted and kills is not None and before is not None and kills >= before:
        if kills == before:
            text = phrase('the kernel counts no process that it killed for memory')
            return _with(why, 'likely', text, other)
        text = phrase(
            'the kernel killed {kills} of its processes for memory',
            kills=kills - before,
        )
        return _with(why, 'sure', text, 'oom_cgroup' if is_limited else 'oom_host')
    if last is not None and last.is_low:
        text = phrase(
            '{free_bytes} of {total_bytes} of memory were left at last',
            last,
            free_bytes=max(last.total_bytes - last.used_bytes, 0),
        )
        cause = 'oom_cgroup' if last.bound == 'group' else 'oom_host'
        return _with(why, 'likely', text, cause)
    # of the last interval: once a process was killed its memory is free again
    hosts = [interval.host for interval in evidence.intervals if interval.host]
    known = [host.ram_available_bytes for host in hosts]
    free = next((size for size in reversed(known) if size is not None), None)
    total = limits.ram_total_bytes
    if free is None or not total:
        return why
    text = phrase(
        '{free_bytes} of {total_bytes} of memory were left at last',
        free_bytes=free,
        total_bytes=total,
    )
    if free < total * _SCARCE:
        return _with(why, 'likely', text, 'oom_host')
    if free > total * _AMPLE and not is_limited:
        certainty = 'unknown' if other == 'unknown' else 'likely'
        return _with(why, certainty, text, other)
    return _with(why, why.certainty, text)


_MODULE = re.compile(r"No module named '([\w.]+)'")
_DISTRIBUTIONS = {
    'cv2': 'opencv-python',
    'pkg_resources': "'setuptools<81'",
    'PIL': 'Pillow',
    'skimage': 'scikit-image',
    'sklearn': 'scikit-learn',
    'yaml': 'PyYAML',
}
"""PyPI names of packages whose import name differs, by import name."""


def _phrase_install(proof: Sequence[Proof]) -> Text:
    """Phrases how to install the module that an exception reports as missing."""
    found = next(
        (match for line in proof if (match := _MODULE.search(line.text))), None
    )
    if found is None:
        return CAUSES['package_missing'].do[0]
    if found[1] == 'mmcv._ext':
        return phrase(
            'Install MMCV with its operators, built for the torch that is here: '
            'mmcv-lite has none.'
        )
    module, _, part = found[1].partition('.')
    if part:
        return phrase(
            '{module} is in no version of {package} that is here: install the '
            'version that has it, unless it is a module of your own.',
            module=found[1],
            package=module,
        )
    return phrase(
        'Install it with the Python that trains: python -m pip install {package}.',
        package=_DISTRIBUTIONS.get(module, module),
    )


def _complete(why: Why, sample: str | None = None) -> Why:
    """Adds cures to a diagnosis, and the sample that failed if a log line names it."""
    do = CAUSES[why.cause or 'unknown'].do
    if why.cause == 'package_missing':
        do = (_phrase_install(why.proof), *do[1:])
    proof = why.proof if why.cause == 'sample_raised' else ()
    found = (name.search(line.text) for name in (_PATH, _INDEX) for line in proof)
    named = next((match[match.lastindex or 0] for match in found if match), None)
    return replace(why, do=do, sample=sample or named)
