"""Free GPUs of this host (NVML), and locks so that no two starts take the same one.

The lock of a card is ``flock`` on a file with its UUID. The kernel releases it when the
last process that has the file open ends; a program started by ``exec`` keeps it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
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
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Card:
    """One GPU of the host as the driver describes it now."""

    index: int
    """As in ``nvidia-smi``."""
    uuid: str = ''
    name: str = 'unknown'
    total_bytes: int | None = None
    free_bytes: int | None = None
    util_pct: float | None = None
    """Mean over the samples that the driver keeps (some 20 s), else its last one."""
    reason: str | None = None
    """Why nothing may run on it; ``None`` when it may."""


@dataclass(frozen=True)
class CardRequest:
    """What is asked for."""

    count: int = 1
    min_free_bytes: int = 0
    min_free_pct: float = 0.0
    """The same as a share of the card's memory."""
    exclude: Sequence[str] = ()
    """Indices as in ``nvidia-smi``, or beginnings of UUIDs."""


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
    except Exception as error:
        raise UserError(
            f'the NVIDIA driver is not loaded, or NVML does not start '
            f'({_describe(error)}); see whether nvidia-smi works.'
        ) from error
    try:
        cards = [_read_card(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    except Exception as error:
        raise UserError(f'NVML cannot count the GPUs: {_describe(error)}.') from error
    finally:
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()
    if not cards:
        raise UserError('expected an NVIDIA GPU, found that the driver lists none.')
    return tuple(cards)


def _read_card(nvml: Any, index: int) -> Card:
    card = Card(index)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = (
            part.decode(errors='replace') if isinstance(part, bytes) else part
            for part in (nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle))
        )
        # a name comes from the driver and goes to the terminal
        name = ''.join(c if c.isprintable() else '?' for c in name)
        card = replace(card, name=name, uuid=uuid)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        if not 0 <= memory.used <= memory.total:
            raise ValueError(f'{memory.used} of {memory.total} bytes in use')
        free = memory.total - memory.used
        card = replace(card, total_bytes=memory.total, free_bytes=free)
    except Exception as error:  # noqa: BLE001, one card is not all
        return replace(card, reason=f'cannot be read: {_describe(error)}')
    with contextlib.suppress(nvml.NVMLError):
        card = replace(card, util_pct=nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        _, samples = nvml.nvmlDeviceGetSamples(
            handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0
        )
        kept = [s.sampleValue.uiVal for s in samples if s.sampleValue.uiVal <= 100]
        if kept:
            card = replace(card, util_pct=sum(kept) / len(kept))
    with contextlib.suppress(nvml.NVMLError):
        mode = nvml.nvmlDeviceGetComputeMode(handle)
        if mode == _PROHIBITED:
            return replace(card, reason='its compute mode is Prohibited')
        if mode == _EXCLUSIVE_PROCESS:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if running:
                why = f'process {running[0].pid} has it alone (Exclusive_Process)'
                return replace(card, reason=why)
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return replace(card, reason='is cut into slices (MIG): name one yourself')
    return card


def _describe(error: Exception) -> str:
    try:
        return ' '.join(str(error).split()) or type(error).__name__
    except Exception:  # noqa: BLE001, the driver's text may be no text
        return type(error).__name__


def judge_cards(
    cards: Sequence[Card], request: CardRequest, environ: Mapping[str, str]
) -> list[Card]:
    """Give each card that may not be picked the reason; best first.

    The best has the most free memory (2 % are equal), then the least utilisation; one
    of unknown utilisation comes last among equals.

    Raises:
        UserError: If a card is named that is not there or is ambiguous.
    """
    excluded = {_find(cards, name) for name in request.exclude}
    if None in excluded:
        raise UserError(
            f'expected the index or UUID of one of {len(cards)} card(s) to exclude, '
            f'found {", ".join(request.exclude)!r}; --format table lists them.'
        )
    visible = _parse_visible(cards, environ)
    judged = []
    for card in cards:
        free, total, reason = card.free_bytes or 0, card.total_bytes or 0, card.reason
        if reason is None and visible is not None and card not in visible:
            reason = f'not in {VARIABLE}'
        elif reason is None and card in excluded:
            reason = 'excluded'
        elif reason is None and (
            free < request.min_free_bytes or 100 * free < request.min_free_pct * total
        ):
            reason = 'too little memory is free'
        judged.append(replace(card, reason=reason))
    most = max((c.free_bytes or 0 for c in judged if c.reason is None), default=0)

    def worth(card: Card) -> tuple[bool, float, float, int]:
        free = card.free_bytes or 0
        level = (most - free) // (most * _SAME_MEMORY) if most else 0.0
        util_pct = 101.0 if card.util_pct is None else card.util_pct
        return card.reason is not None, level, util_pct, -free

    return sorted(judged, key=worth)


def _find(cards: Sequence[Card], name: str) -> Card | None:
    """The one card of that index, or whose UUID begins so."""
    found = [
        card
        for card in cards
        if name == str(card.index)
        or ('-' in name[1:] and card.uuid.lower().startswith(name.lower()))
    ]
    return found[0] if len(found) == 1 else None


def _parse_visible(
    cards: Sequence[Card], environ: Mapping[str, str]
) -> list[Card] | None:
    """As CUDA reads the variable: up to the first entry that names nothing."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    readable = [card for card in cards if card.uuid]
    visible = []
    for entry in map(str.strip, text.split(',')):
        if entry.lstrip('-').isdigit():
            alike = len({card.name for card in readable}) == 1
            if not alike and environ.get('CUDA_DEVICE_ORDER') != 'PCI_BUS_ID':
                raise UserError(
                    f"{VARIABLE}={text} counts cards in CUDA's own order, and they are "
                    'not all alike; expected UUIDs, or CUDA_DEVICE_ORDER=PCI_BUS_ID.'
                )
            # CUDA counts only the cards that the process may open
            found = dict(enumerate(readable)).get(int(entry))
        else:
            found = _find(readable, entry)
        if found is None:
            break
        visible.append(found)
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
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            self._folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
            owner = os.fstat(self._folder).st_uid
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
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
        picking, why = self._open('picking')
        try:
            if why or not _lock(picking, _PATIENCE_S):
                raise self._unusable(why or 'that another process keeps picking.lock')
            picked: list[Card] = []
            judged: list[Card] = []
            for card in cards:
                reason = card.reason
                if reason is None:
                    reason = self._take(card, keep=len(picked) < count)
                if reason is None and len(picked) < count:
                    picked.append(card)
                judged.append(replace(card, reason=reason))
        finally:
            if picking >= 0:
                os.close(picking)
        if len(picked) < count:
            self.release()
            picked = []
        return picked, judged

    def _take(self, card: Card, *, keep: bool) -> str | None:
        """Lock one card; the reason where that cannot be done."""
        descriptor, why = self._open(card.uuid.replace('/', '_'))
        if why:
            return f'cannot be locked: {why}'
        is_free = _lock(descriptor)
        pid, until_s = _parse_note(os.pread(descriptor, 100, 0))
        left_s = until_s - time.monotonic()
        if not is_free:
            why = f'in use by process {pid}'
        elif 0 < left_s <= LONGEST_RESERVATION_S:
            why = f'reserved for {left_s:.0f} s more by process {pid}'
        if why is None and keep:
            self._held.append(descriptor)
            self._note(descriptor)
        else:
            os.close(descriptor)
        return why

    def reserve(self, seconds: float) -> None:
        """Keep others off the picked cards for some time after this process."""
        for descriptor in self._held:
            self._note(descriptor, time.monotonic() + seconds)

    def pass_on(self) -> None:
        """Let the program that replaces this one keep the locks."""
        for descriptor in self._held:
            os.set_inheritable(descriptor, True)

    def release(self) -> None:
        """Give all cards back; a reservation stays."""
        while self._held:
            os.close(self._held.pop())

    def _open(self, name: str) -> tuple[int, str | None]:
        """A lock file's descriptor, or -1 and why there is none."""
        path = self.folder / f'{name}.lock'
        # O_NONBLOCK: a pipe would be waited for
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | _OPEN
        try:
            descriptor = os.open(path.name, flags, 0o600, dir_fd=self._folder)
        except OSError as error:
            return -1, f'{path} is not a plain file of ours ({error.strerror})'
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return descriptor, None
        os.close(descriptor)
        return -1, f'{path} is not a plain file: remove it'

    @staticmethod
    def _note(descriptor: int, until_s: float = 0.0) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f'{os.getpid()} {until_s}'.encode(), 0)

    def _unusable(self, found: str) -> UserError:
        return UserError(
            f'expected a folder for lock files that this user can write to in '
            f'{self.folder}, found {found}; name another with --leases.'
        )


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


def _parse_note(raw: bytes) -> tuple[int, float]:
    """Process id and the end of its reservation, of whatever a file holds."""
    with contextlib.suppress(ValueError):
        pid, until_s = raw.split()
        return int(pid), float(until_s)
    return 0, 0.0


def describe_shortage(cards: Sequence[Card], count: int) -> str:
    """Why there are not enough cards, in one sentence."""
    free = sum(card.reason is None for card in cards)
    reasons = '; '.join(
        f'{card.index} {card.reason}' for card in cards if card.reason is not None
    )
    return (
        f'expected {count} free card(s), found {free} of {len(cards)} '
        f'({reasons or "no other is there"})'
    )


@contextlib.contextmanager
def picked_cards(count: int) -> Iterator[tuple[str, ...]]:
    """UUIDs of cards for this process alone, until the end of the block.

    Raises:
        UserError: If too few are free, or the lock files cannot be used.
    """
    locks = CardLocks()
    try:
        judged = judge_cards(read_cards(), CardRequest(count), os.environ)
        picked, judged = locks.pick(judged, count)
        if not picked:
            raise UserError(f'{describe_shortage(judged, count)}.')
        yield tuple(card.uuid for card in picked)
    finally:
        locks.release()
