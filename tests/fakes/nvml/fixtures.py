"""Fixtures of the fake NVML; a ``conftest.py`` imports them by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml, NoCompilerError, build_fake_nvml


@pytest.fixture(scope='session')
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled fake; skips where there is no C compiler."""
    try:
        return build_fake_nvml(tmp_path_factory.mktemp('fake_nvml'))
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_nvml(
    fake_nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeNvml]:
    """The fake in this process's pynvml, with one healthy GPU in its script.

    Proves that the test let NVML go.
    """
    fake = FakeNvml(fake_nvml_library, tmp_path / 'nvml.txt')
    fake.install(monkeypatch)
    yield fake
    assert fake.forget_users() == 0, 'nvmlInit without nvmlShutdown'
