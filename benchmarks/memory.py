"""Benchmark: error of the training memory estimates for models of MMDetection.

    python -m benchmarks.memory [--quick] [--output]

``mmgpu estimate-memory`` is asked for its JSON. Static bytes are held against torch's
own optimizers after a real step, activations against a count of saved tensors at a
batch and an image size that no estimate was fitted to. The counts share no code with
the product but how a model is built and the stand-ins for CUDA kernels.

Beside them, for information, are the peaks that MMDetection published, measured on
V100s with the torch of the day: with cuDNN's workspaces. About 10 minutes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.harness import Benchmark, Figure, ask, exactly, find_mmdet, say
from mmgpu_hooks.memory.activations import as_on_cuda
from mmgpu_hooks.memory.config_model import read_config_model

TARGET_PCT = 10.0
LARGER_BATCH = 4

MODELS = {
    'retinanet': 'retinanet/retinanet_r50_fpn_1x_coco.py',
    'faster-rcnn': 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'mask-rcnn': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    'fcos': 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py',
    'atss': 'atss/atss_r50_fpn_1x_coco.py',
    'tood': 'tood/tood_r50_fpn_1x_coco.py',
    'ssd300': 'ssd/ssd300_coco.py',
    'ssdlite': 'ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py',
    'retinanet-crop640': 'nas_fpn/retinanet_r50_fpn_crop640-50e_coco.py',
    'yolov3': 'yolo/yolov3_d53_8xb8-ms-608-273e_coco.py',
    'yolox-s': 'yolox/yolox_s_8xb8-300e_coco.py',
    'rtmdet-tiny': 'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'rtmdet-ins-tiny': 'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco.py',
    'detr': 'detr/detr_r50_8xb2-150e_coco.py',
}
CARD = '24GiB'
OTHERWISE = {
    'ssd300': '; published with cudnn_benchmark=True, which MMEngine does not read here'
}
"""Remarks on models whose published memory peak was measured with another config."""
QUICK = ['ssd300', 'rtmdet-tiny']


def choose_judged_size(fit: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the image size (height, width) at which a memory estimate is judged."""
    sizes = sorted({(point['height'], point['width']) for point in fit['points']})
    if len(sizes) == 1:
        return sizes[0]
    (height, width), (next_height, next_width) = sizes[:2]
    return (height + next_height) // 64 * 32, (width + next_width) // 64 * 32


class StepBytes(NamedTuple):
    """Memory of one train step, counted on the CPU."""

    saved_bytes: int
    """Bytes of saved tensors (kept for the backward pass) after the forward pass."""
    gradient_bytes: int
    state_bytes: int
    """Bytes of the optimizer state."""


def count_step(config: Path, size: tuple[int, int]) -> StepBytes:
    """Counts the bytes of a forward, backward and optimizer step on the CPU."""
    built = read_config_model(config)
    model, kept = built.model, list[torch.Tensor]()
    torch.manual_seed(0)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with built.running(), as_on_cuda():
        batch = built.make_batch(LARGER_BATCH, *size)
        data = model.data_preprocessor(batch, True)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model.parse_losses(model(**data, mode='loss'))[0]
        own = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
        storages = [tensor.untyped_storage() for tensor in kept]
        saved = {storage.data_ptr(): storage.nbytes() for storage in storages}
        saved_bytes = sum(bytes_ for place, bytes_ in saved.items() if place not in own)
        loss.backward()
    kind = {**built.config.optim_wrapper.optimizer, 'lr': 0.0}
    optimizer = getattr(torch.optim, kind.pop('type'))(model.parameters(), **kind)
    optimizer.step()
    state_bytes = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    gradients = [param.grad for param in model.parameters()]
    gradient_bytes = sum(grad.nbytes for grad in gradients if grad is not None)
    return StepBytes(saved_bytes, gradient_bytes, state_bytes)


def judge_model(name: str, config: Path) -> Iterator[Figure]:
    """Returns figures on the error of one model's memory estimate."""
    found = ask('estimate-memory', str(config), '--fit', CARD)
    static, fit = found['static'], found['fit']
    activations, target = f'{name}: activations off', f'within {TARGET_PCT:g}'
    if fit is None:
        yield Figure(activations, None, '%', target, note='; '.join(found['notes']))
        return
    height, width = choose_judged_size(fit)
    step = count_step(config, (height, width))
    off = abs(static['gradient_bytes'] - step.gradient_bytes)
    off += abs((static['optimizer_state_bytes'] or 0) - step.state_bytes)
    yield exactly(f'{name}: static bytes off', off, 0, 'bytes')
    pixels = height * width
    image_bytes = fit['image_bytes'] + pixels * fit['pixel_bytes']
    image_bytes += pixels**2 * fit['squared_pixel_bytes']
    estimated_bytes = fit['fixed_bytes'] + LARGER_BATCH * image_bytes
    off_pct = 100 * (estimated_bytes / step.saved_bytes - 1)
    kept_mib = step.saved_bytes / 2**20
    note = f'batch {LARGER_BATCH} of {height}x{width}, {kept_mib:.0f} MiB; '
    note += f'fit within {fit["residual_pct"]:.2f} %'
    is_met = abs(off_pct) <= TARGET_PCT
    yield Figure(activations, off_pct, '%', target, is_met, note)
    published = read_published(config)
    if published is not None:
        yield from judge_published(name, found, published)


def judge_published(
    name: str, found: Mapping[str, Any], published: float
) -> Iterator[Figure]:
    """Returns figures on the estimated memory against MMDetection's published peak."""
    ((batch, total_bytes),) = found['total_bytes'].items()
    peak_bytes = published * 2**30
    otherwise = OTHERWISE.get(name, '')
    yield Figure(
        f'{name}: total off the published peak',
        100 * (total_bytes / peak_bytes - 1),
        '%',
        note=f'{total_bytes / 2**30:.1f} GiB at batch {batch}, published '
        f'{published:g} GB: {peak_bytes / total_bytes:.2f} times{otherwise}',
    )
    # what is not static grows with the images
    static_bytes = total_bytes - found['activation_bytes'][batch]
    image_bytes = (peak_bytes - static_bytes) / int(batch)
    card = found['card']
    most = int((card['room_bytes'] - static_bytes) // image_bytes)
    largest, safe = card['batch_size'], card['safe_batch_size']
    label = f'{name}: largest batch on {CARD}'
    note = f'{largest} by the estimate, {most} by the published peak{otherwise}'
    yield Figure(label, 100 * (largest / most - 1), '%', note=note)
    target, is_met = ('', None) if otherwise else ('<= 0', safe <= most)
    note = f'{safe} if the peak is {card["factor"]:g} times the estimate{otherwise}'
    yield Figure(f'{label}, safe', 100 * (safe / most - 1), '%', target, is_met, note)


def read_published(config: Path) -> float | None:
    """Returns a config's ``Training Memory (GB)`` from MMDetection's metafile."""
    metafile = config.with_name('metafile.yml')
    if not metafile.is_file():
        return None
    entry = re.search(
        rf'Config: .*/{re.escape(config.name)}\n(?:(?!.*Name:).*\n)*?.*'
        r'Training Memory \(GB\): ([\d.]+)',
        metafile.read_text(),
    )
    return float(entry[1]) if entry else None


def measure_model(name: str, config: Path) -> list[Figure]:
    """Runs the memory benchmark of one model in a child process."""
    say(name)
    return list(judge_model(name, config))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: judges the memory estimates of all models."""
    benchmark = Benchmark('memory', __doc__ or '', argv, is_timed=False)
    configs = find_mmdet() / 'configs'
    # a process each: gigabytes of one model must be gone before the next
    with get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
        for name in QUICK if benchmark.is_quick else MODELS:
            task = name, configs / MODELS[name]
            benchmark.add(*pool.apply(measure_model, task))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
