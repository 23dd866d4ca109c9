"""The sources beside the ledger: opened together, each on its own when it fails."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.run_record import count_ranks_on_host
from mmgpu_hooks.records import GpuDevice, HostLimits, IntervalRecord
from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.cpu import CpuMeter
from mmgpu_hooks.telemetry.cuda_memory import CudaMemory, cuda_device, open_cuda_memory
from mmgpu_hooks.telemetry.gpu_sampler import GpuSampler
from mmgpu_hooks.telemetry.host import read_host_limits
from mmgpu_hooks.telemetry.loader_probe import (
    IteratorWatch,
    WorkerProbe,
    count_tensors,
)
from mmgpu_hooks.telemetry.nvml import Gpu, open_gpu
from mmgpu_hooks.telemetry.process_memory import read_process_rss_bytes
from mmgpu_hooks.telemetry.source_error import SourceError


class Sources:
    """Everything measured beside time.

    Args:
        guard: Switches off what fails.
        gpu_sample_period_s: Seconds between two NVML samples.
    """

    def __init__(self, guard: Guard, gpu_sample_period_s: float) -> None:
        self._guard = guard
        self._period_s = gpu_sample_period_s
        self.host = HostLimits()
        self.device = 'cpu'
        self.gpu_device: GpuDevice | None = None
        self.unknown: dict[str, str] = {}
        self._gpu: Gpu | None = None
        self._sampler: GpuSampler | None = None
        self._cuda_memory: CudaMemory | None = None
        self._cpu: CpuMeter | None = None
        self._watch: IteratorWatch | None = None
        self._workers = WorkerProbe()
        self.iterations = 0
        """Iterations done in this run; whoever counts them keeps it up to date."""

    def open(self, runner: Any, on_workers_start: Callable[[], None]) -> None:
        """Open every source.

        Args:
            runner: The runner that is about to train.
            on_workers_start: Called when the loader starts its workers.
        """
        run = self._guard.run
        host = run('host limits', self._read_host, runner)
        self.host = host if host is not None else self.host
        self._cpu = run('CPU', CpuMeter)
        self.device = run('device', _device_type, runner) or 'cpu'
        run('GPU', self._open_gpu)
        run('GPU memory', self._open_cuda_memory)
        run('loader workers', self._watch_loader, runner, on_workers_start)

    def _read_host(self, runner: Any) -> HostLimits:
        ranks = count_ranks_on_host(runner.world_size, os.environ)
        return read_host_limits(ranks_on_host=ranks)

    def _open_gpu(self) -> None:
        device = cuda_device()
        if device is None:
            self.unknown['GPU'] = f'training runs on the {self.device.upper()}'
            return
        self.device = 'cuda'
        gpu = open_gpu(
            uuid=device.uuid, pci_bus_id=device.pci_bus_id, index=device.cuda_index
        )
        if isinstance(gpu, Absent):
            self.unknown['GPU'] = gpu.reason
            return
        self._gpu = gpu
        self.gpu_device = gpu.device()
        self._sampler = GpuSampler(gpu.read_sample, period_s=self._period_s)
        self._sampler.start()

    def _open_cuda_memory(self) -> None:
        memory = open_cuda_memory()
        if isinstance(memory, Absent):
            self.unknown['GPU memory'] = memory.reason
        else:
            self._cuda_memory = memory

    def _watch_loader(self, runner: Any, on_start: Callable[[], None]) -> None:
        def on_iterator(iterator: Any) -> None:
            self._guard.run('loader workers', on_start)
            self._guard.run(
                'loader workers', self._workers.watch, iterator, self.iterations
            )

        self._watch = IteratorWatch(runner.train_dataloader, on_iterator)
        # iteration-based loops start their workers before any hook is called
        infinite = getattr(runner.train_loop, 'dataloader_iterator', None)
        running = getattr(infinite, '_iterator', None)
        if running is not None:
            self._workers.watch(running, self.iterations)

    def observe_cuda_memory(self) -> None:
        """Look at the allocator's peaks before somebody resets them."""
        if self._cuda_memory is not None:
            self._guard.run('GPU memory', self._cuda_memory.observe)

    def complete(self, record: IntervalRecord, batch: Any) -> IntervalRecord:
        """Add the other sources' figures to an interval.

        Args:
            record: The interval as the ledger saw it.
            batch: The last batch, or ``None`` when it is gone.
        """
        figures: dict[str, Any] = {}
        run = self._guard.run
        figures['workers'] = run('loader workers', self._workers.read, self.iterations)
        figures.update(run('CPU', self._read_cpu) or {})
        figures.update(run('GPU', self._read_gpu) or {})
        figures.update(run('GPU memory', self._read_cuda_memory) or {})
        if batch is not None:
            figures.update(run('batch size', self._read_batch, batch) or {})
        return dataclasses.replace(record, **figures)

    def _read_cpu(self) -> dict[str, Any]:
        if self._cpu is None:
            return {}
        used = dataclasses.asdict(self._cpu.read())
        return {**used, 'process_rss_bytes': read_process_rss_bytes()}

    def _read_gpu(self) -> dict[str, Any]:
        if self._sampler is None:
            return {}
        if self._sampler.failure is not None:
            failure, self._sampler = self._sampler.failure, None
            raise SourceError(failure)
        if self._gpu is not None:
            for figure, reason in list(self._gpu.unsupported.items()):
                self._guard.switch_off(f'GPU {figure}', SourceError(reason))
        return {'gpu': self._sampler.drain()}

    def _read_cuda_memory(self) -> dict[str, Any]:
        if self._cuda_memory is None:
            return {}
        self._cuda_memory.observe()
        peak, reserved = self._cuda_memory.drain()
        return {'gpu_mem_peak_bytes': peak, 'gpu_mem_reserved_bytes': reserved}

    def _read_batch(self, batch: Any) -> dict[str, Any]:
        tensors, size = count_tensors(batch)
        return {'batch_tensors': tensors, 'batch_bytes': size} if tensors else {}

    def close(self) -> None:
        """Stop the sampler and leave the loader as it was."""
        if self._sampler is not None:
            self._guard.clean_up('GPU', self._sampler.stop)
        if self._gpu is not None:
            self._guard.clean_up('GPU', self._gpu.close)
        if self._watch is not None:
            self._guard.clean_up('loader workers', self._watch.close)


def _device_type(runner: Any) -> str:
    parameter = next(iter(runner.model.parameters()), None)
    return 'cpu' if parameter is None else str(parameter.device.type)
