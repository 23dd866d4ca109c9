"""Sources of a training's measured values: GPU, host, DataLoader and batches."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

from msgspec import structs

from mmgpu_hooks.hooks.figure_source import (
    FigureSource,
    IntervalEnd,
    SourceList,
    SourceName,
    prefix_reasons,
)
from mmgpu_hooks.hooks.loop_timer import PointCalls
from mmgpu_hooks.hooks.recording import Guard, Recording
from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.cuda import (
    CudaDevice,
    CudaEvents,
    CudaMemory,
    cuda_device,
    open_cuda_events,
    open_cuda_memory,
    read_cudnn_benchmark,
)
from mmgpu_hooks.measure.gpu import Gpu, GpuSampler, open_gpu
from mmgpu_hooks.measure.histories import HistoryMeter
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
    HistoryCost,
    HostLimits,
    IntervalRecord,
)
from mmgpu_hooks.schema.text import phrase

MEMORY_THREAD = 'mmgpu-worker-memory'

UNPROVEN = phrase(
    "GPUEfficiencyHook: what is read of a GPU has met NVIDIA's mock driver 550.163.01 "
    'and FakeGPU, and no real card yet.'
)

_LOCAL_WORLD = ('LOCAL_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'MPI_LOCALNRANKS')


class CardSource(FigureSource):
    """Samples utilisation, memory and clock of this rank's GPU through NVML.

    Args:
        guard: Switches off single figures that the driver does not give.
        ours: The card.
        period_s: Seconds between two samples, on average.
    """

    name = SourceName.GPU

    def __init__(self, guard: Guard, ours: CudaDevice, period_s: float) -> None:
        self._guard, self._ours, self._period_s = guard, ours, period_s
        self.device: GpuDevice | None = None
        """Name, memory and driver of the GPU; ``None`` if NVML cannot be asked."""
        self._gpu: Gpu | None = None
        self._sampler: GpuSampler | None = None

    def open(self) -> None:
        import torch

        if torch.version.hip:
            raise AbsentError(
                phrase('NVML knows no AMD card, and this torch is for ROCm')
            )
        # kept first: it is to be closed, whatever fails
        self._gpu = gpu = open_gpu(**self._ours)
        self.device = GpuDevice(**gpu.device())
        self._sampler = GpuSampler(gpu.read_sample, self._period_s, close=gpu.close)
        self._sampler.start()

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self._gpu is not None and self._sampler is not None
        window = self._sampler.drain()
        # a window that ends early is left out: figures hold until the one before
        if self._sampler.failure is not None:
            raise SourceError(self._sampler.failure)
        for figure, reason in self._gpu.unsupported.items():
            self._guard.switch_off(f'GPU {figure}', SourceError(reason))
        return {'gpu': GpuWindow(**window)}

    @property
    def unknown(self) -> Mapping[str, str]:
        return {} if self._gpu is None else prefix_reasons('GPU', self._gpu.reasons())

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        elif self._gpu is not None:
            self._gpu.close()


class IdleSource(FigureSource):
    """Measures the percentage of time in which the GPU idles between train steps."""

    name = SourceName.GPU_IDLE

    def __init__(self) -> None:
        self.events: CudaEvents | None = None
        """CUDA event timer of train steps; ``None`` in a process without CUDA."""

    def open(self) -> None:
        self.events = open_cuda_events()

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self.events is not None
        idle = self.events.drain()
        return {'gpu_idle_pct': idle.pct, 'gpu_idle_iterations': idle.iterations}


class AllocatorSource(FigureSource):
    """Reads memory peaks and other statistics of PyTorch's CUDA allocator."""

    name = SourceName.GPU_MEMORY

    def __init__(self) -> None:
        self.memory: CudaMemory | None = None
        """Reader of CUDA allocator statistics; ``None`` in a process without CUDA."""

    def open(self) -> None:
        self.memory = open_cuda_memory()

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self.memory is not None
        self.memory.observe()
        figures = self.memory.drain()
        return {
            'gpu_mem_peak_bytes': figures['peak_bytes'],
            'gpu_mem_reserved_bytes': figures['reserved_bytes'],
            'cuda_memory': CudaMemoryWindow(
                allocated_bytes=figures['allocated_bytes'],
                retries=figures['retries'],
                inactive_bytes=figures['inactive_bytes'],
            ),
        }

    @property
    def unknown(self) -> Mapping[str, str]:
        lacking = {} if self.memory is None else self.memory.lacking
        return prefix_reasons('GPU memory', lacking)


class GpuSources:
    """All sources that measure the GPU this rank trains on.

    Args:
        guard: Switches off what fails.
        sample_period_s: Seconds between two samples of NVML.
        device: Type of the device that the model is on.
    """

    def __init__(self, guard: Guard, sample_period_s: float, device: str) -> None:
        self._guard, self._run = guard, guard.run
        self._sources = SourceList(guard)
        self._card: CardSource | None = None
        ours = self._run(SourceName.GPU, cuda_device)
        self.is_used = ours is not None or SourceName.GPU in guard.off
        """True if this process uses CUDA."""
        if ours is not None:
            card = CardSource(guard, ours, sample_period_s)
            self._card = self._sources.open(card)
        elif not self.is_used:
            where = phrase('training runs on the {device}', device=device.upper())
            guard.note_absent(SourceName.GPU, where)
        self.cudnn_benchmark: bool | None = None
        if self.is_used:
            self.cudnn_benchmark = self._run('cuDNN', read_cudnn_benchmark)
        self._idle = self._sources.open(IdleSource())
        self._allocator = self._sources.open(AllocatorSource())

    @property
    def device(self) -> GpuDevice | None:
        """Name, memory and driver of this rank's GPU; ``None`` if not readable."""
        return None if self._card is None else self._card.device

    @property
    def around_steps(self) -> PointCalls:
        """Functions that record CUDA events around train steps, by hook point."""
        events = self._idle.events
        if events is None:
            return {}
        # plain text: it is looked up in each iteration
        run = partial(self._run, SourceName.GPU_IDLE.value)
        return {
            'before_train_iter': (partial(run, events.begin_step),),
            'after_train_iter': (partial(run, events.end_step),),
        }

    @property
    def unknown(self) -> dict[str, str]:
        """Reasons why values of the GPU are missing or unsupported, by name."""
        return self._sources.unknown

    def observe_memory(self) -> None:
        """Reads the CUDA allocator's peaks before other code may reset them."""
        memory = self._allocator.memory
        if memory is not None:
            self._run(SourceName.GPU_MEMORY, memory.observe)

    def begin_validation(self) -> None:
        """Attributes new CUDA memory peaks to validation from now on."""
        memory = self._allocator.memory
        if memory is not None:
            self._run(SourceName.GPU_MEMORY, memory.begin_validation)

    def end_validation(self) -> None:
        """Attributes new CUDA memory peaks to training again, after a validation."""
        memory = self._allocator.memory
        if memory is not None:
            self._run(SourceName.GPU_MEMORY, memory.end_validation)
        self.interrupt()

    def interrupt(self) -> None:
        """Excludes the time from the last train step to the next from GPU idle time."""
        events = self._idle.events
        if events is not None:
            self._run(SourceName.GPU_IDLE, events.interrupt)

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        """Returns the GPU's values for a log interval's record, by field name."""
        return self._sources.read(interval)

    def close(self) -> None:
        """Stops sampling the GPU, and releases its driver (NVML)."""
        self._sources.close()


class HostSource(FigureSource):
    """Measures CPU use of host and process, and throttling and free RAM of the host."""

    name = SourceName.HOST

    def __init__(self) -> None:
        self._meter: HostMeter | None = None

    def open(self) -> None:
        self._meter = HostMeter()

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self._meter is not None
        return self._meter.read()._asdict()

    @property
    def unknown(self) -> Mapping[str, str]:
        meter = self._meter
        return {} if meter is None else prefix_reasons('host', meter.unknown)


class HostMemorySource(FigureSource):
    """Measures memory bytes of this process, its workers and the whole host.

    Args:
        list_workers: Gives the process ids of the workers that live.
    """

    name = SourceName.MEMORY

    def __init__(self, list_workers: Callable[[], Sequence[int]]) -> None:
        self._list_workers = list_workers
        self._meter: MemoryMeter | None = None

    def open(self) -> None:
        self._meter = MemoryMeter()

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self._meter is not None
        figures = self._meter.read(self._list_workers())
        return {} if figures is None else figures._asdict()


class LoaderSource(FigureSource):
    """Measures seconds per batch of the train loader, and its workers' CPU and memory.

    Args:
        guard: Switches off what fails.
        probe: Watches the loader.
    """

    name = SourceName.LOADER_WORKERS

    def __init__(self, guard: Guard, probe: LoaderProbe) -> None:
        self._guard, self._probe = guard, probe
        self._memory_thread: threading.Thread | None = None

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        probe = self._probe
        window = probe.read()
        if probe.inside_failure is not None:
            self._guard.switch_off('loader inside', SourceError(probe.inside_failure))
        is_busy = self._memory_thread is not None and self._memory_thread.is_alive()
        if probe.is_memory_due and not is_busy:
            # a few milliseconds of the kernel's: not in the loop
            self._memory_thread = threading.Thread(
                target=self._guard.run,
                args=('worker memory', probe.read_memory),
                name=MEMORY_THREAD,
                daemon=True,
            )
            self._memory_thread.start()
        return {'workers': window}

    @property
    def unknown(self) -> Mapping[str, str]:
        return self._probe.unsupported

    def close(self) -> None:
        if self._memory_thread is not None:
            self._guard.clean_up('worker memory', self._memory_thread.join, 1.0)
        self._probe.close()


class BatchSource(FigureSource):
    """Counts images, pixels, boxes and tensors of training batches.

    Args:
        runner: The Runner.
        probe: Watches the train loader, whose workers count their own batches; it is
            read first.
    """

    name = SourceName.BATCH_CONTENTS

    def __init__(self, runner: Any, probe: LoaderProbe) -> None:
        self._runner, self._probe = runner, probe
        self._opened_s = self._due_s = monotonic_s()
        self._watch = BatchWatch(1)
        """Counter of a batch's contents in this process, if no worker counts them."""
        self._resizers = ''

    def open(self) -> None:
        self._watch = BatchWatch(_pad_size_divisor(self._runner))
        self._resizers = _name_resizers(self._runner)

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        iterations, batch = interval.iterations, interval.batch
        held = self._probe.read_contents(iterations)
        images = held.images
        if None in held and batch is not None:
            # it notes the reason of what is unknown
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
        if batch is None or now_s < self._due_s:
            return figures
        # 5 us for each image
        self._due_s = now_s + pause_s(now_s - self._opened_s)
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

    @property
    def unknown(self) -> Mapping[str, str]:
        contents = dict(self._watch.unknown)
        if self._resizers:
            contents['largest_batch_pixels'] = (
                f'the data preprocessor may change the size of batches: '
                f'{self._resizers}'
            )
        return prefix_reasons('batch', contents)


class OverheadSource(FigureSource):
    """Counts the loss values copied from the GPU, and times copies of scalar histories.

    Args:
        runner: The Runner.
    """

    name = SourceName.HOST_OVERHEAD

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._histories: HistoryMeter | None = None
        self._is_read_counted = False

    def open(self) -> None:
        self._histories = HistoryMeter(self._runner.message_hub.log_scalars)

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        assert self._histories is not None
        figures: dict[str, Any] = {}
        outputs = interval.outputs
        if not self._is_read_counted and isinstance(outputs, dict):
            self._is_read_counted = True
            figures['read_scalars'] = sum(
                getattr(value, 'device', None) is not None
                and value.device.type != 'cpu'
                for value in outputs.values()
            )
        copied = self._histories.read(interval.iteration)
        if copied is not None:
            figures['histories'] = HistoryCost(**copied._asdict())
        return figures


class Sources:
    """All sources of a training's measured values, except its ledger of time by part.

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
        gpu: GpuSources,
        device: str,
        probe: LoaderProbe | None,
        listener: LoopListener,
    ) -> None:
        guard, runner = recording.guard, recording.runner
        run = self._run = guard.run
        self._guard, self._runner, self._timer = guard, runner, recording.timer
        self._worker_nice = recording.hook.worker_nice
        ranks = count_ranks_on_host(runner.world_size, os.environ)
        limits = run('host limits', read_host_limits, ranks_on_host=ranks)
        self.host = limits or HostLimits()
        self.gpu = gpu
        self.device = 'cuda' if gpu.is_used else device
        self.loader = self._provide_probe(probe, listener)
        """Probe that measures the train loader; inert if it could not be attached."""
        sources = self._sources = SourceList(guard)
        sources.open(LoaderSource(guard, self.loader))
        sources.open(HostSource())
        sources.open(HostMemorySource(self.list_workers))
        # it reads what the loader's source has collected just before
        sources.open(BatchSource(runner, self.loader))
        sources.open(OverheadSource(runner))
        self._follow_loader()

    def _provide_probe(
        self, probe: LoaderProbe | None, listener: LoopListener
    ) -> LoaderProbe:
        """Returns the given probe if it is of the train loader, else opens another."""
        loader, guard = self._runner.train_dataloader, self._guard
        if probe is not None and probe.loader is loader:
            probe.hand_over(listener)
            return probe
        if probe is not None:
            # a hook may have put another loader there since
            guard.clean_up(SourceName.LOADER_WORKERS, probe.close)
        opened = open_train_probe(guard, self._runner, loader, listener)
        return opened or LoaderProbe(None)

    def begin_iterator(self) -> None:
        """Begins to record time as worker start, until the loader has an iterator."""
        self._run('ledger', self._timer.ledger.push, WORKER_START)

    def end_iterator(self, iterator: Any) -> None:
        """Stops recording worker start; begins to time waits for the iterator's data.

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
            run(SourceName.LOADER_WORKERS, self.loader.watch_running, running)
            run('ledger', timer.follow, running)
        elif not hasattr(runner.train_dataloader, '_get_iterator'):
            timer.give_up_waits()
        self._set_nice()

    def list_workers(self) -> Sequence[int]:
        """Returns process ids of the train loader's live workers; thread-safe."""
        processes = self.loader.processes
        return () if processes is None else processes.pids

    def mark_workers(self) -> WorkersMark | None:
        """Reads the train loader's workers' CPU seconds so far; ``None`` if unknown."""
        if SourceName.LOADER_WORKERS in self._guard.off:
            return None
        processes = self.loader.processes
        return {} if processes is None else processes.mark()

    def _set_nice(self) -> None:
        """Sets ``worker_nice`` on the train loader's newly started workers."""
        if self._worker_nice is not None:
            self._run('worker_nice', write_nice, self.list_workers(), self._worker_nice)

    @property
    def unknown(self) -> dict[str, str]:
        """Reasons why measured values are missing, by name of the source or value."""
        return {**self._guard.absent, **self.gpu.unknown, **self._sources.unknown}

    def complete(self, record: IntervalRecord, interval: IntervalEnd) -> IntervalRecord:
        """Returns a log interval's record, extended by the values of all sources.

        Args:
            record: The interval as the ledger saw it.
            interval: Its end.
        """
        fields = {**self.gpu.read(interval), **self._sources.read(interval)}
        return structs.replace(record, **fields)

    def close(self) -> None:
        """Closes all sources of measured values, and stops their threads."""
        self.gpu.close()
        self._sources.close()


def count_ranks_on_host(world_size: int, environ: Mapping[str, str]) -> int:
    """Counts the training's ranks that run on this host.

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
    """Returns the device type of a Runner's model, such as ``cuda`` or ``cpu``."""
    parameter = next(iter(runner.model.parameters()), None)
    return 'cpu' if parameter is None else str(parameter.device.type)


def _bare(model: Any) -> Any:
    return getattr(model, 'module', model)


def _name_resizers(runner: Any) -> str:
    """Returns class names of batch augments that may resize images in a train step."""
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
    """Opens a probe that measures the train loader of a Runner.

    Args:
        guard: Switches off what fails.
        runner: The Runner.
        loader: Its train loader.
        listener: Hears of the iterators that the loader makes.

    Returns:
        ``None`` if that failed.
    """
    run = partial(guard.run, SourceName.LOADER_WORKERS.value)
    # a property of the user's, which may raise
    divisor = guard.run(SourceName.BATCH_CONTENTS, _pad_size_divisor, runner) or 1
    return run(LoaderProbe, loader, run, listener=listener, pad_size_divisor=divisor)


def _pad_size_divisor(runner: Any) -> int:
    preprocessor = getattr(_bare(runner.model), 'data_preprocessor', None)
    divisor = getattr(preprocessor, 'pad_size_divisor', 1)
    return divisor if isinstance(divisor, int) else 1
