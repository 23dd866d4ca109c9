"""Everything about saves in one run: watched, written, set beside what followed."""

from __future__ import annotations

import functools
from typing import Any, Callable

from mmgpu_hooks.evidence.save_aftermath import AftermathFolder
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.save_target import read_publish_target, read_save_target
from mmgpu_hooks.hooks.save_warnings import SaveWarnings
from mmgpu_hooks.hooks.save_watch import SOURCE, SaveWatch
from mmgpu_hooks.measure.ledger import LedgerWindow
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveRecord,
)
from mmgpu_hooks.schema.recorded import Line

DEFAULT_PREFETCH_FACTOR = 2
"""PyTorch's own, where a loader does not tell."""


class SaveSource:
    """The saves of one runner. No call of it raises.

    Args:
        runner: Whose checkpoints are saved.
        guard: Switches this off when it fails.
        read_position: Tells iterations done and the epoch.
        write: Takes lines of the evidence.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._read_position = read_position
        self._write = write
        self._watch: SaveWatch | None = None
        self._warnings: SaveWarnings | None = None
        self._aftermaths = AftermathFolder(0, 0)
        self._patches = Patches()

    def open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        """Watch every save from now on, by the thread that calls this.

        Args:
            probe: Knows the loader's workers.
            host: Its limits.
        """
        self._guard.run(SOURCE, self._open, probe, host)

    def _open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        runner, patches = self._runner, self._patches
        loader = read_loader_settings(runner.train_dataloader)
        self._warnings = SaveWarnings(runner.logger.warning, host, loader)
        self._aftermaths = AftermathFolder(
            _fold_horizon(loader), self._read_position()[0], loader.num_workers or 1
        )
        self._watch = SaveWatch(
            runner, self._guard, probe, self._read_position, self._note
        )
        around = self._watch.around
        target = functools.partial(read_save_target, runner)
        saves = around(runner.save_checkpoint, target)
        patches.set(runner, 'save_checkpoint', saves, 'takes saves apart')
        if runner.rank:
            return
        for hook in runner.hooks:
            # of MMEngine's CheckpointHook: it saves without the runner
            if hasattr(hook, '_publish_model'):
                publish = around(hook._publish_model, read_publish_target)
                patches.set(hook, '_publish_model', publish, 'takes saves apart')

    def _note(self, save: SaveRecord) -> None:
        self._write(save)
        self._aftermaths.add_save(save.iteration)
        if self._warnings is not None:
            self._warnings.add_save(save)

    def add_waits(self, window: LedgerWindow) -> None:
        """Take the waits for data of an interval."""
        self._guard.run(SOURCE, self._add_waits, window)

    def _add_waits(self, window: LedgerWindow) -> None:
        for record in self._aftermaths.add_waits(window.waits_s, window.firsts):
            self._note_aftermath(record)

    def add_cut(self) -> None:
        """The loop does something else than iterations."""
        self._guard.run(SOURCE, self._add_cut)

    def _add_cut(self) -> None:
        self._aftermaths.add_cut(self._read_position()[0])

    def _note_aftermath(self, record: SaveAftermathRecord) -> None:
        self._write(record)
        if self._warnings is not None:
            self._warnings.add_aftermath(record)

    def leave(self) -> None:
        """Leave the runner as it was; a second call does nothing."""
        self._guard.clean_up(SOURCE, self._patches.close)
        if self._watch is not None:
            self._guard.clean_up(SOURCE, self._watch.close)

    def finish(self) -> None:
        """All waits are told, and the run is over."""
        self._guard.run(SOURCE, self._finish)

    def _finish(self) -> None:
        for record in self._aftermaths.finish():
            self._note_aftermath(record)
        if self._warnings is not None:
            self._warnings.finish()


def _fold_horizon(loader: LoaderSettings) -> int:
    """Batches that can be made ahead."""
    ahead = loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR
    return (loader.num_workers or 0) * ahead
