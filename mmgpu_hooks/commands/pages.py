"""Writes HTML pages to files; overwrites only pages that this package wrote."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.files import verify_output, write_atomic
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.page import is_page


def expect_page_place(output: Path) -> None:
    """Raises a `UserError`, before slow work, if a page cannot be written to a path.

    Raises:
        UserError: If a file is there that is no page of ours.
        OSError: If something else than a regular file is there, or it is read-only.
    """
    verify_output(output)
    if output.exists():
        with output.open('rb') as file:
            beginning = file.read(4096)
        if beginning and not is_page(beginning):
            raise UserError(
                phrase(
                    'expected a new file or an older page, found another file at '
                    '{output}; name another.',
                    output=output,
                )
            )


def write_page(output: Path, page: str) -> int:
    """Writes an HTML page, making missing folders; returns its size in bytes."""
    content = page.encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, content)
    return len(content)
