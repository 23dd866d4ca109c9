"""What a recommendation changes, in short."""

from __future__ import annotations

from mmgpu_hooks.schema.judged import Recommendation


def changed(found: Recommendation) -> dict[str, object]:
    """New values by key, without the name of the train loader."""
    return {one.key.replace('train_dataloader.', ''): one.new for one in found.changes}
