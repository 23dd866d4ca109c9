"""Type of a diagnostic rule, and the registry of all rules."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Callable, Optional

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import Text, phrase, worded

Judge = Callable[[Run], Optional[Finding]]


@dataclass(frozen=True)
class Rule:
    """Diagnostic rule that judges a run, with its code, title and verdict.

    The docstring of its function is the page of ``mmgpu explain CODE``.
    """

    code: str
    title: Text
    verdict: str | None
    """Verdict on a run whose largest problem the rule finds; ``None``: no verdict."""
    judge: Judge

    @property
    def explanation(self) -> str:
        """Docstring of the rule's function: the page of ``mmgpu explain``."""
        return inspect.getdoc(self.judge) or ''

    def apply(self, run: Run) -> Finding | None:
        """Judges a run, and labels the finding with the rule's code and title."""
        finding = self.judge(run)
        return finding and replace(finding, code=self.code, title=self.title)


REGISTERED: dict[str, Rule] = {}
"""Every registered diagnostic rule by its code."""


def rule(code: str, title: str, verdict: str | None = None) -> Callable[[Judge], Judge]:
    """Registers the decorated function as a diagnostic rule under a stable code."""

    def register(judge: Judge) -> Judge:
        REGISTERED[code] = Rule(code, worded(title), verdict, judge)
        return judge

    return register


def _make_finding(severity: str, detail: Text, share: float | None = None) -> Finding:
    # its rule gives it a code and a title
    return Finding('', Text(''), severity, detail, share)


def problem(detail: Text, share: float) -> Finding:
    """Makes a finding of a problem that costs ``share`` of the training time."""
    return _make_finding('problem', detail, share)


def notice(detail: Text, share: float | None = None) -> Finding:
    """Makes a finding that is worth knowing, but no problem."""
    return _make_finding('notice', detail, share)


def weigh(detail: Text, share: float | None) -> Finding:
    """Makes a finding: a problem if given its share of training time, else a notice."""
    return notice(detail) if share is None else problem(detail, share)


def fine(detail: Text) -> Finding:
    """Makes a finding that nothing is wrong with what the rule checks."""
    return _make_finding('ok', detail)


def cannot_tell(missing: str) -> Finding:
    """Makes a finding that the rule cannot judge, as an input is missing.

    Args:
        missing: What is missing, as a clause without a full stop.
    """
    return _make_finding('unknown', phrase('Cannot tell: {missing}.', missing=missing))


def cannot_tell_as(sentence: Text) -> Finding:
    """Makes a finding that the rule cannot judge, with a sentence as the reason."""
    said = phrase('Cannot tell: {reason}', reason=sentence)
    return _make_finding('unknown', said)
