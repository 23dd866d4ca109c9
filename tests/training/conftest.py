"""Fixtures that several training tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import pytest

from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.hooks.recording import Guard


@pytest.fixture(scope='session')
def images(tmp_path_factory):
    """Folder of twelve small JPEG files with COCO annotations."""
    root = tmp_path_factory.mktemp('images')
    write_demo_dataset(root, images=12, width=128, height=96)
    return root


RUN = Guard.run


@dataclass
class Planted:
    """Number of calls and failures of a measuring source that fails on purpose."""

    calls: int = 0
    failures: int = 0


@pytest.fixture
def plant(monkeypatch):
    """Function that makes a measuring source fail from a given call on."""

    def plant_one(source: str, good_calls: int) -> Planted:
        planted = Planted()

        def run(
            guard: Guard,
            name: str,
            function: Callable[..., Any],
            *args: Any,
            **more: Any,
        ) -> Any:
            def fail_later(*args: Any, **more: Any) -> Any:
                planted.calls += 1
                if planted.calls <= good_calls:
                    return function(*args, **more)
                planted.failures += 1
                raise RuntimeError('planted')

            return RUN(
                guard, name, fail_later if name == source else function, *args, **more
            )

        monkeypatch.setattr(Guard, 'run', run)
        return planted

    return plant_one
