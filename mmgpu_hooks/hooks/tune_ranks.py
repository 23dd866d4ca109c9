"""Has all ranks agree on a change of loader settings, through torch's store.

Rank 0 offers a change, each rank answers whether it can, and rank 0 says at which
iteration all make it, or that none does. Nobody waits: a store is written to and asked
whether it has a key. So a rank that is late, or dies, holds up none.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tuning import TuneOffer

NEVER = -1
"""Value in place of an iteration number if ranks do not change loader settings."""

_trainings = itertools.count()
"""Counter of this process's trainings, which numbers their keys in torch's store.

All ranks train as often."""


class RankAgreement:
    """One rank's part in the agreement of all ranks on a change of loader settings.

    Args:
        rank: This one.
        world_size: Ranks in all.
        store: ``set``, ``check`` and ``get``, as torch's.
    """

    def __init__(self, rank: int, world_size: int, store: Any) -> None:
        self.rank, self._ranks, self._store = rank, world_size, store
        self._prefix = f'mmgpu_hooks/tune/{next(_trainings)}'
        self._number = 0
        """Number of loader changes and results that this rank sent or read so far."""

    def offer(self, offer: TuneOffer) -> None:
        """Sends other ranks, as rank 0, a loader change or the last change's result."""
        self._number += 1
        self._set('offer', msgspec.json.encode(offer))

    def look(self) -> TuneOffer | None:
        """Returns rank 0's next loader change or result, once; ``None`` without one."""
        found = self._get('offer', self._number + 1)
        if found is None:
            return None
        self._number += 1
        return msgspec.json.decode(found, type=TuneOffer)

    def answer(self, *, can_change: bool) -> None:
        """Tells rank 0 if this rank can make the offered change of loader settings."""
        self._set(f'answer/{self.rank}', b'yes' if can_change else b'no')

    def read_answers(self) -> bool | None:
        """True if all ranks can change the loader; ``None`` if an answer is missing."""
        answers = self._list_answers()
        if b'no' in answers:
            return False
        return None if None in answers else True

    def find_refusing(self) -> int | None:
        """Returns the first rank that cannot make the offered loader change, if any."""
        answers = self._list_answers()
        return answers.index(b'no') if b'no' in answers else None

    def _list_answers(self) -> list[bytes | None]:
        return [
            self._get(f'answer/{rank}', self._number) for rank in range(self._ranks)
        ]

    def decide(self, iteration: int) -> None:
        """Tells the ranks, as rank 0, the iteration of the loader change or `NEVER`."""
        self._set('at', str(iteration).encode())

    def read_decision(self) -> int | None:
        """Returns the loader change's iteration, or `NEVER`; ``None``: undecided."""
        found = self._get('at', self._number)
        return None if found is None else int(found)

    def _set(self, name: str, value: bytes) -> None:
        self._store.set(f'{self._prefix}/{self._number}/{name}', value)

    def _get(self, name: str, number: int) -> bytes | None:
        key = f'{self._prefix}/{number}/{name}'
        # asked first: a get of what is not there would wait for it
        return bytes(self._store.get(key)) if self._store.check([key]) else None


def find_store() -> Any:
    """Returns the default key-value store of torch's process group.

    Raises:
        SourceError: If there is none.
    """
    from torch.distributed import distributed_c10d

    find = getattr(distributed_c10d, '_get_default_store', None)
    if find is None:
        raise SourceError(
            phrase('this PyTorch does not show the store of its process group')
        )
    try:
        return find()
    except (RuntimeError, ValueError) as error:
        raise SourceError(phrase('ranks have no process group of torch')) from error
