"""Fixtures of the fake NVML for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml, build_fake_nvml


@pytest.fixture(scope='session')
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled fake NVML; skips the test without a C compiler."""
    return build_fake_nvml(tmp_path_factory.mktemp('fake_nvml'))


@pytest.fixture
def fake_nvml(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """Fake NVML in this process, with one healthy GPU.

    Proves that the test let NVML go.
    """
    fake = FakeNvml(fake_nvml_library, tmp_path / 'nvml.txt')
    fake.install(monkeypatch)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.delenv('XDG_RUNTIME_DIR', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    locks = 'mmgpu_hooks.experiment.card_locks.TEMPORARY'
    monkeypatch.setattr(locks, tmp_path / 'locks')
    yield fake
    left = {}
    for name in ('users', 'gpm_samples'):  # and the next test begins anew
        counter = fake.counter(name)
        left[name], counter.value = counter.value, 0
    assert left == {'users': 0, 'gpm_samples': 0}
