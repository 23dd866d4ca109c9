"""Cache folder of parsed annotations, whose files are mapped read-only into memory.

Samples in it are pickles, and a pickle runs code. So nothing is read but from a folder
and a file that belong to this user and that nobody else may write; neither may be a
link. A file is written under another name and renamed once it is whole and on the disk,
so that a reader meets all of it or nothing, whatever is killed. It may be deleted at
any time: who has mapped it keeps it.

What is kept is checked by what was read. The key says which data set it is (arguments,
class, code, versions), and the file holds the state of every file that Python opened
while it was parsed. The folder is opened once and checked by its descriptor, so no name
is looked up twice. A writer holds a lock on its part as long as it lives, which tells a
killed one's from a living one's; where nothing can be locked, its process and the age
of the part do. An array in it is a subclass that is pickled as its file only while a
process is being spawned.

All bytes have a CRC-32, which each rank checks before it maps them: 0.05 s for 75 MB,
where parsing takes 7 s. A note that somebody has checked them before would save that,
and miss what a disk has lost since. They are read for it and not mapped: where the disk
has lost them, a read fails, and a mapped byte would kill the training (SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import multiprocessing.context
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mmgpu_hooks.measure.clock import read_age_s
from mmgpu_hooks.measure.mounts import read_mount
from mmgpu_hooks.schema.checkup import CacheFault, CacheUse
from mmgpu_hooks.schema.errors import SaidError
from mmgpu_hooks.schema.text import Text, phrase

FOLDER_VARIABLE = 'MMGPU_CACHE'
"""Environment variable that names the folder of the annotation cache."""

MOST_BYTES = 20 * 10**9
"""Size limit in bytes of the annotation cache; least recently used files go first."""
SPARE_TIMES = 2
"""Free space needed to write a cache file, as a multiple of the file's size."""

_SUFFIX, _PART_SUFFIX = '.annotations', '.part'
_MAGIC = b'mmgpu annotations 2\n'
_HEAD = struct.Struct('<20sQI')
"""Layout of a cache file's first bytes: magic; length and CRC-32 of the header."""
_PAGE = 4096
_MOST_DIGITS = 64
"""Spare bytes in a cache file's header for the digits of section offsets."""
_CHUNK = 2**20
"""Number of bytes of a cache file read at a time to compute its CRC-32."""
_SILENT_S = 600.0
"""Seconds without a write after which an unfinished cache file counts as abandoned.

Who writes still finds its part gone, and keeps nothing."""
_OPEN = getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_CLOEXEC', 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class CacheError(SaidError):
    """Raised when the annotation cache cannot be used; the text is the reason.

    Args:
        reason: Sentence for the log, without its full stop.
        fault: Kind of the fault, which says what mends it; ``None`` for any other.
    """

    def __init__(self, reason: Text, fault: CacheFault | None = None) -> None:
        super().__init__(reason)
        self.fault = fault


class DamagedError(CacheError):
    """Raised when a cache file is damaged; it is then safe to write the file anew."""


class FileStamp(NamedTuple):
    """Size, times and inode of a file when it was read, to notice later changes."""

    path: str
    """Absolute path of the file that was read."""
    size: int
    mtime_ns: int
    ctime_ns: int
    """Time (ns since 1970) of the last change to the file or its metadata (ctime)."""
    inode: int


def read_stamp(path: str) -> FileStamp:
    """Reads the size, times and inode of a file, following symbolic links.

    Raises:
        OSError: If nothing is there.
    """
    info = os.stat(path)
    return FileStamp(
        path, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino
    )


class _Section(msgspec.Struct, array_like=True, frozen=True):
    """Section of an annotation cache file: offset and size in bytes, and CRC-32."""

    begin: int
    size: int
    crc: int


class _Header(msgspec.Struct, frozen=True):
    """Header of an annotation cache file: key, parsed files, place of each section."""

    key: str
    files: list[tuple[str, int, int, int, int]]
    state: _Section
    addresses: _Section
    data: _Section


@dataclass(frozen=True)
class ParsedAnnotations:
    """Parsed annotations of one data set: pickled attributes and serialised samples."""

    state: bytes
    """Pickle of the attributes that a data set gets by parsing its annotations."""
    data: npt.NDArray[np.uint8]
    """Serialised samples of the data set: its ``data_bytes``."""
    addresses: npt.NDArray[np.int64]
    """End offset in bytes of each sample in ``data_bytes`` (the ``data_address``)."""
    is_shared: bool
    """True if the arrays are memory-mapped: all processes share one copy of them."""


def locate_folder(environ: Mapping[str, str]) -> Path:
    """Returns the path of this user's annotation cache; the folder may not exist yet.

    Raises:
        CacheError: If nothing says where the user's files are.
    """
    own = environ.get(FOLDER_VARIABLE)
    if own:
        return Path(os.path.abspath(os.path.expanduser(own)))
    base = environ.get('XDG_CACHE_HOME', '')
    if not os.path.isabs(base):
        base = os.path.join(environ.get('HOME') or os.path.expanduser('~'), '.cache')
    if not os.path.isabs(base):
        raise CacheError(
            phrase(
                'no home folder is known; set {variable} to a folder',
                variable=FOLDER_VARIABLE,
            )
        )
    return Path(base) / 'mmgpu_hooks' / 'annotations'


class CacheFolder:
    """Opened folder of parsed annotations, which reads and writes the files in it.

    Args:
        path: Of the folder, absolute; with its parents it is made where it is missing.

    Raises:
        CacheError: If it is not this user's alone, or cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError as error:
            raise _explain(path, error) from error
        try:
            _check_folder(os.fstat(self._fd), path)
        except BaseException:
            os.close(self._fd)
            raise
        mount = read_mount(os.path.realpath(path))
        self._is_network = mount is not None and mount.is_network

    def close(self) -> None:
        """Closes the annotation cache's folder; arrays already mapped stay mapped."""
        os.close(self._fd)

    def read(self, key: str) -> ParsedAnnotations | None:
        """Maps the annotations cached under a key, unless their source files changed.

        Args:
            key: All that it depends on beside those files.

        Returns:
            ``None`` where nothing is kept, or what is kept is old.

        Raises:
            DamagedError: If what is kept is not what was written.
            CacheError: If a file stands there that is not this user's alone.
        """
        name = _name(key)
        try:
            # not a pipe, which would be waited for
            flags = os.O_RDONLY | os.O_NONBLOCK | _OPEN
            descriptor = os.open(name, flags, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _explain(self.path / name, error) from error
        file = _OpenFile(descriptor)
        info = os.fstat(descriptor)
        _check_own(info, self.path / name, is_folder=False)
        # a file that another host deletes is gone under who has mapped it there
        buffer: bytes | None = None
        try:
            header = _read_header(descriptor, info.st_size)
            if header is None or header.key != key or not _are_current(header.files):
                return None
            if self._is_network:
                buffer = _read_whole(descriptor, info.st_size)
            for section in (header.state, header.addresses, header.data):
                if _sum_up(descriptor, buffer, section) != section.crc:
                    raise _TornError(
                        phrase('its bytes are not those that were written')
                    )
            state = os.pread(descriptor, header.state.size, header.state.begin)
        except (_TornError, OSError) as error:
            # a disk that cannot read it any more may well write it anew elsewhere
            raise DamagedError(
                phrase('{path} is damaged: {error}', path=self.path / name, error=error)
            ) from error
        # what was used last goes last
        with contextlib.suppress(OSError):
            os.utime(descriptor)
        data = _open_array(file, buffer, header.data, np.uint8)
        addresses = _open_array(file, buffer, header.addresses, np.int64)
        return ParsedAnnotations(state, data, addresses, is_shared=not self._is_network)

    def keep(
        self,
        key: str,
        files: Sequence[FileStamp],
        state: bytes,
        data: npt.NDArray[np.uint8],
        addresses: npt.NDArray[np.int64],
    ) -> bool:
        """Writes parsed annotations to the cache folder; if that fails, leaves no file.

        Args:
            key: As :meth:`read` is given.
            files: All that was read, in the state that it was read in.
            state: See :class:`ParsedAnnotations`, as the next two.
            data: Likewise.
            addresses: Likewise.

        Returns:
            False where another process is writing the same.

        Raises:
            CacheError: If there is no room.
            OSError: If it cannot be written.
        """
        name = _name(key)
        parts = _lay_out(key, files, state, data, addresses)
        size = sum(len(part) for part in parts)
        if size > MOST_BYTES:
            raise CacheError(
                phrase(
                    '{needed_bytes} are more than the {most_bytes} that may be kept',
                    needed_bytes=size,
                    most_bytes=MOST_BYTES,
                )
            )
        if not self._make_room(size, name):
            return False
        system = os.fstatvfs(self._fd)
        free = system.f_bavail * system.f_frsize
        if free < SPARE_TIMES * size:
            raise CacheError(
                phrase(
                    '{folder} has {free_bytes} free, less than {least_times:d} times '
                    'the {needed_bytes} to be written',
                    folder=self.path,
                    free_bytes=free,
                    least_times=SPARE_TIMES,
                    needed_bytes=size,
                )
            )
        return self._write(name, parts)

    def _write(self, name: str, parts: Sequence[memoryview]) -> bool:
        """Writes a cache file via a temporary one; returns False if that had vanished.

        That one writes the same, or has written it.
        """
        writer = f'{_name_host()}.{os.getpid()}.{secrets.token_hex(4)}'
        part_name = f'{name}.{writer}{_PART_SUFFIX}'
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        descriptor = os.open(part_name, flags, 0o600, dir_fd=self._fd)
        try:
            # held as long as this process lives: see `_is_abandoned`
            _lock(descriptor)
            for part in parts:
                _write_all(descriptor, part)
            os.fsync(descriptor)
            try:
                os.rename(part_name, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except FileNotFoundError:
                return False
            return True
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part_name, dir_fd=self._fd)
            raise
        finally:
            os.close(descriptor)

    def _make_room(self, size: int, name: str) -> bool:
        """Deletes cache files beyond the size limit, and leftovers of killed writers.

        Returns:
            False where another process is writing a file of this name.
        """
        kept = []
        for found in _list_files(self._fd):
            if found.name.endswith(_PART_SUFFIX):
                if self._is_abandoned(found):
                    self._unlink(found.name)
                elif found.name.startswith(name):
                    return False
            elif found.name != name:
                kept.append(found)
        kept.sort(key=lambda found: found.used_ns, reverse=True)
        total = size + sum(found.size for found in kept)
        while total > MOST_BYTES and kept:
            oldest = kept.pop()
            self._unlink(oldest.name)
            total -= oldest.size
        return True

    def _is_abandoned(self, part: _KeptFile) -> bool:
        """True if no process still writes an unfinished cache file.

        Its lock is free then; where nothing can be locked, its writer and age tell.
        """
        is_free = None
        with contextlib.suppress(OSError):
            # NFS locks only what is open for writing
            descriptor = os.open(part.name, os.O_RDWR | _OPEN, dir_fd=self._fd)
            try:
                is_free = _lock(descriptor)
            finally:
                os.close(descriptor)
        return _is_writer_gone(part) if is_free is None else is_free

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)


def _lock(descriptor: int) -> bool | None:
    """Locks an open file until it is closed; returns True if that succeeded.

    Returns:
        False if another process holds the lock; ``None`` where its file system has
        none, as Lustre mounted without ``flock``.
    """
    import fcntl  # Windows has none, and imports this module

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _name_host() -> str:
    return f'{zlib.crc32(os.uname().nodename.encode()):08x}'


def _is_writer_gone(part: _KeptFile) -> bool:
    """True if an unfinished file's writer has ended or has long written nothing."""
    host, pid = [*part.name.split('.')[-4:-2], '', ''][:2]
    if host == _name_host() and pid.isdecimal():
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            pass  # another user's
    # the clock of another host may be ahead
    return abs(read_age_s(part.used_ns)) > _SILENT_S


class _KeptFile(NamedTuple):
    """File of the annotation cache: its name, size in bytes and time of last use."""

    name: str
    size: int
    used_ns: int
    """Time, in ns since 1970, at which the cache file was last written or mapped."""


def _list_files(folder: int | str) -> Iterator[_KeptFile]:
    with os.scandir(folder) as found:
        for file in found:
            if not file.name.endswith((_SUFFIX, _PART_SUFFIX)):
                continue
            with contextlib.suppress(OSError):
                info = file.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    yield _KeptFile(file.name, info.st_size, info.st_mtime_ns)


def read_use(environ: Mapping[str, str]) -> CacheUse:
    """Counts the files and bytes of the annotation cache, without opening any file."""
    try:
        path = locate_folder(environ)
    except CacheError as error:
        return CacheUse(reason=error.said)
    is_there = False
    try:
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            return CacheUse(str(path))
        is_there = True
        _check_folder(info, path)
        sizes = [file.size for file in _list_files(str(path))]
    except OSError as error:
        found = _explain(path, error)
    except CacheError as error:
        found = error
    else:
        return CacheUse(str(path), is_there=True, files=len(sizes), bytes=sum(sizes))
    target = _find_target(path) if found.fault == 'link' else None
    return CacheUse(
        str(path), is_there, reason=found.said, fault=found.fault, target=target
    )


def _find_target(link: Path) -> str | None:
    """Returns the target folder of a symbolic link; ``None`` if unfit as the cache."""
    target = os.path.realpath(link)
    try:
        _check_folder(os.stat(target), Path(target))
    except FileNotFoundError:
        pass  # it is made
    except (CacheError, OSError):
        return None
    return target


def _name(key: str) -> str:
    return hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest() + _SUFFIX


def _explain(path: Path, error: OSError) -> CacheError:
    # a folder above may be one that this user may not search
    if error.errno == errno.ELOOP or os.path.islink(path):
        return CacheError(phrase('{path} is a link', path=path), 'link')
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return CacheError(phrase('{path} is no folder', path=path), 'kind')
    found = error.strerror or str(error)
    return CacheError(phrase('{path}: {found}', path=path, found=found))


def _check_folder(info: os.stat_result, path: Path) -> None:
    """Checks that only this user owns a folder and can write files into it.

    Raises:
        CacheError: If not.
    """
    _check_own(info, path)
    _check_writable(info, path)


def _check_own(info: os.stat_result, path: Path, *, is_folder: bool = True) -> None:
    """Checks that a file or folder belongs to this user and nobody else may change it.

    Raises:
        CacheError: If not.
    """
    is_kind = stat.S_ISDIR if is_folder else stat.S_ISREG
    if stat.S_ISLNK(info.st_mode):
        raise CacheError(phrase('{path} is a link', path=path), 'link')
    if not is_kind(info.st_mode):
        said = phrase('{path} is no regular file', path=path)
        if is_folder:
            said = phrase('{path} is no folder', path=path)
        raise CacheError(said, 'kind')
    if info.st_uid != os.geteuid():
        reason = phrase(
            '{path} belongs to another user (uid {uid:d})', path=path, uid=info.st_uid
        )
        raise CacheError(reason, 'owner')
    if info.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(info.st_mode)
        reason = phrase(
            '{path} may be written by others (mode {mode:04o})', path=path, mode=mode
        )
        raise CacheError(reason, 'mode')


def _check_writable(info: os.stat_result, path: Path) -> None:
    """Checks that this user may list, search and write a folder.

    Raises:
        CacheError: If not.
    """
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        is_closed = info.st_mode & stat.S_IRWXU != stat.S_IRWXU
        reason = phrase('{path} cannot be written', path=path)
        raise CacheError(reason, 'mode' if is_closed else None)


def _are_current(files: Sequence[tuple[str, int, int, int, int]]) -> bool:
    """True if the files from which annotations were parsed have not changed since."""
    try:
        return all(read_stamp(path) == (path, *state) for path, *state in files)
    except (OSError, ValueError):
        return False


class _TornError(SaidError):
    """Raised when a cache file is cut off or damaged; the text says how."""


def _read_header(descriptor: int, size: int) -> _Header | None:
    """Reads a cache file's header; ``None`` if the file has another format version.

    Raises:
        _TornError: If the file is not whole.
    """
    head = os.pread(descriptor, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise _TornError(phrase('it is cut off'))
    magic, length, crc = _HEAD.unpack(head)
    if magic != _MAGIC:
        return None
    text = os.pread(descriptor, min(length, size), _HEAD.size)
    if len(text) != length or zlib.crc32(text) != crc:
        raise _TornError(phrase('its header is not the one that was written'))
    header = msgspec.json.decode(text, type=_Header)
    # the data comes last
    if header.data.begin + header.data.size != size:
        raise _TornError(phrase('its size is not the one that was written'))
    return header


def _sum_up(descriptor: int, buffer: bytes | None, section: _Section) -> int:
    """Computes the CRC-32 of a cache file's section, from the file or a buffer."""
    end = section.begin + section.size
    if buffer is not None:
        return zlib.crc32(memoryview(buffer)[section.begin : end])
    crc, begin = 0, section.begin
    while begin < end:
        chunk = os.pread(descriptor, min(end - begin, _CHUNK), begin)
        if not chunk:
            break
        crc = zlib.crc32(chunk, crc)
        begin += len(chunk)
    return crc


def _lay_out(
    key: str,
    files: Sequence[FileStamp],
    state: bytes,
    data: npt.NDArray[np.uint8],
    addresses: npt.NDArray[np.int64],
) -> list[memoryview]:
    """Returns the parts of an annotation cache file: header, sections and padding."""
    plain = np.ascontiguousarray(addresses, np.int64)
    samples = np.ascontiguousarray(data)
    sizes = len(state), plain.nbytes, samples.nbytes
    crcs = zlib.crc32(state), zlib.crc32(plain.data), zlib.crc32(samples.data)
    stamps = [(each[0], *each[1:]) for each in files]

    def encode(begins: Sequence[int]) -> bytes:
        sections = map(_Section, begins, sizes, crcs)
        return msgspec.json.encode(_Header(key, stamps, *sections))

    # where sections begin stands in the header, and its length says where that is
    room = _HEAD.size + len(encode((0, 0, 0))) + _MOST_DIGITS
    begins, end = list[int](), room
    for size in sizes:
        begins.append(-(-end // _PAGE) * _PAGE)
        end = begins[-1] + size
    header = encode(begins).ljust(room - _HEAD.size)
    head = _HEAD.pack(_MAGIC, len(header), zlib.crc32(header))
    parts, written = [memoryview(head + header)], len(head) + len(header)
    bodies = (memoryview(state), plain.data, samples.data)
    for begin, body in zip(begins, bodies):
        parts += [memoryview(bytes(begin - written)), body.cast('B')]
        written = begin + len(parts[-1])
    return parts


def _write_all(descriptor: int, part: memoryview) -> None:
    while part:
        written = os.write(descriptor, part)
        if not written:
            raise OSError(errno.EIO, phrase('the file system takes no more'))
        part = part[written:]


def _read_whole(descriptor: int, size: int) -> bytes:
    chunks, begin = [], 0
    while begin < size:
        chunk = os.pread(descriptor, min(size - begin, 2**26), begin)
        if not chunk:
            break
        chunks.append(chunk)
        begin += len(chunk)
    return b''.join(chunks)


class _OpenFile:
    """File descriptor that is closed together with the last object that uses it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class MappedArray(np.ndarray[Any, Any]):
    """A read-only NumPy array in a memory-mapped file.

    A process that is spawned or made by a fork server gets the file, not its bytes. Any
    other copy, and a pickle, is a plain array.
    """

    _source: tuple[_OpenFile, int, int] | None = None
    """Mapped file, and the array's byte offset and size in it; ``None`` for a slice."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._source is None or not _is_spawning():
            return np.asarray(self).__reduce_ex__(protocol)
        file, begin, size = self._source
        handle = reduction.DupFd(file.descriptor)
        return _map_again, (handle, begin, size, self.dtype.str)


def _is_spawning() -> bool:
    get = getattr(multiprocessing.context, 'get_spawning_popen', None)
    return get is not None and get() is not None


def _map_again(handle: Any, begin: int, size: int, kind: str) -> MappedArray:
    """Unpickles a :class:`MappedArray`: maps its file again in another process."""
    return _map_array(_OpenFile(handle.detach()), begin, size, kind)


def _map_array(file: _OpenFile, begin: int, size: int, kind: Any) -> MappedArray:
    memory = mmap.mmap(file.descriptor, begin + size, access=mmap.ACCESS_READ)
    dtype = np.dtype(kind)
    plain = np.frombuffer(memory, dtype, size // dtype.itemsize, begin)
    array = plain.view(MappedArray)
    # a process that is spawned is given each descriptor once
    array._source = _OpenFile(os.dup(file.descriptor)), begin, size
    return array


def _open_array(
    file: _OpenFile, buffer: bytes | None, section: _Section, kind: Any
) -> npt.NDArray[Any]:
    dtype = np.dtype(kind)
    if buffer is None:
        return _map_array(file, section.begin, section.size, dtype)
    count = section.size // dtype.itemsize
    return np.frombuffer(buffer, dtype, count, section.begin)
