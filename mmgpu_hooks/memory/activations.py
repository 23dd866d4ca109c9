"""Counts what a real step on the CPU keeps for its backward pass, and its gradients.

torch calls a hook for each tensor that it saves for the backward pass, and another when
it wants it back. What is saved is put into a holder; the holders that are alive
when the forward pass has ended hold what a GPU would hold then.

A GPU saves the same tensors, where no operator runs another way there. MMDetection and
MMCV replace some CUDA kernels on the CPU by chains of plain operations, each of which
saves tensors as large as the whole result; :func:`as_on_cuda` runs such a chain as one
operation that saves its inputs alone and runs again in the backward pass.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.memory.config_model import ConfigModel, NoSampleError
from mmgpu_hooks.memory.padded_size import Size
from mmgpu_hooks.schema import ActivationPoint, ModuleActivations

LOSSES = 'losses'
"""Stands for all that no module's own forward has saved."""


@dataclass(frozen=True)
class SavedBytes:
    """What a forward pass kept."""

    total: int
    by_module: Mapping[str, int]
    """By the full name of the innermost module."""


def count_saved(
    model: Any, batch: Mapping[str, Any], *, mixed_precision: bool = False
) -> SavedBytes:
    """Run the forward pass with its losses and count what is kept for the backward.

    Args:
        model: MMEngine's ``BaseModel``, on the CPU, in training mode.
        batch: What its data preprocessor takes.
        mixed_precision: Whether to run under autocast, in bfloat16 on the CPU, whose
            numbers are as large as those of float16.

    Returns:
        Bytes of storage, shared storage once, without parameters and buffers.
    """
    counter = _SavedCounter(model)
    with counter, _forward(model, batch, mixed_precision) as loss:
        saved = counter.count()
    del loss
    return saved


def run_backward(
    model: Any, batch: Mapping[str, Any], *, mixed_precision: bool = False
) -> list[tuple[int, int]]:
    """Run one step's forward and backward pass, and drop the gradients again.

    Args:
        model: MMEngine's ``BaseModel``, on the CPU, in training mode.
        batch: What its data preprocessor takes.
        mixed_precision: Whether to run under autocast.

    Returns:
        Numbers and bytes per number of each gradient.
    """
    with _forward(model, batch, mixed_precision) as loss:
        loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    sizes = [(int(g.nelement()), int(g.element_size())) for g in grads]
    model.zero_grad(set_to_none=True)
    return sizes


def parameter_sizes(model: Any) -> list[tuple[int, int]]:
    """Numbers and bytes per number of each parameter that is to be trained."""
    return [
        (int(p.nelement()), int(p.element_size()))
        for p in model.parameters()
        if p.requires_grad
    ]


@contextlib.contextmanager
def _forward(model: Any, batch: Mapping[str, Any], mixed: bool) -> Iterator[Any]:
    import torch

    with torch.random.fork_rng(devices=[]), torch.enable_grad(), as_on_cuda():
        torch.manual_seed(0)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=mixed):
            data = model.data_preprocessor(dict(batch), True)
            losses = model(**data, mode='loss')
        loss = model.parse_losses(losses)[0]  # the others would keep the graph, too
        del data, losses
        yield loss


class _Holder:
    """Stands in the graph for a saved tensor."""

    __slots__ = ('__weakref__', 'module', 'tensor')

    def __init__(self, tensor: Any, module: str) -> None:
        self.tensor = tensor
        self.module = module


class _SavedCounter:
    """Watches one forward pass; not to be entered twice."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
        self._inside: list[str] = []
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> _SavedCounter:
        from torch.autograd.graph import saved_tensors_hooks

        for name, module in self._model.named_modules():
            if name:
                self._watch(name, module)
        self._exits.enter_context(saved_tensors_hooks(self._hold, self._give))
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _watch(self, name: str, module: Any) -> None:
        def enter(*_: Any) -> None:
            self._inside.append(name)

        def leave(*_: Any) -> None:
            self._inside.pop()

        before = module.register_forward_pre_hook(enter)
        after = module.register_forward_hook(leave)
        self._exits.callback(before.remove)
        self._exits.callback(after.remove)

    def _hold(self, tensor: Any) -> _Holder:
        holder = _Holder(tensor, self._inside[-1] if self._inside else LOSSES)
        self._holders.add(holder)
        return holder

    @staticmethod
    def _give(holder: _Holder) -> Any:
        return holder.tensor

    def count(self) -> SavedBytes:
        """Bytes held now."""
        static = {_place(t) for t in _own_tensors(self._model)}
        by_module: Counter[str] = Counter()
        seen: set[Any] = set()
        # the order of a set is no order: the first module by name has shared storage
        for holder in sorted(self._holders, key=lambda holder: holder.module):
            for part in _parts(holder.tensor):
                place = _place(part)
                if place not in static and place not in seen:
                    seen.add(place)
                    by_module[holder.module] += int(part.untyped_storage().nbytes())
        return SavedBytes(sum(by_module.values()), dict(by_module))


def _own_tensors(model: Any) -> Iterable[Any]:
    yield from model.parameters()
    yield from model.buffers()


def _parts(tensor: Any) -> tuple[Any, ...]:
    if tensor.is_sparse:
        return tensor._indices(), tensor._values()
    return (tensor,)


def _place(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Replace what stands in for CUDA kernels, in modules that are loaded already."""
    with contextlib.ExitStack() as exits:
        for module_name, function_name, replace in _STAND_INS:
            module = sys.modules.get(module_name)
            original = getattr(module, function_name, None)
            if original is not None:
                setattr(module, function_name, replace(module, original))
                exits.callback(setattr, module, function_name, original)
        yield


def _replace_focal_loss(module: Any, original: Callable[..., Any]) -> Any:
    def py_sigmoid_focal_loss(
        pred: Any,
        target: Any,
        weight: Any = None,
        gamma: float = 2.0,
        alpha: float = 0.25,
        reduction: str = 'mean',
        avg_factor: Any = None,
    ) -> Any:
        if target.is_floating_point():  # soft labels have no kernel
            return original(pred, target, weight, gamma, alpha, reduction, avg_factor)
        classes = target.shape[1]
        # the kernel takes numbers, of which the last is the background
        labels = target.argmax(1).where(target.any(1), target.new_tensor(classes))

        def elementwise(pred: Any, labels: Any) -> Any:
            one_hot = labels[:, None] == labels.new_tensor(range(classes))
            return original(pred, one_hot.long(), None, gamma, alpha, 'none', None)

        loss = _run_as_one(elementwise, pred, labels)
        if weight is not None and weight.shape != loss.shape:
            weight = weight.view(loss.shape[0], -1)
        return module.weight_reduce_loss(loss, weight, reduction, avg_factor)

    return py_sigmoid_focal_loss


def _replace_deformable_attention(module: Any, original: Callable[..., Any]) -> Any:
    def multi_scale_deformable_attn_pytorch(
        value: Any, shapes: Any, locations: Any, weights: Any
    ) -> Any:
        def attend(value: Any, locations: Any, weights: Any) -> Any:
            return original(value, shapes, locations, weights)

        return _run_as_one(attend, value, locations, weights)

    return multi_scale_deformable_attn_pytorch


def _run_as_one(function: Callable[..., Any], *tensors: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    if not any(tensor.requires_grad for tensor in tensors):
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=False)


_STAND_INS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ('mmdet.models.losses.focal_loss', 'py_sigmoid_focal_loss', _replace_focal_loss),
    (
        'mmcv.ops.multi_scale_deform_attn',
        'multi_scale_deformable_attn_pytorch',
        _replace_deformable_attention,
    ),
)


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
