from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fakes.nvml.fixtures import (
    fake_nvml,
    fake_nvml_library,
    old_nvml,
    old_nvml_library,
)
from mmgpu_hooks.measure.gpu import THREAD_NAME

__all__ = [
    'fake_nvml',
    'fake_nvml_library',
    'no_thread_left',
    'old_nvml',
    'old_nvml_library',
]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No test may leave a sampler thread behind."""
    yield
    left = [t for t in threading.enumerate() if t.name == THREAD_NAME]
    assert not left
