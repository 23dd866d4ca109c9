"""What several modules train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pytest

from fakes.nvml.fixtures import fake_nvml, fake_nvml_library
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.validation import _ValidationLoop

__all__ = ['fake_nvml', 'fake_nvml_library', 'images']


@pytest.fixture(scope='session')
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small JPEG files with COCO annotations."""
    root = tmp_path_factory.mktemp('images')
    write_demo_dataset(root, images=12, width=128, height=96)
    return root


RUN, WRAP = Guard.run, Guard.wrap
AROUND_WAITS = {
    'validation': [
        (_ValidationLoop, '_ask', _ValidationLoop._ask),
        (_ValidationLoop, '_got', _ValidationLoop._got),
    ],
}
"""What is called for each batch, and guarded where the wait is timed."""


@dataclass
class Planted:
    """How often a source was called, and failed."""

    calls: int = 0
    failures: int = 0


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planted]:
    """Has a source fail from some call on."""

    def plant_one(source: str, good_calls: int) -> Planted:
        planted = Planted()

        def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                planted.calls += 1
                if planted.calls <= good_calls:
                    return function(*args, **kwargs)
                planted.failures += 1
                raise RuntimeError('planted')

            return call if name == source else function

        monkeypatch.setattr(
            Guard,
            'run',
            lambda guard, name, function, *args, **kwargs: RUN(
                guard, name, failing(name, function), *args, **kwargs
            ),
        )
        monkeypatch.setattr(
            Guard,
            'wrap',
            lambda guard, name, function: WRAP(guard, name, failing(name, function)),
        )
        for holder, name, function in AROUND_WAITS.get(source, ()):
            monkeypatch.setattr(holder, name, failing(source, function))
        return planted

    return plant_one
