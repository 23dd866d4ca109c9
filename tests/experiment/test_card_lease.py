from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.experiment.card_lease import CardLease, CardLeases, LeaseError

UUID = 'GPU-8a56cbd2'

HOLD = """
import sys
from pathlib import Path
from mmgpu_hooks.experiment.card_lease import CardLease, CardLeases
leases = CardLeases(Path(sys.argv[1]))
with leases.picking():
    lease = leases.take(sys.argv[2])
    assert isinstance(lease, CardLease), lease
    lease.pass_on(['python', 'train.py'])
print('held', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / 'leases'


def take(folder: Path, uuid: str = UUID, **options) -> CardLease | str:
    leases = CardLeases(folder, **options)
    with leases.picking():
        lease = leases.take(uuid)
    leases.close()
    return lease


def test_a_lease_is_had_by_one_and_given_back(folder: Path):
    lease = take(folder)
    assert isinstance(lease, CardLease)
    assert take(folder) == 'in use by another process'
    other = take(folder, 'MIG-GPU-1/0/3')
    assert isinstance(other, CardLease)
    lease.release()
    again = take(folder)
    assert isinstance(again, CardLease)
    again.release()
    other.release()


def test_a_killed_process_has_no_lease(folder: Path):
    command = [sys.executable, '-c', HOLD, str(folder), UUID]
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == 'held\n'
        told = take(folder)
        assert isinstance(told, str)
        assert told.startswith(f'in use by process {holder.pid} of ')
        assert told.endswith(': python train.py')
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        lease = take(folder)
        assert isinstance(lease, CardLease)
        lease.release()


def test_a_reservation_ends_by_the_clock(folder: Path):
    clock = HandClock()
    lease = take(folder, clock=clock)
    assert isinstance(lease, CardLease)
    lease.reserve(60)
    lease.release()
    clock.turn(20)
    told = take(folder, clock=clock)
    assert isinstance(told, str)
    assert told.startswith(f'reserved for 40 s more by process {os.getpid()} of ')
    clock.turn(40)
    late = take(folder, clock=clock)
    assert isinstance(late, CardLease)
    late.release()


def test_a_reservation_from_before_a_restart_is_over(folder: Path):
    clock = HandClock()
    lease = take(folder, clock=clock)
    assert isinstance(lease, CardLease)
    lease.reserve(60)
    lease.release()
    clock.turn(-90)
    again = take(folder, clock=clock)
    assert isinstance(again, CardLease)
    again.release()


@pytest.mark.parametrize(
    'text',
    [
        '',
        '{',
        '[]',
        '\xff\xfe',
        '[' * 2000,
        json.dumps({'from_boot_s': 0, 'seconds': 1e9}),
        json.dumps({'from_boot_s': 'a', 'seconds': []}),
        json.dumps({'from_boot_s': 0, 'seconds': float('nan')}),
    ],
)
def test_what_a_stranger_wrote_keeps_nobody_off(folder: Path, text):
    folder.mkdir()
    (folder / f'{UUID}.lock').write_bytes(text.encode('latin-1'))
    lease = take(folder)
    assert isinstance(lease, CardLease)
    lease.release()


def test_what_a_stranger_wrote_is_shown_clean(folder: Path):
    lease = take(folder)
    assert isinstance(lease, CardLease)
    facts = {'pid': 7, 'user': '\x1b[2J\x07', 'command': 'x\n' * 500}
    (folder / f'{UUID}.lock').write_text(json.dumps(facts))
    assert take(folder) == f'in use by process 7 of ?[2J?: {"x?" * 30}'
    lease.release()


def test_all_users_of_the_host_may_use_the_folder(folder: Path):
    before = os.umask(0o077)
    try:
        lease = take(folder)
    finally:
        os.umask(before)
    assert isinstance(lease, CardLease)
    lease.release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {f'{UUID}.lock': 0o666, 'picking.lock': 0o666}


def test_a_file_that_is_no_lock_is_refused(folder: Path, tmp_path: Path):
    folder.mkdir()
    theirs = tmp_path / 'theirs'
    theirs.write_text('precious')
    lock = folder / f'{UUID}.lock'
    lock.symlink_to(theirs)
    told = take(folder, sleep=lambda seconds: None)
    assert str(told).startswith('cannot be leased: expected a folder for leases')
    lock.unlink()
    os.link(theirs, lock)
    assert 'is not a plain file' in str(take(folder))
    lock.unlink()
    os.mkfifo(lock)
    assert 'is not a plain file' in str(take(folder))
    assert theirs.read_text() == 'precious'


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / 'file').touch()
    with pytest.raises(LeaseError, match=r'found Not a directory; name another'):
        take(tmp_path / 'file' / 'leases')
    with pytest.raises(LeaseError, match='Not a directory'):
        take(tmp_path / 'file')


def test_a_lock_file_that_was_removed_is_no_lease(folder: Path, monkeypatch):
    lock, flock, removed = folder / f'{UUID}.lock', fcntl.flock, []

    def remove_first(descriptor: int, how: int) -> None:
        # somebody cleans up between the moment it was opened and the lock
        if lock.exists() and not removed:
            removed.append(lock.unlink())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, 'flock', remove_first)
    lease = take(folder)
    assert isinstance(lease, CardLease)
    assert removed
    assert take(folder) == 'in use by another process'
    lease.release()


def test_one_process_picks_at_a_time(folder: Path):
    leases = CardLeases(folder)
    with (
        leases.picking(),
        (folder / 'picking.lock').open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with leases.picking():
        pass
    leases.close()
