"""How exact are the estimates of training memory, for models of MMDetection?

    python -m benchmarks.memory [--models retinanet detr ...] [--cuda] [--resume]

Static bytes are held against torch's own optimizers after a real step, activations
against a count of saved tensors at a batch and an image size that no estimate was
fitted to, totals against the live tensors of a whole step on the CPU. The counts share
no code with the product but the stand-ins for CUDA kernels. With ``--cuda``, totals are
held against the allocator's peak of real training steps.

Beside them, for information, are the peaks that MMDetection published, measured on
V100s with the torch of the day: with cuDNN's workspaces.

With ``--resume``, a model that this very code has measured before is not run again:
several calls, of some models each, make one table.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.memory_judge import Judged, judge_on_cpu, judge_on_cuda, read_published
from benchmarks.memory_kept import keep_figures, read_kept
from mmgpu_hooks.memory.estimate import (
    OPTIMIZERS,
    estimate_memory,
)
from mmgpu_hooks.model.training_memory import predict_activations
from mmgpu_hooks.schema import MemoryEstimate

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
    'yolov3': 'yolo/yolov3_d53_8xb8-ms-608-273e_coco.py',
    'yolox-s': 'yolox/yolox_s_8xb8-300e_coco.py',
    'rtmdet-tiny': 'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'rtmdet-ins-tiny': 'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco.py',
    'detr': 'detr/detr_r50_8xb2-150e_coco.py',
}


def choose_judged_size(estimate: MemoryEstimate) -> tuple[int, int]:
    """A size between the fitted ones, or the only one that the model takes."""
    assert estimate.fit is not None
    sizes = sorted({(p.height, p.width) for p in estimate.fit.points})
    if len(sizes) == 1:
        return sizes[0]
    (height, width), (next_height, next_width) = sizes[:2]
    return (height + next_height) // 64 * 32, (width + next_width) // 64 * 32


def fold_figures(
    name: str, estimate: MemoryEstimate, judged: Judged, published: float | None
) -> list[Figure]:
    """The lines of one model."""
    static = estimate.static
    states = {key: static.optimizer_state_bytes[key] for key in OPTIMIZERS}
    off = sum(
        abs((states[key] or 0) - judged.state_bytes[key]) for key in OPTIMIZERS
    ) + abs(static.gradient_bytes - judged.gradient_bytes)
    height, width = judged.image_size
    figures = [Figure(f'{name}: static bytes off', off, 'bytes', '0', off == 0)]
    assert estimate.fit is not None
    predicted = predict_activations(estimate.fit, judged.batch_size, height * width)
    error = 100 * (predicted / judged.saved_bytes - 1)
    figures.append(
        Figure(
            f'{name}: activations off',
            error,
            '%',
            f'within {TARGET_PCT:g}',
            abs(error) <= TARGET_PCT,
            f'batch {judged.batch_size} of {height}x{width}, '
            f'{judged.saved_bytes / 2**20:.0f} MiB; fit within '
            f'{estimate.fit.residual_pct:.2f} %',
        )
    )
    total = (static.total_bytes('momentum') or 0) + predicted
    live = judged.live_bytes + (states['momentum'] or 0)
    figures.append(
        Figure(
            f'{name}: total off the live tensors',
            100 * (total / live - 1),
            '%',
            note=f'{live / 2**20:.0f} MiB at that batch, SGD with momentum',
        )
    )
    if published is not None:
        own, (batch, _) = (
            next(iter(static.optimizer_state_bytes)),
            next(iter(estimate.activation_bytes.items())),
        )
        gib = (estimate.total_bytes(own, batch) or 0) / 2**30
        figures.append(
            Figure(
                f'{name}: total off the published peak',
                100 * (gib / published - 1),
                '%',
                note=f'{gib:.1f} GiB at batch {batch}, published {published:g} GB',
            )
        )
    return figures


def measure_model(task: tuple[str, Path, bool]) -> list[Figure]:
    """Estimate and judge one model; runs in a process of its own."""
    name, config, with_cuda = task
    print(f'{name} ...', file=sys.stderr, flush=True)
    estimate = estimate_memory(config, optimizers=('config', *OPTIMIZERS))
    if estimate.fit is None:
        target, note = f'within {TARGET_PCT:g}', '; '.join(estimate.notes)
        return [Figure(f'{name}: activations off', None, '%', target, note=note)]
    judged = judge_on_cpu(config, LARGER_BATCH, choose_judged_size(estimate))
    figures = fold_figures(name, estimate, judged, read_published(config))
    if with_cuda:
        figures.append(judge_on_cuda(name, config, estimate, TARGET_PCT))
    keep_figures(name, with_cuda, figures)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Estimate and judge them all, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument(
        '--cuda', action='store_true', help='judge totals by real steps on the GPU'
    )
    parser.add_argument(
        '--resume', action='store_true', help='run no model that was measured before'
    )
    benchmark = Benchmark('memory', __doc__ or '', argv, parser=parser, is_timed=False)
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        print('memory: expected MMDetection to be installed, found none')
        return 2
    configs = Path(spec.origin).parent / '.mim' / 'configs'
    options = benchmark.options
    # a process each: gigabytes of one model must be gone before the next
    with get_context('spawn').Pool(1, maxtasksperchild=1) as pool:
        for name in options.models:
            figures = read_kept(name, options.cuda) if options.resume else None
            if figures is None:
                task = name, configs / MODELS[name], options.cuda
                figures = pool.apply(measure_model, (task,))
            for figure in figures:
                benchmark.add(figure)
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
