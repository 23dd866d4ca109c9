"""Trainings that live side by side in one process and take turns.

A machine's speed drifts by more than a hook costs, within a second. What is compared
must have been measured within less. So each training has a thread of its own, of which
only one runs at a time, and they hand over to each other every few iterations.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Callable


class OverError(Exception):
    """Ends a training when all turns are taken."""


class Turns:
    """Lets one of several threads run at a time.

    Args:
        order: Whose turn it is, one turn after the other.
    """

    def __init__(self, order: Iterable[str]) -> None:
        names = list(order)
        self._order = iter(names)
        self._may_run = {name: threading.Semaphore(0) for name in names}
        self._is_over = False

    def wait(self, name: str) -> None:
        """Wait for one's turn.

        Raises:
            OverError: If there is none any more.
        """
        self._may_run[name].acquire()
        if self._is_over:
            raise OverError

    def pass_on(self) -> None:
        """Give the next one its turn, or end them all."""
        following = next(self._order, None)
        if following is None:
            self.stop()
        else:
            self._may_run[following].release()

    def stop(self) -> None:
        """End them all: who waits, and who will."""
        self._is_over = True
        for semaphore in self._may_run.values():
            semaphore.release()


def run_in_turns(turns: Turns, trainings: Mapping[str, Callable[[], None]]) -> None:
    """Run each training in a thread until the turns are over.

    Args:
        turns: Taken by the trainings: at the end of its turn one calls
            :meth:`Turns.pass_on` and :meth:`Turns.wait`.
        trainings: By the names in the order of the turns. One that returns or fails
            ends them all.

    Raises:
        BaseException: What one of them raised.
    """
    errors: list[BaseException] = []

    def run(name: str, training: Callable[[], None]) -> None:
        try:
            turns.wait(name)
            training()
        except OverError:
            return
        except BaseException as error:  # noqa: BLE001  # raised by who waits for all
            errors.append(error)
        turns.stop()

    threads = [threading.Thread(target=run, args=item) for item in trainings.items()]
    for thread in threads:
        thread.start()
    turns.pass_on()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
