"""Reads the settings of a live ``DataLoader``, such as workers and batch size."""

from __future__ import annotations

from typing import Any, TypeVar

from mmgpu_hooks.measure.loader.pipeline import find_transforms
from mmgpu_hooks.schema.recorded import LoaderSettings

_T = TypeVar('_T')


def read_loader_settings(loader: Any) -> LoaderSettings:
    """Reads the settings of a live DataLoader from its attributes.

    Args:
        loader: A ``torch.utils.data.DataLoader`` or anything like it.

    Returns:
        Its settings; what it does not have, or will not tell, is ``None``.
    """
    dataset = getattr(loader, 'dataset', None)
    return LoaderSettings(
        num_workers=_read(loader, 'num_workers', int),
        persistent_workers=_read(loader, 'persistent_workers', bool),
        prefetch_factor=_read(loader, 'prefetch_factor', int),
        pin_memory=_read(loader, 'pin_memory', bool),
        batch_size=read_batch_size(loader),
        batches_per_epoch=read_length(loader),
        dataset_length=read_length(dataset),
        image_decoder=_read_decoder(dataset),
    )


def read_batch_size(loader: Any) -> int | None:
    """Reads a loader's, or its batch sampler's, batch size; ``None`` if unknown."""
    batch_size = _read(loader, 'batch_size', int)
    if batch_size is not None:
        return batch_size
    return _read(getattr(loader, 'batch_sampler', None), 'batch_size', int)


def _read_decoder(dataset: Any) -> str | None:
    """Reads ``imdecode_backend`` of the first transform that decodes images."""
    own = (getattr(transform, '__dict__', {}) for transform in find_transforms(dataset))
    names = (attributes.get('imdecode_backend') for attributes in own)
    return next((name for name in names if isinstance(name, str)), None)


def _read(owner: Any, name: str, kind: type[_T]) -> _T | None:
    value = getattr(owner, name, None)
    # True is no number of workers
    known: _T | None = value if type(value) is kind else None
    return known


def read_length(sized: Any) -> int | None:
    """Counts a loader's batches, or a dataset's samples; ``None`` if unknown."""
    if _draws_to_count(getattr(sized, 'batch_sampler', None)):
        return None
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _draws_to_count(batch_sampler: Any) -> bool:
    """True if a batch sampler draws samples to find its length, altering later draws.

    Of MMDetection: the one iterates its sampler to count, and the other goes on from
    where it was iterated last.
    """
    names = [
        type(each).__name__
        for each in (batch_sampler, getattr(batch_sampler, 'sampler', None))
    ]
    return names == ['MultiDataAspectRatioBatchSampler', 'CustomSampleSizeSampler']
