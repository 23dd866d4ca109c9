"""Sources of figures: clocks, ``/proc``, host limits, NVML and CUDA memory.

One foreign library per file, imported lazily. A figure that cannot be had is
``None``; a source that is not there raises
:class:`~mmgpu_hooks.measure.absent.AbsentError`, one that worked and then broke
:class:`~mmgpu_hooks.measure.absent.SourceError`.
"""
