"""Set-up that every test shares."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output must not depend on the terminal that runs the tests."""
    for name in ('COLUMNS', 'LINES', 'FORCE_COLOR', 'NO_COLOR', 'TTY_COMPATIBLE'):
        monkeypatch.delenv(name, raising=False)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave ``slow`` tests out unless they are asked for with ``-m``."""
    if config.option.markexpr:
        return
    slow = pytest.mark.skip(reason='slow: run it with -m slow')
    for item in items:
        if 'slow' in item.keywords:
            item.add_marker(slow)
