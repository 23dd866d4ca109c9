"""Caches a data set's parsed annotations from one start of a training to the next.

What a data set makes of its annotation files is the same at each start and on each
rank, and takes minutes where the files are large. It is kept in a folder of the user's
(`measure/annotation_cache.py`) under all that it depends on, and mapped from there: all
ranks and workers of a host then share one copy.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NoReturn

import numpy as np
from mmengine.dataset import BaseDataset

from mmgpu_hooks.measure.annotation_cache import (
    CacheError,
    CacheFolder,
    FileStamp,
    ParsedAnnotations,
    locate_folder,
    read_stamp,
)
from mmgpu_hooks.measure.dataset_start import (
    DatasetWatch,
    Initialisation,
    OpenedFiles,
    is_settled,
)
from mmgpu_hooks.measure.installed import read_versions
from mmgpu_hooks.measure.mounts import read_mount
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say
from mmgpu_hooks.version import __version__

_KNOWN_INITS = (
    ('mmengine.dataset.base_dataset', 'BaseDataset.full_init'),
    ('mmdet.datasets.base_det_dataset', 'BaseDetDataset.full_init'),
)
"""``full_init`` methods known to only load, filter, cut and serialise samples."""
_PLAIN_METHODS = 'get_data_info', '_serialize_data', '__len__'
"""Methods of `BaseDataset` that read samples; classes that override one are refused."""
_NOT_IN_KEY = {'pipeline', 'data_list', 'max_refetch', 'full_init'}
_NOT_KEPT = _NOT_IN_KEY | {'data_bytes', 'data_address', '_fully_initialized'}
_LIBRARIES = 'mmengine', 'mmdet', 'mmcv', 'numpy', 'pycocotools', 'lvis'
_GRAIN_S, _NETWORK_GRAIN_S = 0.1, 2.0
"""Resolution of file times in seconds: on a local and on a network file system."""


@dataclass(frozen=True)
class _Plan:
    """Cache key of a data set, and its attributes before it was initialised."""

    key: str
    before: Mapping[str, str] = field(repr=False)
    """Attributes of the data set before it was initialised, as text."""


class AnnotationCache:
    """Has data sets built from now on cache their parsed annotations.

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
        try:
            self._folder: CacheFolder | None = CacheFolder(locate_folder(environ))
        except CacheError as error:
            raise RefusalError(f'{error}; annotations are parsed') from error
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

    def _provide(
        self, dataset: Any, found: Initialisation, parse: Callable[[], OpenedFiles]
    ) -> None:
        """Initialises a data set from the cache, or parses and caches annotations."""
        plan = self._try(found, functools.partial(self._plan, dataset))
        if plan is not None:
            entry = self._try(found, functools.partial(self._read, plan))
            if entry is not None and self._try(
                found, functools.partial(_restore, dataset, entry)
            ):
                found.is_cached = True
                return
        opened = parse()
        if plan is not None:
            self._try(
                found, functools.partial(self._keep, dataset, plan, found, opened)
            )

    def _try(self, found: Initialisation, function: Callable[[], Any]) -> Any:
        """Calls caching code; after a failure, which is logged, the data set parses."""
        try:
            return function()
        except (RefusalError, CacheError) as reason:
            text = str(reason)
        except Exception as error:  # noqa: BLE001, training must not see it
            text = f'{type(error).__name__}: {error}'
        said = phrase(
            'GPUEfficiencyHook: annotations of {data_set} are parsed and not kept: '
            '{reason}.',
            data_set=f'{found.file} ({found.kind})' if found.file else found.kind,
            reason=text,
        )
        self._logger.info(say(said))
        return None

    def _plan(self, dataset: Any) -> _Plan:
        """Describes all that the parsing of a data set depends on.

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
                f'{self._path} lies beside the data: set MMGPU_CACHE to another folder'
            )
        before = list_attributes(dataset)
        key = describe(
            {
                'kind': _name_class(type(dataset)),
                'attributes': before,
                'folder': os.getcwd(),
                'file': os.path.abspath(dataset.ann_file),
                'code': _list_code(type(dataset)),
                'versions': _list_versions(),
                'python': sys.version_info[:2],
            }
        )
        return _Plan(key, before)

    def _read(self, plan: _Plan) -> ParsedAnnotations | None:
        assert self._folder is not None
        return self._folder.read(plan.key)

    def _keep(
        self, dataset: Any, plan: _Plan, found: Initialisation, opened: OpenedFiles
    ) -> None:
        """Stores parsed annotations, and maps them into the data set from the cache."""
        assert self._folder is not None
        if opened.lists_folders:
            raise RefusalError('it reads what is in a folder, which may change')
        if opened.starts_others:
            raise RefusalError('it starts threads or processes, whose files are unseen')
        if opened.misses_files:
            raise RefusalError('it looks for a file that is not there, and may come')
        stamps = dict(opened.stamps)
        file = os.path.abspath(dataset.ann_file)
        stamps.setdefault(file, read_stamp(file))
        if any(read_stamp(path) != stamp for path, stamp in stamps.items()):
            raise RefusalError('a file changed while it was read')
        mount = read_mount(os.path.realpath(file))
        is_remote = mount is not None and mount.is_network
        if not is_settled(stamps, _NETWORK_GRAIN_S if is_remote else _GRAIN_S):
            raise RefusalError('a file changed a moment ago')
        state = take_state(dataset, plan.before)
        entry = self._folder.read(plan.key)
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


def check_dataset(dataset: Any) -> None:
    """Checks that the parsed annotations of a data set can be cached.

    Raises:
        RefusalError: If not.
    """
    kind = type(dataset)
    method = kind.full_init
    if (method.__module__, method.__qualname__) not in _KNOWN_INITS:
        raise RefusalError(f'{kind.__name__} initialises itself in a way of its own')
    for name in _PLAIN_METHODS:
        if getattr(kind, name) is not getattr(BaseDataset, name):
            raise RefusalError(f'{kind.__name__} has a {name} of its own')
    if dataset.serialize_data is not True:
        raise RefusalError('its samples are Python objects (serialize_data=False)')
    backend = getattr(dataset, 'backend_args', None)
    if backend and dict(backend) != {'backend': 'local'}:
        raise RefusalError('its files are read by another backend (backend_args)')
    file = dataset.ann_file
    if not isinstance(file, (str, os.PathLike)) or not os.path.isfile(file):
        raise RefusalError('its annotations are in no file of this host')


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
            raise RefusalError(f'its {name} has {error}') from None
    return texts


def describe(value: Any) -> str:
    """Returns a value as text, which is equal only for equal values.

    Raises:
        RefusalError: If it is no plain data.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return repr(value)
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return f'{kind.__name__}({",".join(map(describe, value))})'
    if isinstance(value, Mapping) and isinstance(value, dict):
        items = (f'{describe(key)}:{describe(own)}' for key, own in value.items())
        return f'{kind.__name__}({",".join(items)})'
    if kind in (set, frozenset):
        return f'{kind.__name__}({",".join(sorted(map(describe, value)))})'
    if kind is np.ndarray and value.dtype.kind in 'biufUS':
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
        return f'array({value.dtype.str},{value.shape},{digest})'
    if isinstance(value, Path):
        return f'Path({os.fspath(value)!r})'
    if isinstance(value, np.generic):
        return f'{kind.__name__}({value!r})'
    raise RefusalError(f'a {kind.__name__}, which is no plain data')


def _name_class(kind: type) -> str:
    return f'{kind.__module__}.{kind.__qualname__}'


def _list_code(kind: type) -> dict[str, Any]:
    """Path, size and time of the source files that define a data set's classes."""
    classes = [each for each in kind.__mro__ if each is not object]
    for each in list(classes):
        own = vars(each).values()
        classes += [value for value in own if isinstance(value, type)]
    stamps = {}
    for name in {each.__module__ for each in classes}:
        file = getattr(sys.modules.get(name), '__file__', None)
        if file is not None:
            stamp = read_stamp(file)
            stamps[name] = (stamp.path, stamp.size, stamp.mtime_ns)
    return {name: stamps[name] for name in sorted(stamps)}


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
    """Pickles the attributes that a data set's initialisation has set.

    Args:
        dataset: Which is initialised.
        before: Its attributes before that, as :func:`list_attributes` gives them.

    Raises:
        RefusalError: If one is no plain data.
    """
    if dataset.data_list:
        raise RefusalError('it keeps samples as Python objects, too')
    own = {
        name: value for name, value in vars(dataset).items() if name not in _NOT_KEPT
    }
    changed = {
        name: value
        for name, value in own.items()
        if name not in before or _is_changed(value, before[name])
    }
    removed = [name for name in before if name not in own and name not in _NOT_KEPT]
    buffer = io.BytesIO()
    _StatePickler(buffer, protocol=4).dump((changed, removed))
    return buffer.getvalue()


def _is_changed(value: Any, text: str) -> bool:
    try:
        return describe(value) != text
    except RefusalError:
        return True


def _restore(dataset: Any, entry: ParsedAnnotations) -> bool:
    """Gives a data set the cached attributes of an initialised one."""
    changed, removed = _StateUnpickler(io.BytesIO(entry.state)).load()
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
    return True


_PLAIN = (list, dict, set, frozenset, tuple, int, float, str, bytes, bool, complex)
"""Plain types that the annotation cache accepts, as values and as types."""
_TYPES: tuple[type, ...] = (OrderedDict, defaultdict, np.ndarray, np.dtype)
_NUMPY_MODULES = ('numpy', 'numpy.core.multiarray', 'numpy._core.multiarray')
_NUMPY_NAMES = ('_reconstruct', 'scalar', 'ndarray', 'dtype')


class _StatePickler(pickle.Pickler):
    """Pickler for a data set's attributes, which refuses all but plain data."""

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        is_plain = kind in _PLAIN or issubclass(kind, (*_TYPES, np.generic))
        is_numpys = callable(value) and value.__module__ in _NUMPY_MODULES
        if is_plain or is_numpys:
            return NotImplemented
        raise RefusalError(f'it keeps a {kind.__name__}, which is no plain data')


class _StateUnpickler(pickle.Unpickler):
    """Unpickler for a data set's attributes, which refuses all but plain data."""

    def find_class(self, module: str, name: str) -> Any:
        plain = {kind.__name__ for kind in _PLAIN}
        is_builtin = module == 'builtins' and name in plain
        is_collection = module == 'collections' and name in (
            'OrderedDict',
            'defaultdict',
        )
        is_array = module in _NUMPY_MODULES and name in _NUMPY_NAMES
        if not (is_builtin or is_collection or is_array):
            _refuse_class(module, name)
        return super().find_class(module, name)


def _refuse_class(module: str, name: str) -> NoReturn:
    raise CacheError(f'what is kept has a {module}.{name}')
