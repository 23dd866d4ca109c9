"""Publishes measured scalars to MMEngine's message hub, from where LoggerHook logs.

Each appears once per logging interval on the terminal line, in TensorBoard and in every
other backend of MMEngine (as ``train/<name>`` in the message hub). All figures are of
one rank and are taken over *all* iterations since the last record, not over a window.
``GPUEfficiencyHook(scalars='all')`` adds those that are marked *all*.

``data_wait_s`` (s)
    mean time the loop was blocked in ``next(loader)``: no ``data_time``, which [holds
    more](../data-wait.md)
``step_s`` (s)
    *all*: mean of forward, backward and optimizer, and of reading the losses, where the
    CPU [waits for the GPU](../data-wait.md#why-is-waiting-for-the-gpu-in-step_s)
``iter_s`` (s)
    mean of an iteration: wait, step and hooks, without saves and validation
``data_wait_pct`` (%)
    share of the iterations' time spent waiting for data
``images_per_s`` (1/s)
    images over the iterations' time
``gpu_util_pct`` (%)
    NVML utilisation, weighted by time: the share in which at least one kernel ran
``gpu_zero_pct`` (%)
    share of the sampled time at 0 %
``gpu_idle_pct`` (%)
    *all*: share of the time in which the GPU had nothing to do between two steps: from
    the end of the hooks behind a step to the next one (CUDA events). The GPU work of
    hooks is in no idle time; gaps inside a step or among those hooks are not seen
``gpu_mem_peak_mib`` (MiB)
    peak of PyTorch's allocator since the last record, validation's left out
``gpu_mem_reserved_mib`` (MiB)
    *all*: the most the allocator held
``process_cpu_cores`` (cores)
    *all*: CPU of the training process, its loader workers left out
``system_cpu_pct`` (%)
    *all*: busy share of all CPUs of the host, by anyone
``hours_left`` (h)
    *all*: until training ends, [validations and saves included](../when-it-ends.md);
    absent until 20 iterations behind the first interval were seen
``num_workers`` (workers)
    *all*: workers of the train loader at the last record; [``tune=True``](../tune.md)
    changes them
``save_s`` (s)
    mean of the checkpoint saves since the last record; absent where there was none

A figure that is unknown is absent, never 0. The evidence file says why.

Records end with LoggerHook's lines. With an ``interval`` of your own, a line shows all
the records since the line before it as if they were one: means and shares over all
their iterations, the largest of the peaks. A line before which no record ended has none
of our figures.

The means hold every wait, so the first interval of an epoch has the start of the
workers in its ``data_wait_s``. The time ledger (the summary, ``ledger_s`` in the
evidence) books that part as start-up. A save comes after the iteration that it saves,
so it is on the next line; one that ends the training is in the summary and in the
evidence alone.

What the scalars that begin with ``gpu_`` say has met mocks, and [no real card
yet](../no-real-card.md). They are of the one card that is current when training starts:
a model that is spread over several shows that one. What CUDA graphs (``torch.compile``
with ``mode='reduce-overhead'``) keep is in ``gpu_mem_reserved_mib``, and after the
first interval not in the peak.

**W&B and MLflow** get the verdict, too. Where the visualizer has MMEngine's
``WandbVisBackend`` or ``MLflowVisBackend``, a training that ends leaves in its run
``mmgpu/verdict``, ``mmgpu/confidence``, ``mmgpu/recommendation`` (such as
``train_dataloader.num_workers 0 -> 8``), the per cent of the run's time that each part
of the time ledger took (``mmgpu/ledger/data_wait_pct`` and so on) and, where predicted,
``mmgpu/saved_hours`` with both ends of its interval: as summary fields in W&B, as tags
and metrics in MLflow, by which runs can be filtered and sorted. A training that is
killed leaves them in its evidence alone. A server that does not answer costs the end of
a training 10 s. With ``summary``, ``write_config`` and ``slurm_comment`` all off there
is no verdict at the end, and none of these.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from mmgpu_hooks.schema.recorded import GpuWindow, IntervalRecord

MAIN = (
    'data_wait_s',
    'iter_s',
    'data_wait_pct',
    'images_per_s',
    'gpu_util_pct',
    'gpu_zero_pct',
    'gpu_mem_peak_mib',
    'save_s',
)
"""Names of the scalars that GPUEfficiencyHook publishes by default.

Eight are as many as a log line can hold."""

SCALARS = (
    *MAIN,
    'step_s',
    'gpu_idle_pct',
    'gpu_mem_reserved_mib',
    'process_cpu_cores',
    'system_cpu_pct',
    'hours_left',
    'num_workers',
)
"""Names of all scalars that GPUEfficiencyHook can publish.

No name holds ``time``, ``loss`` or ``grad_norm`` and none ends in ``lr``: MMEngine
would average or reformat those."""

_MIB = 2.0**20
_PEAKS = {
    'gpu_mem_peak_mib': 'gpu_mem_peak_bytes',
    'gpu_mem_reserved_mib': 'gpu_mem_reserved_bytes',
}


class _Ratio(NamedTuple):
    """Numerator and denominator of a scalar, so that a mean is a ratio of sums."""

    part: float | None
    """Numerator of the scalar; ``None`` if it is unknown."""
    whole: float


def _list_ratios(record: IntervalRecord) -> dict[str, _Ratio]:
    """Returns a log interval's scalars by name, as ratios that can be averaged."""
    wait, step, iteration = record.data_wait, record.step, record.iter
    duration_s = record.duration_s
    gpu = record.gpu or GpuWindow()
    # an interval without a sample has no weight
    sampled_s = gpu.sampled_s or 0.0
    timed_s = (record.gpu_idle_iterations or iteration.count) * iteration.mean_s
    return {
        'data_wait_s': _Ratio(wait.total_s, wait.count),
        'step_s': _Ratio(step.total_s, step.count),
        'iter_s': _Ratio(iteration.total_s, iteration.count),
        'data_wait_pct': _Ratio(100 * wait.total_s, iteration.total_s),
        'images_per_s': _Ratio(record.images, iteration.total_s),
        'gpu_util_pct': _Ratio(_times(gpu.util_pct, sampled_s), sampled_s),
        'gpu_zero_pct': _Ratio(_times(gpu.zero_pct, sampled_s), sampled_s),
        'gpu_idle_pct': _Ratio(_times(record.gpu_idle_pct, timed_s), timed_s),
        'process_cpu_cores': _Ratio(record.process_cpu_s, duration_s),
        'system_cpu_pct': _Ratio(_times(record.system_cpu_pct, duration_s), duration_s),
        'save_s': _Ratio(record.ledger_s.get('checkpoint_save'), record.saves),
    }


def _times(figure: float | None, weight: float) -> float | None:
    return None if figure is None else figure * weight


class LineFigures:
    """Averages published scalars over the log intervals since LoggerHook's last line.

    Means and shares are over all iterations of the intervals that know them, peaks are
    the largest, and of workers the newest number counts. What is unknown is left out.
    """

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._wholes: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._newest: dict[str, float] = {}
        """Newest values of scalars that are not averaged, by name."""

    def add(self, record: IntervalRecord) -> None:
        """Adds a log interval's record to the averages of LoggerHook's next line."""
        for name, ratio in _list_ratios(record).items():
            if ratio.part is not None:
                self._parts[name] = self._parts.get(name, 0.0) + ratio.part
                self._wholes[name] = self._wholes.get(name, 0.0) + ratio.whole
        for name, field in _PEAKS.items():
            peak = getattr(record, field)
            if peak is not None:
                self._peaks[name] = max(self._peaks.get(name, 0.0), peak / _MIB)
        if record.workers is not None:
            self.note('num_workers', float(record.workers.count))

    def note(self, name: str, value: float | None) -> None:
        """Sets the value of a scalar that is not averaged; ``None`` removes it."""
        if value is None:
            self._newest.pop(name, None)
        else:
            self._newest[name] = value

    def take(self) -> dict[str, float]:
        """Returns means, peaks or newest values of scalars by name, and resets them."""
        parts, wholes, peaks = self._parts, self._wholes, self._peaks
        newest = self._newest
        self._parts, self._wholes, self._peaks, self._newest = {}, {}, {}, {}
        shares = {
            name: part / wholes[name] for name, part in parts.items() if wholes[name]
        }
        return {**shares, **peaks, **newest}


class ScalarPublisher(LineFigures):
    """Publishes scalars in MMEngine's message hub, which keeps one value of each.

    A key left in the hub is printed again on every later line, and a history that
    grows is copied at each update and saved into each checkpoint. So ours are taken
    out or written over, and none is resumable.

    Args:
        message_hub: MMEngine's.
        names: The scalars to publish, out of :data:`SCALARS`.
    """

    def __init__(self, message_hub: Any, names: Collection[str]) -> None:
        super().__init__()
        self._hub = message_hub
        self._keys = {name: f'train/{name}' for name in SCALARS if name in names}
        self._buffers: dict[str, Any] = {}
        """MMEngine's HistoryBuffers of the scalars, of one value each, by key.

        To have MMEngine make them again takes as long as all the rest."""

    def clear(self) -> None:
        """Removes GPUEfficiencyHook's scalars from MMEngine's message hub."""
        for key in self._keys.values():
            self._hub.log_scalars.pop(key, None)

    def publish(self) -> None:
        """Publishes the scalars since the last log line, for LoggerHook's next one."""
        scalars, buffers = self._hub.log_scalars, self._buffers
        values = self.take()
        for name, key in self._keys.items():
            value = values.get(name)
            if value is None:
                scalars.pop(key, None)
                continue
            if key not in buffers:
                buffers[key] = self._make_buffer(key, value)
            scalars[key] = buffers[key]
            buffers[key].data[0][0] = value

    def _make_buffer(self, key: str, value: float) -> Any:
        self._hub.log_scalars.pop(key, None)
        # of a whole number MMEngine would make an array of whole numbers
        self._hub.update_scalar(key, float(value), resumed=False)
        # MMEngine saves the names of what is not resumable, and warns of each later
        getattr(self._hub, '_resumed_keys', {}).pop(key, None)
        return self._hub.log_scalars[key]
