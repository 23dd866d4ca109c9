"""Fake NVML without a GPU: a C library that the real ``pynvml`` loads.

A small text file scripts it (see ``fake_nvml.c``); :class:`FakeGpu` writes the
usual lines.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name('fake_nvml.c')
LIBRARY = 'libnvidia-ml.so.1'
SCRIPT_VARIABLE = 'MMGPU_FAKE_NVML'


def build_fake_nvml(folder: Path) -> Path:
    """Compiles the fake NVML under the file name that pynvml looks for.

    The test is skipped where there is no ``cc``.
    """
    compiler = shutil.which('cc')
    if compiler is None:
        pytest.skip('the fake NVML needs a C compiler, and there is no cc')
    library = folder / LIBRARY
    flags = ['-shared', '-fPIC', '-O1', '-Wall', '-Werror', f'-Wl,-soname,{LIBRARY}']
    command = [compiler, *flags, '-o', str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return library


@dataclass(frozen=True)
class FakeGpu:
    """Fake GPU: values that the fake NVML returns for one device."""

    uuid: str = 'GPU-8a56cbd2-0f3e-4b1c-9d67-1f2e3d4c5b6a'
    name: str = 'NVIDIA Fake 100'
    bus: str = '00000000:3B:00.0'
    memory: tuple[int, int] | None = (1000, 400)
    """Total and used memory in bytes; ``None`` means unsupported."""
    util: Sequence[int] = (50,)
    """Utilisations in per cent that calls return in turn; empty means unsupported."""
    mig: int | None = None
    more: Sequence[str] = ()
    """Further lines of the fake's script file, such as ``clocks 1980 2619``."""
    fail: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Failures by value name: error code, good calls before, number of failing calls.
    """

    def script(self) -> str:
        lines = [f'device {self.uuid}', f'name {self.name}', f'bus {self.bus}']
        if self.memory is not None:
            lines.append('memory {} {}'.format(*self.memory))
        if self.util:
            lines.append('util ' + ' '.join(str(value) for value in self.util))
        if self.mig is not None:
            lines.append(f'mig {self.mig}')
        lines.extend(self.more)
        for figure, numbers in self.fail.items():
            lines.append(f'fail {figure} ' + ' '.join(str(n) for n in numbers))
        return '\n'.join(lines) + '\n'


class FakeNvml:
    """Compiled fake NVML with the script file that sets its answers.

    Args:
        library: What :func:`build_fake_nvml` returned.
        script: File to write the script to.
    """

    def __init__(self, library: Path, script: Path) -> None:
        self.library = library
        self.script = script
        self.set(FakeGpu())

    def set(
        self,
        *gpus: FakeGpu,
        init: int = 0,
        driver: str = '550.90.07',
        garbage_errors: bool = False,
    ) -> None:
        """Sets the fake GPUs, with effect from the next NVML call on."""
        head = f'driver {driver}\ninit {init}\n' + 'errortext x\n' * garbage_errors
        text = head + ''.join(gpu.script() for gpu in gpus)
        # a reader in another process must never see half a script
        draft = self.script.with_suffix('.draft')
        draft.write_bytes(text.encode('latin-1'))  # so that a name may be garbage
        os.replace(draft, self.script)

    def environ(self) -> dict[str, str]:
        """Returns an environment in which another process loads the fake NVML."""
        return {
            **os.environ,
            'LD_LIBRARY_PATH': str(self.library.parent),
            SCRIPT_VARIABLE: str(self.script),
        }

    def install(self, monkeypatch: Any) -> None:
        """Makes this process's pynvml use the fake NVML until the test ends.

        pynvml keeps its library and functions for ever, so both are swapped.
        """
        import pynvml

        monkeypatch.setenv(SCRIPT_VARIABLE, str(self.script))
        monkeypatch.setattr(pynvml, 'nvmlLib', ctypes.CDLL(str(self.library)))
        monkeypatch.setattr(pynvml, '_nvmlGetFunctionPointer_cache', {})

    def counter(self, name: str) -> ctypes.c_int:
        """Returns a counter of unreleased objects: ``users`` or ``gpm_samples``."""
        return ctypes.c_int.in_dll(ctypes.CDLL(str(self.library)), name)
