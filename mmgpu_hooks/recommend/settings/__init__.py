"""All config settings that recommendations consider, one module each, in search order.

A setting is a function from a prospect to a prospect (``model/prospect.py``): its file
says its key, type and range, how it is read from a run, its candidates or what it
follows from, what it makes of a prospect, how far that may be off (``slip``, in
standard errors), and why it changes. A value of ``None`` is left to the default, so
that a key which nobody named is written by nobody.
"""

from mmgpu_hooks.recommend.job import Setting
from mmgpu_hooks.recommend.settings.batch_size import BatchSize
from mmgpu_hooks.recommend.settings.num_workers import NumWorkers
from mmgpu_hooks.recommend.settings.opencv_num_threads import OpencvNumThreads
from mmgpu_hooks.recommend.settings.persistent_workers import PersistentWorkers
from mmgpu_hooks.recommend.settings.pin_memory import PinMemory
from mmgpu_hooks.recommend.settings.prefetch_factor import PrefetchFactor
from mmgpu_hooks.recommend.settings.worker_nice import WorkerNice

SETTINGS: tuple[Setting, ...] = (
    BatchSize(),
    OpencvNumThreads(),
    NumWorkers(),
    PrefetchFactor(),
    PersistentWorkers(),
    PinMemory(),
    WorkerNice(),
)
"""Config settings that recommendations consider, in search order.

Those that change the work of a batch come first.
"""

BY_NAME = {setting.name: setting for setting in SETTINGS}
