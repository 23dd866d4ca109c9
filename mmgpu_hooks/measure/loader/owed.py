"""Which worker owes the loop its next batch, and what keeps it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.measure.clock import Clock
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Slot
from mmgpu_hooks.measure.loader.call_stack import StackSignal, ask_stack
from mmgpu_hooks.measure.proc import read_process_cpu_s
from mmgpu_hooks.measure.process_state import ProcessState, read_state

_WATCH_S, _BUSY_SHARE = 0.2, 0.3
_MOST_ASKED = 16
"""Workers whose stacks are asked for."""


@dataclass(frozen=True)
class Owed:
    """The batch that the loop waits for."""

    worker: int | None
    """Who makes it; ``None`` where the loop does."""
    pid: int | None = None
    state: ProcessState | None = None
    is_busy: bool | None = None
    """Whether the worker used a core just now."""
    sample: int | None = None
    sample_s: float | None = None
    stack: tuple[str, ...] = ()
    alike: int = 0
    """Workers that stand at the same line, this one included."""


def find_owed(iterator: Any, slots: Sequence[Slot], clock: Clock) -> Owed | None:
    """Look at who owes the next batch; 0.2 s and more, off the thread that trains.

    Args:
        iterator: The loader's live iterator.
        slots: What its workers write to, by worker id; empty where they could not be
            reached.
        clock: That the workers stamp with.
    """
    workers = getattr(iterator, '_workers', None)
    if not workers:
        if not slots:
            return None
        sample, sample_s = _read_sample(slots[0], clock)
        return Owed(None, sample=sample, sample_s=sample_s)
    number = _find_worker(iterator)
    if number is None or not 0 <= number < len(workers):
        return None
    pid = workers[number].pid
    state = read_state(pid)
    before_s = read_process_cpu_s(pid)
    time.sleep(_WATCH_S)
    after_s = read_process_cpu_s(pid)
    is_busy = None
    if before_s is not None and after_s is not None:
        is_busy = after_s - before_s >= _BUSY_SHARE * _WATCH_S
    sample, sample_s = _read_sample(slots[number], clock) if slots else (None, None)
    stack = _ask(pid, slots[number]) if slots and state.letter in 'RS' else ()
    alike = 0
    if stack:
        others = [
            _ask(other.pid, slot)
            for at, (other, slot) in enumerate(zip(workers, slots))
            if at != number and at < _MOST_ASKED
        ]
        alike = 1 + sum(other[:1] == stack[:1] for other in others)
    return Owed(number, pid, state, is_busy, sample, sample_s, stack, alike)


def _find_worker(iterator: Any) -> int | None:
    info = getattr(iterator, '_task_info', {}).get(getattr(iterator, '_rcvd_idx', None))
    return info[0] if isinstance(info, tuple) and info else None


def _read_sample(slot: Slot, clock: Clock) -> tuple[int | None, float | None]:
    since_s = slot.figures[board.LOADING_SINCE]
    index = slot.figures[board.LOADING_INDEX]
    if not since_s:
        return None, None
    return (int(index) if index >= 0 else None), max(clock() - since_s, 0.0)


def _ask(pid: int, slot: Slot) -> tuple[str, ...]:
    number = int(slot.figures[board.STACK_SIGNAL])
    if not number or read_state(pid).letter not in 'RS':
        return ()
    return ask_stack(pid, StackSignal(number, int(slot.figures[board.STACK_FILE])))
