"""Caches a data set's parsed annotations from one start of a training to the next.

What a data set makes of its annotation files is the same at each start and on each
rank, and takes minutes where the files are large. It is kept in a folder of the user's
(`measure/annotation_cache.py`) under all that it depends on, and mapped from there: all
ranks and workers of a host then share one copy.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import numpy as np
from mmengine.dataset import BaseDataset

from mmgpu_hooks.measure.annotation_cache import (
    CacheError,
    CacheFolder,
    DamagedError,
    FileStamp,
    ParsedAnnotations,
    locate_folder,
    read_stamp,
)
from mmgpu_hooks.measure.clock import read_age_s
from mmgpu_hooks.measure.dataset_start import (
    DatasetWatch,
    Initialisation,
    OpenedFiles,
)
from mmgpu_hooks.measure.installed import read_versions
from mmgpu_hooks.measure.mounts import read_mount
from mmgpu_hooks.optimize.code_state import CodeState, list_imported, read_code_state
from mmgpu_hooks.optimize.plain_data import describe, dump_plain, load_plain
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import Text, phrase, quoted
from mmgpu_hooks.show.words import say
from mmgpu_hooks.version import __version__

_KNOWN_INITS = (
    ('mmengine.dataset.base_dataset', 'BaseDataset.full_init'),
    ('mmdet.datasets.base_det_dataset', 'BaseDetDataset.full_init'),
)
"""``full_init`` methods known to only load, filter, cut and serialise samples."""
_PLAIN_METHODS = 'get_data_info', '_serialize_data', '__len__'
"""Methods of `BaseDataset` that read samples; classes that override one go uncached."""
_NOT_IN_KEY = {'pipeline', 'data_list', 'max_refetch', 'full_init'}
_NOT_KEPT = _NOT_IN_KEY | {'data_bytes', 'data_address', '_fully_initialized'}
_LIBRARIES = 'mmengine', 'mmdet', 'mmcv', 'numpy', 'pycocotools', 'lvis'
_GRAIN_S, _NETWORK_GRAIN_S = 0.1, 2.0
"""Resolution of file times in seconds: on a local and on a network file system."""


@dataclass(frozen=True)
class _Plan:
    """Cache key of a data set; its attributes and imported modules before parsing."""

    key: str
    before: Mapping[str, str] = field(repr=False)
    """Attributes of the data set before it was initialised, as text."""
    code: CodeState
    modules: Collection[str] = field(repr=False)
    """Modules that were imported before the data set was initialised."""


class AnnotationCache:
    """Makes data sets that are built from now on cache their parsed annotations.

    Args:
        watch: Sees them; it is open.
        logger: The Runner's.
        environ: Names the folder.

    Raises:
        RefusalError: If the folder is not this user's alone, or cannot be written.
    """

    def __init__(
        self, watch: DatasetWatch, logger: Any, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._logger, self._watch = logger, watch
        self._is_used = self._is_refused = False
        self._said: set[str] = set()
        try:
            self._folder: CacheFolder | None = CacheFolder(locate_folder(environ))
        except CacheError as error:
            raise RefusalError(
                phrase('{error}; annotations are parsed', error=error)
            ) from error
        self._path = self._folder.path
        watch.initialise_by(self._provide)
        self.changed = phrase(
            'parsed annotations are kept in {folder} and mapped', folder=self._path
        )

    def close(self) -> None:
        """Ends annotation caching; mapped files stay mapped. May be called twice."""
        folder, self._folder = self._folder, None
        if folder is not None:
            self._watch.initialise_by(None)
            folder.close()

    @property
    def idle_reason(self) -> Text | None:
        """Reason why the annotation cache served no data set; ``None`` if it did."""
        if self._is_used:
            return None
        if self._is_refused:
            return phrase('no data set could be kept, for the reasons above')
        return phrase('no data set of MMEngine was initialised')

    def _provide(
        self, dataset: Any, found: Initialisation, parse: Callable[[], OpenedFiles]
    ) -> None:
        """Initialises a data set from the cache, or caches what it parses."""
        plan = None
        try:
            plan = self._plan(dataset)
            entry = self._read(plan, found)
            if entry is not None:
                _restore(dataset, entry)
                found.is_cached = self._is_used = True
                return
        except Exception as error:  # noqa: BLE001, training must not see it
            # said once: what cannot be read for a reason is not written, either
            plan = None
            self._refuse(found, error)
        opened = parse()
        if plan is None:
            return
        try:
            self._keep(dataset, plan, found, opened)
        except Exception as error:  # noqa: BLE001, training must not see it
            self._refuse(found, error)
        else:
            found.is_kept = self._is_used = True

    def _refuse(self, found: Initialisation, error: Exception) -> None:
        """Logs why a data set's parsed annotations are not cached."""
        reason = quoted(f'{type(error).__name__}: {error}')
        if isinstance(error, (RefusalError, CacheError)):
            reason = error.said
        found.refused, self._is_refused = str(reason), True
        self._say(
            phrase(
                'GPUEfficiencyHook: annotations of {data_set} are parsed and not kept: '
                '{reason}.',
                data_set=_name(found),
                reason=reason,
            )
        )

    def _say(self, text: Text) -> None:
        # a data set may be built twice, or once for each of several loaders
        if text not in self._said:
            self._said.add(text)
            self._logger.info(say(text))

    def _plan(self, dataset: Any) -> _Plan:
        """Makes a data set's cache key out of all that its parsing depends on.

        Raises:
            RefusalError: If that is not known.
        """
        check_dataset(dataset)
        folder = os.path.realpath(self._path)
        beside = os.path.dirname(os.path.realpath(dataset.ann_file))
        root, own = dataset.data_root, Path(folder)
        is_inside = root and Path(os.path.realpath(root)) in (own, *own.parents)
        if is_inside or beside in (folder, os.path.dirname(folder)):
            raise RefusalError(
                phrase(
                    '{folder} lies beside the data: set MMGPU_CACHE to another folder',
                    folder=self._path,
                )
            )
        before, kind = list_attributes(dataset), type(dataset)
        code = read_code_state(kind)
        key = describe(
            {
                'kind': _name_class(kind),
                'attributes': before,
                'folder': os.getcwd(),
                'file': os.path.abspath(dataset.ann_file),
                'code': code.digest,
                'sources': _stamp_sources(kind, code),
                'versions': _list_versions(),
                'python': sys.version_info[:2],
            }
        )
        return _Plan(key, before, code, frozenset(sys.modules))

    def _read(self, plan: _Plan, found: Initialisation) -> ParsedAnnotations | None:
        assert self._folder is not None
        try:
            return self._folder.read(plan.key)
        except DamagedError as damage:
            self._say(
                phrase(
                    'GPUEfficiencyHook: {damage}; annotations of {data_set} are '
                    'parsed and kept anew.',
                    damage=damage,
                    data_set=_name(found),
                )
            )
            return None

    def _keep(
        self, dataset: Any, plan: _Plan, found: Initialisation, opened: OpenedFiles
    ) -> None:
        """Stores parsed annotations in the cache, and maps them into the data set."""
        assert self._folder is not None
        if opened.lists_folders:
            raise RefusalError(phrase('it reads what is in a folder, which may change'))
        if opened.starts_others:
            raise RefusalError(
                phrase('it starts threads or processes, whose files are unseen')
            )
        if opened.misses_files:
            raise RefusalError(
                phrase('it looks for a file that is not there, and may come')
            )
        if read_code_state(type(dataset)).digest != plan.code.digest:
            # what is mapped would leave that out
            raise RefusalError(
                phrase('parsing it changes its class, or a value of a module')
            )
        stamps = dict(opened.stamps)
        file = os.path.abspath(dataset.ann_file)
        stamps.setdefault(file, read_stamp(file))
        if any(read_stamp(path) != stamp for path, stamp in stamps.items()):
            raise RefusalError(phrase('a file changed while it was read'))
        mount = read_mount(os.path.realpath(file))
        is_remote = mount is not None and mount.is_network
        grain_s = _NETWORK_GRAIN_S if is_remote else _GRAIN_S
        for stamp in stamps.values():
            check_settled(stamp, grain_s)
        # a module that is imported in a function is as good as a file that is read
        for source in list_imported(plan.code.names, plan.modules):
            stamps.setdefault(source, read_stamp(source))
        state = take_state(dataset, plan.before)
        entry = self._read(plan, found)
        is_new = False
        if entry is None:
            is_new = self._folder.keep(
                plan.key,
                list[FileStamp](stamps.values()),
                state,
                dataset.data_bytes,
                dataset.data_address,
            )
            entry = self._folder.read(plan.key)
        if entry is None:
            return  # another rank writes it
        if is_new:
            said = phrase(
                'GPUEfficiencyHook: {parsed_bytes} of parsed annotations of {file} '
                '({kind}) are kept for the next start.',
                found,
                parsed_bytes=entry.data.nbytes,
            )
            self._logger.info(say(said))
        is_same = np.array_equal(entry.data, dataset.data_bytes) and np.array_equal(
            entry.addresses, dataset.data_address
        )
        if is_same and entry.is_shared:
            dataset.data_bytes = entry.data
            dataset.data_address = entry.addresses


def _name(found: Initialisation) -> str:
    return f'{found.file} ({found.kind})' if found.file else found.kind


def check_settled(stamp: FileStamp, grain_s: float) -> None:
    """Raises if a file changed too recently for its time stamps to be reliable.

    Every change of a file moves both of its times to that of the file system's clock.
    One that comes within the resolution of these times is not seen. ``mtime`` can be
    set to anything: where it lies ahead, the time of the last change (``ctime``), which
    nobody can set, says when that was. Where that one lies ahead, too, a clock is
    wrong, and it is unknown when it was.

    Args:
        stamp: Of the file, as it was read.
        grain_s: Resolution of the file system's times.

    Raises:
        RefusalError: If not, or if it is unknown.
    """
    changed_s, written_s = read_age_s(stamp.ctime_ns), read_age_s(stamp.mtime_ns)
    if changed_s <= -grain_s:
        raise RefusalError(
            phrase(
                '{path} was changed {ahead_s:.0f} s ahead of the clock of this host, '
                'and so a next change may go unseen: set the clock of this host, or '
                'of the one that has the file',
                path=stamp.path,
                ahead_s=-changed_s,
            )
        )
    if changed_s < grain_s or abs(written_s) < grain_s:
        raise RefusalError(phrase('a file changed a moment ago'))


def check_dataset(dataset: Any) -> None:
    """Raises if the parsed annotations of a data set cannot be cached.

    Raises:
        RefusalError: If not.
    """
    kind = type(dataset)
    method = kind.full_init
    if (method.__module__, method.__qualname__) not in _KNOWN_INITS:
        raise RefusalError(
            phrase('{kind} initialises itself in a way of its own', kind=kind.__name__)
        )
    for name in _PLAIN_METHODS:
        if getattr(kind, name) is not getattr(BaseDataset, name):
            raise RefusalError(
                phrase('{kind} has a {name} of its own', kind=kind.__name__, name=name)
            )
    if dataset.serialize_data is not True:
        raise RefusalError(
            phrase('its samples are Python objects (serialize_data=False)')
        )
    backend = getattr(dataset, 'backend_args', None)
    if backend and dict(backend) != {'backend': 'local'}:
        raise RefusalError(
            phrase('its files are read by another backend (backend_args)')
        )
    file = dataset.ann_file
    if not isinstance(file, (str, os.PathLike)) or not os.path.isfile(file):
        raise RefusalError(phrase('its annotations are in no file of this host'))


def list_attributes(dataset: Any) -> dict[str, str]:
    """Returns a data set's attributes as text, without its pipeline.

    Raises:
        RefusalError: If one is of a kind of which it is unknown what it depends on.
    """
    texts = {}
    for name, value in vars(dataset).items():
        if name in _NOT_IN_KEY:
            continue
        try:
            texts[name] = describe(value)
        except RefusalError as error:
            raise RefusalError(
                phrase('attribute {name}: {error}', name=name, error=error)
            ) from None
    return texts


def _name_class(kind: type) -> str:
    return f'{kind.__module__}.{kind.__qualname__}'


def _stamp_sources(kind: type, code: CodeState) -> dict[str, Any]:
    """Returns size (bytes) and change time (ns) of a data set's source files, by path.

    Those of its bases are among them if they are installed: a fork may be edited where
    it lies, its version the same.
    """
    classes = [each for each in kind.__mro__ if each is not object]
    for each in list(classes):
        own = vars(each).values()
        classes += [value for value in own if isinstance(value, type)]
    modules = (sys.modules.get(each.__module__) for each in classes)
    files = {getattr(module, '__file__', None) for module in modules}
    stamps = {}
    for file in sorted({*code.files, *filter(None, files)}):
        stamp = read_stamp(file)
        stamps[file] = stamp.size, stamp.mtime_ns
    return stamps


@functools.cache
def _list_versions() -> dict[str, Any]:
    versions: dict[str, Any] = {'mmgpu_hooks': __version__}
    for name in _LIBRARIES:
        # a fork goes by the same module name
        version = getattr(sys.modules.get(name), '__version__', None)
        if version is None:
            version = read_versions([name]).get(name)
        versions[name] = version
    return versions


def take_state(dataset: Any, before: Mapping[str, str]) -> bytes:
    """Pickles the attributes that initialising a data set has added or changed.

    Args:
        dataset: Which is initialised.
        before: Its attributes before that, as :func:`list_attributes` gives them.

    Raises:
        RefusalError: If one is no plain data.
    """
    if dataset.data_list:
        raise RefusalError(phrase('it keeps samples as Python objects, too'))
    own = {
        name: value for name, value in vars(dataset).items() if name not in _NOT_KEPT
    }
    changed = {
        name: value
        for name, value in own.items()
        if name not in before or _is_changed(value, before[name])
    }
    removed = [name for name in before if name not in own and name not in _NOT_KEPT]
    return dump_plain((changed, removed))


def _is_changed(value: Any, text: str) -> bool:
    try:
        return describe(value) != text
    except RefusalError:
        return True


def _restore(dataset: Any, entry: ParsedAnnotations) -> None:
    """Gives a data set the cached state of an initialised one."""
    changed, removed = load_plain(entry.state)
    own = vars(dataset)
    for name in removed:
        own.pop(name, None)
    own.update(
        changed,
        data_list=[],
        data_bytes=entry.data,
        data_address=entry.addresses,
        _fully_initialized=True,
    )
