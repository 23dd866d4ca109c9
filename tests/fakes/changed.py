"""Lists the changes of a recommendation in short form."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.schema.judged import Recommendation


def changed(found: Recommendation) -> dict[str, Any]:
    """Returns the recommended values by config key, without ``train_dataloader.``."""
    return {
        change.key.replace('train_dataloader.', ''): change.new
        for change in found.changes
    }
