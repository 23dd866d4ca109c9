"""Tests which loader settings a resumed training takes over from its last run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fakes.loaders import Costly
from fakes.replaced import replace
from fakes.runs import make_evidence, make_loader, make_run, write_run
from fakes.tuning import judge, propose, settings
from mmgpu_hooks.hooks import shared_room
from mmgpu_hooks.hooks.tuned_start import begin_tuned
from mmgpu_hooks.measure.host import FileSystem, read_host_limits
from mmgpu_hooks.schema.recorded import MemoryRecord, TunedRecord, TunedSettings
from mmgpu_hooks.schema.run import RunEvidence

NONE, TWO, FOUR = settings(0), settings(2), settings(4)
BATCH_SIZE = make_loader().batch_size or 0


def change(old: TunedSettings, new: TunedSettings, **more: Any) -> TunedRecord:
    record = propose(old, new).proposed
    assert record is not None
    return replace(record, **more)


def judged(old: TunedSettings, new: TunedSettings, reason: str) -> TunedRecord:
    record = judge(old, new, reason).judged
    assert record is not None
    return record


def failed(old: TunedSettings, new: TunedSettings) -> TunedRecord:
    return change(old, new, action='roll_back', reason='failed')


KEPT = change(NONE, TWO), judged(TWO, TWO, 'gain')
FOUND = change(NONE, TWO, reason='found_before')
CASES = {
    'kept': (KEPT, 2),
    'kept, unjudged for other programs': (
        (change(NONE, TWO), judged(TWO, TWO, 'other_load')),
        2,
    ),
    'found before': ((FOUND,), 2),
    'taken back': ((change(NONE, TWO), judged(TWO, NONE, 'loss')), 0),
    # what ended the run, perhaps
    'not judged': ((change(NONE, TWO),), 0),
    'second one not judged': ((*KEPT, change(TWO, FOUR)), 2),
    'not judged since it was found': ((FOUND, change(TWO, FOUR)), 2),
    'not started': ((change(NONE, TWO), failed(TWO, NONE)), 0),
    'not taken back for want of processes': (
        (*KEPT, change(TWO, FOUR), judged(FOUR, TWO, 'loss'), failed(TWO, FOUR)),
        2,
    ),
    'nothing tuned': ((), 0),
}


class AtHome(Costly):
    """Data set that loads in the training process alone."""

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            raise RuntimeError('not in a worker')
        return super().__getitem__(index)


def resume(
    work_dir: Path,
    evidence: RunEvidence,
    dataset: Dataset[Any] | None = None,
    batch_size: int = BATCH_SIZE,
) -> int:
    """Returns the number of workers of a run that resumes a run with given evidence."""
    write_run(work_dir / '20200101_000000' / 'vis_data', evidence)
    runner = SimpleNamespace(
        _resume=True,
        world_size=1,
        work_dir=str(work_dir),
        log_dir=str(work_dir / '20200102_000000'),
    )
    loader: Any = DataLoader(dataset or Costly(4), batch_size)
    begin_tuned(runner, loader, contextlib.nullcontext)
    workers: int = loader.num_workers
    return workers


def make_tuned(*tuned: TunedRecord, **run: Any) -> RunEvidence:
    """Returns the evidence of a run that began without workers and was tuned."""
    loader = make_loader(0, persistent_workers=False, prefetch_factor=None)
    host = read_host_limits(ranks_on_host=1)
    evidence = make_evidence(run=make_run(loader=loader, host=host, **run))
    return replace(evidence, tuned=tuned)


@pytest.mark.parametrize(('tuned', 'workers'), CASES.values(), ids=CASES.keys())
def test_what_was_judged_is_taken_over(tmp_path, tuned, workers):
    assert resume(tmp_path, make_tuned(*tuned)) == workers


def test_nothing_is_taken_over_for_another_batch_size(tmp_path):
    assert resume(tmp_path, make_tuned(*KEPT), batch_size=BATCH_SIZE + 1) == 0


def test_nothing_is_taken_over_for_a_data_set_that_no_worker_can_load(tmp_path):
    assert resume(tmp_path, make_tuned(*KEPT), AtHome(4)) == 0


def test_what_an_earlier_run_had_found_may_be_what_ended_the_last_one(tmp_path):
    begun = replace(make_tuned(FOUND), intervals=(), end=None)
    assert resume(tmp_path, begun) == 0


def test_a_run_that_ended_before_it_loaded_anything_is_passed_over(tmp_path):
    write_run(tmp_path / '20190101_000000' / 'vis_data', make_tuned(*KEPT))
    assert resume(tmp_path, replace(make_tuned(), intervals=(), end=None)) == 2


def test_nothing_is_taken_over_where_shared_memory_does_not_hold_it(
    tmp_path, monkeypatch
):
    full = FileSystem(2**40, 0)
    monkeypatch.setattr(shared_room, 'read_file_system', lambda _: full)
    evidence = make_tuned(*KEPT)
    batches = tuple(replace(each, batch_bytes=2**20) for each in evidence.intervals)
    assert resume(tmp_path, replace(evidence, intervals=batches)) == 0


@pytest.mark.parametrize(('kills', 'workers'), [(3, 2), (4, 0)])
def test_nothing_is_taken_over_after_a_kill_for_memory(tmp_path, kills, workers):
    evidence = make_tuned(*KEPT, oom_kills=3)
    assert evidence.end is not None
    end = replace(evidence.end, status='failed', oom_kills=kills)
    assert resume(tmp_path, replace(evidence, end=end)) == workers


@pytest.mark.parametrize(('is_low', 'workers'), [(False, 2), (True, 0)])
def test_nothing_is_taken_over_where_memory_was_low_when_a_run_was_killed(
    tmp_path, is_low, workers
):
    memory = MemoryRecord(
        phase='train',
        elapsed_s=9.0,
        bound='host',
        total_bytes=100,
        used_bytes=99,
        is_low=is_low,
    )
    evidence = replace(make_tuned(*KEPT), memory=(memory,), end=None)
    assert resume(tmp_path, evidence) == workers
