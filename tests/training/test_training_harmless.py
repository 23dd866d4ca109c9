"""Tests that a training does not notice the failure of any measuring source."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import re
import resource
import signal
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from mmengine.hooks import Hook
from mmengine.model import BaseDataPreprocessor
from mmengine.runner import Runner
from msgspec import structs
from torch.utils.data import DataLoader

from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.measure.cuda import CudaEvents, CudaMemory
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.worker import FetchProbe
from mmgpu_hooks.schema.lines import decode_line
from mmgpu_hooks.schema.writer import EvidenceWriter
from training.toy import (
    HOOK,
    AfterIteration,
    LossTape,
    build_runner,
    evidence_of,
    find_evidence,
    log_of,
    losses_of,
    open_files,
    scalar_lines,
    train,
)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Trained(NamedTuple):
    runner: Runner
    warnings: list[str]


def train_and_inspect(work_dir: Path, **arguments: Any) -> Trained:
    """Trains, and asserts that no thread, file or patch of the package is left."""
    files = open_files()
    arguments = {'custom_hooks': [LossTape()], 'num_workers': 1, **arguments}
    runner = build_runner(work_dir, epochs=2, evaluation_s=0.0, **arguments)
    train(runner)
    assert open_files() <= files
    assert not [t for t in threading.enumerate() if t.name.startswith('mmgpu')]
    assert not multiprocessing.active_children()
    assert not {'call_hook', 'save_checkpoint'} & set(vars(runner))
    for hook in runner.hooks:
        assert not {'before_train_iter', 'after_train_iter'} & set(vars(hook))
    for loop in (runner.train_loop, runner.val_loop):
        assert 'run' not in vars(loop)
        assert '_get_iterator' not in vars(loop.dataloader)
    lines = [
        line
        for line in log_of(runner).splitlines()
        if 'WARNING' in line and 'GPUEfficiencyHook' in line
    ]
    return Trained(runner, [line.split('GPUEfficiencyHook: ')[1] for line in lines])


@pytest.fixture(scope='module')
def plain_losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp('plain')
    return losses_of(train_and_inspect(folder, hook=None).runner)


@pytest.fixture
def inspect(plain_losses):
    """Function that trains with the hook, and asserts unchanged losses."""

    def train_with(work_dir: Path, **arguments: Any) -> Trained:
        trained = train_and_inspect(work_dir, **arguments)
        assert losses_of(trained.runner) == plain_losses
        return trained

    return train_with


BYTES = {'all': {'peak': 1000, 'current': 500}}


@pytest.fixture(autouse=True)
def all_sources(monkeypatch):
    """Makes all measuring sources available, with fake CUDA events and allocator."""
    event = partial(Mock, **{'elapsed_time.return_value': 1.0})
    events = CudaEvents(event, SimpleNamespace)
    memory = CudaMemory(lambda: {'allocated_bytes': BYTES, 'reserved_bytes': BYTES})
    source = 'mmgpu_hooks.hooks.sources.open_cuda_'
    monkeypatch.setattr(f'{source}events', lambda: events)
    monkeypatch.setattr(f'{source}memory', lambda: memory)
    monkeypatch.setattr('mmgpu_hooks.measure.host.SELDOM_S', 0.0)


CONTENTS = {'images', 'batch_bytes', 'largest_batch_pixels'}
FIGURES = CONTENTS | {
    'workers',
    'process_cpu_s',
    'host',
    'step',
    'gpu_idle_pct',
    'gpu_mem_peak_bytes',
}

FIGURES_OF: dict[str, set[str]] = {
    'host': {'host', 'process_cpu_s'},
    'GPU idle': {'gpu_idle_pct'},
    'GPU memory': {'gpu_mem_peak_bytes'},
    'loader workers': {'workers', 'largest_batch_pixels'},
    'batch contents': CONTENTS,
}
"""Names of measurement sources, with the values that each alone provides."""

OTHERS = (
    'host limits',
    'device',
    'GPU',
    'worker memory',
    'worker_nice',
    'scalars',
    'checkpoint saves',
    'validation',
    'schedule',
    'end of training',
    'watchdog',
    'summary',
    'comparison of ranks',
)

RECORDING = (
    'start',
    'ledger',
    'interval',
    'epoch',
    'run record',
    'evidence',
    'last interval',
)
"""Names of the sources without which no evidence file can be written."""


@pytest.mark.parametrize('good_calls', [0, 2])
@pytest.mark.parametrize('source', [*FIGURES_OF, *OTHERS, *RECORDING])
def test_a_source_that_fails_is_switched_off_alone(
    tmp_path, plant, inspect, source, good_calls
):
    planted = plant(source, good_calls)
    trained = inspect(tmp_path, hook={**HOOK, 'worker_nice': 10})
    assert planted.calls > 0
    off = f'{source} is switched off for this run (RuntimeError: planted); '
    expected = [f'{off}training goes on.'] * bool(planted.failures)
    if source in RECORDING:
        warnings = [warning for warning in trained.warnings if warning.startswith(off)]
        assert warnings == expected
        # what rests on these cannot end properly without them
        assert warnings == trained.warnings or source in ('start', 'ledger')
        return
    assert trained.warnings == expected
    evidence = evidence_of(tmp_path)
    assert evidence.end.status == 'completed'
    last = structs.asdict(evidence.intervals[-1])
    known = {name for name in FIGURES if last[name] is not None}
    lost = FIGURES_OF.get(source, set()) if planted.failures else set()
    assert known == FIGURES - lost
    reasons = dict(evidence.run.unknown)
    reasons.update({off.source: off.reason for off in evidence.sources_off})
    if source not in ('summary', 'comparison of ranks') and planted.failures:
        assert reasons[source] == 'RuntimeError: planted'
    if source != 'summary':
        assert '  verdict    ' in log_of(trained.runner)
    lines = [line for line in scalar_lines(tmp_path) if 'loss' in line]
    # of a source that failed no value is shown again
    is_gone = source == 'scalars' and bool(planted.failures)
    expected_shown = [good_calls > 0, *[False] * 5] if is_gone else [True] * 6
    assert ['data_wait_s' in line for line in lines] == expected_shown


def test_the_hook_changes_nothing_and_can_be_copied_while_it_trains(tmp_path, inspect):
    def copy_ours(runner: Any) -> None:
        ours = next(h for h in runner.hooks if isinstance(h, GPUEfficiencyHook))
        copied = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
        assert [copied_hook.gpu_sample_period_s for copied_hook in copied] == [0.3, 0.3]
        assert all(
            'after_train_iter' not in vars(copied_hook) for copied_hook in copied
        )
        # a handler of ours would never run in a process that hangs in a collective
        assert [signal.getsignal(number) for number in SIGNALS] == handlers

    handlers = [signal.getsignal(number) for number in SIGNALS]
    hooks = [LossTape(), AfterIteration(copy_ours)]
    hook = {**HOOK, 'gpu_sample_period_s': 0.3}
    trained = inspect(tmp_path, custom_hooks=hooks, hook=hook)
    assert trained.warnings == []
    assert evidence_of(tmp_path).sources_off == ()
    # the summary, and what to type next
    log = log_of(trained.runner)
    assert log.count('  verdict    ') == 1
    assert f'mmgpu recommend {tmp_path}' in log


def test_a_failure_inside_a_worker_is_said_once_and_for_all(
    tmp_path, monkeypatch, inspect
):
    end, calls = FetchProbe._end, itertools.count()

    def end_or_fail(*args: Any) -> Any:
        if next(calls) >= 5:
            raise RuntimeError('planted')
        return end(*args)

    # the workers inherit it
    monkeypatch.setattr(FetchProbe, '_end', end_or_fail)
    trained = inspect(tmp_path)
    (warning,) = trained.warnings
    assert warning.startswith('loader inside is switched off for this run (')
    assert 'RuntimeError: planted' in warning
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == ['loader inside']
    is_measured = [
        record.workers is not None and record.workers.batch_time is not None
        for record in evidence.intervals
    ]
    # 12 batches of each epoch; of the first, five were measured before
    assert is_measured[0] and not any(is_measured[3:])


def test_workers_that_cannot_be_followed_are_unknown_and_not_none(
    tmp_path, monkeypatch, inspect
):
    # something that cannot be called
    monkeypatch.setattr(LoaderProbe, '_follow', None)
    trained = inspect(tmp_path, checkpoint={'interval': 1})
    warning, _ = trained.warnings  # that of validation, too
    assert warning.startswith('loader workers is switched off for this run (')
    evidence = evidence_of(tmp_path)
    assert {interval.workers for interval in evidence.intervals} == {None}
    assert {save.workers for save in evidence.save_records} == {None}


def test_a_loader_that_a_hook_put_there_is_the_one_that_is_measured(tmp_path, inspect):
    class Replace(Hook):
        def before_run(self, runner: Any) -> None:
            old = runner.train_loop.dataloader
            names = 'dataset', 'batch_size', 'sampler', 'num_workers', 'collate_fn'
            options = {name: getattr(old, name) for name in names}
            runner.train_loop.dataloader = DataLoader(**options)

    trained = inspect(tmp_path, custom_hooks=[LossTape(), Replace()])
    assert trained.warnings == []
    assert evidence_of(tmp_path).intervals[-1].workers.count == 1


def test_two_hooks_of_ours_record_one_run_and_warn_once(tmp_path, inspect):
    trained = inspect(tmp_path, custom_hooks=[HOOK, LossTape()])
    (warning,) = trained.warnings
    assert 'found several; only the first records' in warning
    assert find_evidence(tmp_path).read_text().count('"kind":"run"') == 1


def fill_disk(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
    """Makes writes to the evidence file fail beyond a size, as on a full disk."""
    # Python ignores the signal that comes with it
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    write = EvidenceWriter.write

    def write_limited(self: EvidenceWriter, record: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
        try:
            write(self, record)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(EvidenceWriter, 'write', write_limited)


def test_a_disk_that_fills_up_ends_the_evidence_on_a_whole_line(
    tmp_path, monkeypatch, inspect
):
    fill_disk(monkeypatch, 12_000)
    trained = inspect(tmp_path, log_interval=1)
    log = log_of(trained.runner)
    assert log.count('evidence is switched off for this run (OSError: ') == 1
    assert '  verdict    ' in log
    said = re.search(r'completed after 24 iterations, .* (\d+) of them recorded', log)
    text = find_evidence(tmp_path).read_text()
    assert text.endswith('\n')
    assert 5000 < len(text) <= 12_000
    assert None not in [decode_line(line.encode()) for line in text.splitlines()]
    evidence = evidence_of(tmp_path)
    assert (evidence.end, evidence.notes) == (None, ())
    count = len(evidence.intervals)
    assert [interval.iteration for interval in evidence.intervals] == list(
        range(1, count + 1)
    )
    assert said is not None and int(said[1]) == count < 24
    # everything else goes on
    lines = [line for line in scalar_lines(tmp_path) if 'loss' in line]
    assert 'data_wait_s' in lines[-1]


@pytest.mark.parametrize('trouble', ['full', 'no folder'])
def test_no_evidence_from_the_start_is_said_once(
    tmp_path, monkeypatch, inspect, trouble
):
    if trouble == 'full':
        fill_disk(monkeypatch, 0)
    else:
        # a file lies where the folder should be, for root too
        (tmp_path / 'file').write_text('')
        folder = 'mmgpu_hooks.hooks.recording.vis_data_folder'
        monkeypatch.setattr(folder, lambda runner: tmp_path / 'file')
    trained = inspect(tmp_path / 'run')
    (warning,) = trained.warnings
    assert warning.startswith('evidence is switched off for this run (')
    # an empty one would be called damaged by every reader
    assert list(tmp_path.glob('run/*/vis_data/gpu_efficiency*')) == []


def test_a_preprocessor_that_does_not_say_how_it_pads_costs_the_contents_alone(
    tmp_path, monkeypatch, inspect
):
    def fail(_: Any) -> int:
        raise RuntimeError('planted')

    monkeypatch.setattr(
        BaseDataPreprocessor, 'pad_size_divisor', property(fail), raising=False
    )
    trained = inspect(tmp_path)
    (warning,) = trained.warnings
    assert warning.startswith('batch contents is switched off for this run (')
    assert 'planted' in warning
    evidence = evidence_of(tmp_path)
    assert 'planted' in evidence.run.unknown['batch contents']
    assert {interval.workers is None for interval in evidence.intervals} == {False}
