"""Fixtures of the fake NVML, for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml, build_fake_nvml

NEWER_FUNCTIONS = (
    'nvmlDeviceGetCurrentClocksEventReasons',
    'nvmlGpmQueryDeviceSupport',
)


@pytest.fixture(scope='session')
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake; skips where there is no C compiler."""
    return build_fake_nvml(tmp_path_factory.mktemp('fake_nvml'))


@pytest.fixture(scope='session')
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake as a driver of the days before GPM and event reasons."""
    return build_fake_nvml(tmp_path_factory.mktemp('old_nvml'), NEWER_FUNCTIONS)


@pytest.fixture
def fake_nvml(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """The fake in this process's pynvml, with one healthy GPU in its script.

    Proves that the test let NVML go.
    """
    yield from _installed(fake_nvml_library, tmp_path, monkeypatch)


@pytest.fixture
def old_nvml(
    old_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """The older driver in this process's pynvml."""
    yield from _installed(old_nvml_library, tmp_path, monkeypatch)


def _installed(
    library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    fake = FakeNvml(library, folder / 'nvml.txt')
    fake.install(monkeypatch)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.setattr('mmgpu_hooks.experiment.cards.LOCKS', folder / 'locks')
    yield fake
    left = {}
    for name in ('users', 'gpm_samples'):  # and the next test begins anew
        counter = fake.counter(name)
        left[name], counter.value = counter.value, 0
    assert left == {'users': 0, 'gpm_samples': 0}
