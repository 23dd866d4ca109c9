"""What the parts of one run's recording share: where training is, and the evidence."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import LoopTimer
from mmgpu_hooks.schema.recorded import Line, SourceOffRecord, UnknownRecord
from mmgpu_hooks.schema.writer import EvidenceWriter


class Recording:
    """One run that is recorded.

    Args:
        runner: The runner, about to enter its train loop.
        hook: The hook that records, with the arguments that users gave it.
        guard: Switches off what fails.
        timer: Times the loop.
    """

    def __init__(self, runner: Any, hook: Any, guard: Guard, timer: LoopTimer) -> None:
        self.runner, self.hook = runner, hook
        self.guard, self.timer, self.ledger = guard, timer, timer.ledger
        self.writer: EvidenceWriter | None = None
        self.recorded: int = runner.iter
        """Iterations of the whole training that are in records, or came before."""
        self.epoch = runner.epoch + 1

    @property
    def iteration(self) -> int:
        """Iterations done, as of the ledger's last sum; from any thread."""
        return self.recorded + self.ledger.iterations

    def count_iterations(self) -> int:
        """Iterations done."""
        self.guard.run('interval', self.ledger.fold)
        return self.iteration

    def write(self, record: Line) -> None:
        """Add a line to the evidence, where there is any."""
        if self.writer is not None:
            self.guard.run('evidence', self.writer.write, record)

    def write_reason(
        self, kind: type[UnknownRecord | SourceOffRecord], source: str, reason: str
    ) -> None:
        """Add why a figure is missing from here on."""
        self.write(kind(source=source, reason=reason, iteration=self.recorded))
