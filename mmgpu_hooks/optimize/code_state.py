"""Describes the code that a class's methods run, so that any change of it is seen.

It follows what the methods name, without running anything: their bytecode, constants
and defaults, the functions, classes and plain values of the modules that they use, and
so on from there. Python itself and installed packages are known by their versions, but
for the bases of the class, whose methods and attributes somebody may have replaced.
Modules that a function imports when it runs are named, for who knows what was imported.

Text must be the same in each process: no ``id()``, no order of a set, no address.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from mmgpu_hooks.optimize.plain_data import count_values, describe
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import phrase

_MOST_OBJECTS = 20_000
"""Maximum number of objects that a class's code may reach, or the class is refused."""
_MOST_VALUES = 500_000
"""Maximum number of plain values that are hashed for one class (half a second)."""
_OURS = 'mmgpu_hooks'
_BASES = ('builtins', 'typing', 'abc')
"""Modules whose classes are not hashed as base classes: Python's basic types."""
_OF_SOURCE = (
    '__annotations__',
    '__annotate__',
    '__annotate_func__',
    '__annotations_cache__',
    '__firstlineno__',
    '__static_attributes__',
)
"""Class attributes not hashed: source positions, and values that differ by process."""


@dataclass(frozen=True)
class CodeState:
    """Hash, source files and used names of the code that a class runs."""

    digest: str
    """SHA-256, in hexadecimal, of the class's code and of all that the code uses."""
    files: tuple[str, ...]
    """Sorted paths of the class code's source files, installed modules left out."""
    names: frozenset[str]
    """Names that the code's functions use, such as of modules that they import."""


def read_code_state(kind: type) -> CodeState:
    """Hashes the code of a class and all that it uses, as far as it can be followed.

    Raises:
        RefusalError: If that is too much to follow.
    """
    reader = _Reader(kind)
    return CodeState(
        reader.digest, tuple(sorted(reader.files)), frozenset(reader.names)
    )


def list_imported(names: Iterable[str], before: Iterable[str]) -> Iterator[str]:
    """Yields source files of modules that functions use or that their run imported.

    Those imported earlier are told by the names that the functions use. Installed
    packages are left out.

    Args:
        names: That the functions use.
        before: Modules that were there before.
    """
    used, known = set(names), set(before)
    for name, module in list(sys.modules.items()):
        file = _find_file(module)
        is_used = name in used or name.rpartition('.')[2] in used
        if file is None or (name in known and not is_used):
            continue
        if not is_installed(name):
            yield file


def _find_file(module: Any) -> str | None:
    # asked of its dictionary: a lazy module would be imported
    file = getattr(module, '__dict__', {}).get('__file__')
    return file if isinstance(file, str) else None


@functools.cache
def _list_folders() -> tuple[str, ...]:
    """Returns the paths of the folders that hold Python's standard library."""
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ('stdlib', 'platstdlib')}
    return tuple(folder + os.sep for folder in found)


def is_installed(name: str) -> bool:
    """True if a module is Python's own, of an installed package, or of mmgpu_hooks.

    A module of a package that is installed from a folder that one edits is none.
    """
    if name.partition('.')[0] == _OURS:
        return True
    module = sys.modules.get(name)
    file = _find_file(module)
    if file is None:
        # made of no file: of the interpreter, unless it is a prompt's or a mere folder
        is_own = name == '__main__' or hasattr(module, '__path__')
        return module is not None and not is_own
    parts = file.split(os.sep)
    if 'site-packages' in parts or 'dist-packages' in parts:
        return True
    return os.path.realpath(file).startswith(_list_folders())


class _Reader:
    """Follows the code of a class from object to object, and hashes what it reaches.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type) -> None:
        self._sum = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        """Order in which each object was reached, from 0, by the object's ``id()``."""
        self._found: list[tuple[Any, frozenset[str]]] = []
        """Objects in the order reached, each with the names that its owner's code uses.

        While they are in here, no other object gets the ``id()`` of one."""
        self._attributes: set[tuple[str, str]] = set()
        """Module attributes that were hashed: pairs of module name and attribute."""
        self._values = 0
        """Number of plain values that were hashed so far."""
        self.files: set[str] = set()
        self.names: set[str] = set()
        self._own = {each for each in kind.__mro__ if each.__module__ not in _BASES}
        self._read(kind, frozenset())
        # one after the other: chains of them are longer than a stack of calls may be
        for value, names in self._found:
            self._read_object(value, names)

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of all code and values reached from the class."""
        return self._sum.hexdigest()

    def _say(self, *words: str | bytes) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else word.encode(errors='replace')
            self._sum.update(b'%d:' % len(data))
            self._sum.update(data)

    def _read(self, value: Any, names: frozenset[str]) -> None:
        """Hashes a plain value; queues any other object to be hashed later.

        Args:
            value: The object.
            names: Used by who has it, the attributes of modules among them.
        """
        if isinstance(value, ModuleType):
            self._read_module(value, names)
            return
        self._values += count_values(value, _MOST_VALUES)
        if self._values > _MOST_VALUES:
            raise RefusalError(phrase('its code uses too much to follow it'))
        try:
            self._say('value', describe(value))
            return
        except RefusalError:
            pass
        number = self._numbers.setdefault(id(value), len(self._found))
        self._say('object', str(number))
        if number == len(self._found):
            if number >= _MOST_OBJECTS:
                raise RefusalError(phrase('its code uses too much to follow it'))
            self._found.append((value, names))

    def _read_object(self, value: Any, names: frozenset[str]) -> None:
        if isinstance(value, FunctionType):
            self._read_function(value)
        elif isinstance(value, type):
            self._read_class(value)
        elif isinstance(value, CodeType):
            self._read_code(value)
        elif isinstance(value, re.Pattern):
            self._say('pattern', describe(value.pattern), str(value.flags))
        else:
            self._read(type(value), names)
            for part in _list_parts(value):
                self._read(part, names)

    def _read_function(self, function: FunctionType) -> None:
        self._say('function', function.__qualname__)
        names = frozenset(_list_names(function.__code__))
        self.names |= names
        self._read(function.__code__, names)
        self._read(function.__defaults__, names)
        self._read(function.__kwdefaults__, names)
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue  # of a class that is not made yet
            self._read(held, names)
        if hasattr(function, '__wrapped__'):
            self._read(function.__wrapped__, names)
        known = function.__globals__
        # its own attribute may be that of a function which it wraps
        if not self._note_module(known.get('__name__') or ''):
            return
        for name in sorted(names & known.keys()):
            self._say('name', name)
            self._read(known[name], names)

    def _read_code(self, code: CodeType) -> None:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        self._say('code', code.co_code, repr((*counts, code.co_flags)))
        self._say(repr((code.co_names, code.co_varnames)))
        self._say(repr((code.co_freevars, code.co_cellvars)))
        self._say(getattr(code, 'co_exceptiontable', b''))
        for constant in code.co_consts:
            if constant is Ellipsis or isinstance(constant, complex):
                self._say(repr(constant))
            else:
                self._read(constant, frozenset())

    def _read_class(self, kind: type) -> None:
        self._say('class', kind.__module__, kind.__qualname__)
        is_followed = self._note_module(kind.__module__)
        if not is_followed and kind not in self._own:
            return
        for base in kind.__bases__:
            self._read(base, frozenset())
        for name, value in vars(kind).items():
            if name not in _OF_SOURCE:
                self._say('attribute', name)
                self._read(value, frozenset())

    def _read_module(self, module: ModuleType, names: frozenset[str]) -> None:
        self._say('module', module.__name__)
        if not self._note_module(module.__name__):
            return
        held = vars(module)
        for name in sorted(names & held.keys()):
            if (module.__name__, name) not in self._attributes:
                self._attributes.add((module.__name__, name))
                self._say('attribute', name)
                self._read(held[name], names)

    def _note_module(self, name: str) -> bool:
        """Notes a module's version or file; True if its attributes are to be hashed."""
        module = sys.modules.get(name)
        if is_installed(name):
            top = sys.modules.get(name.partition('.')[0])
            version = getattr(top, '__version__', None)
            self._say('version', version if isinstance(version, str) else '')
            return False
        file = _find_file(module)
        if file is not None:
            self.files.add(file)
        return True


def _list_names(code: CodeType) -> Iterator[str]:
    """Yields the names that a code object uses, those of nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_names(constant)


def _list_parts(value: Any) -> Iterator[Any]:
    """Yields what defines an object's behaviour: functions, arguments, attributes."""
    if isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from (key, held)
    else:
        try:
            own = vars(value)
            describe(own)
        except TypeError:
            return
        except RefusalError:
            # a cached function; of anything else its class alone is known
            own = own.get('__wrapped__')
        yield own
