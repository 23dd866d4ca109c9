"""Each source fails in a real training, which must not notice."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import re
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from msgspec import structs

from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.schema import RunEvidence
from mmgpu_hooks.schema.lines import decode_line
from mmgpu_hooks.schema.writer import EvidenceWriter
from training.faults import patch, train_and_look
from training.toy import (
    HOOK,
    LossTape,
    build_runner,
    evidence_of,
    find_evidence,
    log_of,
    losses_of,
    scalar_lines,
    train,
)


def test_a_healthy_training_says_nothing_and_changes_nothing(
    tmp_path: Path, plain_losses: list[str]
) -> None:
    trained = train_and_look(tmp_path)
    assert trained.warnings == []
    assert losses_of(trained.runner) == plain_losses
    assert evidence_of(tmp_path).sources_off == ()


@pytest.fixture(autouse=True)
def host_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('mmgpu_hooks.measure.host.SELDOM_S', 0.0)


def figures(evidence: RunEvidence) -> set[str]:
    """Which figures the last interval has."""
    last = evidence.intervals[-1]
    known = {name for name, value in structs.asdict(last).items() if value is not None}
    return known & ALL


ALL = {
    'workers',
    'process_cpu_s',
    'host',
    'images',
    'batch_bytes',
    'largest_batch_pixels',
    'step',
}
CONTENTS = {'images', 'batch_bytes', 'largest_batch_pixels'}

FAILURES = [
    ('host limits', 'hooks.sources.read_host_limits', 0, ALL),
    ('device', 'hooks.recorder.read_device', 0, ALL),
    ('CPU', 'hooks.sources.CpuMeter', 0, ALL - {'process_cpu_s'}),
    ('CPU', 'measure.host.CpuMeter.read', 2, ALL - {'process_cpu_s'}),
    ('host', 'hooks.sources.HostWindowMeter', 0, ALL - {'host'}),
    ('host', 'measure.host.HostWindowMeter.read', 2, ALL - {'host'}),
    ('GPU', 'hooks.sources.cuda_device', 0, ALL),
    ('GPU idle', 'hooks.sources.open_cuda_events', 0, ALL),
    ('GPU memory', 'hooks.sources.open_cuda_memory', 0, ALL),
    (
        'loader workers',
        'hooks.sources.LoaderProbe',
        0,
        ALL - {'workers', 'largest_batch_pixels'},
    ),
    (
        'loader workers',
        'measure.loader.probe.LoaderProbe.read',
        1,
        ALL - {'workers', 'largest_batch_pixels'},
    ),
    (
        'loader workers',
        'measure.loader.probe.LoaderProbe._follow',
        1,
        ALL - {'workers', 'largest_batch_pixels'},
    ),
    ('worker memory', 'measure.loader.probe.LoaderProbe.read_memory', 0, ALL),
    ('loader queue', 'measure.loader.queue.QueueWatch.ask', 5, ALL),
    ('batch contents', 'hooks.sources.find_step_sizes', 0, ALL - CONTENTS),
    (
        'batch contents',
        'measure.loader.probe.LoaderProbe.read_contents',
        1,
        ALL - CONTENTS,
    ),
    ('batch contents', 'hooks.sources.count_tensors', 1, ALL - CONTENTS),
    ('model bytes', 'hooks.sources.count_model_bytes', 0, ALL),
    ('scalars', 'hooks.scalars.LineFigures.take', 1, ALL),
    ('checkpoint saves', 'hooks.saves.ThreadClock', 0, ALL),
    ('checkpoint saves', 'hooks.saves.SaveStamps', 0, ALL),
    ('checkpoint saves', 'hooks.saves.SaveStamps.end_copy', 0, ALL),
    ('checkpoint saves', 'hooks.saves.SaveStamps._begin_write', 0, ALL),
    ('checkpoint saves', 'hooks.saves.split_phases', 0, ALL),
    ('checkpoint saves', 'hooks.saves.count_tensor_bytes', 0, ALL),
    ('summary', 'hooks.gpu_efficiency_hook.Run.read', 0, ALL),
]


@pytest.mark.parametrize(('source', 'target', 'good_calls', 'known'), FAILURES)
def test_a_source_that_fails_is_switched_off_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain_losses: list[str],
    source: str,
    target: str,
    good_calls: int,
    known: set[str],
) -> None:
    patch(monkeypatch, target, good_calls)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        f'{source} is switched off for this run (RuntimeError: planted); '
        'training goes on.'
    ]
    evidence = evidence_of(tmp_path)
    assert evidence.end is not None
    assert evidence.end.status == 'completed'
    assert figures(evidence) == known
    if source != 'summary':
        reasons = dict(evidence.run.unknown)
        reasons.update({off.source: off.reason for off in evidence.sources_off})
        assert reasons[source] == 'RuntimeError: planted'
        assert '  verdict    ' in log_of(trained.runner)


def test_a_failure_inside_a_worker_is_said_once_and_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    # the workers inherit it
    patch(monkeypatch, 'measure.loader.worker.FetchProbe._end', 5)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        'loader inside is switched off for this run (measuring in a worker ended: '
        'RuntimeError: planted); training goes on.'
    ]
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == ['loader inside']
    is_measured = [
        record.workers is not None and record.workers.occupancy is not None
        for record in evidence.intervals
    ]
    # 12 batches of each epoch; of the first, five were measured before
    assert is_measured[0] and not any(is_measured[3:])


@pytest.mark.parametrize(
    ('source', 'target', 'good_calls'),
    [
        ('start', 'hooks.gpu_efficiency_hook.Recorder', 0),
        ('start', 'hooks.gpu_efficiency_hook.GPUEfficiencyHook._wrap_train_loop', 0),
        ('start', 'hooks.recorder.LoopTimer', 0),
        ('ledger', 'hooks.loop_timer.LoopTimer.open', 0),
        ('ledger', 'hooks.loop_timer.LoopTimer.follow', 0),
        ('interval', 'hooks.recorder.LogSchedule.is_due', 6),
        ('interval', 'measure.ledger.TimeLedger.take', 1),
        ('interval', 'measure.ledger.TimeLedger.fold', 4),
        ('epoch', 'hooks.recorder.LogSchedule.begin_epoch', 1),
        ('run record', 'hooks.recorder.read_run_record', 0),
        ('evidence', 'hooks.recorder.open_evidence', 0),
        ('evidence', 'schema.writer.EvidenceWriter.write', 2),
        ('last interval', 'hooks.recorder.Recorder._record_interval', 6),
    ],
)
def test_training_goes_on_when_the_recording_itself_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain_losses: list[str],
    source: str,
    target: str,
    good_calls: int,
) -> None:
    patch(monkeypatch, target, good_calls)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    first, *others = trained.warnings
    assert first.startswith(f'{source} is switched off for this run (RuntimeError: ')
    # what rests on the ledger cannot end properly without it
    assert not others or source == 'ledger'


def test_values_of_a_source_that_failed_are_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch, 'hooks.recorder.LogSchedule.is_due', 2)
    train_and_look(tmp_path)
    shown = ['data_wait_s' in line for line in scalar_lines(tmp_path)]
    assert shown == [True, False, False, False, False, False]


def test_two_of_ours_are_one_run_and_one_sentence(
    tmp_path: Path, plain_losses: list[str]
) -> None:
    trained = train_and_look(tmp_path, custom_hooks=[HOOK, LossTape()])
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == [
        'expected one in a config, found several; only the first records, so remove '
        'the others.'
    ]
    assert find_evidence(tmp_path).read_text().count('"kind":"run"') == 1


def fill_disk(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
    """Let no evidence grow beyond this: writing more fails as on a full disk."""
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, logs = {}, {}
    for disk in ('room', 'full'):
        if disk == 'full':
            fill_disk(monkeypatch, 12_000)
        runner = build_runner(
            tmp_path / disk, iterations=60, log_interval=1, custom_hooks=[LossTape()]
        )
        train(runner)
        losses[disk], logs[disk] = losses_of(runner), log_of(runner)
    assert losses['full'] == losses['room']
    full = logs['full']
    assert full.count('evidence is switched off for this run (OSError: ') == 1
    said = re.search(r'completed after 60 iterations, .* (\d+) of them recorded', full)
    assert '  verdict    ' in full
    text = find_evidence(tmp_path / 'full').read_text()
    assert text.endswith('\n')
    assert 5000 < len(text) <= 12_000
    for line in text.splitlines():
        assert decode_line(line) is not None
    evidence = evidence_of(tmp_path / 'full')
    assert evidence.end is None
    assert evidence.notes == ()
    assert [r.iteration for r in evidence.intervals] == list(
        range(1, len(evidence.intervals) + 1)
    )
    assert said is not None and int(said[1]) == len(evidence.intervals)
    # everything else goes on
    assert len(scalar_lines(tmp_path / 'full')) == 60
    assert 'data_wait_s' in scalar_lines(tmp_path / 'full')[-1]


def test_a_disk_that_is_full_from_the_start_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    fill_disk(monkeypatch, 0)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    (warning,) = trained.warnings
    assert warning.startswith('evidence is switched off for this run (OSError: ')
    # an empty one would be told to be damaged by whoever reads it
    assert list(tmp_path.glob('*/vis_data/gpu_efficiency*')) == []
    assert 'data_wait_s' in scalar_lines(tmp_path)[-1]


def test_the_last_room_on_a_disk_is_left_to_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    really, asked = os.fstatvfs, []

    def fill_for_a_while(descriptor: int) -> Any:
        asked.append(descriptor)
        room = list(really(descriptor))
        if 5 < len(asked) <= 7:
            room[4] = 15 * 2**20 // room[1]  # blocks that are free for all
        return os.statvfs_result(room)

    monkeypatch.setattr(os, 'fstatvfs', fill_for_a_while)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    (warning,) = trained.warnings
    assert '15.0 MiB are free, less than 16 MiB' in warning
    assert len(scalar_lines(tmp_path)) == 6
    evidence = evidence_of(tmp_path)
    # the run, one of six intervals, and all that came when there was room again
    assert [one.iteration for one in evidence.intervals] == [4, 16, 20, 24]
    assert evidence.end is not None
    assert evidence.notes == ()
    assert '  verdict    ' in log_of(trained.runner)


def test_a_disk_without_room_from_the_start_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    monkeypatch.setattr('mmgpu_hooks.schema.writer.LEAST_FREE_BYTES', 2**60)
    trained = train_and_look(tmp_path)
    assert losses_of(trained.runner) == plain_losses
    (warning,) = trained.warnings
    assert warning.startswith('evidence is switched off for this run (OSError: ')
    assert 'MiB are free' in warning
    assert list(tmp_path.glob('*/vis_data/gpu_efficiency*')) == []


def test_the_hook_can_be_copied_while_it_trains(
    tmp_path: Path, plain_losses: list[str]
) -> None:
    class Copier(Hook):
        def after_train_iter(self, runner: Any, *_: Any, **__: Any) -> None:
            ours = next(h for h in runner.hooks if isinstance(h, GPUEfficiencyHook))
            copied = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
            assert [one.gpu_sample_period_s for one in copied] == [0.3, 0.3]
            assert all('after_train_iter' not in vars(one) for one in copied)

    hooks = [LossTape(), Copier()]
    hook = {**HOOK, 'gpu_sample_period_s': 0.3}
    trained = train_and_look(tmp_path, custom_hooks=hooks, hook=hook)
    assert losses_of(trained.runner) == plain_losses
    assert trained.warnings == []


def test_what_a_subclass_does_after_an_iteration_is_done(tmp_path: Path) -> None:
    seen = []

    class Counting(GPUEfficiencyHook):
        def after_train_iter(self, runner: Any, batch_idx: int, *_: Any) -> None:
            seen.append(batch_idx)

    hooks = [Counting(interval=4)]
    train(build_runner(tmp_path, hook=None, custom_hooks=hooks, iterations=8))
    assert seen == list(range(8))
    assert [one.iterations for one in evidence_of(tmp_path).intervals] == [4, 4]


def test_a_folder_that_cannot_be_written_costs_the_evidence_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_losses: list[str]
) -> None:
    # a file lies where the folder should be, for whoever runs the tests, root too
    blocked = tmp_path / 'blocked'
    blocked.write_text('')
    monkeypatch.setattr(
        'mmgpu_hooks.hooks.recorder.vis_data_folder', lambda runner: blocked
    )
    trained = train_and_look(tmp_path / 'run')
    assert losses_of(trained.runner) == plain_losses
    (warning,) = trained.warnings
    assert warning.startswith('evidence is switched off')
    assert 'blocked' in warning


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """No test may leave a loader worker behind."""
    yield
    assert not multiprocessing.active_children()


def test_evidence_lines_are_plain_json(tmp_path: Path) -> None:
    train_and_look(tmp_path)
    lines = find_evidence(tmp_path).read_text().splitlines()
    kinds = [json.loads(line)['kind'] for line in lines]
    once = ['model_bytes', 'unknown']
    last = ['save', 'save_aftermath', 'end']
    assert kinds == ['run', 'interval', *once, *['interval'] * 5, *last]
