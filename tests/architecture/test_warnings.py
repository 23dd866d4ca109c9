"""A warning of our modules ends a test, one of another package does not."""

from __future__ import annotations

import warnings

import pytest


def warn_from(module: str, category: type[Warning]) -> None:
    """Warn as a line of that module does."""
    names = {'__name__': module, 'category': category, 'warn': warnings.warn}
    exec('warn("will go", category)', names)


@pytest.mark.parametrize(
    'module', ['mmgpu_hooks.commands.main', 'benchmarks.ledger', 'fakes.runs', __name__]
)
def test_of_our_modules_it_is_an_error(module: str) -> None:
    with pytest.raises(DeprecationWarning, match='will go'):
        warn_from(module, DeprecationWarning)


def test_an_exception_that_nobody_caught_is_an_error() -> None:
    with pytest.raises(pytest.PytestUnhandledThreadExceptionWarning):
        warn_from(
            '_pytest.threadexception', pytest.PytestUnhandledThreadExceptionWarning
        )


@pytest.mark.parametrize('module', ['mmengine.config', 'yapf', 'mmgpu_hooks_fork'])
def test_of_another_package_it_is_not(module: str) -> None:
    warn_from(module, DeprecationWarning)
