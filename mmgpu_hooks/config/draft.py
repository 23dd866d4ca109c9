"""An edit in the making: a parsed config and the steps that led to it. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from mmgpu_hooks.config.expression import render_module
from mmgpu_hooks.config.locate import Path
from mmgpu_hooks.config.outcome import RefusedError, Setting

Changes = Mapping[Path, Setting]
"""Values by the keys below one top-level name."""


@dataclass(frozen=True)
class Step:
    """One change of the text."""

    before: str
    after: str
    root: str
    """The name whose settings it changes."""

    values: Changes
    """The settings it changes."""

    variable: str | None = None
    """The variable that is changed instead."""


@dataclass
class Draft:
    """An edit in the making, and in the end its result."""

    text: str
    module: cst.Module
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    free: set[str] = field(default_factory=set)
    """Variables that nothing but a setting uses in the original text."""

    variables: dict[str, Setting] = field(default_factory=dict)
    """Those of them that were changed."""

    tail: str = field(init=False)
    """Blanks at the end that LibCST would not keep."""

    def __post_init__(self) -> None:
        self.tail = self.text[len(render_module(self.module)) :]

    def move(
        self,
        module: cst.Module,
        root: str,
        values: Changes,
        name: str | None = None,
        text: str | None = None,
    ) -> None:
        """Takes the next step; ``text`` is what the module was parsed from."""
        code = render_module(module)
        text = code + self.tail if text is None else text
        self.tail = text[len(code) :]
        if text != self.text:
            self.steps.append(Step(self.text, text, root, values, name))
        self.text, self.module = text, module


@functools.lru_cache(maxsize=4)
def parse_module(text: str) -> cst.Module:
    """Parses a config; trees are never changed, so a text is parsed once.

    Raises:
        RefusedError: If LibCST finds a syntax error.
    """
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise RefusedError(
            'expected a Python config, LibCST found a syntax error here; mend it first',
            error.raw_line,
        ) from error
    if render_module(module) != text:
        # LibCST loses blanks on the last lines; they are put back as they were.
        body = text.rstrip(' \t\f\r\n')
        head = body + text[len(body) :][: 2 if text[len(body) :][:2] == '\r\n' else 1]
        module = cst.parse_module(head)
        if render_module(module) == head:
            return module
        raise RefusedError(
            'expected newlines that LibCST keeps, found others, such as a single '
            'carriage return; save the file with one kind of newline'
        )
    return module
