"""Lets operators with a CUDA kernel of their own keep here what they keep there.

MMDetection and MMCV replace them on the CPU by chains of plain operations, each of
which saves tensors as large as the whole result. Here the chain runs as one operation
that saves its inputs alone and runs again in the backward pass.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Callable


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
