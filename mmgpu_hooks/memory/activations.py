"""Counts the activation bytes that a train step on the CPU saves for backward.

torch calls a hook for each tensor that it saves for the backward pass, and another when
it wants it back. What is saved is put into a holder; the holders that are alive
when the forward pass has ended hold what a GPU would hold then.

A GPU saves the same tensors, where no operator runs another way there. MMDetection and
MMCV replace some CUDA kernels on the CPU by chains of plain operations, each of which
saves tensors as large as the whole result; :func:`as_on_cuda` runs such a chain as one
operation that saves its inputs alone and runs again in the backward pass.

torch's private ``MemTracker`` cannot take its place: under ``FakeTensorMode`` no
detector runs, as assigning targets reads values (docs/en/memory-estimate.md has
figures).

This is the one file of ``memory/`` that imports torch, late: ``mmgpu --help`` does
without. MMDetection is not imported: the config's registry builds the model, and the
config's own transforms pack the made-up images.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mmgpu_hooks.memory.config_model import CannotRunError, ConfigModel, shorten_error
from mmgpu_hooks.schema.memory import ActivationPoint, ImageSize
from mmgpu_hooks.schema.text import phrase

_PROBE_HEIGHTS = (256, 384, 512)
_STRIDE = 128
"""Stride in pixels of a detector's coarsest features; trial image sizes round to it."""
_MOST_PROBE_PIXELS = 640 * 640
"""Number of pixels up to which the model is run on the CPU at full training size."""


class Gradient(NamedTuple):
    """Size of a parameter's gradient: count of its numbers, and bytes of each."""

    numbers: int
    number_bytes: int
    """Bytes of one number in the gradient, such as 4 for float32."""

    @classmethod
    def of(cls, tensor: Any) -> Gradient:
        """Returns a gradient's size, given the gradient's or its parameter's tensor."""
        return cls(int(tensor.nelement()), int(tensor.element_size()))


class ModelProbe(NamedTuple):
    """Activation bytes of a model at several image sizes, and its gradients' sizes."""

    points: list[ActivationPoint]
    gradients: list[Gradient]
    """Count of numbers, and bytes of each, for each trained parameter's gradient."""


class StepCount(NamedTuple):
    """Activation bytes saved for backward in one train step, and gradients' sizes."""

    saved_bytes: int
    """Bytes of activations saved for backward, without parameters and buffers.

    Shared storage counts once.
    """
    gradients: list[Gradient]
    """Count of numbers, and bytes of each, for each gradient that the step made."""


class _Plan(NamedTuple):
    """Image sizes, and one batch size, with which to run a model on the CPU."""

    sizes: list[ImageSize]
    batch: int


def probe_model(
    built: ConfigModel, mixed: bool, target: ImageSize | None
) -> ModelProbe:
    """Runs a model at several small image sizes, and counts its activation bytes.

    It runs one backward pass.

    Args:
        built: The model.
        mixed: Whether to run under autocast.
        target: Padded size that the training has; ``None`` when it is not known.

    Raises:
        CannotRunError: If the model does not run here.
    """
    sizes = choose_probe_sizes(target)
    plans = [_Plan(sizes, 1), _Plan(sizes, 2)]
    if target is not None and target.pixels <= _MOST_PROBE_PIXELS:
        # a head may need more than the smallest size has
        plans.insert(1, _Plan([target], 1))
    failure: Exception | None = None
    for plan in plans:
        try:
            with built.running():
                return _run_plan(built, mixed, plan)
        except CannotRunError:
            raise
        # a model is a program: whatever it raises is a reason
        except Exception as error:  # noqa: BLE001
            failure = failure or error
    assert failure is not None
    raise CannotRunError(
        phrase(
            'the model does not run on the CPU ({error})', error=shorten_error(failure)
        )
    ) from failure


def _run_plan(built: ConfigModel, mixed: bool, plan: _Plan) -> ModelProbe:
    points: list[ActivationPoint] = []
    gradients: list[Gradient] = []
    for number, size in enumerate(plan.sizes):
        # growth with the batch shows at the smallest sizes
        for images in (plan.batch + 1, plan.batch) if number < 2 else (plan.batch,):
            data = built.make_batch(images, size.height, size.width)
            count = run_step(built.model, data, mixed=mixed, is_backward=not points)
            points.append(
                ActivationPoint(images, size.height, size.width, count.saved_bytes)
            )
            gradients = gradients or count.gradients
    return ModelProbe(points, gradients)


class _Holder:
    """Object that holds, in the autograd graph, one tensor saved for backward."""

    __slots__ = ('__weakref__', 'tensor')

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


def run_step(
    model: Any, batch: Mapping[str, Any], *, mixed: bool, is_backward: bool
) -> StepCount:
    """Runs a train step on a batch, and counts the activation bytes saved for backward.

    Args:
        model: MMEngine's ``BaseModel``, on the CPU, in training mode.
        batch: What its data preprocessor takes.
        mixed: Whether to run under autocast, in bfloat16 on the CPU, whose numbers are
            as large as those of float16.
        is_backward: Whether to run the backward pass as well.
    """
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    holders: weakref.WeakSet[_Holder] = weakref.WeakSet()

    def hold(tensor: Any) -> _Holder:
        holder = _Holder(tensor)
        holders.add(holder)
        return holder

    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        as_on_cuda(),
        saved_tensors_hooks(hold, lambda holder: holder.tensor),
    ):
        torch.manual_seed(0)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=mixed):
            data = model.data_preprocessor(dict(batch), True)
            losses = model(**data, mode='loss')
        loss = model.parse_losses(losses)[0]  # the others would keep the graph, too
        del data, losses
        own = {_place(tensor) for tensor in (*model.parameters(), *model.buffers())}
        held = [holder.tensor for holder in holders if not holder.tensor.is_sparse]
        sizes = {
            _place(tensor): int(tensor.untyped_storage().nbytes()) for tensor in held
        }
        del held
        if is_backward:
            loss.backward()
    gradients = [
        Gradient.of(parameter.grad)
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    model.zero_grad(set_to_none=True)
    saved = sum(size for place, size in sizes.items() if place not in own)
    return StepCount(saved, gradients)


def _place(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def count_state(
    optimizer: Mapping[str, Any], gradients: Sequence[Gradient]
) -> int | None:
    """Counts the bytes of an optimizer's state after one step, without real memory.

    Args:
        optimizer: Its class and arguments, as in a config.
        gradients: Of the parameters that get one.

    Returns:
        The bytes, or ``None`` for one that MMEngine cannot build or run here.
    """
    import mmengine.optim  # registers torch's own
    import torch

    kinds = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
    try:
        parameters = [
            torch.nn.Parameter(
                torch.empty(
                    gradient.numbers,
                    dtype=kinds[gradient.number_bytes],
                    device='meta',
                )
            )
            for gradient in gradients
        ]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        options = {'lr': 0.0, **optimizer, 'params': parameters}
        built = mmengine.optim.OPTIMIZERS.build(options)
        built.step()
    # it may be any class of the user's
    except Exception:  # noqa: BLE001
        return None
    kept = [value for state in built.state.values() for value in state.values()]
    return sum(int(value.nbytes) for value in kept if isinstance(value, torch.Tensor))


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Context in which operators that CUDA fuses save only their inputs for backward.

    It runs each such chain of operators as one.
    """
    with contextlib.ExitStack() as exits:
        for stand_in in _STAND_INS:
            module = sys.modules.get(stand_in.module)
            original = getattr(module, stand_in.function, None)
            if original is not None:
                replaced = stand_in.replace(module, original)
                setattr(module, stand_in.function, replaced)
                exits.callback(setattr, module, stand_in.function, original)
        yield


def _replace_focal_loss(module: Any, original: Callable[..., Any]) -> Any:
    def py_sigmoid_focal_loss(
        pred: Any, target: Any, weight: Any = None, **options: Any
    ) -> Any:
        if target.is_floating_point():  # soft labels have no kernel
            return original(pred, target, weight, **options)
        reduction = options.pop('reduction', 'mean'), options.pop('avg_factor', None)
        classes = target.shape[1]
        # the kernel takes numbers, of which the last is the background
        labels = target.argmax(1).where(target.any(1), target.new_tensor(classes))

        def elementwise(pred: Any, labels: Any) -> Any:
            one_hot = labels[:, None] == labels.new_tensor(range(classes))
            return original(pred, one_hot.long(), reduction='none', **options)

        loss = _run_as_one(elementwise, pred, labels)
        if weight is not None and weight.shape != loss.shape:
            weight = weight.view(loss.shape[0], -1)
        return module.weight_reduce_loss(loss, weight, *reduction)

    return py_sigmoid_focal_loss


def _replace_deformable_attention(module: Any, original: Callable[..., Any]) -> Any:
    def multi_scale_deformable_attn_pytorch(
        value: Any, shapes: Any, locations: Any, weights: Any
    ) -> Any:
        return _run_as_one(
            lambda value, *rest: original(value, shapes, *rest),
            value,
            locations,
            weights,
        )

    return multi_scale_deformable_attn_pytorch


def _run_as_one(function: Callable[..., Any], *tensors: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    if not any(tensor.requires_grad for tensor in tensors):
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=False)


class _StandIn(NamedTuple):
    """Python function run on the CPU in place of a CUDA kernel, with a patch for it.

    The function is given by its module and name.
    """

    module: str
    function: str
    replace: Callable[[Any, Callable[..., Any]], Any]
    """Function that returns the replacement, given module and original function."""


_STAND_INS = (
    _StandIn(
        'mmdet.models.losses.focal_loss', 'py_sigmoid_focal_loss', _replace_focal_loss
    ),
    _StandIn(
        'mmcv.ops.multi_scale_deform_attn',
        'multi_scale_deformable_attn_pytorch',
        _replace_deformable_attention,
    ),
)


def choose_probe_sizes(target: ImageSize | None) -> list[ImageSize]:
    """Returns small image sizes of the target size's aspect ratio, to run a model at.

    Examples:
        >>> choose_probe_sizes(ImageSize(320, 320))
        [ImageSize(height=256, width=256), ImageSize(height=320, width=320)]
    """
    height, width = target or (1, 1)
    ratio = max(width, height) / min(width, height) / _STRIDE
    short_sides = _PROBE_HEIGHTS
    sides = [(short, max(1, round(short * ratio)) * _STRIDE) for short in short_sides]
    sizes = [ImageSize(short, long) for short, long in sides]
    if height > width:
        sizes = [ImageSize(long, short) for short, long in sides]
    if target is None:
        return sizes
    smaller = [size for size in sizes if size.pixels < target.pixels]
    return [*smaller, target] if target.pixels <= _MOST_PROBE_PIXELS else smaller
