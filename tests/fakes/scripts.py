"""Loads scripts of ``requirements/`` as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parents[2] / 'requirements'


def load_script(name: str) -> ModuleType:
    """Imports a script of ``requirements/`` by its name."""
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f'{name}.py')
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # its dataclasses look for their module there
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
