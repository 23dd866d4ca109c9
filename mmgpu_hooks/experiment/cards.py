"""Free GPUs of this host (NVML), and locks so that no two starts take the same one.

The lock of a card is ``flock`` on a file with its UUID. The kernel releases it when the
last process that has the file open ends; a program started by ``exec`` keeps it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmgpu_hooks.schema.errors import UserError

VARIABLE = 'CUDA_VISIBLE_DEVICES'
LOCKS = '/tmp/mmgpu'
LONGEST_RESERVATION_S = 3600.0

_SAME_MEMORY = 0.02
"""Of the most free memory: drivers reserve a little more on one card than another."""
_PATIENCE_S = 1.0
"""How long the lock of those that pick is waited for."""
_PROHIBITED, _EXCLUSIVE_PROCESS = 2, 3  # nvmlComputeMode_t


@dataclass(frozen=True)
class Card:
    """One GPU of the host as the driver describes it now."""

    index: int
    """As in ``nvidia-smi``."""
    uuid: str = ''
    name: str = 'unknown'
    total_bytes: int = 0
    free_bytes: int = 0
    util_pct: float | None = None
    """The driver's last sample."""
    reason: str | None = None
    """Why nothing may run on it; ``None`` when it may."""


def read_cards() -> tuple[Card, ...]:
    """Every card in the driver's order; one that cannot be read has the reason.

    Raises:
        UserError: If there is no NVML, no driver or no card.
    """
    try:
        import pynvml
    except ImportError as error:
        raise UserError(
            'expected the package nvidia-ml-py, found none: pip install nvidia-ml-py.'
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            cards = tuple(_read_card(pynvml, index) for index in range(count))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise UserError(
            f'the NVIDIA driver is not loaded, or NVML does not start ({error}); see '
            'whether nvidia-smi works.'
        ) from error
    if not cards:
        raise UserError('expected an NVIDIA GPU, found that the driver lists none.')
    return cards


def _read_card(nvml: Any, index: int) -> Card:
    name = uuid = ''
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        if not 0 <= memory.used <= memory.total:
            raise ValueError(f'{memory.used} of {memory.total} bytes in use')
    except (nvml.NVMLError, ValueError) as error:
        return Card(index, uuid, name or 'unknown', reason=f'cannot be read: {error}')
    util_pct = reason = None
    with contextlib.suppress(nvml.NVMLError):
        util_pct = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            reason = 'is cut into slices (MIG): name one yourself'
    with contextlib.suppress(nvml.NVMLError):
        mode = nvml.nvmlDeviceGetComputeMode(handle)
        if mode == _PROHIBITED:
            reason = 'its compute mode is Prohibited'
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if mode == _EXCLUSIVE_PROCESS and running:
            reason = 'a process has it alone (Exclusive_Process)'
    free = memory.total - memory.used
    return Card(index, uuid, name, memory.total, free, util_pct, reason)


def judge_cards(
    cards: Sequence[Card],
    environ: Mapping[str, str],
    *,
    min_free_bytes: int = 0,
    min_free_pct: float = 0.0,
) -> list[Card]:
    """Give each card that may not be picked the reason; best first.

    The best has the most free memory (2 % are equal), then the least utilisation; one
    of unknown utilisation comes last among equals.

    Args:
        cards: Of :func:`read_cards`.
        environ: With ``CUDA_VISIBLE_DEVICES``, if it is set.
        min_free_bytes: Least free memory.
        min_free_pct: The same as a share of the card's memory.
    """
    visible = _parse_visible(cards, environ)

    def judge(card: Card) -> str | None:
        least = max(min_free_bytes, min_free_pct / 100 * card.total_bytes)
        if card.reason is not None:
            return card.reason
        if visible is not None and card not in visible:
            return f'not in {VARIABLE}'
        return 'too little memory is free' if card.free_bytes < least else None

    judged = [replace(card, reason=judge(card)) for card in cards]
    most = max((card.free_bytes for card in judged if card.reason is None), default=0)

    def worth(card: Card) -> tuple[bool, float, float, int]:
        level = (most - card.free_bytes) // (most * _SAME_MEMORY) if most else 0.0
        util_pct = 101.0 if card.util_pct is None else card.util_pct
        return card.reason is not None, level, util_pct, -card.free_bytes

    return sorted(judged, key=worth)


def _parse_visible(
    cards: Sequence[Card], environ: Mapping[str, str]
) -> list[Card] | None:
    """As CUDA reads the variable: up to the first entry that names nothing."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    # CUDA counts only the cards that the process may open
    readable = [card for card in cards if card.uuid]
    is_alike = len({card.name for card in readable}) == 1
    visible = []
    for entry in map(str.strip, text.split(',')):
        if entry.isdigit():
            if not is_alike and environ.get('CUDA_DEVICE_ORDER') != 'PCI_BUS_ID':
                raise UserError(
                    f"{VARIABLE}={text} counts cards in CUDA's own order, and they are "
                    'not all alike; expected UUIDs, or CUDA_DEVICE_ORDER=PCI_BUS_ID.'
                )
            found = readable[int(entry) :][:1]
        else:
            prefix = entry.lower()
            found = [one for one in readable if one.uuid.lower().startswith(prefix)]
        if len(found) != 1 or not entry:
            break
        visible += found
    return visible


class CardLocks:
    """Lock files in one folder, which is made for this user alone where it is missing.

    Args:
        folder: Of the lock files; ``None`` for this user's in ``/tmp``, the same
            whatever the shell's variables say.

    Raises:
        UserError: If it cannot be used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(f'{LOCKS}-{os.getuid()}')
        self._held: list[int] = []
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            self._folder = os.open(self.folder, flags)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        owner = os.fstat(self._folder).st_uid
        if folder is None and owner != os.getuid():
            os.close(self._folder)
            raise self._unusable(f'that of user {owner}')

    def pick(self, cards: Sequence[Card], count: int) -> tuple[list[Card], list[Card]]:
        """Lock the first free ones, all that are asked for or none.

        Args:
            cards: Best first, from :func:`judge_cards`.
            count: How many.

        Returns:
            The picked ones, and all with the reason where another process has it.

        Raises:
            UserError: If another process has been picking for too long.
        """
        picked: list[Card] = []
        judged: list[Card] = []
        try:
            picking = self._open('picking')
        except OSError as error:
            raise self._unusable(str(error)) from error
        try:
            if not _lock(picking, _PATIENCE_S):
                raise self._unusable('that another process keeps picking.lock')
            for card in cards:
                reason = card.reason or self._take(card, keep=len(picked) < count)
                judged.append(replace(card, reason=reason))
                if reason is None and len(picked) < count:
                    picked.append(card)
        finally:
            os.close(picking)
        if len(picked) < count:
            self.release()
            picked = []
        return picked, judged

    def _take(self, card: Card, *, keep: bool) -> str | None:
        """Lock one card; the reason where that cannot be done."""
        try:
            descriptor = self._open(card.uuid.replace('/', '_'))
        except OSError as error:
            return f'cannot be locked: {error}'
        is_free, pid, left_s = _lock(descriptor), 0, 0.0
        with contextlib.suppress(ValueError, IndexError):
            words = os.pread(descriptor, 100, 0).split()
            pid, left_s = int(words[0]), float(words[1]) - time.monotonic()
        is_reserved = 0 < left_s <= LONGEST_RESERVATION_S
        if is_free and not is_reserved and keep:
            self._held.append(descriptor)
            _note(descriptor, 0.0)
            return None
        os.close(descriptor)
        if is_reserved and is_free:
            return f'reserved for {left_s:.0f} s more by process {pid}'
        return None if is_free else f'in use by process {pid}'

    def reserve(self, seconds: float) -> None:
        """Keep others off the picked cards for some time after this process."""
        for descriptor in self._held:
            _note(descriptor, time.monotonic() + seconds)

    def pass_on(self) -> None:
        """Let the program that replaces this one keep the locks."""
        for descriptor in self._held:
            os.set_inheritable(descriptor, True)

    def release(self) -> None:
        """Give all cards back; a reservation stays."""
        while self._held:
            os.close(self._held.pop())

    def _open(self, name: str) -> int:
        # O_NONBLOCK: a pipe would be waited for
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f'{name}.lock', flags, 0o600, dir_fd=self._folder)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise OSError(f'{self.folder}/{name}.lock is not a plain file: remove it')
        return descriptor

    def _unusable(self, found: str) -> UserError:
        return UserError(
            f'expected a folder for lock files that this user can write to in '
            f'{self.folder}, found {found}; name another with --leases.'
        )


def _note(descriptor: int, until_s: float) -> None:
    """Write down who has the card, and until when it is reserved after that."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f'{os.getpid()} {until_s}'.encode(), 0)


def _lock(descriptor: int, patience_s: float = 0.0) -> bool:
    # late: Windows has none, and imports this module
    import fcntl

    end_s = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= end_s:
            return False
        time.sleep(0.05)


def describe_shortage(cards: Sequence[Card], count: int) -> str:
    """Why there are not enough cards, in one sentence."""
    reasons = [f'{card.index} {card.reason}' for card in cards if card.reason]
    return (
        f'expected {count} free card(s), found {len(cards) - len(reasons)} of '
        f'{len(cards)} ({"; ".join(reasons) or "no other is there"})'
    )
