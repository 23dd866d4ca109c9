"""Times the making of each sample, and says which image it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from mmgpu_hooks.measure.clock import Clock
from mmgpu_hooks.measure.loader.board import TOP_TEXT
from mmgpu_hooks.measure.loader.frames import hide_frame

_IDS = ('img_id', 'image_id')
_PATHS = ('img_path', 'filename', 'file_name')
_ELLIPSIS = '...'


class TimedDataset:
    """Stands before a dataset in a loader's fetcher, and nowhere else.

    Args:
        dataset: The user's map-style dataset.
        begin: Called with the index and the time before; it must not raise.
        note: Called with index, sample and seconds; neither must this.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        dataset: Any,
        begin: Callable[[Any, float], None],
        note: Callable[[Any, Any, float], None],
        clock: Clock,
    ) -> None:
        self._mmgpu_dataset = dataset
        self._mmgpu_begin = begin
        self._mmgpu_note = note
        self._mmgpu_clock = clock

    def __getitem__(self, index: Any) -> Any:
        since = self._mmgpu_clock()
        self._mmgpu_begin(index, since)
        try:
            sample = self._mmgpu_dataset[index]
        except BaseException as error:
            hide_frame(error)
            raise
        self._mmgpu_note(index, sample, self._mmgpu_clock() - since)
        return sample

    def __getattr__(self, name: str) -> Any:
        # among others __getitems__, which then makes the samples of a batch untimed
        return getattr(self._mmgpu_dataset, name)


def describe_sample(sample: Any) -> str:
    """Image id and path of a sample, as far as it tells them.

    Args:
        sample: MMEngine's ``dict(inputs=..., data_samples=...)``, a dict with the
            keys itself, or a tuple whose last entry is one (torchvision).

    Returns:
        For example ``42 train/000042.jpg``; a long path loses its beginning; '' when
        the sample tells nothing.
    """
    try:
        image_id, path = _find_names(sample)
    except Exception:  # noqa: BLE001, the user's own attributes may do anything
        return ''
    over = len(f'{image_id} {path}'.encode('utf-8', 'replace')) - TOP_TEXT
    if over > 0:
        tail = path.encode('utf-8', 'replace')[over + len(_ELLIPSIS) :]
        path = _ELLIPSIS + tail.decode('utf-8', 'ignore')
    return f'{image_id} {path}'.strip()


def _find_names(sample: Any) -> tuple[str, str]:
    holder = sample
    if isinstance(holder, (tuple, list)) and holder:
        holder = holder[-1]
    if isinstance(holder, Mapping) and 'data_samples' in holder:
        holder = holder['data_samples']
        if isinstance(holder, Mapping):  # one entry per branch
            holder = next((one for one in holder.values() if one is not None), None)
    image_id = _first(holder, _IDS)
    path = _first(holder, _PATHS)
    return _text(image_id), path if isinstance(path, str) else ''


def _first(holder: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if isinstance(holder, Mapping):
            value = holder.get(name)
        else:
            value = getattr(holder, name, None)
        if value is not None:
            return value
    return None


def _text(image_id: Any) -> str:
    if image_id is None or getattr(image_id, 'is_cuda', False):  # no synchronising
        return ''
    item = getattr(image_id, 'item', None)
    return str(item() if callable(item) else image_id)[:64]
