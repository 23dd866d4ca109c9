"""Tests the parts of real trainings' checkpoint saves."""

from __future__ import annotations

import errno
import functools
import importlib
import math
import multiprocessing
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mmengine.fileio import FileClient, LocalBackend, register_backend
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, Runner
from mmengine.runner import checkpoint as mmengine_checkpoint

from mmgpu_hooks.schema.recorded import SAVE_PHASES, SaveRecord
from training.toy import (
    HOOK,
    AfterIteration,
    LossTape,
    build_runner,
    evidence_of,
    load_checkpoint,
    log_of,
    losses_of,
    scalar_lines,
    train,
)

EVERY_4 = {'interval': 4, 'by_epoch': False}

GET_FILE_BACKEND = mmengine_checkpoint.get_file_backend
FILE_CLIENT = mmengine_checkpoint.FileClient


class ToyBackend(LocalBackend):
    """File backend that stores its files in memory.

    Args:
        put_s: Seconds that a write sleeps.
        is_full: Whether there is no space left then.
    """

    stored: ClassVar[dict[str, bytes]] = {}

    def __init__(self, put_s: float = 0.0, is_full: bool = False) -> None:
        self.put_s = put_s
        self.is_full = is_full

    def put(self, obj: bytes, filepath: str) -> None:
        time.sleep(self.put_s)
        if self.is_full:
            raise OSError(errno.ENOSPC, 'No space left on device')
        self.stored[str(filepath)] = obj


# MMEngine asks its old client for every path, whichever backend writes to it
register_backend('toy', ToyBackend, prefixes='toy', force=True)
FileClient.register_backend('toy', ToyBackend, prefixes='toy', force=True)


def remote(**arguments: Any) -> dict[str, Any]:
    """Returns CheckpointHook arguments for a `ToyBackend`."""
    backend = {'backend': 'toy', **arguments}
    return {**EVERY_4, 'out_dir': 'toy://bucket', 'backend_args': backend}


class BeforeSave(Hook):
    """Hook that calls a function before each save; its time counts as part ``rest``."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.action(runner)


def sleep(seconds: float) -> BeforeSave:
    return BeforeSave(lambda runner: time.sleep(seconds))


def train_and_read(work_dir: Path, **arguments: Any) -> tuple[Any, list[SaveRecord]]:
    """Trains; returns Runner and save records, whose phases' times must add up."""
    arguments = {'checkpoint': EVERY_4, 'loop': 'iter', **arguments}
    runner = train(build_runner(work_dir, **arguments))
    assert_nothing_is_left(runner)
    evidence = evidence_of(work_dir)
    assert evidence.sources_off == ()
    for save in evidence.save_records:
        assert set(save.phases) <= set(SAVE_PHASES)
        walls = [phase.wall_s for phase in save.phases.values()]
        assert math.isclose(math.fsum(walls), save.wall_s, rel_tol=1e-6)
    assert evidence.end.saves == len(evidence.save_records)
    return runner, list(evidence.save_records)


def assert_nothing_is_left(runner: Any) -> None:
    """Asserts that all methods replaced for a save are restored."""
    assert mmengine_checkpoint.get_file_backend is GET_FILE_BACKEND
    assert mmengine_checkpoint.FileClient is FILE_CLIENT
    for hook in runner.hooks:
        backend = getattr(hook, 'file_backend', None)
        assert backend is None or 'put' not in vars(backend)


PAGE = Path(__file__).parents[2] / 'docs' / 'en' / 'slow-saves.md'


def read_histories(path: Path) -> dict[str, tuple[Any, Any]]:
    """Returns values and counts of each scalar history in a checkpoint."""
    checkpoint = load_checkpoint(path)
    scalars = checkpoint['message_hub']['log_scalars']
    return {name: history.data for name, history in scalars.items()}


def size_of(folder: Path, name: str | None) -> int:
    assert name is not None
    return (folder / name).stat().st_size


@pytest.mark.timing
@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
def test_saves_of_iterations_are_taken_apart(tmp_path, kind):
    options = {'num_workers': 2, 'custom_hooks': [sleep(0.05)]}
    _, saves = train_and_read(tmp_path, kind=kind, **options)
    assert [save.iteration for save in saves] == [4, 8, 12]
    for save in saves:
        assert save.name == f'iter_{save.iteration}.pth'
        assert save.backend == 'LocalBackend'
        assert save.bytes == size_of(tmp_path, save.name)
        assert list(save.phases) == list(SAVE_PHASES)
        assert (save.phases['rest'].blocked_s or 0.0) > 0.045
        assert save.workers == 2
        assert save.workers_busy is not None
        assert 0.0 <= save.workers_busy <= 2.0
        assert save.error is None
        parts = (save.cpu_s, save.run_delay_s, save.blocked_s)
        assert None not in parts
        parts_s = sum(part or 0.0 for part in parts)
        # the clocks are read one after the other, eight times
        assert save.wall_s - 1e-6 <= parts_s <= save.wall_s + 0.001
    end = evidence_of(tmp_path).end
    booked_s = end.ledger_s['checkpoint_save']
    # the save's own clocks are read outside of the ledger's
    spans_s = sum(save.wall_s for save in saves)
    assert booked_s - 1e-6 <= spans_s <= booked_s + 0.01 * len(saves)


@pytest.mark.parametrize('persistent', [True, False])
def test_saves_of_epochs_and_the_best_go_by_their_names(tmp_path, persistent):
    best = {'save_best': 'score', 'rule': 'greater'}
    _, saves = train_and_read(
        tmp_path,
        loop='epoch',
        epochs=2,
        evaluation_s=0.0,
        checkpoint={'interval': 1, 'by_epoch': True, **best},
        num_workers=2,
        persistent_workers=persistent,
    )
    # MMEngine saves once more, so that the file knows of the best
    names = ['epoch_1.pth', 'best_score_epoch_1.pth', 'epoch_1.pth', 'epoch_2.pth']
    assert [save.name for save in saves] == names
    # those that ended with their epoch are no workers
    assert {save.workers for save in saves} == {2 * persistent}


def test_a_slow_remote_write_is_known_and_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyBackend, 'stored', {})
    runner, saves = train_and_read(tmp_path, checkpoint=remote(put_s=0.6))
    for save in saves:
        assert save.backend == 'ToyBackend'
        assert (save.phases['write'].blocked_s or 0.0) > 0.55
        stored = ToyBackend.stored[f'toy://bucket/{tmp_path.name}/{save.name}']
        assert save.bytes == len(stored)
    lines = log_of(runner).split('GPUEfficiencyHook: ')[1:]
    # the summary comes last
    first, _ = lines
    assert first.startswith('Saving iter_4.pth')


def test_a_save_in_another_way_is_measured_as_a_whole(tmp_path):
    runner = build_runner(tmp_path, loop='iter', checkpoint=EVERY_4)

    def write_shards(*_: Any, **__: Any) -> None:
        time.sleep(0.02)

    runner.save_checkpoint = write_shards
    train(runner)
    assert runner.save_checkpoint is write_shards
    first = evidence_of(tmp_path).save_records[0]
    assert (first.name, first.bytes, first.backend) == (None, None, None)
    assert list(first.phases) == ['rest']
    assert (first.blocked_s or 0.0) > 0.015


def test_saves_in_a_save_or_in_another_thread_are_none_of_their_own(tmp_path):
    inside: list[bool] = []

    def save_in_thread(runner: Any) -> None:
        if runner.iter == 3:
            save = functools.partial(runner.save_checkpoint, by_epoch=False)
            arguments = (runner.work_dir, 'threaded.pth')
            thread = threading.Thread(target=save, args=arguments)
            thread.start()
            thread.join()

    def save_once_more(runner: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not inside:
            inside.append(True)
            runner.save_checkpoint(runner.work_dir, 'inner.pth', by_epoch=False)
            inside.clear()

    hooks = [BeforeSave(save_once_more), AfterIteration(save_in_thread)]
    _, saves = train_and_read(tmp_path, custom_hooks=hooks)
    assert [save.name for save in saves] == [f'iter_{n}.pth' for n in (4, 8, 12)]
    inner = size_of(tmp_path, 'inner.pth')
    assert saves[2].bytes == size_of(tmp_path, saves[2].name) + inner
    assert (tmp_path / 'threaded.pth').exists()


def test_waits_after_a_save_are_set_beside_the_usual_ones(tmp_path):
    _, saves = train_and_read(
        tmp_path,
        iterations=16,
        num_workers=1,
        item_s=0.03,
        checkpoint={'interval': 8, 'by_epoch': False},
        custom_hooks=[sleep(0.3)],
    )
    assert len(saves) == 2
    first, last = evidence_of(tmp_path).after_saves
    # one worker makes two batches ahead, of 60 ms each
    assert (first.iteration, first.iterations) == (8, 2)
    assert first.usual_wait_s is not None
    assert first.waits_s < first.usual_wait_s
    assert (last.iteration, last.iterations, last.waits_s) == (16, 0, 0.0)


def raise_planted(runner: Any) -> None:
    raise KeyError('planted')


@pytest.mark.parametrize(
    ('error', 'backend', 'phases', 'arguments'),
    [
        (OSError, 'ToyBackend', SAVE_PHASES, {'checkpoint': remote(is_full=True)}),
        # the kernel's own full file
        (OSError, 'LocalBackend', SAVE_PHASES, {}),
        (KeyError, None, ('rest',), {'custom_hooks': [BeforeSave(raise_planted)]}),
    ],
)
def test_what_a_save_raises_passes_through(tmp_path, error, backend, phases, arguments):
    if backend == 'LocalBackend':
        (tmp_path / 'iter_4.pth').symlink_to('/dev/full')
    runner = build_runner(tmp_path, loop='iter', **{'checkpoint': EVERY_4, **arguments})
    with pytest.raises(error) as caught:
        train(runner)
    assert 'mmgpu_hooks' not in str(caught.value)
    assert_nothing_is_left(runner)
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    assert (evidence.end.status, evidence.end.error) == ('failed', error.__name__)
    save = evidence.save_records[-1]
    assert (save.iteration, save.error, save.bytes) == (4, error.__name__, None)
    assert (save.backend, set(save.phases)) == (backend, set(phases))


def read_nice_values() -> set[int]:
    """Returns the nice values of all child processes."""
    pids = [child.pid or 0 for child in multiprocessing.active_children()]
    return {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids}


def note_nice_values(seen: list[set[int]], _: object) -> None:
    """Records the nice values of child processes at an iteration's end."""
    seen.append(read_nice_values())


@pytest.mark.parametrize(
    ('loop', 'persistent'), [('epoch', False), ('epoch', True), ('iter', False)]
)
def test_workers_give_way_at_each_start_and_no_loss_changes(tmp_path, loop, persistent):
    losses = []
    own = os.getpriority(os.PRIO_PROCESS, 0)
    niced = min(own + 7, 19)
    for name, more in (('plain', {}), ('niced', {'worker_nice': niced})):
        seen: list[set[int]] = []
        runner = build_runner(
            tmp_path / name,
            loop=loop,
            epochs=2,
            iterations=8,
            num_workers=2,
            persistent_workers=persistent,
            hook={**HOOK, **more},
            custom_hooks=[
                LossTape(),
                AfterIteration(functools.partial(note_nice_values, seen)),
            ],
        )
        train(runner)
        assert evidence_of(tmp_path / name).run.worker_nice == more.get('worker_nice')
        losses.append(losses_of(runner))
        # at the last batches of an epoch the workers may have ended
        assert set().union(*seen) == seen[0] == {more.get('worker_nice', own)}
    assert losses[0] == losses[1]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
def test_histories_are_counted_as_they_are_in_the_file(tmp_path, kind):
    _, saves = train_and_read(tmp_path, kind=kind)
    for save in saves:
        assert save.name is not None
        histories = read_histories(tmp_path / save.name).values()
        values, counts = zip(*histories)
        sizes = [array.nbytes for array in (*values, *counts)]
        assert save.message_hub_bytes == sum(sizes) > 0
    # 8 bytes of a value, 8 of a count
    first, *_, last = saves
    assert last.message_hub_bytes - first.message_hub_bytes == 8 * 16 * len(histories)


def test_the_hook_that_the_docs_have_keeps_histories_short(tmp_path, monkeypatch):
    module, config = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
    (tmp_path / 'short_histories.py').write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    # torch from 2.6 on refuses a history otherwise
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    said: dict[str, Any] = {}
    exec(config, said)
    for name in said['custom_imports']['imports']:
        importlib.import_module(name)
    cure = {**said['default_hooks']['short_histories'], 'length': 10}

    def train_part(name: str, iterations: int, hooks: list[Any], **more: Any) -> Any:
        hooks = [LossTape(), *hooks]
        options = {'iterations': iterations, 'custom_hooks': hooks, **more}
        folder = tmp_path / name
        runner, _ = train_and_read(folder, **options)
        last = folder / f'iter_{iterations}.pth'
        values, _ = read_histories(last)['train/loss']
        lines = [
            (line['step'], line['loss'], line['lr']) for line in scalar_lines(folder)
        ]
        return last, len(values), losses_of(runner), lines

    long, length, *plain = train_part('plain', 24, [])
    short, short_length, *cured = train_part('cured', 24, [cure])
    assert (length, short_length) == (24, 10)
    assert cured == plain
    begun = {'resume': True, 'length': 72}
    _, length, *plain = train_part('on', 36, [], load_from=str(long), **begun)
    for name, start in (('on_short', short), ('on_long', long)):
        _, short_length, *cured = train_part(
            name, 36, [cure], load_from=str(start), **begun
        )
        assert (length, short_length) == (36, 10)
        assert cured == plain
