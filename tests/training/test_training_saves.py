"""Saves of real trainings, taken apart."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, Runner

from mmgpu_hooks.hooks import saves as save_watch
from mmgpu_hooks.schema import SAVE_PHASES, SaveRecord
from training.saving import (
    FailBeforeSave,
    SaveInsideSave,
    SaveInThread,
    SleepBeforeSave,
    ToyBackend,
    assert_nothing_is_left,
    size_of,
)
from training.toy import (
    HOOK,
    LossTape,
    build_runner,
    evidence_of,
    log_of,
    losses_of,
    scalar_lines,
    train,
)

pytestmark = pytest.mark.timing

EVERY_4 = {'interval': 4, 'by_epoch': False}
BY_EPOCH = {'interval': 1, 'by_epoch': True}
MOMENTUM = {'optimizer': {'type': 'SGD', 'lr': 0.01, 'momentum': 0.9}}


def save_and_look(work_dir: Path, **arguments: Any) -> tuple[Any, list[SaveRecord]]:
    """Train; the saves, each proven to add up."""
    arguments.setdefault('checkpoint', EVERY_4)
    runner = train(build_runner(work_dir, **arguments))
    assert_nothing_is_left(runner)
    evidence = evidence_of(work_dir)
    assert evidence.sources_off == ()
    saves = list(evidence.save_records)
    for save in saves:
        assert set(save.phases) <= set(SAVE_PHASES)
        walls = [phase.wall_s for phase in save.phases.values()]
        assert math.isclose(math.fsum(walls), save.wall_s, rel_tol=1e-6)
        assert save.cpu_s is not None
        assert save.run_delay_s is not None
        assert save.blocked_s is not None
        parts_s = save.cpu_s + save.run_delay_s + save.blocked_s
        # the clocks are read one after the other, at each of eight moments
        assert save.wall_s - 1e-6 <= parts_s <= save.wall_s + 0.001
    assert evidence.end is not None
    booked_s = evidence.end.ledger_s['checkpoint_save']
    # the watch goes around the ledger's anchors, and reads its clocks outside of them
    spans_s = sum(save.wall_s for save in saves)
    assert booked_s - 1e-6 <= spans_s <= booked_s + 0.01 * len(saves)
    assert evidence.end.saves == len(saves)
    return runner, saves


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
def test_saves_of_iterations_are_taken_apart(tmp_path: Path, kind: type[Any]) -> None:
    _, saves = save_and_look(
        tmp_path,
        kind=kind,
        loop='iter',
        num_workers=2,
        optim_wrapper=MOMENTUM,
        custom_hooks=[SleepBeforeSave(0.05)],
    )
    assert [save.iteration for save in saves] == [4, 8, 12]
    for save in saves:
        assert (save.occasion, save.name) == ('iteration', f'iter_{save.iteration}.pth')
        assert (save.backend, save.is_remote) == ('LocalBackend', False)
        assert save.bytes == size_of(tmp_path, save.name)
        # one momentum per weight of the convolution
        assert save.optimizer_bytes == 112 * 4
        assert list(save.phases) == list(SAVE_PHASES)
        assert (save.phases['rest'].blocked_s or 0.0) > 0.045
        assert save.workers == 2
        assert save.workers_busy is not None
        assert 0.0 <= save.workers_busy <= 2.0
        assert (save.error, save.unknown) == (None, {})
    hub = [save.message_hub_bytes or 0 for save in saves]
    assert 0 < hub[0] < hub[1] < hub[2]


def test_saves_of_epochs_the_best_and_published_ones_go_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch >= 2.6 refuses to read MMEngine's checkpoints otherwise
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    checkpoint = {
        **BY_EPOCH,
        'save_best': 'score',
        'rule': 'greater',
        'published_keys': ['state_dict'],
    }
    with pytest.warns(UserWarning, match='TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'):
        _, saves = save_and_look(
            tmp_path, epochs=2, evaluation_s=0.0, checkpoint=checkpoint
        )
    published = [save.name for save in saves[-2:]]
    assert [(save.occasion, save.name, save.epoch) for save in saves] == [
        ('epoch', 'epoch_1.pth', 1),
        ('best', 'best_score_epoch_1.pth', 1),
        # MMEngine saves once more, so that the file knows of the best
        ('epoch', 'epoch_1.pth', 1),
        ('epoch', 'epoch_2.pth', 2),
        ('publish', published[0], 2),
        ('publish', published[1], 2),
    ]
    assert saves[1].optimizer_bytes == 0
    assert saves[4].bytes == size_of(tmp_path, published[0])
    assert set(saves[4].phases) == {'serialise', 'write', 'rest'}
    assert set(saves[4].unknown) == {'optimizer_bytes, message_hub_bytes'}


def test_a_remote_backend_has_its_seconds_in_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyBackend, 'stored', {})
    checkpoint = {
        **EVERY_4,
        'out_dir': 'toy://bucket',
        'backend_args': {'backend': 'toy', 'put_s': 0.1},
    }
    _, saves = save_and_look(tmp_path, loop='iter', checkpoint=checkpoint)
    for save in saves:
        assert (save.backend, save.is_remote) == ('ToyBackend', True)
        assert (save.phases['write'].blocked_s or 0.0) > 0.095
        stored = ToyBackend.stored[f'toy://bucket/{tmp_path.name}/{save.name}']
        assert save.bytes == len(stored)


def test_a_save_in_somebodys_own_way_is_measured_as_a_whole(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, loop='iter', checkpoint=EVERY_4)

    def write_shards(out_dir: str, filename: str, *_: Any, **__: Any) -> None:
        folder = Path(out_dir, filename)
        folder.mkdir()
        (folder / 'rank0.bin').write_bytes(b'1234')
        time.sleep(0.02)

    runner.save_checkpoint = write_shards
    train(runner)
    assert runner.save_checkpoint is write_shards
    first = evidence_of(tmp_path).save_records[0]
    assert (first.bytes, first.backend, first.is_remote) == (4, None, None)
    assert list(first.phases) == ['rest']
    assert (first.blocked_s or 0.0) > 0.015


def test_a_save_whose_size_nobody_tells_says_so(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, loop='iter', checkpoint=EVERY_4)
    runner.save_checkpoint = lambda *args, **kwargs: None
    train(runner)
    first = evidence_of(tmp_path).save_records[0]
    assert first.bytes is None
    assert first.unknown['bytes'] == 'neither a write nor a local file was seen'


def test_of_saves_inside_a_save_the_outer_one_counts(tmp_path: Path) -> None:
    _, saves = save_and_look(tmp_path, loop='iter', custom_hooks=[SaveInsideSave()])
    assert [save.name for save in saves] == [f'iter_{n}.pth' for n in (4, 8, 12)]
    inner = size_of(tmp_path, 'inner.pth')
    assert saves[2].bytes == size_of(tmp_path, saves[2].name) + inner


def test_a_save_in_a_thread_of_its_own_holds_nothing_up(tmp_path: Path) -> None:
    never = {'interval': -1, 'by_epoch': False, 'save_last': False}
    _, saves = save_and_look(
        tmp_path, loop='iter', checkpoint=never, custom_hooks=[SaveInThread()]
    )
    assert saves == []
    assert (tmp_path / 'threaded.pth').exists()


@pytest.mark.parametrize('persistent', [True, False])
def test_workers_that_ended_with_their_epoch_are_no_workers(
    tmp_path: Path, persistent: bool
) -> None:
    _, saves = save_and_look(
        tmp_path,
        epochs=2,
        num_workers=2,
        persistent_workers=persistent,
        checkpoint=BY_EPOCH,
    )
    assert [save.workers for save in saves] == [2 * persistent] * 2


def test_waits_after_a_save_are_set_beside_the_usual_ones(tmp_path: Path) -> None:
    _, saves = save_and_look(
        tmp_path,
        loop='iter',
        iterations=16,
        num_workers=1,
        item_s=0.01,
        checkpoint={'interval': 8, 'by_epoch': False},
        custom_hooks=[SleepBeforeSave(0.2)],
    )
    assert len(saves) == 2
    first, last = evidence_of(tmp_path).save_aftermaths
    # one worker makes two batches ahead, of 20 ms each
    assert (first.iteration, first.iterations) == (8, 2)
    assert first.usual_wait_s is not None
    assert first.waits_s < first.usual_wait_s
    assert (last.iteration, last.iterations, last.waits_s) == (16, 0, 0.0)


def test_what_a_save_took_is_on_the_next_line_and_on_no_other(tmp_path: Path) -> None:
    _, saves = save_and_look(
        tmp_path, loop='iter', log_interval=2, custom_hooks=[SleepBeforeSave(0.02)]
    )
    shown = {line['step']: line.get('save_s') for line in scalar_lines(tmp_path)}
    assert [step for step, value in shown.items() if value is not None] == [6, 10]
    assert shown[6] == pytest.approx(saves[0].wall_s, rel=0.25)


def fail_and_look(work_dir: Path, error: type[Exception], **arguments: Any) -> Any:
    """Train until a save fails; the record of that save."""
    runner = build_runner(work_dir, loop='iter', **arguments)
    with pytest.raises(error) as caught:
        train(runner)
    assert 'mmgpu_hooks' not in str(caught.value)
    assert_nothing_is_left(runner)
    evidence = evidence_of(work_dir)
    assert evidence.sources_off == ()
    assert evidence.end is not None
    assert (evidence.end.status, evidence.end.error) == ('failed', error.__name__)
    return evidence.save_records[-1]


def test_what_a_save_raises_passes_through(tmp_path: Path) -> None:
    checkpoint = {
        **EVERY_4,
        'out_dir': 'toy://bucket',
        'backend_args': {'backend': 'toy', 'is_full': True},
    }
    save = fail_and_look(tmp_path, OSError, checkpoint=checkpoint)
    assert (save.iteration, save.error, save.bytes) == (4, 'OSError', None)
    assert save.unknown['bytes'] == 'it ended with OSError'
    assert set(save.phases) == set(SAVE_PHASES)


def test_a_hook_that_fails_before_a_save_is_written(tmp_path: Path) -> None:
    save = fail_and_look(
        tmp_path, KeyError, checkpoint=EVERY_4, custom_hooks=[FailBeforeSave()]
    )
    assert (save.error, save.backend) == ('KeyError', None)
    assert set(save.phases) == {'rest'}


def test_a_disk_that_is_full(tmp_path: Path, tiny_disk: Path) -> None:
    save = fail_and_look(
        tmp_path, OSError, checkpoint={**EVERY_4, 'out_dir': str(tiny_disk)}
    )
    assert (save.error, save.backend) == ('OSError', 'LocalBackend')
    assert (save.is_remote, save.bytes) == (False, None)


@pytest.fixture
def tiny_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of one page."""
    folder = tmp_path_factory.mktemp('tiny')
    command = ['mount', '-t', 'tmpfs', '-o', 'size=4k', 'tmpfs', str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f'a file system cannot be mounted here: {done.stderr.strip()}')
    yield folder
    subprocess.run(['umount', str(folder)], check=True)


def test_without_schedstat_wall_and_cpu_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = functools.partial(save_watch.ThreadClock, tmp_path / 'no_proc')
    monkeypatch.setattr(save_watch, 'ThreadClock', hidden)
    train(build_runner(tmp_path, loop='iter', checkpoint=EVERY_4))
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    for save in evidence.save_records:
        assert save.wall_s > 0.0
        assert save.cpu_s is not None
        assert (save.run_delay_s, save.blocked_s) == (None, None)
        reason = save.unknown['run_delay_s, blocked_s']
        assert reason.startswith('the kernel does not show schedstat: ')


class LookAtWorkers(Hook):
    """Keeps the nice values of all child processes, by iteration."""

    def __init__(self) -> None:
        self.seen: list[set[int]] = []

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        children = multiprocessing.active_children()
        self.seen.append(
            {os.getpriority(os.PRIO_PROCESS, child.pid or 0) for child in children}
        )


@pytest.mark.parametrize(
    ('loop', 'persistent'), [('epoch', False), ('epoch', True), ('iter', False)]
)
def test_workers_give_way_at_each_start_and_no_loss_changes(
    tmp_path: Path, loop: str, persistent: bool
) -> None:
    losses = []
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for name, more in (('plain', {}), ('polite', {'worker_nice': own + 7})):
        look = LookAtWorkers()
        runner = train(
            build_runner(
                tmp_path / name,
                loop=loop,
                epochs=2,
                iterations=8,
                num_workers=2,
                persistent_workers=persistent,
                hook={**HOOK, **more},
                custom_hooks=[LossTape(), look],
            )
        )
        run = evidence_of(tmp_path / name).run
        assert run.worker_nice == more.get('worker_nice')
        losses.append(losses_of(runner))
        # at the last batches of an epoch the workers may have ended
        nice = set().union(*look.seen)
        assert nice == {own + 7 * bool(more)}
        assert look.seen[0] == nice
    assert losses[0] == losses[1]
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_slow_write_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyBackend, 'stored', {})
    checkpoint = {
        **EVERY_4,
        'out_dir': 'toy://bucket',
        'backend_args': {'backend': 'toy', 'put_s': 0.6},
    }
    runner = train(build_runner(tmp_path, loop='iter', checkpoint=checkpoint))
    lines = [
        line for line in log_of(runner).splitlines() if 'GPUEfficiencyHook: ' in line
    ]
    # the summary comes last
    first, _ = (line.split('GPUEfficiencyHook: ')[1] for line in lines)
    assert first.startswith('Saving iter_4.pth')
