"""The GPU's figures for one interval: driver, events and allocator."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda.events import CudaEvents, open_cuda_events
from mmgpu_hooks.measure.cuda.memory import CudaMemory, cuda_device, open_cuda_memory
from mmgpu_hooks.measure.gpu.nvml import Gpu, open_gpu
from mmgpu_hooks.measure.gpu.sampler import GpuSampler
from mmgpu_hooks.measure.source_error import SourceError
from mmgpu_hooks.schema import GpuDevice


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
        self.device = self._gpu.device()
        self._sampler = GpuSampler(self._gpu.read_sample, period_s=self._period_s)
        self._sampler.start()
        return True

    def observe_memory(self) -> None:
        """Look at the allocator's peaks before somebody resets them."""
        if self._memory is not None:
            self._guard.run('GPU memory', self._memory.observe)

    def observe_reset(self) -> None:
        """Look again where only a reset tells training's peak from validation's."""
        if self._memory is not None and self._memory.is_clouded:
            self.observe_memory()

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
        return {'gpu': window}

    def _read_idle(self, events: CudaEvents) -> dict[str, Any]:
        idle_pct, iterations = events.drain()
        return {'gpu_idle_pct': idle_pct, 'gpu_idle_iterations': iterations}

    def _read_memory(self, memory: CudaMemory) -> dict[str, Any]:
        memory.observe()
        peak, reserved = memory.drain()
        return {
            'gpu_mem_peak_bytes': peak,
            'gpu_mem_reserved_bytes': reserved,
            'cuda_memory': memory.drain_window(),
        }

    def close(self) -> None:
        """Stop the sampler and let the driver go."""
        if self._sampler is not None:
            self._guard.clean_up('GPU', self._sampler.stop)
        if self._gpu is not None:
            self._guard.clean_up('GPU', self._gpu.close)
