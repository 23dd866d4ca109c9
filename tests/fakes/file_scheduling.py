"""Pytest plugin: files go to xdist's workers, and go on when one of these is killed.

With xdist 3.8 what is left then hangs (pytest-xdist issues 1323 and 1327): files that
the killed worker had done are sent again, as empty ones, and a worker waits for ever
for the test that follows its last one.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling


class FileScheduling(LoadFileScheduling):
    """Scheduler that sends only what is left of a killed worker's files to others."""

    def remove_node(self, node: Any) -> str | None:
        """Removes a worker; returns the test in which it was killed, if any."""
        left: dict[str, dict[str, bool]] = {}
        for path, tests in self.assigned_work[node].items():
            waiting = [test for test, is_done in tests.items() if not is_done]
            if waiting:
                left[path] = dict.fromkeys(waiting, False)
        self.assigned_work[node].clear()
        super().remove_node(node)
        if not left:
            return None
        first = next(iter(left))
        killed = next(iter(left[first]))
        # reported as failed; it may kill the next one, too
        del left[first][killed]
        self.workqueue.update({path: tests for path, tests in left.items() if tests})
        for other in self.assigned_work:
            self._reschedule(other)
        return killed

    def schedule(self) -> None:
        """Sends files to all workers, and to one that takes a killed one's place."""
        super().schedule()
        # a worker begins a test once it knows the next one: one file may be too few
        for node in self.nodes:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Returns the scheduler of ``--dist loadfile``."""
    is_by_file = config.getvalue('dist') == 'loadfile'
    return FileScheduling(config, log) if is_by_file else None
