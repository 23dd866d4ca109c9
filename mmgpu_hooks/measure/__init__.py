"""Sources of measured values: clocks, ``/proc``, host limits, NVML, CUDA memory.

One foreign library per file, imported lazily. A figure that cannot be had is
``None``; a source that is not there raises
:class:`~mmgpu_hooks.measure.absent.AbsentError`, one that worked and then broke
:class:`~mmgpu_hooks.measure.absent.SourceError`.
"""
