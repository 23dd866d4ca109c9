"""Thresholds of rules and verdicts, each with the reason for its value."""

from __future__ import annotations

from typing import NamedTuple


class DelayThreshold(NamedTuple):
    """Threshold of a delay, in seconds and as a ratio; the larger one applies."""

    least_s: float
    """Least delay, in seconds, that reaches the threshold."""
    ratio: float
    """Least ratio of the delay to the usual duration that reaches the threshold."""


MIN_ITERATIONS = 20
"""Smallest number of steady iterations from which a run is judged.

A mean of fewer swings by more than the changes we would advise.
"""

SURE_ITERATIONS = 100
"""Smallest number of steady iterations for a verdict of high confidence."""

DATA_WAIT_NOTICE = 0.05
"""Smallest share (0 to 1) of an iteration's time in data wait that is worth a notice.

TensorFlow's profiler calls an input share of 5 % moderate.
"""

DATA_WAIT_PROBLEM = 0.10
"""Smallest share (0 to 1) of an iteration's time in data wait of a data-bound run.

Between TensorFlow's moderate (5 %) and high (20 %).
"""

STARTUP_PROBLEM = 0.05
"""Smallest share (0 to 1) of the run's time in starts of workers that is a problem.

Persistent workers would save it.
"""

STARTUP_MEASURABLE = 0.01
"""Smallest share (0 to 1) of the run's time in worker starts worth avoiding."""

START_SHARE = 0.01
"""Smallest share (0 to 1) of a run's time that a reported part of its start takes."""

START_NOTICE = 0.05
"""Smallest share (0 to 1) of a run's time in its start for its parts to be listed."""

START_LONG_S = 120.0
"""Seconds from which a part of a run's start is reported, however long the run is.

Each new start has them.
"""

START_LEAST_S = 10.0
"""Seconds below which a start or its parts are not reported, whatever their share.

A user who starts a training waits as long without a thought.
"""

SAVE_PROBLEM = 0.05
"""Smallest share (0 to 1) of the run's time in checkpoint saves that is a problem.

One minute in twenty.
"""

VALIDATION_NOTICE = 0.20
"""Smallest share (0 to 1) of the run's time in validation that is worth a notice.

Validation is wanted, so only a fifth and more is remarked on.
"""

VALIDATION_PROBLEM = 0.50
"""Smallest share (0 to 1) of the run's time in validation that is a problem.

Validation, and not training, is then what the run does.
"""

VALIDATION_PART_NOTICE = 0.05
"""Smallest share (0 to 1) of a run's time that a reported validation part takes.

Three minutes in an hour.
"""

VALIDATION_WORTH = 0.005
"""Smallest share (0 to 1) of run time saved to recommend another validation loader.

It is worth a line in a config then: a quarter of an hour of two days.
"""

HOOKS_PROBLEM = 0.05
"""Smallest share (0 to 1) of the run's time in hooks that is a problem.

Hooks usually take well under 1 %.
"""

RUN_DELAY_PROBLEM = 0.25
"""Smallest ratio of workers' core waits to waits plus CPU time that is a problem.

Of the loader's workers.
"""

MAIN_DELAY_PROBLEM = 0.10
"""Smallest share (0 to 1) of an iteration in main-thread core waits to be a problem.

The training thread is ready and has no core.
"""

THROTTLED_NOTICE_PCT = 5.0
"""Smallest share of run time, in per cent, throttled by a CPU quota that is reported.

A burst now and then is usual.
"""

BLOCKED_PROBLEM = 0.50
"""Smallest blocked share (0 to 1) of a worker's time per batch that is a problem.

Blocked is a worker that neither runs nor wants to.
"""

VERDICT_SHARE = 0.10
"""Smallest share (0 to 1) of the run's time at which a problem is the verdict on a run.

Below, it is a finding.
"""

EXTERNAL_LOAD = 0.25
"""Smallest share (0 to 1) of host CPUs used by other programs that spoils measuring."""

WORTHWHILE_GAIN = 0.03
"""Smallest predicted gain, as a share (0 to 1) of run time, worth changing a setting.
"""

MEASURED_SAVING_WORTH = 0.01
"""Least measured saving (share of iteration time) for which an optimisation is advised.

It costs a line in the config, and changes nothing that is trained.
"""

ESTIMATED_SAVING_WORTH = 0.03
"""Least estimated maximum saving (share of iteration time) to advise an optimisation.

The estimate is an upper bound.
"""

GPU_FULL_PCT = 95.0
"""Smallest GPU utilisation, in per cent, at which the GPU counts as fully busy."""

GPU_UTIL_LOW_PCT = 70.0
"""GPU utilisation, per cent, below which the GPU is under-used.

After SageMaker's debugger.
"""

GPU_ZERO_NOTICE_PCT = 10.0
"""Smallest share of time at 0 % GPU utilisation that is reported, in per cent.

Users see it as swinging.
"""

SLOW_SAVE = DelayThreshold(least_s=0.2, ratio=0.5)
"""Least delay from waiting for a CPU core that makes a save slow: seconds, ratio.

In seconds and over an uncontended save: spikes of a virtual machine's scheduler and the
10 ms grain of CPU accounting are well below, and saves of a quiet run differ by a
third.
"""

BLOCKED_SAVE = DelayThreshold(least_s=0.5, ratio=1.0)
"""Least delay by storage or memory, in seconds and as a ratio, that makes a save slow.

A disk that writes back other pages first blocks a healthy save for a few tenths of a
second, and the page cache alone makes one write take twice as long as the next.
"""

ODD_SAVE = DelayThreshold(least_s=1.0, ratio=2.0)
"""Least delay of unproven cause, in seconds and as a ratio, that makes a save slow.

Several small reasons, and jitter, come to half of it.
"""

MEMORY_PROVEN = 0.5
"""Least share (0 to 1) of a save's delay that memory waits need to be its cause."""

SAVE_CURE_WORTH = 0.01
"""Smallest share (0 to 1) of the run's time lost to slow saves worth a change."""

HISTORIES_NOTICE = 0.10
"""Smallest share (0 to 1) of a checkpoint's bytes in scalar histories to report."""

HISTORIES_NOTICE_BYTES = 2**24
"""Smallest bytes of scalar histories in a checkpoint that are reported: 16 MiB.

16 MiB more a checkpoint are seen where many are kept.
"""

BENCH_CHANCE = 0.05
"""Largest p-value at which a benchmark takes longer saves as real, not as noise."""

BENCH_SAVES = 3
"""Smallest number of saves per setting from which a benchmark draws a conclusion.

Three and three are the fewest whose ranks can be that unlikely.
"""

FULL_SHARE = 0.8
"""Used share (0 to 1) of memory or of an open-file limit that counts as nearly full.

The next batch may be larger.
"""

COPIES_NOTICE_BYTES = 2**28
"""Smallest bytes of dataset copies, or validation results, to report: 256 MiB.

Copies in all workers together, or the results of one validation.
"""

FRAGMENTS_NOTICE = 0.2
"""Smallest share (0 to 1) of the reserved GPU memory in fragments that is reported.

Only where the card is nearly full.
"""

BURST_RATIO = 1.2
"""Smallest ratio of the largest GPU memory peak to the usual one that is reported.

Batches of one size differ by a few per cent.
"""

OWN_THREADS = 3
"""Number of threads of a plain PyTorch worker: main, queue feeder, resource sharer."""

THREADS_NOTICE = 0.1
"""Smallest share (0 to 1) of worker CPU time outside main threads that is reported.

Sending takes less where the loading is worth a word.
"""

THREADS_PROBLEM = 0.25
"""Smallest share (0 to 1) of worker CPU time off main threads that is a problem.

Threads are then what the loading suffers from.
"""

IDLE_CORES = 0.25
"""Smallest idle share (0 to 1) of usable cores, during data waits, that is reported."""

BUSY_WORKERS = 0.7
"""Smallest mean number of busy cores per worker at which workers count as busy."""

RISE_BYTES = 2**28
"""Least growth (bytes) of a training process's memory in a short run to be reported.

Growth over the memory at the start; a short run does not show yet if it goes on.
"""

RISE_SHARE = 0.1
"""Least relative growth of a training process's memory in a short run to be reported.

A finding needs it besides ``RISE_BYTES``.
"""

WORTH_GROWTH = 0.1
"""Least share (0 to 1) of free memory filled by the training's end to report growth.

For growth that ends with each epoch's workers, the end of the epoch counts.
"""

CONTAINER_SHM_BYTES = 2**26
"""Size of ``/dev/shm`` in a container started without ``--shm-size``: 64 MiB.

The batches in flight of an ordinary detector fill it.
"""

WANTED_OPEN_FILES = 65_536
"""Soft limit on open files that advice recommends.

Enough for any loader, and what administrators allow as a rule.
"""

MANY_FILES = 1_000
"""Smallest number of a data set's annotation files that is reported as many."""
