"""What a recommendation changes, in short."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.schema.judged import Recommendation


def changed(found: Recommendation) -> dict[str, Any]:
    """New values by key, without the name of the train loader."""
    return {
        change.key.replace('train_dataloader.', ''): change.new
        for change in found.changes
    }
