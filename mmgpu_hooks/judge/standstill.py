"""Judges a run that stood still and did not go on, by what its watchdog recorded."""

from __future__ import annotations

import re

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.schema import HostNow, Proof, RunEvidence, StuckRecord, Why

_NETWORK = re.compile(r'nfs|fuse|ceph|lustre|cifs|smb|9p|gpfs|beegfs|afs', re.I)
_OPENING = 'open', 'openat', 'read', 'pread64', 'readv'
_COLLECTIVE = 'torch/distributed/', 'mmengine/dist/'
_MOST_CALLS = 4
_STATES = {
    'R': 'runs',
    'S': 'is asleep',
    'D': 'is in an uninterruptible sleep',
    'T': 'was stopped (SIGSTOP)',
    't': 'was stopped by a debugger',
    'Z': 'is dead',
    'X': 'is dead',
}
_DOING = {
    'data_wait': 'waiting for data',
    'checkpoint_save': 'in a checkpoint save',
    'hooks': 'in the hooks',
    'step': 'in the step',
}


def judge_standstill(evidence: RunEvidence, host: HostNow) -> Why | None:
    """Say what a run stands still in.

    Args:
        evidence: Of one rank.
        host: What its host shows now.

    Returns:
        ``None`` where it never stood still for long, or went on after that.
    """
    stuck = evidence.stuck[-1] if evidence.stuck else None
    if stuck is None or stuck.is_over:
        return None
    last = evidence.intervals[-1].iteration if evidence.intervals else 0
    if last > stuck.iteration:
        return None
    cause, certainty = _name_cause(stuck, evidence.run.loader.num_workers or 0)
    doing = _DOING.get(stuck.part, f'in {stuck.part}')
    if stuck.hook:
        doing = f'in {stuck.hook}'
    state = 'running' if host.is_alive else 'ended'
    sentence = (
        f'Stuck for {stuck.waited_s:.0f} s and more, {doing} '
        f'(iteration {stuck.iteration + 1}).'
    )
    if cause != 'unknown':
        sentence += f' {CAUSES[cause].title}.'
    return Why(
        state,
        cause,
        certainty,
        sentence,
        tuple(Proof('watchdog', None, text) for text in _list_proof(stuck)),
        CAUSES[cause].do,
        sample=None if stuck.sample is None else str(stuck.sample),
    )


def _name_cause(stuck: StuckRecord, workers: int) -> tuple[str, str]:
    """The cause and how sure it is."""
    if stuck.part == 'step':
        in_collective = any(
            part in call for call in stuck.stack for part in _COLLECTIVE
        )
        return ('rank_waits', 'likely') if in_collective else ('unknown', 'unknown')
    if stuck.part != 'data_wait':
        return 'unknown', 'unknown'
    if stuck.state in ('Z', 'X'):
        return 'worker_killed', 'sure'
    if stuck.state == 'D':
        return 'storage_stalled', 'sure'
    if stuck.mount and _NETWORK.search(stuck.mount):
        return 'storage_stalled', 'likely'
    is_idle = stuck.is_busy is False and stuck.state == 'S'
    if is_idle and stuck.call in _OPENING and _is_file(stuck):
        return 'storage_stalled', 'likely'
    if is_idle and stuck.call == 'futex' and stuck.alike >= max(workers, 1):
        return 'worker_deadlock', 'likely'
    if stuck.state is not None or stuck.sample is not None:
        return 'worker_stuck', 'sure' if stuck.sample is not None else 'likely'
    return 'unknown', 'unknown'


def _is_file(stuck: StuckRecord) -> bool:
    """Whether it reads or opens a file, and not a pipe or socket of the loader's."""
    if stuck.path is None:
        return stuck.call in ('open', 'openat')
    return stuck.path.startswith('/')


def _list_proof(stuck: StuckRecord) -> list[str]:
    found = []
    if stuck.worker is not None:
        state = _STATES.get(stuck.state or '', f'is in state {stuck.state}')
        busy = ', on a core' if stuck.is_busy else ''
        found.append(
            f'worker {stuck.worker} (pid {stuck.pid}) owes the next batch; it '
            f'{state}{busy}'
        )
    if stuck.sample is not None:
        found.append(f'loading sample {stuck.sample} for {stuck.sample_s or 0.0:.0f} s')
    elif stuck.worker is not None:
        found.append('its sample is unknown: the worker was out of reach')
    if stuck.call is not None:
        where = f' on {stuck.path} ({stuck.mount})' if stuck.path else ''
        kernel = f', in {stuck.waits_in} of the kernel' if stuck.waits_in else ''
        found.append(f'it waits in {stuck.call}(){where}{kernel}')
    if stuck.alike > 1:
        found.append(f'{stuck.alike} workers stand at the same line')
    calls = stuck.worker_stack or (() if stuck.worker is not None else stuck.stack)
    return found + list(calls[:_MOST_CALLS])
