"""The sources beside the ledger: opened together, each on its own when it fails."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import Any, Callable

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import LoopTimer
from mmgpu_hooks.hooks.run_record import count_ranks_on_host
from mmgpu_hooks.hooks.step_sizes import StepSizes, find_step_sizes
from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.cuda import (
    CudaEvents,
    CudaMemory,
    count_model_bytes,
    cuda_device,
    open_cuda_events,
    open_cuda_memory,
)
from mmgpu_hooks.measure.gpu import Gpu, GpuSampler, open_gpu
from mmgpu_hooks.measure.host import (
    CpuMeter,
    HostWindowMeter,
    read_host_limits,
)
from mmgpu_hooks.measure.loader.batches import (
    BatchWatch,
    Contents,
    count_tensors,
    fold_stored_ratio,
)
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import write_nice
from mmgpu_hooks.measure.memory import MemoryMeter
from mmgpu_hooks.schema import (
    CudaMemoryWindow,
    GpuDevice,
    GpuWindow,
    HostLimits,
    IntervalRecord,
    ModelBytesRecord,
)


class GpuSource:
    """Everything measured of the card that this rank trains on.

    Args:
        guard: Switches off what fails.
        sample_period_s: Seconds between two looks of NVML.
    """

    def __init__(self, guard: Guard, sample_period_s: float) -> None:
        self._guard = guard
        self._period_s = sample_period_s
        self.device: GpuDevice | None = None
        self.is_used = False
        """Whether this process uses CUDA."""
        self._absent: dict[str, str] = {}
        self.events: CudaEvents | None = None
        self._gpu: Gpu | None = None
        self._sampler: GpuSampler | None = None
        self._memory: CudaMemory | None = None

    @property
    def unknown(self) -> dict[str, str]:
        """Why a figure is missing, by source; what a card does not offer, too."""
        found = dict(self._absent)
        if self._gpu is not None:
            for figure, reason in self._gpu.reasons().items():
                found[f'GPU {figure}'] = reason
        if self._memory is not None:
            for figure, reason in self._memory.lacking.items():
                found[f'GPU memory {figure}'] = reason
        return found

    def open(self, device: str) -> None:
        """Open what there is.

        Args:
            device: ``cuda`` or ``cpu``.
        """
        run = self._guard.run
        self.is_used = bool(run('GPU', self._open_driver, device))
        self.events = self._present('GPU idle', run('GPU idle', open_cuda_events))
        self._memory = self._present('GPU memory', run('GPU memory', open_cuda_memory))

    def _present(self, source: str, opened: Any) -> Any:
        if isinstance(opened, Absent):
            self._absent[source] = opened.reason
            return None
        return opened

    def _open_driver(self, device: str) -> bool:
        """Whether this process uses CUDA."""
        ours = cuda_device()
        if ours is None:
            self._absent['GPU'] = f'training runs on the {device.upper()}'
            return False
        self._gpu = self._present(
            'GPU',
            open_gpu(uuid=ours.uuid, pci_bus_id=ours.pci_bus_id, index=ours.cuda_index),
        )
        if self._gpu is None:
            return True
        self.device = GpuDevice(**self._gpu.device())
        self._sampler = GpuSampler(
            self._gpu.read_sample, period_s=self._period_s, close=self._gpu.close
        )
        self._sampler.start()
        return True

    def observe_memory(self) -> None:
        """Look at the allocator's peaks before somebody resets them."""
        if self._memory is not None:
            self._guard.run('GPU memory', self._memory.observe)

    def begin_validation(self) -> None:
        """From here on the peak is validation's, and the GPU is not timed."""
        if self._memory is not None:
            self._guard.run('GPU memory', self._memory.begin_validation)

    def end_validation(self) -> None:
        """From here on the peak is training's again."""
        if self._memory is not None:
            self._guard.run('GPU memory', self._memory.end_validation)
        self.interrupt()

    def interrupt(self) -> None:
        """Leave the time since the last step out of the idle share."""
        if self.events is not None:
            self._guard.run('GPU idle', self.events.interrupt)

    def read(self) -> dict[str, Any]:
        """Fields of an ``IntervalRecord``, since the last call."""
        run = self._guard.run
        figures: dict[str, Any] = {}
        if self._sampler is not None:
            figures.update(run('GPU', self._read_driver, self._sampler) or {})
        if self.events is not None:
            figures.update(run('GPU idle', self._read_idle, self.events) or {})
        if self._memory is not None:
            figures.update(run('GPU memory', self._read_memory, self._memory) or {})
        return figures

    def _read_driver(self, sampler: GpuSampler) -> dict[str, Any]:
        window = sampler.drain()
        if sampler.failure is not None:
            self._sampler = None
            raise SourceError(sampler.failure)
        if self._gpu is not None:
            for figure, reason in self._gpu.unsupported.items():
                self._guard.switch_off(f'GPU {figure}', SourceError(reason))
        return {'gpu': GpuWindow(**window)}

    def _read_idle(self, events: CudaEvents) -> dict[str, Any]:
        idle_pct, iterations = events.drain()
        return {'gpu_idle_pct': idle_pct, 'gpu_idle_iterations': iterations}

    def _read_memory(self, memory: CudaMemory) -> dict[str, Any]:
        memory.observe()
        figures = memory.drain()
        return {
            'gpu_mem_peak_bytes': figures.pop('peak_bytes'),
            'gpu_mem_reserved_bytes': figures.pop('reserved_bytes'),
            'cuda_memory': CudaMemoryWindow(**figures),
        }

    def close(self) -> None:
        """Stop the sampler and let the driver go."""
        if self._sampler is not None:
            self._guard.clean_up('GPU', self._sampler.stop)
        elif self._gpu is not None:
            self._guard.clean_up('GPU', self._gpu.close)


MEMORY_THREAD_NAME = 'mmgpu-worker-memory'


class Sources:
    """Everything measured beside time.

    Args:
        guard: Switches off what fails.
        gpu_sample_period_s: Seconds between two looks of NVML.
        worker_nice: Nice value of the loader's workers; ``None`` leaves it alone.
        probe: Of the train loader, where one watches it already.
    """

    def __init__(
        self,
        guard: Guard,
        gpu_sample_period_s: float,
        worker_nice: int | None = None,
        probe: LoaderProbe | None = None,
    ) -> None:
        self._guard = guard
        self.worker_nice = worker_nice
        self.host = HostLimits()
        self.device = 'cpu'
        self.gpu = GpuSource(guard, gpu_sample_period_s)
        self._cpu: CpuMeter | None = None
        self._host: HostWindowMeter | None = None
        self._memory: MemoryMeter | None = None
        self._loader = probe
        self._memory_thread: threading.Thread | None = None
        self._step_sizes: StepSizes | Absent | None = None
        self._divisor = 1
        self._is_model_counted = False
        self._runner: Any = None

    @property
    def loader(self) -> LoaderProbe | None:
        """What watches the loader, if anything does."""
        return self._loader

    @property
    def unknown(self) -> dict[str, str]:
        """Why a figure is missing, by source."""
        found = self.gpu.unknown
        parts: list[tuple[str, Mapping[str, str]]] = [
            ('host ', self._host.unknown if self._host is not None else {}),
            ('', self._loader.unsupported if self._loader is not None else {}),
            (
                'batch ',
                self._loader.unknown_contents if self._loader is not None else {},
            ),
        ]
        if isinstance(self._step_sizes, Absent):
            reason = self._step_sizes.reason
            parts.append(('batch ', {'largest_batch_pixels': reason}))
        for prefix, reasons in parts:
            for name, reason in reasons.items():
                found[prefix + name] = reason
        return found

    def open(self, runner: Any, timer: LoopTimer | None) -> None:
        """Open every source.

        Args:
            runner: The runner that is about to train.
            timer: Times the loop, if anything does.
        """
        run = self._guard.run

        def begin_creation() -> None:
            if timer is not None:
                run('ledger', timer.ledger.push, 'startup')

        def end_creation(iterator: Any) -> None:
            if timer is not None:
                run('ledger', timer.ledger.pop, 'startup')
                if iterator is not None:
                    run('ledger', timer.follow, iterator)
            self._set_nice()

        self._runner = runner
        self.host = run('host limits', _read_host, runner) or self.host
        self._cpu = run('CPU', CpuMeter)
        self._host = run('host', HostWindowMeter)
        self._memory = run('memory', MemoryMeter)
        self.device = self.read_device(runner)
        self.gpu.open(self.device)
        self.device = 'cuda' if self.gpu.is_used else self.device
        probe, loader = self._loader, runner.train_dataloader
        if probe is not None and probe.loader is not loader:
            self._guard.clean_up('loader workers', probe.close)
            probe = None
        self._loader = probe = probe or open_probe(self._guard, runner, loader)
        # iteration-based loops start their workers before any hook is called
        endless = getattr(runner.train_loop, 'dataloader_iterator', None)
        running = getattr(endless, '_iterator', None)
        if probe is not None:
            probe.on_create_begin, probe.on_create_end = begin_creation, end_creation
            if running is not None:
                run('loader workers', probe.watch_running, running)
        if timer is not None:
            if running is not None:
                run('ledger', timer.follow, running)
            elif not hasattr(runner.train_dataloader, '_get_iterator'):
                timer.give_up_waits()
        self._set_nice()
        self._divisor = _pad_size_divisor(runner)
        self._step_sizes = run('batch contents', find_step_sizes, _bare(runner.model))

    def read_device(self, runner: Any) -> str:
        """Type of the device that the model is on."""
        return self._guard.run('device', _device_type, runner) or 'cpu'

    def _set_nice(self) -> None:
        """Set the nice value of the workers, each time they start."""
        processes = None if self._loader is None else self._loader.processes
        if self.worker_nice is not None and processes is not None:
            self._guard.run('worker_nice', write_nice, processes.pids, self.worker_nice)

    def watch(self, timer: LoopTimer) -> None:
        """Have those called that are needed in each iteration."""
        wrap = self._guard.wrap
        if self._loader is not None:
            off = functools.partial(self._guard.switch_off, 'loader queue')
            timer.waits.before, timer.waits.on_error = self._loader.queue.ask, off
        events = self.gpu.events
        begins: tuple[Callable[[], Any], ...] = ()
        if events is not None:
            begins += (wrap('GPU idle', events.begin_step),)
            timer.hooks.after['after_train_iter'] = (wrap('GPU idle', events.end_step),)
        sizes = self._step_sizes
        if isinstance(sizes, StepSizes) and sizes.resizer is not None:
            begins += (wrap('batch contents', sizes.note),)
        timer.hooks.after['before_train_iter'] = begins

    def follow_batches(self) -> None:
        """To be called every few iterations: what is kept of batches is bounded."""
        if self._loader is not None:
            self._guard.run('batch contents', self._loader.follow_batches)

    def complete(self, fields: dict[str, Any], batch: Any) -> IntervalRecord:
        """Make the record of an interval.

        Args:
            fields: Of the record, as the ledger saw the interval.
            batch: The last batch, or ``None`` when it is gone.
        """
        run = self._guard.run
        figures = dict(fields)
        figures.update(run('loader workers', self._read_loader) or {})
        figures.update(run('CPU', self._read_cpu) or {})
        figures.update(run('host', self._read_host_window) or {})
        figures.update(run('memory', self._read_host_memory) or {})
        figures.update(self.gpu.read())
        iterations = fields['iterations']
        contents = run('batch contents', self._read_batches, iterations, batch)
        figures.update(contents or {})
        return IntervalRecord(**figures)

    def _read_loader(self) -> dict[str, Any]:
        if self._loader is None:
            return {}
        window = self._loader.read()
        if self._loader.inside_failure is not None:
            failure = SourceError(self._loader.inside_failure)
            self._guard.switch_off('loader inside', failure)
        self._look_at_memory(self._loader)
        return {'workers': window}

    def _look_at_memory(self, loader: LoaderProbe) -> None:
        if not loader.is_memory_due:
            return
        # a few milliseconds of the kernel's: not in the loop
        if self._memory_thread is not None and self._memory_thread.is_alive():
            return
        self._memory_thread = threading.Thread(
            target=self._guard.run,
            args=('worker memory', loader.read_memory),
            name=MEMORY_THREAD_NAME,
            daemon=True,
        )
        self._memory_thread.start()

    def _read_cpu(self) -> dict[str, Any]:
        return {} if self._cpu is None else self._cpu.read()

    def _read_host_memory(self) -> dict[str, Any]:
        processes = None if self._loader is None else self._loader.processes
        pids = () if processes is None else processes.pids
        return {} if self._memory is None else self._memory.read(pids)

    def _read_host_window(self) -> dict[str, Any]:
        return {} if self._host is None else {'host': self._host.read()}

    def _read_batches(self, iterations: int, batch: Any) -> dict[str, Any]:
        held, most_images = Contents(), None
        if self._loader is not None:
            held, most_images = self._loader.read_contents(iterations)
        pixels, images, sizes = held.pixels, held.images, self._step_sizes
        if images is None and batch is not None:
            # made out of sight: all are taken to be like the last one
            last = BatchWatch(self._divisor).examine(batch).images
            images = None if last is None else last * iterations
        if isinstance(sizes, StepSizes):
            pixels = sizes.drain(most_images, pixels)
        elif sizes is not None:
            pixels = None
        figures: dict[str, Any] = dict(
            images=images, largest_batch_pixels=pixels, most_boxes=held.boxes
        )
        tensors, size = count_tensors(batch) if batch is not None else (0, 0)
        if tensors:
            figures.update(batch_tensors=tensors, batch_bytes=size)
            figures.update(stored_pixel_ratio=fold_stored_ratio(batch))
        return figures

    def read_model_bytes(
        self, iteration: int, is_final: bool = False
    ) -> ModelBytesRecord | None:
        """The static part of training memory, once, after the first step.

        Args:
            iteration: Iterations done.
            is_final: Whether training has ended, so that nothing is to be waited for.
        """
        if self._is_model_counted:
            return None
        runner = self._runner
        wrapper = runner.optim_wrapper
        # before the first step of the optimizer it has no state
        counts = getattr(wrapper, '_accumulative_counts', 1)
        if iteration < counts and not is_final:
            return None
        self._is_model_counted = True
        figures = self._guard.run(
            'model bytes', count_model_bytes, runner.model, wrapper, runner.hooks
        )
        if figures is None:
            return None
        return ModelBytesRecord(iteration=iteration, **figures)

    def close(self) -> None:
        """Stop the threads and leave everything as it was."""
        self.gpu.close()
        if self._memory_thread is not None:
            self._guard.clean_up('worker memory', self._memory_thread.join, 1.0)
        if self._loader is not None:
            self._guard.clean_up('loader workers', self._loader.close)


def _read_host(runner: Any) -> HostLimits:
    ranks = count_ranks_on_host(runner.world_size, os.environ)
    return read_host_limits(ranks_on_host=ranks)


def _device_type(runner: Any) -> str:
    parameter = next(iter(runner.model.parameters()), None)
    return 'cpu' if parameter is None else str(parameter.device.type)


def _bare(model: Any) -> Any:
    return getattr(model, 'module', model)


def open_probe(guard: Guard, runner: Any, loader: Any) -> LoaderProbe | None:
    """Watch a loader of a Runner's."""
    divisor = _pad_size_divisor(runner)
    return guard.run('loader workers', LoaderProbe, loader, pad_size_divisor=divisor)


def _pad_size_divisor(runner: Any) -> int:
    preprocessor = getattr(_bare(runner.model), 'data_preprocessor', None)
    divisor = getattr(preprocessor, 'pad_size_divisor', 1)
    return divisor if isinstance(divisor, int) else 1
