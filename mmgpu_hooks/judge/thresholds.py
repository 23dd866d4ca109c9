"""Thresholds from which figures matter, each with its reason."""

from __future__ import annotations

from typing import NamedTuple


class DelayThreshold(NamedTuple):
    """Threshold of a delay: the larger one of both counts."""

    least_s: float
    """Least delay, s."""
    ratio: float
    """Least ratio of the delay to the usual length."""


MIN_ITERATIONS = 20
"""Steady iterations below which nothing is judged: a mean of fewer swings by more
than the changes we would advise."""

SURE_ITERATIONS = 100
"""Steady iterations from which confidence is high."""

DATA_WAIT_NOTICE = 0.05
"""Share of an iteration in data wait that is worth a notice: TensorFlow's profiler
calls an input share of 5 % moderate."""

DATA_WAIT_PROBLEM = 0.10
"""Share of an iteration above which a run is data-bound: between TensorFlow's
moderate (5 %) and high (20 %)."""

STARTUP_PROBLEM = 0.05
"""Share of the run spent on starting workers that persistent ones would save."""

STARTUP_MEASURABLE = 0.01
"""Share of the run from which persistent workers are worth their memory."""

START_SHARE = 0.01
"""Share of the run from which something of its start is worth a word."""

START_NOTICE = 0.05
"""Share of the run from which the summary says what its start was spent on."""

START_LONG_S = 120.0
"""Seconds of a start that are worth a word however long the run is: each new start has
them."""

START_LEAST_S = 10.0
"""Seconds of a start below which it is not worth a word: a user who starts a training
waits as long without a thought."""

SAVE_PROBLEM = 0.05
"""Share of the run in checkpoint saves: one minute in twenty."""

VALIDATION_NOTICE = 0.20
"""Share of the run: validation is wanted, so only a fifth and more is remarked on."""

VALIDATION_PROBLEM = 0.50
"""Share of the run from which validation, and not training, is what the run does."""

VALIDATION_PART_NOTICE = 0.05
"""Share of the run in one part of its validations, from which it is a finding: three
minutes in an hour."""

VALIDATION_WORTH = 0.005
"""Share of the run from which another setting of validation's loader is worth a line
in a config: a quarter of an hour of two days."""

HOOKS_PROBLEM = 0.05
"""Share of the run in hooks, which usually take well under 1 %."""

RUN_DELAY_PROBLEM = 0.25
"""Share of the wanted core time that the loader's workers waited for a core."""

MAIN_DELAY_PROBLEM = 0.10
"""Share of an iteration in which the training thread is ready and has no core."""

THROTTLED_NOTICE_PCT = 5.0
"""Share of the time in which a quota holds tasks back, per cent: a burst now and then
is usual."""

BLOCKED_PROBLEM = 0.50
"""Share of a worker's time per batch in which it neither ran nor wanted to."""

VERDICT_SHARE = 0.10
"""Share of the time from which a problem names the run; below, it is a finding."""

EXTERNAL_LOAD = 0.25
"""Share of the host's CPUs that others use, from which the figures are theirs too."""

WORTHWHILE_GAIN = 0.03
"""Predicted gain below which a setting is left alone: machines vary by as much."""

HOST_COST_WORTH = 0.01
"""Share of an iteration that an optimisation takes off, measured: it costs a line in
the config, and changes nothing that is trained."""

HOST_COST_MOST = 0.03
"""Share of an iteration, for an optimisation whose effect is only known as an upper
bound."""

GPU_FULL_PCT = 95.0
"""GPU utilisation from which the host keeps the card busy."""

GPU_UTIL_LOW_PCT = 70.0
"""GPU utilisation below which the card is under-used, after SageMaker's debugger."""

GPU_ZERO_NOTICE_PCT = 10.0
"""Share of time at 0 % that users see as swinging."""

SLOW_SAVE = DelayThreshold(least_s=0.2, ratio=0.5)
"""Delay of one save by the CPU from which it is noticed, in seconds and over an
uncontended save: spikes of a virtual machine's scheduler and the 10 ms grain of CPU
accounting are well below, and saves of a quiet run differ by a third."""

BLOCKED_SAVE = DelayThreshold(least_s=0.5, ratio=1.0)
"""Delay of one save by storage or memory from which it is noticed: a disk that writes
back other pages first blocks a healthy save for a few tenths of a second, and the page
cache alone makes one write take twice as long as the next."""

ODD_SAVE = DelayThreshold(least_s=1.0, ratio=2.0)
"""Delay of one save, no proven cause holding enough of it, from which it is noticed:
several small reasons, and jitter, come to half of it."""

MEMORY_PROVEN = 0.5
"""Share of a delay in which tasks waited for memory, from which memory was short."""

SAVE_CURE_WORTH = 0.01
"""Net share of the run from which a cure for slow saves is worth a change."""

HISTORIES_NOTICE = 0.10
"""Share of a checkpoint in histories of scalars, from which they are worth a word."""

HISTORIES_NOTICE_BYTES = 2**24
"""Least bytes of histories in a checkpoint that are worth a word: 16 MiB more a
checkpoint are seen where many are kept."""

BENCH_CHANCE = 0.05
"""Chance below which longer saves are not noise: one experiment in twenty misleads."""

BENCH_SAVES = 3
"""Saves of a setting below which nothing is said of it: three and three are the
fewest whose ranks can be that unlikely."""

FULL_SHARE = 0.8
"""Share of a memory from which it is nearly full: the next batch may be larger."""

COPIES_NOTICE_BYTES = 2**28
"""Copies of a dataset in all workers, or results of a validation, from which they are
worth a word: 256 MiB."""

FRAGMENTS_NOTICE = 0.2
"""Share of the reserved memory in fragments, where the card is nearly full."""

BURST_RATIO = 1.2
"""The largest peak over the usual one: batches of one size differ by a few per cent."""

OWN_THREADS = 3
"""Threads of a worker that are PyTorch's: one loads, one sends, one may pin."""

THREADS_NOTICE = 0.1
"""Share of the workers' CPU that is used beside their main threads: sending takes less
where the loading is worth a word."""

THREADS_PROBLEM = 0.25
"""Share of the workers' CPU beside their main threads from which threads are what the
loading suffers from."""

IDLE_CORES = 0.25
"""Share of the cores that is idle while the loop waits, from which it is a finding."""

BUSY_WORKERS = 0.7
"""Cores that each worker keeps busy at least, where loading is what it does."""

RISE_BYTES = 2**28
"""Growth over the memory at the start, from which a finding says that a short run does
not show yet whether memory grows: 256 MiB."""

RISE_SHARE = 0.1
"""Growth over the memory at the start, as a share of it, which a finding needs besides
``RISE_BYTES``."""

WORTH_GROWTH = 0.1
"""Share of the free memory from which growth until training ends is worth a word."""

CONTAINER_SHM_BYTES = 2**26
"""Size of /dev/shm in a container that was started without ``--shm-size``: 64 MiB,
which the batches in flight of an ordinary detector fill."""

WANTED_OPEN_FILES = 65_536
"""Soft limit on open files that is asked for: enough for any loader, and what
administrators allow as a rule."""

MANY_FILES = 1_000
"""Annotation files of a data set, from which one an image is what takes its time."""
