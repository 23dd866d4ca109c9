"""Tests that the annotation cache uses only complete, current files of its user."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import os
import pickle
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmgpu_hooks.measure import annotation_cache
from mmgpu_hooks.measure.annotation_cache import (
    CacheError,
    CacheFolder,
    DamagedError,
    MappedArray,
    locate_folder,
    read_stamp,
    read_use,
)

KEY = "kind('CocoDataset'), file('/data/train.json')"
STATE = pickle.dumps({'cat_ids': [1, 2]})


@pytest.fixture
def source(tmp_path) -> Path:
    """Path of an annotation file."""
    path = tmp_path / 'train.json'
    path.write_text('{}')
    return path


@pytest.fixture
def folder(tmp_path):
    """Opened folder of the annotation cache."""
    found = CacheFolder(tmp_path / 'cache' / 'annotations')
    yield found
    found.close()


def make_arrays(samples: int = 50, seed: int = 0) -> tuple[Any, Any]:
    """Returns serialised samples, and the offset at which each ends."""
    chosen = np.random.default_rng(seed)
    ends = np.cumsum(chosen.integers(20, 400, samples))
    return chosen.integers(0, 256, int(ends[-1]), np.uint8), ends


def keep(folder: CacheFolder, source: Path, key: str = KEY, **arrays: Any) -> bool:
    data, ends = make_arrays(**arrays)
    return folder.keep(key, [read_stamp(str(source))], STATE, data, ends)


def find_file(folder: CacheFolder) -> Path:
    (path,) = folder.path.glob('*.annotations')
    return path


def test_what_is_kept_is_read_again(folder, source):
    assert folder.read(KEY) is None
    assert keep(folder, source)
    entry, (data, ends) = folder.read(KEY), make_arrays()
    assert entry is not None
    assert entry.state == STATE
    assert np.array_equal(entry.data, data)
    assert np.array_equal(entry.addresses, ends)
    assert entry.addresses.dtype == np.int64
    assert entry.is_shared
    assert not entry.data.flags.writeable
    assert folder.read(f'{KEY} of another version') is None
    assert oct(folder.path.stat().st_mode & 0o777) == '0o700'
    assert oct(find_file(folder).stat().st_mode & 0o777) == '0o600'


@pytest.mark.parametrize('samples', [1, 3, 1000])
def test_any_size_is_laid_out(folder, source, samples):
    assert keep(folder, source, samples=samples)
    entry = folder.read(KEY)
    assert np.array_equal(entry.data, make_arrays(samples)[0])


def change_text(path: Path) -> None:
    path.write_text('{"a": 1}')


def change_and_set_back(path: Path) -> None:
    info = path.stat()
    path.write_text('[]')
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def replace_file(path: Path) -> None:
    info = path.stat()
    other = path.with_name('other')
    other.write_text('[]')
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.rename(path)


CHANGES = (change_text, change_and_set_back, replace_file, os.unlink)


@pytest.mark.parametrize('change', CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_changed_makes_it_old(folder, source, change):
    keep(folder, source)
    change(source)
    assert folder.read(KEY) is None


def test_a_torn_file_is_damaged(folder, source):
    keep(folder, source)
    path = find_file(folder)
    whole = path.read_bytes()
    for size in (0, 10, 40, 300, 4096, 5000, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match='is damaged: '):
            folder.read(KEY)
    path.write_bytes(whole + b'x')
    with pytest.raises(DamagedError, match='its size is not the one'):
        folder.read(KEY)
    path.write_bytes(whole)
    assert folder.read(KEY) is not None


PLACES = {'header': 60, 'attributes': 4100, 'addresses': 8200, 'first sample': 12300}


@pytest.mark.parametrize('is_network', [False, True], ids=['mapped', 'read'])
@pytest.mark.parametrize('place', [*PLACES, 'middle', 'last'])
def test_a_flipped_bit_is_found(folder, source, place, is_network):
    keep(folder, source)
    folder._is_network = is_network
    path = find_file(folder)
    whole = bytearray(path.read_bytes())
    middle = (12288 + len(whole)) // 2
    places = {**PLACES, 'middle': middle, 'last': len(whole) - 1}
    whole[places[place]] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedError, match=r'that (was|were) written'):
        folder.read(KEY)
    # and is written anew
    assert keep(folder, source)
    assert folder.read(KEY) is not None


def test_a_file_of_another_layout_is_none(folder, source):
    keep(folder, source)
    path = find_file(folder)
    path.write_bytes(path.read_bytes().replace(b'annotations 2', b'annotations 1', 1))
    assert folder.read(KEY) is None


def test_what_the_disk_has_lost_is_damaged_and_never_mapped(
    folder, source, monkeypatch
):
    keep(folder, source)
    read = os.pread

    def fail(descriptor: int, size: int, begin: int) -> bytes:
        if begin >= 12288:
            raise OSError(errno.EIO, 'Input/output error')
        return read(descriptor, size, begin)

    monkeypatch.setattr(os, 'pread', fail)
    monkeypatch.setattr(annotation_cache, '_map_array', None)
    with pytest.raises(DamagedError, match='Input/output error'):
        folder.read(KEY)


def test_reading_is_cheap_beside_parsing(folder, source):
    """Tests that reading 75 MB of cached annotations takes under 0.5 s of CPU."""
    data = np.zeros(75_000_000, np.uint8)
    ends = np.arange(1_000, 75_000_001, 1_000)
    folder.keep(KEY, [read_stamp(str(source))], STATE, data, ends)
    begun_s = time.process_time()
    assert folder.read(KEY) is not None
    assert time.process_time() - begun_s < 0.5


def plant_link(path: Path) -> None:
    path.rename(path.with_name('elsewhere'))
    path.symlink_to(path.with_name('elsewhere'))


def plant_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


PLANTED = {
    'another owner': (lambda path: os.chown(path, 4321, -1), 'belongs to another user'),
    'a link': (plant_link, 'is a link'),
    'written by a group': (lambda path: path.chmod(0o660), 'may be written by others'),
    'written by all': (lambda path: path.chmod(0o606), 'may be written by others'),
    'a pipe': (plant_pipe, 'is no regular file'),
}


@pytest.mark.parametrize('case', PLANTED)
def test_a_planted_file_is_never_read(folder, source, case):
    plant, reason = PLANTED[case]
    keep(folder, source)
    if case == 'another owner' and os.geteuid():
        pytest.skip('only root gives files away')
    plant(find_file(folder))
    with pytest.raises(CacheError, match=reason):
        folder.read(KEY)


@pytest.mark.parametrize(
    'case', ['another owner', 'a link', 'written by all', 'a file']
)
def test_a_folder_that_is_not_the_users_own_is_refused(tmp_path, case):
    path = tmp_path / 'annotations'
    path.mkdir(mode=0o700)
    if case == 'another owner':
        if os.geteuid():
            pytest.skip('only root gives folders away')
        os.chown(path, 4321, -1)
    elif case == 'a link':
        plant_link(path)
    elif case == 'written by all':
        path.chmod(0o777)
    else:
        path.rmdir()
        path.touch()
    reasons = {
        'another owner': 'belongs to another user (uid 4321)',
        'a link': 'is a link',
        'written by all': 'may be written by others (mode 0777)',
        'a file': 'is no folder',
    }
    with pytest.raises(CacheError) as refused:
        CacheFolder(path)
    assert str(refused.value) == f'{path} {reasons[case]}'
    use = read_use({'MMGPU_CACHE': str(path)})
    assert use.reason == str(refused.value)
    faults = {
        'another owner': 'owner',
        'a link': 'link',
        'written by all': 'mode',
        'a file': 'kind',
    }
    assert use.fault == faults[case]
    target = str(path.with_name('elsewhere')) if case == 'a link' else None
    assert use.target == target


@pytest.mark.parametrize('case', ['gone', 'written by all', 'a file', 'a loop'])
def test_where_a_link_leads_is_named_if_it_can_be_used(tmp_path, case):
    link, target = tmp_path / 'annotations', tmp_path / 'elsewhere'
    link.symlink_to(link if case == 'a loop' else target)
    if case == 'written by all':
        target.mkdir()
        target.chmod(0o777)
    elif case == 'a file':
        target.touch()
    use = read_use({'MMGPU_CACHE': str(link)})
    assert use.fault == 'link'
    assert use.target == (str(target) if case == 'gone' else None)


def test_a_folder_that_is_closed_is_refused(tmp_path, monkeypatch):
    path = tmp_path / 'annotations'
    path.mkdir(mode=0o500)
    # who runs the tests may be root
    monkeypatch.setattr(os, 'access', lambda path, mode: not mode & os.W_OK)
    for fault, mode in (('mode', 0o500), (None, 0o700)):
        path.chmod(mode)
        use = read_use({'MMGPU_CACHE': str(path)})
        assert (use.reason, use.fault) == (f'{path} cannot be written', fault)
        with pytest.raises(CacheError, match='cannot be written'):
            CacheFolder(path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(CacheError, match='file'):
        CacheFolder(tmp_path / 'file' / 'annotations')


def test_the_least_recently_used_go_first(folder, source, monkeypatch):
    size = sum(len(part) for part in measure_parts(source))
    monkeypatch.setattr(annotation_cache, 'MOST_BYTES', 3 * size + 100)
    for number, name in enumerate(('first', 'second', 'third')):
        assert keep(folder, source, name)
        path = folder.path / annotation_cache._name(name)
        os.utime(path, (1000 + number, 1000 + number))
    assert folder.read('first') is not None  # and so it was used last
    assert keep(folder, source, 'fourth')
    kept = [
        name for name in ('first', 'second', 'third', 'fourth') if folder.read(name)
    ]
    assert kept == ['first', 'third', 'fourth']
    monkeypatch.setattr(annotation_cache, 'MOST_BYTES', size - 1)
    with pytest.raises(CacheError, match='that may be kept'):
        keep(folder, source, 'fifth')


def measure_parts(source: Path) -> list[memoryview]:
    data, ends = make_arrays()
    stamps = [read_stamp(str(source))]
    return annotation_cache._lay_out('first', stamps, STATE, data, ends)


def test_nothing_is_written_where_there_is_no_room(folder, source, monkeypatch):
    monkeypatch.setattr(annotation_cache, 'SPARE_TIMES', 10**9)
    with pytest.raises(CacheError, match='free, less than'):
        keep(folder, source)
    assert list(folder.path.iterdir()) == []


FAILURES = {'a full disk': OSError(errno.ENOSPC, 'full'), 'Ctrl-C': KeyboardInterrupt()}


@pytest.mark.parametrize('case', FAILURES)
def test_what_fails_while_it_is_written_leaves_nothing(
    folder, source, monkeypatch, case
):
    write, error = os.write, FAILURES[case]

    def fail(descriptor: int, data: Any) -> int:
        if len(data) > 4096:
            raise error
        return write(descriptor, data)

    with monkeypatch.context() as planted:
        planted.setattr(os, 'write', fail)
        with pytest.raises(type(error)):
            keep(folder, source)
    assert list(folder.path.iterdir()) == []
    assert keep(folder, source)


def test_of_two_writers_one_writes(folder, source):
    part = name_part(folder, 77)
    has_locked, locks = os.pipe()
    child = os.fork()
    if not child:
        annotation_cache._lock(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600))
        os.write(locks, b'.')
        time.sleep(60)
        os._exit(0)
    os.read(has_locked, 1)
    assert not keep(folder, source)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # and what it left is cleared away
    assert keep(folder, source)
    assert not part.exists()


def name_part(folder: CacheFolder, pid: int, host: str | None = None) -> Path:
    """Returns the path of an unfinished cache file of the test's annotations."""
    name = annotation_cache._name(KEY)
    host = host or annotation_cache._name_host()
    return folder.path / f'{name}.{host}.{pid}.aa.part'


def refuse_locks(monkeypatch: Any, number: int) -> None:
    """Makes ``flock`` fail, as on a file system without locks."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr('fcntl.flock', flock)


def find_dead_pid() -> int:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


NO_LOCKS = {
    'Lustre': errno.ENOSYS,
    'no such operation': errno.EOPNOTSUPP,
    'no lock daemon': errno.ENOLCK,
}


@pytest.mark.parametrize('case', NO_LOCKS)
def test_where_nothing_locks_a_killed_writer_is_told_by_its_process(
    folder, source, monkeypatch, case
):
    refuse_locks(monkeypatch, NO_LOCKS[case])
    part = name_part(folder, os.getppid())
    part.touch(0o600)
    assert not keep(folder, source)
    part = part.rename(name_part(folder, find_dead_pid()))
    assert keep(folder, source)
    assert not part.exists()
    assert folder.read(KEY) is not None


@pytest.mark.parametrize('sign', [-1, 1], ids=['old', 'ahead'])
@pytest.mark.parametrize('host', ['another host', 'a pid that was given again'])
def test_where_nothing_locks_a_killed_writer_is_told_by_its_silence(
    folder, source, monkeypatch, host, sign
):
    refuse_locks(monkeypatch, errno.ENOSYS)
    part = name_part(folder, os.getppid(), '00000000' if 'another' in host else None)
    part.touch(0o600)
    assert not keep(folder, source)
    changed_s = time.time() + sign * (annotation_cache._SILENT_S - 60)
    os.utime(part, (changed_s, changed_s))
    assert not keep(folder, source)
    changed_s = time.time() + sign * (annotation_cache._SILENT_S + 60)
    os.utime(part, (changed_s, changed_s))
    assert keep(folder, source)
    assert not part.exists()


def test_a_lock_that_another_holds_is_no_missing_lock(folder, source, monkeypatch):
    refuse_locks(monkeypatch, errno.EWOULDBLOCK)
    part = name_part(folder, find_dead_pid())
    part.touch(0o600)
    os.utime(part, (0, 0))
    assert not keep(folder, source)


def test_a_part_is_locked_for_writing_as_nfs_asks(folder, source, monkeypatch):
    opened = []
    original = os.open

    def note(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith('.part'):
            opened.append(flags & os.O_ACCMODE)
        return original(path, flags, *args, **kwargs)

    name_part(folder, 77).touch(0o600)
    monkeypatch.setattr(os, 'open', note)
    assert keep(folder, source)
    assert opened[0] == os.O_RDWR


def test_who_is_taken_for_a_killed_writer_keeps_nothing(folder, source, monkeypatch):
    sync = os.fsync

    def take_over(descriptor: int) -> None:
        sync(descriptor)
        for part in folder.path.glob('*.part'):
            part.unlink()

    with monkeypatch.context() as planted:
        planted.setattr(os, 'fsync', take_over)
        assert not keep(folder, source)
    assert list(folder.path.iterdir()) == []
    assert keep(folder, source)


def test_writers_that_are_killed_leave_no_torn_file(folder, source):
    chosen, whole = random.Random(3), make_arrays(20_000)
    seen = 0
    for _ in range(20):
        child = os.fork()
        if not child:
            try:
                while True:
                    keep(folder, source, samples=20_000)
            finally:
                os._exit(1)
        time.sleep(chosen.uniform(0.001, 0.06))
        until = time.monotonic() + 60
        # on a busy machine the first one takes longer to write one whole
        while not seen and folder.read(KEY) is None and time.monotonic() < until:
            time.sleep(0.01)
        entry = folder.read(KEY)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for found in filter(None, (entry, folder.read(KEY))):
            assert np.array_equal(found.data, whole[0])
            assert np.array_equal(found.addresses, whole[1])
            seen += 1
    assert seen
    # the next writer clears away what they left
    assert keep(folder, source)
    assert len(list(folder.path.iterdir())) == 1


def test_deleting_is_safe_at_any_time(folder, source):
    keep(folder, source)
    entry = folder.read(KEY)
    find_file(folder).unlink()
    assert np.array_equal(entry.data, make_arrays()[0])
    assert folder.read(KEY) is None


def read_sum(array: Any, answers: Any) -> None:
    """Sends an array's type, its sum, and if it is mapped, from another process."""
    answers.put((type(array).__name__, int(np.sum(array)), array.base is not None))


@pytest.mark.parametrize('method', ['spawn', 'forkserver', 'fork'])
def test_a_process_that_is_started_maps_the_file(folder, source, method):
    keep(folder, source)
    entry = folder.read(KEY)
    find_file(folder).unlink()
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=read_sum, args=(entry.data, answers))
    process.start()
    answer = answers.get()
    process.join()
    assert answer == ('MappedArray', int(make_arrays()[0].sum()), True)


@pytest.mark.parametrize(
    'copied',
    [copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))],
    ids=['a copy', 'a pickle'],
)
def test_any_other_copy_is_a_plain_array(folder, source, copied):
    keep(folder, source)
    data = folder.read(KEY).data
    other = copied(data)
    assert np.array_equal(other, data)
    assert getattr(other, '_source', None) is None
    assert other.flags.writeable
    part = data[10:20]
    assert isinstance(part, MappedArray)
    assert type(pickle.loads(pickle.dumps(part))) is np.ndarray


def test_on_a_network_files_are_read_and_not_mapped(folder, source):
    keep(folder, source)
    folder._is_network = True
    entry = folder.read(KEY)
    assert not entry.is_shared
    assert np.array_equal(entry.data, make_arrays()[0])


def test_the_folder_is_the_users_own(tmp_path):
    home = {'HOME': '/home/me'}
    usual = Path('/home/me/.cache/mmgpu_hooks/annotations')
    assert locate_folder(home) == usual
    # a relative one is to be ignored, by its specification
    assert locate_folder({**home, 'XDG_CACHE_HOME': 'here'}) == usual
    own = {**home, 'XDG_CACHE_HOME': '/scratch/me'}
    assert locate_folder(own) == Path('/scratch/me/mmgpu_hooks/annotations')
    assert locate_folder({**own, 'MMGPU_CACHE': '/fast/me'}) == Path('/fast/me')


def test_use_of_the_cache_is_read_without_making_its_folder(tmp_path, source):
    environ = {'MMGPU_CACHE': str(tmp_path / 'cache' / 'annotations')}
    use = read_use(environ)
    assert (use.is_there, use.files, use.reason) == (False, 0, None)
    assert not (tmp_path / 'cache').exists()
    folder = CacheFolder(Path(environ['MMGPU_CACHE']))
    keep(folder, source)
    use = read_use(environ)
    assert (use.is_there, use.files) == (True, 1)
    assert use.bytes == find_file(folder).stat().st_size
    folder.close()
