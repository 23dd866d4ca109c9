"""Sources of figures: clocks, ``/proc``, host limits, NVML and CUDA memory.

One foreign library per file, imported lazily. A figure that cannot be had is
``None`` or an :class:`~mmgpu_hooks.measure.absent.Absent` with the reason; a
source that worked and then broke raises
:class:`~mmgpu_hooks.measure.absent.SourceError`.
"""
