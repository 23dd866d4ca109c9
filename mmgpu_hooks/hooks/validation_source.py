"""Measures each validation: its waits, its steps, its own loader.

Nothing is touched until the first validation begins, and a training without one pays
nothing. An iteration of validation takes 5 us longer, and 16 us beside two workers that
are busy; a whole one 2 ms, measured on a 2-core VM.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

from mmengine.runner import BaseLoop

from mmgpu_hooks.evidence.validation import ValidationFolder
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import loading_cpu_clock
from mmgpu_hooks.hooks.save_watch import mark_workers
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s
from mmgpu_hooks.measure.host.cpu import read_run_delay_s
from mmgpu_hooks.measure.loader.batch_contents import count_tensors
from mmgpu_hooks.measure.loader.meanwhile import fold_workers_meanwhile
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.saving.surroundings import Surroundings
from mmgpu_hooks.schema import LoaderSettings, ValidationRecord, WorkersWindow
from mmgpu_hooks.schema.recorded import Line

SOURCE = 'validation'
"""What the guard knows us by."""

_MEMORY_AT = 20
"""Batch at which the workers' memory is looked at: up to 20 ms, in a long loop only."""


class ValidationSource:
    """The validations of one run. No call of it raises.

    Args:
        runner: Whose validations are measured.
        guard: Switches this off when it fails.
        sources: Know the workers of the train loader, and the GPU.
        read_position: Tells iterations done and the epoch.
        write: Takes lines of the evidence.
        on_begin: Called when one begins; it must not raise.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        sources: Sources,
        *,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
        on_begin: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._sources = sources
        self._on_begin = on_begin
        self._read_position = read_position
        self._write = write
        self._patches = Patches()
        self._loop: Any = None
        self._loader: Any = None
        self._untold: str | None = None
        """Why the loop's iterations cannot be followed."""
        self._probe: LoaderProbe | None = None
        self._surroundings: Surroundings | None = None
        self._folder: ValidationFolder | None = None
        self._workers_before: Any = None
        self._position = (0, 0)
        self._batch: dict[str, Any] = {}
        self._iterations = 0
        """Of all validations."""

    def begin(self) -> None:
        """A validation is about to begin."""
        # a logged validation resets the allocator's peak, and has one of its own
        self._guard.run('GPU memory', self._sources.gpu.begin_validation)
        self._on_begin()
        self._guard.run(SOURCE, self._begin)

    def ask_first(self) -> None:
        """Its loop is about to ask for the first batch."""
        if self._folder is not None:
            self._guard.run(SOURCE, self._folder.ask_first)

    def end(self) -> None:
        """It is over."""
        self._guard.run(SOURCE, self._end)
        self._guard.run('GPU memory', self._sources.gpu.end_validation)

    def _begin(self) -> None:
        self._folder = None
        loop = getattr(self._runner, '_val_loop', None)
        if not isinstance(loop, BaseLoop):
            return
        if loop is not self._loop:
            self._watch(loop)
        if self._surroundings is None:
            self._surroundings = Surroundings()
        if self._probe is not None:
            # what workers that live on did since the last time
            self._probe.read()
        self._position, self._batch = self._read_position(), {}
        self._workers_before = mark_workers(self._sources.loader)
        self._surroundings.begin()
        self._folder = ValidationFolder(
            monotonic_s,
            loading_cpu_clock(self._loader),
            process_cpu_s,
            read_run_delay_s,
        )

    def _watch(self, loop: Any) -> None:
        """Follow a loop that was not seen before."""
        self.close()
        self._loop, self._untold = loop, None
        self._loader = loader = getattr(loop, 'dataloader', None)
        if not hasattr(loader, '_get_iterator'):
            self._untold = 'the loop has no DataLoader of PyTorch as its dataloader'
            return
        self._probe = probe = LoaderProbe(
            loader, lambda: self._iterations, on_create_begin=self.ask_first
        )
        running = getattr(loader, '_iterator', None)
        if running is not None:
            probe.watch_running(running)
        # not every loop has iterations of this name
        if not hasattr(loop, 'run_iter'):
            return
        names = _find_arguments(loop.run_iter)
        if names is None:
            self._untold = "the loop's run_iter takes no index and batch"
        else:
            self._patches.set(
                loop,
                'run_iter',
                self._around(loop.run_iter, *names),
                'times batches of validation',
            )

    def _around(
        self, original: Callable[..., Any], index_name: str, batch_name: str
    ) -> Callable[..., Any]:
        off = self._guard.off
        begin = self._guard.wrap(SOURCE, self._begin_iteration)
        end = self._guard.wrap(SOURCE, self._end_iteration)

        def run_iter(*args: Any, **kwargs: Any) -> Any:
            if self._folder is None or SOURCE in off:
                return original(*args, **kwargs)
            begin(
                args[0] if args else kwargs.get(index_name),
                args[1] if len(args) > 1 else kwargs.get(batch_name),
            )
            result = original(*args, **kwargs)
            end()
            return result

        return run_iter

    def _begin_iteration(self, index: Any, batch: Any) -> None:
        folder, probe = self._folder, self._probe
        assert folder is not None  # whoever calls has looked
        number = index if isinstance(index, int) else None
        folder.get(number == 0)
        if probe is not None:
            probe.got()
            if number == _MEMORY_AT:
                probe.read_memory()
        if not self._batch:
            tensors, size = count_tensors(batch)
            self._batch = {'batch_tensors': tensors, 'batch_bytes': size}
        folder.begin_step()

    def _end_iteration(self) -> None:
        self._iterations += 1
        if self._folder is not None:
            self._folder.end_step()
        if self._probe is not None:
            self._probe.ask()

    def _end(self) -> None:
        folder, self._folder = self._folder, None
        if folder is None or self._loop is None or self._surroundings is None:
            return
        whole, figures = folder.fold_whole(), folder.fold()
        unknown: dict[str, str] = {}
        untold = self._untold or folder.untold
        if untold is not None:
            unknown['iterations'] = untold
        window = None if self._probe is None else self._probe.read()
        settings = LoaderSettings()
        if self._loader is not None:
            settings = read_loader_settings(self._loader)
        before, after = self._workers_before, mark_workers(self._sources.loader)
        train: dict[str, Any] = {}
        if before is None or after is None:
            unknown['train_workers'] = 'the train loader is not watched'
        else:
            seen = fold_workers_meanwhile(before, after, whole['wall_s'])
            train = {'train_workers': seen.count, 'train_workers_cpu_s': seen.cpu_s}
        used_s = _add_cpu(settings.num_workers, window, train)
        around, why = self._surroundings.end(used_s)
        if 'strangers_cpu_s' in why:
            unknown['strangers_cpu_s'] = why['strangers_cpu_s']
        iteration, epoch = self._position
        self._write(
            ValidationRecord(
                iteration=iteration,
                epoch=epoch,
                loader=settings,
                workers=window,
                strangers_cpu_s=around.get('strangers_cpu_s'),
                unknown=unknown,
                **whole,
                **figures,
                **self._batch,
                **train,
            )
        )

    def close(self) -> None:
        """Leave the loop and its loader as they were; a second call does nothing."""
        self._patches.close()
        self._loop = self._loader = self._folder = None
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()
        surroundings, self._surroundings = self._surroundings, None
        if surroundings is not None:
            surroundings.close()


def _find_arguments(run_iter: Callable[..., Any]) -> tuple[str, str] | None:
    """Names of the first two arguments, a batch's number and the batch.

    ``None`` where it takes others, or does not tell.
    """
    try:
        found = list(inspect.signature(run_iter).parameters.values())[:2]
    except (TypeError, ValueError):
        return None
    if len(found) < 2 or any(
        one.kind is not one.POSITIONAL_OR_KEYWORD for one in found
    ):
        return None
    return found[0].name, found[1].name


def _add_cpu(
    num_workers: int | None, window: WorkersWindow | None, train: dict[str, Any]
) -> float | None:
    """CPU of all loaders' workers; ``None`` where it is not known."""
    own_s = 0.0 if num_workers == 0 else None
    if window is not None and window.count:
        own_s = window.cpu_s
    train_s = train.get('train_workers_cpu_s')
    return None if own_s is None or train_s is None else own_s + train_s
