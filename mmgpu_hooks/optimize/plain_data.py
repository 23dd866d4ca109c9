"""Writes plain data as text, and pickles it; refuses objects of any other type.

Text is equal only for equal values, so that it can be a part of a key. A pickle is read
back only if it holds plain data: one of another program cannot run code.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import phrase

_PLAIN = (list, dict, set, frozenset, tuple, int, float, str, bytes, bool, complex)
"""Types that count as plain data; a pickle may hold the type itself, too."""
_TYPES: tuple[type, ...] = (OrderedDict, defaultdict, np.ndarray, np.dtype)
_NUMPY_MODULES = ('numpy', 'numpy.core.multiarray', 'numpy._core.multiarray')
_NUMPY_NAMES = ('_reconstruct', 'scalar', 'ndarray', 'dtype')


def describe(value: Any) -> str:
    """Returns plain data as text; two texts are equal only if the values are.

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
    raise RefusalError(phrase('a {kind}, which is no plain data', kind=kind.__name__))


def count_values(value: Any, most: int) -> int:
    """Counts the values nested in a value, to estimate how long describing it takes.

    Containers are counted with all in them, long texts and arrays by their size.
    """
    waiting, count = [value], 0
    while waiting and count <= most:
        each = waiting.pop()
        count += 1
        if isinstance(each, (str, bytes)):
            count += len(each) // 100
        elif isinstance(each, np.ndarray):
            count += each.nbytes // 1_000
        elif isinstance(each, (list, tuple, set, frozenset, dict)):
            count += len(each)
            # a list of millions is not copied
            if count <= most:
                waiting += each
                waiting += each.values() if isinstance(each, dict) else ()
    return count


def dump_plain(value: Any) -> bytes:
    """Pickles plain data to bytes; raises for any other object in it.

    Raises:
        RefusalError: If something in it is none.
    """
    buffer = io.BytesIO()
    _PlainPickler(buffer, protocol=4).dump(value)
    return buffer.getvalue()


def load_plain(pickled: bytes) -> Any:
    """Unpickles plain data; raises if the pickle holds anything else.

    Raises:
        RefusalError: If something in it is none.
    """
    return _PlainUnpickler(io.BytesIO(pickled)).load()


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        is_plain = kind in _PLAIN or issubclass(kind, (*_TYPES, np.generic))
        is_numpys = callable(value) and value.__module__ in _NUMPY_MODULES
        if is_plain or is_numpys:
            return NotImplemented
        raise RefusalError(
            phrase('it keeps a {kind}, which is no plain data', kind=kind.__name__)
        )


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        plain = {kind.__name__ for kind in _PLAIN}
        is_builtin = module == 'builtins' and name in plain
        is_collection = module == 'collections' and name in (
            'OrderedDict',
            'defaultdict',
        )
        is_array = module in _NUMPY_MODULES and name in _NUMPY_NAMES
        if not (is_builtin or is_collection or is_array):
            raise RefusalError(
                phrase('what is kept has a {module}.{name}', module=module, name=name)
            )
        return super().find_class(module, name)
