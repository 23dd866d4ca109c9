"""All sources of one run except the time ledger; each fails on its own."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

from msgspec import structs

from mmgpu_hooks.hooks.loop_timer import PointCalls
from mmgpu_hooks.hooks.recording import Guard, Recording
from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.cuda import (
    CudaDevice,
    cuda_device,
    open_cuda_events,
    open_cuda_memory,
    read_cudnn_benchmark,
)
from mmgpu_hooks.measure.gpu import Gpu, GpuSampler, open_gpu
from mmgpu_hooks.measure.host import HostMeter, pause_s, read_host_limits
from mmgpu_hooks.measure.ledger import WORKER_START
from mmgpu_hooks.measure.loader.batches import (
    BatchWatch,
    count_tensors,
    find_stored_ratio,
)
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import WorkersMark, write_nice
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.memory import MemoryMeter
from mmgpu_hooks.measure.slurm import parse_most_tasks
from mmgpu_hooks.schema.recorded import (
    CudaMemoryWindow,
    GpuDevice,
    GpuWindow,
    HostLimits,
    IntervalRecord,
)

MEMORY_THREAD = 'mmgpu-worker-memory'

UNPROVEN = (
    "what is read of a GPU has met NVIDIA's mock driver 550.163.01 and FakeGPU, and no "
    'real card yet.'
)

Readers = dict[str, Callable[[], dict[str, Any]]]
"""By source, what gives its fields of an interval's record."""

_LOCAL_WORLD = ('LOCAL_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'MPI_LOCALNRANKS')


def _prefix(source: str, reasons: Mapping[str, str]) -> dict[str, str]:
    return {f'{source} {name}': why for name, why in reasons.items()}


class GpuSource:
    """Everything measured of the card that this rank trains on.

    Args:
        guard: Switches off what fails.
        sample_period_s: Seconds between two samples of NVML.
        device: Type of the device that the model is on.
    """

    def __init__(self, guard: Guard, sample_period_s: float, device: str) -> None:
        self._guard, self._run = guard, guard.run
        self.device: GpuDevice | None = None
        self.readers: Readers = {}
        self._gpu: Gpu | None = None
        self._sampler: GpuSampler | None = None
        ours = self._run('GPU', cuda_device)
        self.is_used = ours is not None or 'GPU' in guard.off
        """True if this process uses CUDA."""
        if ours is not None:
            self._run('GPU', self._open_driver, ours, sample_period_s)
        elif not self.is_used:
            guard.absent['GPU'] = f'training runs on the {device.upper()}'
        self.cudnn_benchmark: bool | None = None
        if self.is_used:
            self.cudnn_benchmark = self._run('cuDNN', read_cudnn_benchmark)
        self.events = self._run('GPU idle', open_cuda_events)
        self._memory = self._run('GPU memory', open_cuda_memory)
        if self.events is not None:
            self.readers['GPU idle'] = self._read_idle
        if self._memory is not None:
            self.readers['GPU memory'] = self._read_memory

    def _open_driver(self, ours: CudaDevice, period_s: float) -> None:
        import torch

        if torch.version.hip:
            raise AbsentError('NVML knows no AMD card, and this torch is for ROCm')
        # kept first: it is to be closed, whatever fails
        self._gpu = gpu = open_gpu(**ours)
        self.device = GpuDevice(**gpu.device())
        self._sampler = GpuSampler(gpu.read_sample, period_s, close=gpu.close)
        self._sampler.start()
        self.readers['GPU'] = self._read_driver

    @property
    def around_steps(self) -> PointCalls:
        """What to call at the hook points around a step: CUDA events, if there are."""
        events, run = self.events, self._run
        if events is None:
            return {}
        return {
            'before_train_iter': (partial(run, 'GPU idle', events.begin_step),),
            'after_train_iter': (partial(run, 'GPU idle', events.end_step),),
        }

    @property
    def unknown(self) -> dict[str, str]:
        """Why a figure is missing, by source; what a card does not offer, too."""
        card = {} if self._gpu is None else self._gpu.reasons()
        memory = {} if self._memory is None else self._memory.lacking
        return {
            **self._guard.absent,
            **_prefix('GPU', card),
            **_prefix('GPU memory', memory),
        }

    def observe_memory(self) -> None:
        """Sample the allocator's peaks before somebody resets them."""
        if self._memory is not None:
            self._run('GPU memory', self._memory.observe)

    def begin_validation(self) -> None:
        """From here on the peak is validation's."""
        if self._memory is not None:
            self._run('GPU memory', self._memory.begin_validation)

    def end_validation(self) -> None:
        """From here on the peak is training's again."""
        if self._memory is not None:
            self._run('GPU memory', self._memory.end_validation)
        self.interrupt()

    def interrupt(self) -> None:
        """Leave the time since the last step out of the idle share."""
        if self.events is not None:
            self._run('GPU idle', self.events.interrupt)

    def _read_driver(self) -> dict[str, Any]:
        assert self._gpu is not None and self._sampler is not None
        window = self._sampler.drain()
        # a window that ends early is left out: figures hold until the one before
        if self._sampler.failure is not None:
            raise SourceError(self._sampler.failure)
        for figure, reason in self._gpu.unsupported.items():
            self._guard.switch_off(f'GPU {figure}', SourceError(reason))
        return {'gpu': GpuWindow(**window)}

    def _read_idle(self) -> dict[str, Any]:
        assert self.events is not None
        idle = self.events.drain()
        return {'gpu_idle_pct': idle.pct, 'gpu_idle_iterations': idle.iterations}

    def _read_memory(self) -> dict[str, Any]:
        assert self._memory is not None
        self._memory.observe()
        figures = self._memory.drain()
        return {
            'gpu_mem_peak_bytes': figures['peak_bytes'],
            'gpu_mem_reserved_bytes': figures['reserved_bytes'],
            'cuda_memory': CudaMemoryWindow(
                allocated_bytes=figures['allocated_bytes'],
                retries=figures['retries'],
                inactive_bytes=figures['inactive_bytes'],
            ),
        }

    def close(self) -> None:
        """Stop the sampler and let the driver go."""
        if self._sampler is not None:
            self._guard.clean_up('GPU', self._sampler.stop)
        elif self._gpu is not None:
            self._guard.clean_up('GPU', self._gpu.close)


class Sources:
    """Opens all sources of one run except the time ledger.

    Args:
        recording: The run that is recorded.
        gpu: What is measured of the card; it is closed with the others.
        device: Type of the device that the model is on.
        probe: Of the train loader, where one watches it already.
        listener: Hears of the iterators that the train loader makes.
    """

    def __init__(
        self,
        recording: Recording,
        gpu: GpuSource,
        device: str,
        probe: LoaderProbe | None,
        listener: LoopListener,
    ) -> None:
        guard, runner = recording.guard, recording.runner
        run = self._run = guard.run
        self._guard, self._runner, self._timer = guard, runner, recording.timer
        self._worker_nice = recording.hook.worker_nice
        self._memory_thread: threading.Thread | None = None
        self._opened_s = self._batch_due_s = monotonic_s()
        ranks = count_ranks_on_host(runner.world_size, os.environ)
        limits = run('host limits', read_host_limits, ranks_on_host=ranks)
        self.host = limits or HostLimits()
        # of a source that cannot be opened nothing is read: it is off
        self._host = run('host', HostMeter)
        self._memory = run('memory', MemoryMeter)
        self.gpu = gpu
        self.device = 'cuda' if self.gpu.is_used else device
        self._watch = BatchWatch(_pad_size_divisor(runner))
        """Examines a batch where no worker has counted its own."""
        self._resizers = run('batch contents', _name_resizers, runner)
        if probe is not None and probe.loader is not runner.train_dataloader:
            # a hook may have put another one there since
            guard.clean_up('loader workers', probe.close)
            probe = None
        if probe is None:
            loader = runner.train_dataloader
            probe = open_train_probe(guard, runner, loader, listener)
        else:
            probe.hand_over(listener)
        self.loader = probe or LoaderProbe(None)
        """What watches the loader; where that failed it sees nothing."""
        self._follow_loader()
        self._readers: Readers = {
            'loader workers': self._read_loader,
            'host': self._read_host,
            'memory': self._read_memory,
            **self.gpu.readers,
        }

    def begin_iterator(self) -> None:
        """Book what the train loader's next iterator takes until it is made."""
        self._run('ledger', self._timer.ledger.push, WORKER_START)

    def end_iterator(self, iterator: Any) -> None:
        """Time the waits of the train loader's newest iterator.

        Args:
            iterator: The iterator; ``None`` if it could not be made.
        """
        self._run('ledger', self._timer.ledger.pop, WORKER_START)
        if iterator is not None:
            self._run('ledger', self._timer.follow, iterator)
        self._set_nice()

    def _follow_loader(self) -> None:
        runner, timer, run = self._runner, self._timer, self._run
        # iteration-based loops start their workers before any hook is called
        endless = getattr(runner.train_loop, 'dataloader_iterator', None)
        running = getattr(endless, '_iterator', None)
        if running is not None:
            run('loader workers', self.loader.watch_running, running)
            run('ledger', timer.follow, running)
        elif not hasattr(runner.train_dataloader, '_get_iterator'):
            timer.give_up_waits()
        self._set_nice()

    def list_workers(self) -> Sequence[int]:
        """Process ids of the train loader's workers that live; from any thread."""
        processes = self.loader.processes
        return () if processes is None else processes.pids

    def mark_workers(self) -> WorkersMark | None:
        """CPU of the train loader's workers so far; ``None`` when it is not watched."""
        if 'loader workers' in self._guard.off:
            return None
        processes = self.loader.processes
        return {} if processes is None else processes.mark()

    def _set_nice(self) -> None:
        """Set the nice value of the workers, each time they start."""
        if self._worker_nice is not None:
            self._run('worker_nice', write_nice, self.list_workers(), self._worker_nice)

    @property
    def unknown(self) -> dict[str, str]:
        """Why a figure is missing, by source."""
        contents = dict(self._watch.unknown)
        if self._resizers:
            contents['largest_batch_pixels'] = (
                f'the data preprocessor may change the size of batches: '
                f'{self._resizers}'
            )
        host = {} if self._host is None else self._host.unknown
        return {
            **self.gpu.unknown,
            **self.loader.unsupported,
            **_prefix('host', host),
            **_prefix('batch', contents),
        }

    def complete(self, record: IntervalRecord, batch: Any) -> IntervalRecord:
        """Add the figures of every source to the record of an interval.

        Args:
            record: The interval as the ledger saw it.
            batch: The last batch, or ``None`` when it is gone.
        """
        figures: dict[str, Any] = {}
        for source, read in self._readers.items():
            figures.update(self._run(source, read) or {})
        contents = self._run(
            'batch contents', self._read_batches, record.iterations, batch
        )
        return structs.replace(record, **figures, **(contents or {}))

    def _read_host(self) -> dict[str, Any]:
        # one that could not be opened is off
        assert self._host is not None
        return self._host.read()._asdict()

    def _read_memory(self) -> dict[str, Any]:
        assert self._memory is not None
        figures = self._memory.read(self.list_workers())
        return {} if figures is None else figures._asdict()

    def _read_loader(self) -> dict[str, Any]:
        loader = self.loader
        window = loader.read()
        if loader.inside_failure is not None:
            self._guard.switch_off('loader inside', SourceError(loader.inside_failure))
        is_busy = self._memory_thread is not None and self._memory_thread.is_alive()
        if loader.is_memory_due and not is_busy:
            # a few milliseconds of the kernel's: not in the loop
            self._memory_thread = threading.Thread(
                target=self._run,
                args=('worker memory', loader.read_memory),
                name=MEMORY_THREAD,
                daemon=True,
            )
            self._memory_thread.start()
        return {'workers': window}

    def _read_batches(self, iterations: int, batch: Any) -> dict[str, Any]:
        held = self.loader.read_contents(iterations)
        images = held.images
        if None in (images, held.pixels, held.boxes) and batch is not None:
            last = self._watch.examine(batch).images
            if images is None and last is not None:
                # made out of sight: all are taken to be like the last one
                images = last * iterations
        figures: dict[str, Any] = dict(images=images, most_boxes=held.boxes)
        if not self._resizers:
            figures.update(
                largest_batch_pixels=held.pixels,
                largest_batch_height=held.height,
                largest_batch_width=held.width,
                new_batch_sizes=held.new_sizes,
            )
        now_s = monotonic_s()
        if batch is None or now_s < self._batch_due_s:
            return figures
        # 5 us for each image
        self._batch_due_s = now_s + pause_s(now_s - self._opened_s)
        counted = count_tensors(batch)
        if counted.tensors:
            figures.update(
                batch_tensors=counted.tensors,
                batch_bytes=counted.bytes,
                small_tensors=counted.small,
                small_tensor_bytes=counted.small_bytes,
            )
            figures.update(stored_pixel_ratio=find_stored_ratio(batch))
        return figures

    def close(self) -> None:
        """Stop the threads and leave everything as it was."""
        self.gpu.close()
        if self._memory_thread is not None:
            self._guard.clean_up('worker memory', self._memory_thread.join, 1.0)
        self._guard.clean_up('loader workers', self.loader.close)


def count_ranks_on_host(world_size: int, environ: Mapping[str, str]) -> int:
    """Ranks that share this host.

    Args:
        world_size: Ranks in all.
        environ: Where launchers say how many they started here.

    Returns:
        What the launcher said; without one, all ranks are taken to be here, which
        at worst advises too few workers and never too many.
    """
    counts = [environ.get(name, '') for name in _LOCAL_WORLD]
    if 'SLURM_PROCID' in environ:
        # of a list such as 8(x3),4 the most
        names = 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_NTASKS_PER_NODE'
        tasks = next(filter(None, map(environ.get, names)), '')
        counts.append(str(parse_most_tasks(tasks) or ''))
    for count in counts:
        if re.fullmatch(r'\d{1,9}', count, re.ASCII) and int(count) > 0:
            return min(int(count), world_size)
    return world_size


def read_device(runner: Any) -> str:
    """Type of the device that the model is on."""
    parameter = next(iter(runner.model.parameters()), None)
    return 'cpu' if parameter is None else str(parameter.device.type)


def _bare(model: Any) -> Any:
    return getattr(model, 'module', model)


def _name_resizers(runner: Any) -> str:
    """What may change the size of batches in the step, beyond padding."""
    outer = getattr(_bare(runner.model), 'data_preprocessor', None)
    inner = getattr(outer, 'data_preprocessor', None)
    names: list[str] = []
    for preprocessor in (outer, inner):
        # of classifiers it is no list, mixes images and keeps their size
        with contextlib.suppress(TypeError):
            augments = getattr(preprocessor, 'batch_augments', None) or ()
            names += [type(augment).__name__ for augment in augments]
    return ', '.join(names)


def open_train_probe(
    guard: Guard, runner: Any, loader: Any, listener: LoopListener
) -> LoaderProbe | None:
    """Watch the train loader of a Runner.

    Args:
        guard: Switches off what fails.
        runner: The Runner.
        loader: Its train loader.
        listener: Hears of the iterators that the loader makes.

    Returns:
        ``None`` if that failed.
    """
    run, divisor = partial(guard.run, 'loader workers'), _pad_size_divisor(runner)
    return run(LoaderProbe, loader, run, listener=listener, pad_size_divisor=divisor)


def _pad_size_divisor(runner: Any) -> int:
    preprocessor = getattr(_bare(runner.model), 'data_preprocessor', None)
    divisor = getattr(preprocessor, 'pad_size_divisor', 1)
    return divisor if isinstance(divisor, int) else 1
