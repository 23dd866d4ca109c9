"""What the terminal can show."""

from __future__ import annotations

import os
import shutil
from typing import Any, TextIO

from mmgpu_hooks.show.terminal import DEFAULT_WIDTH


def terminal_layout(stream: TextIO) -> dict[str, Any]:
    """Width and colour for a stream, as keyword arguments of the renderers.

    A pipe or a file gets the default width and no colour; ``NO_COLOR`` is heeded.
    """
    if not stream.isatty():
        return {'width': DEFAULT_WIDTH, 'color': False}
    columns = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    return {'width': columns, 'color': 'NO_COLOR' not in os.environ}
