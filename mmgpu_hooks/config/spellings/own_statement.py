"""The last statement, as ``mmgpu enable`` adds it."""

from __future__ import annotations

from mmgpu_hooks.config.edit import INHERIT, UPDATE, Edit, append, render_statement
from mmgpu_hooks.config.locate import KeyPath
from mmgpu_hooks.config.outcome import REMOVE, Setting
from mmgpu_hooks.config.settings import HOOK_TYPE
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Takes it out with its blank line, which gives the old file back."""
    text, newline = module.text, module.newline
    for form in (INHERIT, UPDATE) if value is REMOVE else ():
        code = render_statement(form, (*path, 'type'), HOOK_TYPE)
        for tail in (f'{newline}{code}{newline}', f'{newline}{newline}{code}'):
            head = text.removesuffix(tail)
            if head + append(head, newline, code)[2] == text:
                return Edit((len(head), len(text), ''))
    return None
