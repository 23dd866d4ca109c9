"""Runs a model on the CPU at a few small batches and image sizes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Callable

from mmgpu_hooks.experiment.config_model import ConfigModel
from mmgpu_hooks.experiment.padded_size import Size
from mmgpu_hooks.experiment.saved_tensors import (
    SavedBytes,
    count_saved,
    run_backward,
)
from mmgpu_hooks.experiment.synthetic_batch import NoSampleError
from mmgpu_hooks.schema import ActivationPoint, ModuleActivations

_PROBE_HEIGHTS = (256, 384, 512)
_STRIDE = 128
"""Of the coarsest features of common detectors: such sizes scale without rounding."""
_MOST_PROBE_PIXELS = 640 * 640
"""What one image that is run here may have."""
_MODULE_DEPTH = 2


class CannotRunError(Exception):
    """The model does not run here; the message says why."""


class ModelProbe:
    """Runs one model at small batches.

    Args:
        built: The model.
        mixed: Whether to run under autocast.
        on_step: Called with what is being done.

    Raises:
        CannotRunError: If no batches can be made up for it.
    """

    def __init__(
        self, built: ConfigModel, mixed: bool, on_step: Callable[[str], None]
    ) -> None:
        self.gradients: list[tuple[int, int]] = []
        """Numbers and bytes per number of each, once it was run."""
        self._built = built
        self._mixed = mixed
        self._on_step = on_step
        try:
            self._batches = built.make_batches()
        except NoSampleError as error:
            raise CannotRunError(str(error)) from error

    def run(self, target: Size | None) -> tuple[list[ActivationPoint], SavedBytes]:
        """Count at several batches and sizes, and run one backward pass.

        Args:
            target: Padded size that the training has; ``None`` when it is not known.

        Returns:
            Points for a fit, and the last run in full.

        Raises:
            CannotRunError: If the model does not run here.
        """
        sizes = choose_probe_sizes(target)
        plans = [(sizes, 1), (sizes, 2)]
        if target is not None and target[0] * target[1] <= _MOST_PROBE_PIXELS:
            # a head may need more than the smallest size has
            plans.insert(1, ([target], 1))
        failure: CannotRunError | None = None
        for plan_sizes, batch in plans:
            try:
                return self._run_plan(plan_sizes, batch)
            except CannotRunError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _run_plan(
        self, sizes: list[Size], batch: int
    ) -> tuple[list[ActivationPoint], SavedBytes]:
        points = []
        for number, size in enumerate(sizes):
            # growth with the batch shows at the smallest sizes
            for images in (batch + 1, batch) if number < 2 else (batch,):
                saved = self._count(images, size)
                points.append(ActivationPoint(images, *size, saved.total))
        self._on_step('one backward pass')
        with self._running():
            data = self._batches.make(batch + 1, *sizes[0])
            self.gradients = run_backward(
                self._built.model, data, mixed_precision=self._mixed
            )
        return points, saved

    def _count(self, images: int, size: Size) -> SavedBytes:
        self._on_step(f'{images} image(s) of {size[0]}x{size[1]}')
        with self._running():
            return count_saved(
                self._built.model,
                self._batches.make(images, *size),
                mixed_precision=self._mixed,
            )

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            with self._built.running():
                yield
        except NoSampleError as error:
            raise CannotRunError(str(error)) from error
        except Exception as error:
            text = ' '.join(str(error).split())[:200]
            raise CannotRunError(
                f'the model does not run on the CPU ({type(error).__name__}: {text})'
            ) from error


def choose_probe_sizes(target: Size | None) -> list[Size]:
    """Image sizes to run at: small ones of the target's shape, and it if it is small.

    Examples:
        >>> choose_probe_sizes((800, 1344))
        [(256, 384), (384, 640), (512, 896)]
        >>> choose_probe_sizes((320, 320))
        [(256, 256), (320, 320)]
    """
    height, width = target or (1, 1)
    sizes = []
    for probe in _PROBE_HEIGHTS:
        other = max(1, round(probe * max(width, height) / min(width, height) / _STRIDE))
        short_long = probe, other * _STRIDE
        sizes.append(short_long if height <= width else short_long[::-1])
    if target is None:
        return sizes
    pixels = height * width
    smaller = [size for size in sizes if size[0] * size[1] < pixels]
    return [*smaller, target] if pixels <= _MOST_PROBE_PIXELS else smaller


def fold_modules(saved: SavedBytes) -> tuple[ModuleActivations, ...]:
    """Add up parts of modules, two names deep, largest first."""
    folded: Counter[str] = Counter()
    for name, size in saved.by_module.items():
        folded['.'.join(name.split('.')[:_MODULE_DEPTH])] += size
    return tuple(
        ModuleActivations(name, size, 100.0 * size / saved.total)
        for name, size in folded.most_common()
    )
