"""What several modules train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import pytest

from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.hooks.recording import Guard


@pytest.fixture(scope='session')
def images(tmp_path_factory):
    """Twelve small JPEG files with COCO annotations."""
    root = tmp_path_factory.mktemp('images')
    write_demo_dataset(root, images=12, width=128, height=96)
    return root


RUN = Guard.run


@dataclass
class Planted:
    """How often a source was called, and failed."""

    calls: int = 0
    failures: int = 0


@pytest.fixture
def plant(monkeypatch):
    """Has a source fail from some call on."""

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
