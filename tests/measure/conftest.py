from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mmgpu_hooks.measure.gpu import SAMPLER_THREAD


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Asserts that no test leaves a sampler thread behind."""
    yield
    left = [t for t in threading.enumerate() if t.name == SAMPLER_THREAD]
    assert not left
