"""Benchmark: CPU time and memory of evaluating with CocoMetric and FastCocoMetric.

    python -m benchmarks.metric [--quick] [--output]

Results of a detector on 5,000 images are made up, and each metric evaluates them in a
process of its own. Every array of FastCocoMetric must be that of pycocotools to the
last bit; for boxes it must take a twentieth of CocoMetric's CPU, for masks a tenth.
Memory is the peak above the start. About 15 minutes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmdet.evaluation.metrics import CocoMetric
from pycocotools import mask as pycocotools_mask

from benchmarks.harness import Benchmark, Figure, at_least, exactly, say
from benchmarks.markdown import render_table
from mmgpu_hooks import FastCocoMetric
from mmgpu_hooks.measure.installed import read_versions
from mmgpu_hooks.optimize.coco_metric import BACKENDS

WIDTH, HEIGHT, CATEGORIES, OBJECTS = 640, 480, 80, 7
"""Image width and height in pixels, number of categories, mean objects per image."""
QUICK_IMAGES = 300
PLAIN = 'pycocotools'
ARRAYS = ('precision', 'recall', 'scores')
LARGE_MASKS = (100, 800, 1333)


@dataclass(frozen=True)
class Case:
    """Artificial validation results, with the arguments for evaluating them."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    images: int = 5000
    boxes: int = 20
    """Number of predicted boxes per image."""
    masks: bool = False
    crowds: float = 0.02
    """Share of the annotated objects that are crowds (``iscrowd``)."""
    empty: float = 0.02
    """Shares of images without annotated objects, and of images without predictions."""
    digits: int = 7
    """Number of decimals of the scores; few decimals make many scores equal."""
    classes: int = CATEGORIES
    """Number of classes that the metric evaluates, out of the annotated classes."""
    least_times: float | None = None
    """Minimum speed-up of FastCocoMetric over CocoMetric (ratio of CPU times)."""


CASES = {
    'boxes': Case(boxes=100, least_times=20),
    'masks': Case({'metric': 'segm'}, masks=True, least_times=10),
    'by class': Case({'classwise': True}),
    'proposals': Case({'metric': 'proposal'}),
    'two thresholds': Case({'iou_thrs': np.array([0.5, 0.65])}),
    'at 1, 10 and 100 (RTMDet)': Case({'proposal_nums': (100, 1, 10)}),
    'crowds': Case({'metric': ['bbox', 'segm']}, masks=True, crowds=0.4),
    'empty images': Case({'metric': ['bbox', 'segm']}, masks=True, empty=0.5),
    'equal scores': Case(boxes=40, digits=2),
    'half of the classes': Case({'classwise': True}, classes=CATEGORIES // 2),
}

Results = list[tuple[dict[str, Any], dict[str, Any]]]
"""Predictions in the form that the metric's ``process`` stores."""


@dataclass(frozen=True)
class Outcome:
    """CPU time, peak memory and result arrays of one evaluation."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    figures: Mapping[str, float]
    arrays: Mapping[str, np.ndarray[Any, Any]]


def draw_boxes(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Draws random boxes as left, top, width and height; most of them are small."""
    sides = np.exp(rng.uniform(np.log(6), np.log(300), (count, 2)))
    corners = rng.uniform(0, 1, (count, 2)) * np.maximum((WIDTH, HEIGHT) - sides, 1)
    boxes: np.ndarray[Any, Any] = np.hstack([corners, sides]).round(2)
    return boxes


def outline(box: Sequence[float]) -> list[float]:
    """Returns the outline of an ellipse in a box, as a COCO polygon."""
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    left, top, width, height = box
    x = left + width / 2 * (1 + np.cos(angles))
    y = top + height / 2 * (1 + np.sin(angles))
    points: list[float] = np.stack([x, y], 1).round(2).ravel().tolist()
    return points


def encode(boxes: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Encodes masks of ellipses in the given boxes, as COCO's run lengths."""
    polygons = [outline(box) for box in boxes]
    found: list[dict[str, Any]] = pycocotools_mask.frPyObjects(polygons, HEIGHT, WIDTH)
    return found


class MadeCase(NamedTuple):
    """Ground truth and predictions drawn at random for a benchmark case."""

    truth: dict[str, Any]
    """Ground truth in COCO's format, as a dict."""
    results: Results


def make_case(case: Case, seed: int = 1) -> MadeCase:
    """Draws random annotated objects for each image, and predictions close to them."""
    rng = np.random.default_rng(seed)
    images, results = [], list[tuple[dict[str, Any], dict[str, Any]]]()
    annotations = list[dict[str, Any]]()
    for image in range(1, case.images + 1):
        has_objects, has_results = rng.uniform(size=2) >= case.empty
        boxes = draw_boxes(rng, int(rng.poisson(OBJECTS)) if has_objects else 0)
        labels = rng.integers(CATEGORIES, size=len(boxes))
        for box, label in zip(boxes, labels):
            note = {
                'id': len(annotations) + 1,
                'image_id': image,
                'category_id': int(label) + 1,
                'bbox': box.tolist(),
                'area': float(box[2] * box[3]),
                'iscrowd': int(rng.uniform() < case.crowds),
            }
            if case.masks:
                note['segmentation'] = [outline(box)]
            annotations.append(note)
        images.append({'id': image, 'width': WIDTH, 'height': HEIGHT, 'file_name': ''})
        found = predict(rng, boxes, labels, case, case.boxes if has_results else 0)
        results.append(({}, {'img_id': image, **found}))
    names = [{'id': n, 'name': f'class {n}'} for n in range(1, CATEGORIES + 1)]
    truth = {'images': images, 'annotations': annotations, 'categories': names}
    return MadeCase(truth, results)


def predict(
    rng: np.random.Generator, boxes: Any, labels: Any, case: Case, count: int
) -> dict[str, Any]:
    """Draws one image's predictions: half are near an object, most with its class."""
    found = draw_boxes(rng, count)
    kinds = rng.integers(case.classes, size=count)
    near = np.arange(count // 2 if len(boxes) else 0)
    chosen = rng.integers(max(len(boxes), 1), size=len(near))
    if len(near):
        off = (
            rng.normal(scale=0.1, size=(len(near), 4)) * boxes[chosen][:, [2, 3, 2, 3]]
        )
        found[near] = boxes[chosen] + off
        found[:, 2:] = np.maximum(found[:, 2:], 1)
        kinds[near] = labels[chosen] % case.classes
    result: dict[str, Any] = {
        'bboxes': np.hstack([found[:, :2], found[:, :2] + found[:, 2:]]).astype('f4'),
        'scores': rng.uniform(size=count).round(case.digits).astype('f4'),
        'labels': kinds,
    }
    if case.masks:
        result['masks'] = encode(found) if count else []
    return result


def read_bytes(name: str) -> int:
    """Returns one value of ``/proc/self/status`` in bytes."""
    text = Path('/proc/self/status').read_text()
    return int(text.partition(f'{name}:')[2].split()[0]) * 1024


def open_metric(implementation: str, made: list[Any], **arguments: Any) -> Any:
    """Returns a metric that keeps its COCOeval objects for comparison.

    Args:
        implementation: ``pycocotools``, or the module of a backend.
        made: Filled with the evaluations.
        arguments: Of the metric.
    """
    if implementation == PLAIN:
        module: Any = sys.modules[CocoMetric.__module__]
        make = module.COCOeval

        def keep(*given: Any) -> Any:
            made.append(make(*given))
            return made[-1]

        # in the process of this one evaluation
        module.COCOeval = keep
        return CocoMetric(**arguments)
    chosen = [backend for backend in BACKENDS if backend.module == implementation]

    class Kept(FastCocoMetric):
        backends = chosen

        def open_evaluation(self, *given: Any) -> Any:
            made.append(super().open_evaluation(*given))
            return made[-1]

    return Kept(**arguments)


def evaluate(
    case: Case, truth: Path, results: Results, implementation: str, target: Path
) -> None:
    """Evaluates a case's predictions; writes CPU time and result arrays to a file."""
    made: list[Any] = []
    sys.stdout = io.StringIO()
    given = {'ann_file': str(truth), **case.arguments}
    metric = open_metric(implementation, made, **given)
    names = [f'class {n}' for n in range(1, case.classes + 1)]
    metric.dataset_meta = {'classes': names}
    gc.collect()
    # the peak starts anew
    Path('/proc/self/clear_refs').write_text('5')
    before = read_bytes('VmRSS')
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    figures = metric.compute_metrics(results)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    spent = [wall_s, cpu_s, read_bytes('VmHWM') - before]
    arrays = dict[str, Any]()
    if getattr(metric, 'plain_reason', None) is not None:
        raise SystemExit(f'{implementation}: {metric.plain_reason}')
    for number, evaluation in enumerate(made):
        for name in ARRAYS:
            arrays[f'{name} {number}'] = np.asarray(evaluation.eval[name])
        arrays[f'stats {number}'] = np.asarray(evaluation.stats)
    arrays |= {'spent': spent, 'figures': json.dumps(figures)}
    np.savez(target, **arrays)


def run(
    case: Case, truth: Path, results: Results, implementation: str
) -> Outcome | None:
    """Evaluates a benchmark case in a child process; returns ``None`` if that fails."""
    target = truth.with_name(f'{implementation}.npz')
    process = get_context('fork').Process(
        target=evaluate, args=(case, truth, results, implementation, target)
    )
    process.start()
    process.join()
    if process.exitcode:
        return None
    with np.load(target) as kept:
        arrays = dict(kept)
    target.unlink()
    wall_s, cpu_s, peak_bytes = arrays.pop('spent').tolist()
    figures = json.loads(str(arrays.pop('figures')))
    return Outcome(wall_s, cpu_s, int(peak_bytes), figures, arrays)


def play(case: Case, folder: Path) -> dict[str, Outcome | None]:
    """Evaluates a case's predictions by pycocotools and by each faster backend."""
    made, path = make_case(case), folder / 'annotations.json'
    path.write_text(json.dumps(made.truth))
    made.truth.clear()
    names = [PLAIN, *(backend.module for backend in BACKENDS)]
    return {name: run(case, path, made.results, name) for name in names}


def count_differing(plain: Outcome, fast: Outcome) -> int:
    """Counts the results that differ in any bit between two evaluations."""
    names = {*plain.arrays, *fast.arrays}
    empty = np.array([])
    equal = [
        np.array_equal(plain.arrays.get(name, empty), fast.arrays.get(name, empty))
        for name in names
    ]
    shown = [json.dumps(outcome.figures, sort_keys=True) for outcome in (plain, fast)]
    return equal.count(False) + (shown[0] != shown[1])


def judge_case(
    name: str, case: Case, played: Mapping[str, Outcome | None]
) -> Iterator[Figure]:
    """Returns figures on one benchmark case: differing result arrays, and speed-up."""
    plain = played[PLAIN]
    assert plain is not None and plain.arrays
    for backend in BACKENDS:
        fast, title = played[backend.module], f'{name}, {backend.distribution}'
        note = f'of {len(plain.arrays)}' if fast else 'it failed'
        differing = None if fast is None else count_differing(plain, fast)
        yield exactly(f'{title}: arrays that differ', differing, 0, note=note)
        if case.least_times is not None:
            times = None if fast is None else plain.cpu_s / fast.cpu_s
            note = '' if fast is None else f'{plain.cpu_s:.2f} and {fast.cpu_s:.2f} s'
            yield at_least(
                f'{title}: times less CPU', times, case.least_times, '', note
            )


def judge_masks() -> Iterator[Figure]:
    """Returns figures on the CPU time of encoding an image's masks on the CPU."""
    rng = np.random.default_rng(2)
    masks = torch.zeros(LARGE_MASKS, dtype=torch.bool)
    for mask, box in zip(masks, draw_boxes(rng, len(masks)).astype(int)):
        left, top, width, height = box.tolist()
        inside = mask[top : top + 2 * height, left : left + 2 * width]
        inside.copy_(torch.rand(inside.shape) > 0.1)
    found = {'bboxes': torch.zeros(len(masks), 4), 'scores': torch.zeros(len(masks))}
    found |= {'labels': torch.zeros(len(masks), dtype=torch.long), 'masks': masks}
    sample = {'img_id': 1, 'ori_shape': LARGE_MASKS[1:], 'pred_instances': found}
    kept = {}
    for kind in (CocoMetric, FastCocoMetric):
        metric, spent = kind(metric='segm'), []
        metric._coco_api = object()
        for _ in range(3):
            begin = time.process_time()
            metric.process({}, [sample])
            spent.append(time.process_time() - begin)
        kept[kind] = metric.results[0][1]['masks']
        count, height, width = LARGE_MASKS
        title = f'{count} masks of {width} x {height} encoded, {kind.__name__}'
        yield Figure(f'{title}, CPU', 1000 * min(spent), 'ms', note='least of 3')
    same = kept[CocoMetric] == kept[FastCocoMetric]
    yield exactly('of them other bytes', 0 if same else 1, 0)


def render_cases(outcomes: Mapping[str, Mapping[str, Outcome | None]]) -> str:
    """Renders time and peak memory of each evaluation as a Markdown table."""
    rows = [
        (
            name,
            implementation,
            f'{outcome.wall_s:.2f} s' if outcome else 'failed',
            f'{outcome.cpu_s:.2f} s' if outcome else '',
            f'{outcome.peak_bytes / 2**20:.0f} MiB' if outcome else '',
        )
        for name, played in outcomes.items()
        for implementation, outcome in played.items()
    ]
    versions = read_versions(
        ['pycocotools', *(backend.distribution for backend in BACKENDS)]
    )
    installed = ', '.join(f'{name} {version}' for name, version in versions.items())
    header = ('results', 'evaluated by', 'compute_metrics', 'CPU', 'memory')
    return f'{render_table(header, rows)}\n\nEvaluated by: {installed}.'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: evaluates all cases, compares and judges."""
    benchmark = Benchmark('metric', __doc__ or '', argv)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    outcomes = {}
    cases = CASES
    if benchmark.is_quick:
        cases = {name: replace(c, images=QUICK_IMAGES) for name, c in CASES.items()}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as folder:
            outcomes[name] = play(case, Path(folder))
        spent = {k: o and round(o.cpu_s, 2) for k, o in outcomes[name].items()}
        say(f'{name}: {spent}')
        benchmark.add(*judge_case(name, case, outcomes[name]))
    with contextlib.redirect_stdout(io.StringIO()):
        benchmark.add(*judge_masks())
    return benchmark.finish(render_cases(outcomes))


if __name__ == '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    sys.exit(main())
