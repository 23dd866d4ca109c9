"""Judges a run that ended or stands still, by what is left of it.

Pure but for `read_log` and `read_host`: lines of logs become events (see
`console_log`), one of them leads, and figures of memory confirm or refute it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.console_log import ConsoleLog, Event, Order, split_lines
from mmgpu_hooks.judge.duration_text import format_bytes
from mmgpu_hooks.judge.standstill import Rank, judge_standstill
from mmgpu_hooks.measure.loader.call_stack import parse_stack
from mmgpu_hooks.measure.now import read_host_now
from mmgpu_hooks.schema.judged import HostNow, Proof, Why
from mmgpu_hooks.schema.recorded import EndRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.run_folder import STACK_SUFFIX

_SCARCE = 0.03
"""Share of memory below which the kernel is about to kill."""
_AMPLE = 0.15
"""Share of memory above which it was not short a moment later."""
_LITTLE_DISK = 64 * 2**20
_CHUNK_BYTES = 2**18
_MOST_PROOF = 4
_GIVEN_UP = {Order.ENDED, Order.KILLED, Order.KILLED_TOO, Order.AFTER}
"""How somebody ends a run that stands still."""
_OWN_REASONS = {o for o in Order if o < Order.CRASHED} - {Order.AFTER, Order.ENDED}
"""What ended a run before somebody ended it, who saw it stand still."""
_UNNAMED = {Order.RAISED, Order.CRASHED, Order.WRAPPER}
"""An end that needs a reason from elsewhere."""
_PATH = re.compile(
    r'[\'"]([^\'"]*[/\\][^\'"]+|[^\'"/]+\.\w{2,5})[\'"]'
    r'|(?<!at )(\b[^\s\'"]*[/\\][^\s\'"]+\.(?!py\b)\w{2,5})\b'
)
_PID = re.compile(r'\(pid(?:\(s\))? ([\d, ]+)\)')
_KILLED = re.compile(r'Killed process (\d+)')
_UNCLEAR = 'oom_host', 'worker_killed', 'unknown'
"""What figures of a run would confirm or refute."""
_CARD_LOST = re.compile(r'GPU is lost|fallen off the bus', re.I)

Found = Sequence[tuple[str, ConsoleLog]]
"""Logs that were read, each with the name of its source; the console's first."""


def read_log(file: BinaryIO) -> ConsoleLog:
    """Read a log to its end in pieces; memory does not grow with it."""
    log = ConsoleLog()
    for number, line in split_lines(iter(lambda: file.read(_CHUNK_BYTES), b'')):
        log.feed(number, line)
    return log


def read_host(evidence: RunEvidence) -> HostNow:
    """What this host shows of a run now."""
    run, stack = evidence.run, Path(evidence.path).with_suffix(STACK_SUFFIX)
    now = read_host_now(run.hostname, run.pid, run.process_start, run.memory_cgroup)
    if not stack.is_file():
        return now
    # the thread that trains is the last one
    *_, text = (
        stack.read_bytes()[:_CHUNK_BYTES].decode('utf-8', 'replace').split('\n\n')
    )
    return replace(now, stack=parse_stack(text))


def judge_end(logs: Found, ranks: Sequence[Rank] = ()) -> Why:
    """Say why a run ended badly or stands still.

    Args:
        logs: What was read of console, MMEngine's log and kernel.
        ranks: Evidence of its ranks, where it has some; the first is judged.

    Returns:
        The cause and how sure it is. A cause is named only where a line or a figure
        says it; anything else is ``unknown``.
    """
    first = ranks[0] if ranks else None
    end = first.evidence.end if first else None
    if end is not None and end.status == 'completed':
        return _judge_completed(logs, ranks)
    ended = [
        (rank, end)
        for rank in ranks
        if (end := rank.evidence.end) is not None and end.status != 'completed'
    ]
    logs = [*logs, *(('evidence', _retell(end, rank)) for rank, end in ended)]
    standstill = judge_standstill(ranks)
    led = [
        # the records say it better
        (
            source,
            _lead(
                [
                    e
                    for e in log.events()
                    if not (ranks and e.sign.order == Order.WATCHED)
                ]
            ),
            log,
        )
        for source, log in logs
    ]
    known = [(source, event, log) for source, event, log in led if event]
    if not known:
        return standstill or _judge_silence(logs, first)
    # a rank's own record says whose line it is
    source, event, log = min(
        known, key=lambda one: (one[1].sign.order, one[1].rank is None)
    )
    is_unnamed = event.sign.order in _UNNAMED
    if standstill and (event.sign.order in _GIVEN_UP or (is_unnamed and not ended)):
        return standstill
    state = 'running' if first and first.host.is_alive else 'ended'
    why = _name(source, event, log, state, standstill is not None and len(ranks) > 1)
    if first is None:
        return _complete(why, first, None)
    why = _weigh(why, event, first)
    gone = next((rank for rank in ranks if rank.is_gone), None)
    if (
        why.cause == 'rank_lost'
        and gone is not None
        and event.sign.order != Order.RAISED
    ):
        why = replace(_weigh_kill(why, 'rank', gone, event.text), rank=gone.number)
    if is_unnamed:
        why = _find_lost_card(why, ranks)
    samples = [end.sample for rank, end in ended if event.rank in (None, rank.number)]
    return _complete(why, first, next(filter(None, samples), None))


def _judge_completed(logs: Found, ranks: Sequence[Rank]) -> Why:
    spoiled = [
        (CAUSES['nan_loss'], Proof(source, event.line, event.text))
        for source, log in logs
        for event in log.events()
        if event.sign.cause == 'nan_loss'
    ]
    lost = (text for rank in ranks for text in _say_card_lost(rank))
    spoiled += [(CAUSES['gpu_lost'], Proof('evidence', None, text)) for text in lost]
    for cause, proof in spoiled:
        said = f'It came to its end, but: {cause.title}.'
        return Why('completed', cause.name, 'sure', said, (proof,), cause.do)
    speed = 'mmgpu recommend says what it spent its time on.'
    return Why('completed', None, 'sure', 'It ended as planned.', do=(speed,))


def _say_card_lost(rank: Rank) -> list[str]:
    """What the driver said of it while the rank trained."""
    offs = [off.reason for off in rank.evidence.sources_off if off.source == 'GPU']
    return [reason for reason in offs if _CARD_LOST.search(reason)]


def _find_lost_card(why: Why, ranks: Sequence[Rank]) -> Why:
    for rank in ranks:
        seen = [line for line in rank.host.kernel if _CARD_LOST.search(line)]
        for text in (*_say_card_lost(rank), *seen):
            return _with(why, 'sure', text, 'gpu_lost')
    return why


def _retell(end: EndRecord, rank: Rank) -> ConsoleLog:
    """An end record as the lines that the console showed."""
    log = ConsoleLog()
    lines = [*reversed(end.causes), f'{end.error}: {end.message or ""}'.rstrip(': ')]
    if end.status == 'interrupted' and end.error != 'KeyboardInterrupt':
        lines = ['Received SIGTERM']
    if end.worker_error:
        lines += ['Original Traceback (most recent call last):']
        lines += [_frame_line(frame) for frame in end.worker_frames]
        lines += [end.worker_error]
    elif end.sample:
        lines[-1:] = [lines[-1], '  File "x", line 1, in __getitem__', lines[-1]]
    frames = [_frame_line(frame) for frame in end.frames]
    label = '' if rank.number is None else f'[rank{rank.number}]: '
    for line in ['Traceback (most recent call last):', *frames, *lines]:
        log.feed(0, f'{label}{line}'.encode('utf-8', 'replace'))
    return log


def _frame_line(frame: str) -> str:
    place, _, function = frame.rpartition(' in ')
    path, _, line = place.rpartition(':')
    return f'  File "{path}", line {line}, in {function}'


def _lead(events: Sequence[Event]) -> Event | None:
    """The event that the others follow from."""
    failed = min((e.order for e in events if _is_other_failure(e)), default=math.inf)
    # srun cancels the step once one task has failed
    events = [e for e in events if not (_is_cancelled(e) and failed < e.order)]
    ending = next((e for e in events if e.sign.order == Order.ENDED), None)
    if ending is not None:
        # what comes after Ctrl-C or a cancelled job is its consequence
        before = [
            e
            for e in events
            if e.sign.order == Order.STATED
            or (e.order < ending.order and e.sign.order in _OWN_REASONS)
        ]
        return min(before, key=_urgency, default=ending)
    asked = min((e.order for e in events if _is_sigterm(e)), default=math.inf)
    # a launcher ends the other ranks by SIGKILL once one has failed, and docker stop
    # sends it some time after SIGTERM
    own = [
        e
        for e in events
        if not (_is_kill(e) and failed < e.order)
        and not (_is_kill(e, 'process') and asked < e.order)
    ]
    return min(own, key=_urgency, default=None)


def _urgency(event: Event) -> tuple[int, int]:
    return event.sign.order, event.order


def _is_kill(event: Event, victim: str = '') -> bool:
    is_kill = event.sign.order in (Order.KILLED, Order.KILLED_TOO)
    return is_kill and event.sign.victim in (victim or event.sign.victim)


def _is_cancelled(event: Event) -> bool:
    return event.sign.order == Order.ENDED and not event.sign.is_sure


def _is_sigterm(event: Event) -> bool:
    return event.sign.order == Order.AFTER and event.sign.cause == 'interrupted'


def _is_other_failure(event: Event) -> bool:
    is_exit = event.sign.order == Order.WRAPPER and 'xited with exit code' in event.text
    return event.sign.order == Order.RAISED or is_exit


def _name(
    source: str, event: Event, log: ConsoleLog, state: str, is_waited_for: bool
) -> Why:
    sign, events = event.sign, log.events()
    cause, certainty = sign.cause, 'sure' if sign.is_sure else 'likely'
    is_waited_for |= any(
        Order.PEERS <= e.sign.order <= Order.CRASHED and e.sign.cause != 'unknown'
        for e in events
    )
    if sign.order == Order.RAISED and is_waited_for:
        # the others stand, or say that a rank left them: this is what that rank met
        cause, certainty = 'rank_lost', 'likely'
    same = [e for e in events if e.sign.cause in (sign.cause, cause) and e is not event]
    proof = [Proof(source, event.line or None, event.text[:200])]
    if event.frame:
        proof.append(Proof(source, None, f'raised at {event.frame}'))
    proof += [Proof(source, e.line or None, e.text[:200]) for e in same]
    return Why(
        state,
        cause,
        'unknown' if cause == 'unknown' else certainty,
        CAUSES[cause].title + '.',
        tuple(dict.fromkeys(proof))[:_MOST_PROOF],
        rank=event.rank,
    )


def _judge_silence(logs: Found, rank: Rank | None) -> Why:
    """No line says anything."""
    if rank is None:
        log = logs[0][1] if logs else ConsoleLog()
        last = log.last_progress
        where = f'the last iteration stands in line {last}' if last else 'no iteration'
        said = f'Nothing in {log.lines} lines says that it ended badly; {where}.'
        do = (
            'MMEngine writes no traceback into its log: what raised stands on the '
            'console, which --log FILE reads.',
        )
        return Why('unknown', None, 'unknown', said, do=do)
    is_alive, run, end = rank.host.is_alive, rank.evidence.run, rank.evidence.end
    if end is not None:
        text = f'{end.error}: {end.message or ""}'.rstrip(': ')
        raised = (Proof('evidence', None, text),)
        state, said = 'running' if is_alive else 'ended', CAUSES['unknown'].title
        why = Why(state, 'unknown', 'unknown', f'{said}.', raised)
        return _complete(why, rank, end.sample)
    if is_alive:
        return Why('running', None, 'sure', 'It is running; no line says otherwise.')
    if is_alive is None:
        unknown = 'It has no end record: it still trains elsewhere, or was killed.'
        return _complete(Why('unknown', 'unknown', 'unknown', unknown), rank, None)
    gone = f'process {run.pid} is gone and left no end record'
    why = Why('ended', 'unknown', 'unknown', '', (Proof('host', None, gone),))
    return _complete(_weigh_kill(why, 'process', rank, ''), rank, None)


def _weigh(why: Why, event: Event, rank: Rank) -> Why:
    """What figures of the run say about a cause that a line names."""
    if event.sign.victim:
        return _weigh_kill(why, event.sign.victim, rank, event.text)
    end, total = rank.evidence.end, rank.evidence.run.host.shm_total_bytes or 0
    if end is None:
        return why
    batch_size = rank.evidence.run.loader.batch_size
    if why.cause == 'oom_gpu' and batch_size is not None:
        size = f'with {batch_size} images in a batch'
        return _with(why, why.certainty, f'after {end.iterations} iterations, {size}')
    free, least, what = {
        'shm_full': (end.shm_free_bytes, total * 0.1, '/dev/shm'),
        'disk_full': (end.disk_free_bytes, _LITTLE_DISK, 'the disk'),
    }.get(why.cause or '', (None, 0, ''))
    if free is None or free >= least:
        return why
    return _with(why, 'sure', f'{format_bytes(free)} of {what} were free')


def _with(why: Why, certainty: str, text: str, cause: str | None = None) -> Why:
    cause = cause or why.cause or 'unknown'
    proof = (*why.proof, Proof('evidence', None, text))
    sentence = f'{CAUSES[cause].title}.'
    return replace(
        why, cause=cause, certainty=certainty, sentence=sentence, proof=proof
    )


def _weigh_kill(why: Why, victim: str, rank: Rank, text: str) -> Why:
    """SIGKILL: memory, unless its figures speak against it.

    Args:
        why: What is known.
        victim: See `Sign`.
        rank: Whose figures count.
        text: The line that says so, which may name processes.
    """
    evidence, host = rank
    named = [pid for pids in _PID.findall(text) for pid in re.findall(r'\d+', pids)]
    for line in host.kernel:
        killed = _KILLED.search(line)
        if killed is not None and killed[1] in (str(evidence.run.pid), *named):
            cause = 'oom_cgroup' if 'emory cgroup' in line else 'oom_host'
            return _with(why, 'sure', line, cause)
    limits, end = evidence.run.host, evidence.end
    kills = host.oom_kills
    if kills is None and end is not None:
        kills = end.oom_kills
    before = evidence.run.oom_kills
    other = {'worker': 'worker_killed', 'rank': 'rank_lost'}.get(victim, 'interrupted')
    if kills is not None and before is not None and kills >= before:
        if kills == before:
            text = 'the kernel counts no process that it killed for memory'
            return _with(why, 'likely', text, other)
        text = f'the kernel killed {kills - before} of its processes for memory'
        is_limited = limits.cgroup_memory_bytes is not None
        return _with(why, 'sure', text, 'oom_cgroup' if is_limited else 'oom_host')
    free, total = _last_free(evidence), limits.ram_total_bytes
    if free is None or not total:
        return why
    text = f'{format_bytes(free)} of {format_bytes(total)} of memory were left at last'
    if free < total * _SCARCE:
        return _with(why, 'likely', text, 'oom_host')
    if free > total * _AMPLE and limits.cgroup_memory_bytes is None:
        return _with(why, 'likely', text, other)
    return _with(why, why.certainty, text)


def _last_free(evidence: RunEvidence) -> int | None:
    """Of the last interval: once a process was killed its memory is free again."""
    hosts = (interval.host for interval in reversed(evidence.intervals))
    known = (host.ram_available_bytes for host in hosts if host)
    return next((free for free in known if free is not None), None)


def _sample_of(why: Why) -> str | None:
    if why.cause != 'sample_raised':
        return None
    found = (_PATH.search(proof.text) for proof in why.proof)
    return next((match[1] or match[2] for match in found if match), None)


def _complete(why: Why, rank: Rank | None, sample: str | None) -> Why:
    """The answer with what to do."""
    do: tuple[str, ...] = CAUSES[why.cause].do if why.cause else ()
    if rank is None and why.certainty != 'sure' and why.cause in _UNCLEAR:
        do = (*do, 'With GPUEfficiencyHook on, the next run shows memory and workers.')
    return replace(why, do=do, sample=sample or _sample_of(why))
