"""Runs MMDetection's CocoMetric on a faster evaluator, without JSON files.

Importing it asks MMEngine's registry for CocoMetric, which imports MMDetection.

It runs MMDetection's own code with other globals. ``CocoMetric.compute_metrics`` finds
``load`` and ``COCOeval`` in its module; that function is copied with others under these
two names, and runs on a copy of the metric whose ``results2json`` keeps results in
memory. So the module stays as it is, for all threads, nothing is to be put back after a
failure, and names and rounding of figures are MMDetection's. Backends match and
accumulate alone: parameters and the summary are pycocotools', of which hotcoco has ways
of its own. Whatever fails there is evaluated once more the plain way.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mmengine.logging import print_log
from mmengine.registry import METRICS
from packaging.version import Version

from mmgpu_hooks.config.switches import DISABLE, is_disabled
from mmgpu_hooks.measure.installed import read_versions
from mmgpu_hooks.schema.errors import SaidError
from mmgpu_hooks.schema.text import Text, phrase, quoted, said_by
from mmgpu_hooks.show.words import say

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST_ID = 2**53
"""Largest COCO id, up to which float64 represents whole numbers exactly."""
_CHUNK_BYTES = 2**26
"""Maximum bytes of masks copied at a time on the device that holds them."""
ARRAYS = ('precision', 'recall', 'scores')
"""Names of COCOeval's result arrays, which hold values by threshold and category."""


@dataclass(frozen=True)
class Backend:
    """Package whose COCO and COCOeval classes can replace those of pycocotools."""

    module: str
    distribution: str
    lowest: str
    """Lowest version of the package whose results were compared with pycocotools."""


BACKENDS = (
    Backend('ultrafast_pycocotools', 'ultrafast-pycocotools', '0.1.14'),
    Backend('hotcoco', 'hotcoco', '1.3.0'),
)
"""Supported replacements of pycocotools, in order of preference."""


@dataclass(frozen=True)
class OpenBackend:
    """Imported replacement of pycocotools, with its name and version."""

    module: types.ModuleType
    title: str
    """Name and version of the package that replaces pycocotools."""


class NoBackendError(SaidError):
    """Raised if no replacement of pycocotools can be used; the message says why."""


def open_backend(backends: Sequence[Backend]) -> OpenBackend:
    """Imports the first installed replacement of pycocotools.

    Raises:
        NoBackendError: If none is installed, new enough and can be imported.
    """
    names = tuple(backend.distribution for backend in backends)
    found = read_versions(backend.distribution for backend in backends)
    problems = list[Text]()
    for backend in backends:
        version = found.get(backend.distribution)
        if version is None:
            continue
        title = f'{backend.distribution} {version}'
        if Version(version) < Version(backend.lowest):
            problems.append(
                phrase(
                    '{package} is older than {lowest}',
                    package=title,
                    lowest=backend.lowest,
                )
            )
            continue
        try:
            return OpenBackend(importlib.import_module(backend.module), title)
        except Exception as error:  # noqa: BLE001 - a foreign binary, of an alpha
            problems.append(
                phrase(
                    '{package} does not load ({error})',
                    package=title,
                    error=_phrase(error),
                )
            )
    if not problems:
        raise NoBackendError(
            phrase('it wants {packages:/}, none is installed', packages=names)
        )
    raise NoBackendError(
        phrase(
            'it wants {packages:/}, {problems:,}',
            packages=names,
            problems=tuple(problems),
        )
    )


def find_coco_metric() -> Any:
    """Finds MMDetection's CocoMetric class in MMEngine's registry.

    Raises:
        RuntimeError: If MMDetection is not installed. MMEngine drops an ImportError
            raised here, and would say that the name is misspelt.
    """
    found = METRICS.get('mmdet.CocoMetric')
    if found is None:
        raise RuntimeError(
            phrase(
                'expected MMDetection, whose CocoMetric is what FastCocoMetric builds '
                'on, found none; install mmdet or name another metric in val_evaluator'
            )
        )
    return found


_CocoMetric: Any = find_coco_metric()


class FastCocoMetric(_CocoMetric):
    """MMDetection's CocoMetric with the same values, for a fraction of the CPU time.

    ``val_evaluator.type='mmgpu_hooks.FastCocoMetric'`` switches it on. It takes every
    argument of CocoMetric. Results go to ultrafast-pycocotools or hotcoco as a table
    in memory, not as JSON, and masks are brought into column order before they are
    encoded.

    Where it cannot do that, it evaluates as CocoMetric does, and the log says so once:
    ``format_only``, ``outfile_prefix``, no ``ann_file``, ``use_mp_eval``, no backend
    installed, ids that are no whole numbers, annotations that are not as COCO has them,
    masks of another size than their image, scores that are not finite, or a backend
    that fails.
    """

    backends: Sequence[Backend] = BACKENDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_off = is_disabled(os.environ)
        self._has_told = False
        self.plain_reason: Text | None = None
        """Reason why the last evaluation fell back to CocoMetric; ``None`` if not."""
        self._backend: Any = None
        self._truth: Any = None
        try:
            reason = self._find_plain_reason()
            if reason is None:
                opened = open_backend(self.backends)
                self._backend = opened.module
                said = phrase('FastCocoMetric: evaluates with {title}.', opened)
                print_log(say(said), 'current')
        except NoBackendError as error:
            reason = error.said
        if reason is not None:
            self._tell_plain(reason)

    def _find_plain_reason(self) -> Text | None:
        """Returns why the metric needs CocoMetric's own code, or ``None``."""
        kind = type(self)
        if self._is_off:
            return phrase('{variable} is set', variable=DISABLE)
        if self.format_only:
            return phrase('format_only=True wants files and no figures')
        if self.outfile_prefix is not None:
            return phrase('outfile_prefix wants files of the results')
        if self._coco_api is None:
            return phrase('without ann_file the ground truth comes with the results')
        # MMDetection 3.0 has no such argument
        if getattr(self, 'use_mp_eval', False):
            return phrase('use_mp_eval=True wants processes of pycocotools')
        if kind.results2json is not _CocoMetric.results2json:
            return phrase(
                '{kind} writes results in a way of its own', kind=kind.__name__
            )
        if not _can_rebind(_CocoMetric.compute_metrics):
            return phrase('this version of MMDetection evaluates in another way')
        return None

    def _tell_plain(self, reason: Text) -> None:
        self.plain_reason = reason
        if not self._has_told:
            self._has_told = True
            said = phrase(
                'FastCocoMetric: evaluates as CocoMetric does: {reason}.', reason=reason
            )
            print_log(say(said), 'current', logging.WARNING)

    def process(self, data_batch: Any, data_samples: Sequence[Any]) -> None:
        """Keeps a batch's detections for the evaluation, as CocoMetric does.

        Args:
            data_batch: Not used.
            data_samples: Predictions of the model, a dict for each image.
        """
        samples = data_samples
        if not self._is_off:
            samples = [_with_encoded_masks(sample) for sample in data_samples]
        super().process(data_batch, samples)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Evaluates the detections of all batches; returns the metrics by name.

        Args:
            results: As :meth:`process` kept them.

        Returns:
            The figures of CocoMetric, by name.
        """
        figures: dict[str, float]
        if self._backend is not None:
            try:
                figures = self._compute_with_backend(results)
                self.plain_reason = None
                return figures
            except BaseException as error:
                # Rust's panic is no Exception
                is_panic = type(error).__name__ == 'PanicException'
                if not (isinstance(error, Exception) or is_panic):
                    raise
                self._tell_plain(_phrase(error))
        figures = super().compute_metrics(results)
        return figures

    def _compute_with_backend(self, results: list[Any]) -> dict[str, float]:
        """Computes the metric by MMDetection's code on a faster package's COCO classes.

        It runs on a copy of the metric, so nothing has to be put back.
        """
        if self._truth is None:
            expect_regular(self._coco_api.dataset, self.metrics)
            self._truth = index_truth(self._backend, self._coco_api.dataset)
        metric: Any = copy.copy(self)
        metric._coco_api = copy.copy(self._coco_api)
        metric._coco_api.loadRes = self._load_results
        metric.results2json = functools.partial(_tabulate, metric)
        names = {'load': _pass_on, 'COCOeval': self.open_evaluation}
        compute = rebind(_CocoMetric.compute_metrics, names)
        figures: dict[str, float] = compute(metric, results)
        # CocoMetric finds them out here, too
        self.cat_ids, self.img_ids = metric.cat_ids, metric.img_ids
        return figures

    def _load_results(self, results: Results) -> Any:
        if not len(results.rows):
            # as pycocotools has it; MMDetection logs that there are no results
            raise IndexError(phrase('no results'))
        rows = results.rows
        if isinstance(rows, list):
            # backends add to them, and a metric may be asked for twice
            rows = [dict(row) for row in rows]
        return self._truth.loadRes(rows)

    def open_evaluation(self, truth: Any, results: Any, kind: str) -> Any:
        """Makes a pycocotools COCOeval object whose arrays a faster package computes.

        Its parameters and its summary are those of pycocotools, which backends have in
        ways of their own: hotcoco does not sort ``maxDets``, and its means are others
        in the last bit.

        Args:
            truth: MMDetection's COCO object; the backend has one of its own.
            results: As the backend has loaded them.
            kind: ``bbox`` or ``segm``.
        """
        from pycocotools.cocoeval import COCOeval

        evaluation = COCOeval(iouType=kind)
        backend = self._backend.COCOeval(self._truth, results, kind)
        evaluation.evaluate = functools.partial(_evaluate, evaluation, backend)
        evaluation.accumulate = functools.partial(_accumulate, evaluation, backend)
        return evaluation


# it takes what CocoMetric takes
functools.update_wrapper(FastCocoMetric.__init__, _CocoMetric.__init__)


@dataclass(frozen=True)
class Results:
    """Results of a validation kept in memory, in place of CocoMetric's JSON file."""

    rows: NDArray[np.float64] | list[dict[str, Any]]
    """Results: boxes as image, x, y, width, height, score, category; masks as dicts."""

    def __iter__(self) -> Iterator[Any]:
        """Returns an empty iterator: MMDetection iterates only to drop masks' boxes."""
        return iter(())


def _pass_on(results: Results) -> Results:
    """Stands in for MMEngine's ``load``: returns results that are in memory already."""
    return results


def _evaluate(evaluation: Any, backend: Any) -> None:
    """Stands in for ``COCOeval.evaluate``: passes parameters to a faster evaluator."""
    asked, given = evaluation.params, backend.params
    given.imgIds = asked.imgIds = np.unique(asked.imgIds).tolist()
    if asked.useCats:
        asked.catIds = np.unique(asked.catIds).tolist()
    given.catIds, given.useCats = asked.catIds, asked.useCats
    given.maxDets = asked.maxDets = sorted(asked.maxDets)
    given.iouThrs = asked.iouThrs
    backend.evaluate()


def _accumulate(evaluation: Any, backend: Any) -> None:
    """Stands in for ``COCOeval.accumulate``: takes arrays from a faster evaluator."""
    backend.accumulate()
    evaluation.eval = {name: np.asarray(backend.eval[name]) for name in ARRAYS}


def _can_rebind(function: Any) -> bool:
    """True if a function looks up ``load`` and ``COCOeval`` in its module's globals."""
    names = {'load', 'COCOeval', 'loadRes', 'results2json'}
    return isinstance(function, types.FunctionType) and (
        names <= {*function.__code__.co_names}
    )


def rebind(function: Any, names: Mapping[str, Any]) -> Any:
    """Copies a function with other objects for some of its module's globals.

    The module itself stays as it is, for all threads.
    """
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def _phrase(error: BaseException) -> Text:
    kind, said = type(error).__name__, said_by(error)
    if not said.template:
        # another program's words
        said = quoted(' '.join(said.split())[:200].rstrip('.'))
    return phrase('{kind}: {error}', kind=kind, error=said) if said else quoted(kind)


def expect_regular(dataset: Mapping[str, Any], kinds: Sequence[str] = ()) -> None:
    """Raises if ground truth has features that faster evaluators may treat differently.

    Args:
        dataset: As ``ann_file`` has it.
        kinds: Metrics that it is for; for ``segm`` outlines are checked, too.

    Raises:
        ValueError: If ids are no whole numbers above 0 (0 will do for images and
            categories) or shared, annotations are of images or categories that are not
            there, or anything that pycocotools reads is not as COCO has it. It may be
            missing, and then is a KeyError or TypeError.
    """
    annotations, images = dataset['annotations'], dataset['images']
    sizes = {_expect_id(image['id']): image for image in images}
    categories = {_expect_id(category['id']) for category in dataset['categories']}
    own = {_expect_id(annotation['id'], 1) for annotation in annotations}
    counts = len(annotations), len(images), len(dataset['categories'])
    if (len(own), len(sizes), len(categories)) != counts:
        raise ValueError(phrase('annotations, images or categories share an id'))
    for annotation in annotations:
        image = sizes.get(_expect_id(annotation['image_id']))
        if image is None or _expect_id(annotation['category_id']) not in categories:
            raise ValueError(
                phrase('an annotation is of no image or category of the file')
            )
        box, crowd = annotation['bbox'], annotation['iscrowd']
        if type(crowd) is not int or crowd not in (0, 1):
            raise ValueError(phrase('iscrowd is neither 0 nor 1'))
        if len(box) != 4 or not _are_numbers(box) or box[2] < 0 or box[3] < 0:
            raise ValueError(
                phrase('a bbox is not four numbers, the last two 0 at least')
            )
        if not _are_numbers([annotation['area']]):
            raise ValueError(phrase('an area is no number'))
        if 'segm' in kinds and not _is_regular_outline(
            annotation['segmentation'], image
        ):
            raise ValueError(
                phrase('a segmentation is neither polygons nor run lengths')
            )


def _expect_id(number: Any, least: int = 0) -> int:
    if type(number) is not int or not least <= number < _LARGEST_ID:
        raise ValueError(phrase('ids of the annotations are no whole numbers above 0'))
    return number


def _are_numbers(values: Any) -> bool:
    """True for a list of numbers between -2^53 and 2^53, where float64 is exact."""
    if type(values) is not list or not {*map(type, values)} <= {int, float}:
        return False
    return all(-_LARGEST_ID < value < _LARGEST_ID for value in values)


def _is_regular_outline(outline: Any, image: Mapping[str, Any]) -> bool:
    """True if a segmentation is polygons or run lengths that pycocotools can read."""
    size = [image['height'], image['width']]
    if not all(type(side) is int and side > 0 for side in size):
        return False
    if type(outline) is list:
        # four numbers are a box to it, and fewer an error
        return bool(outline) and all(
            _are_numbers(polygon) and len(polygon) > 5 and not len(polygon) % 2
            for polygon in outline
        )
    counts = outline['counts']
    if outline['size'] != size:
        return False
    if type(counts) is list:
        are_whole = {*map(type, counts)} == {int} and min(counts) >= 0
        return are_whole and sum(counts) == size[0] * size[1]
    return _is_packed(counts, size)


def _is_packed(counts: Any, size: Sequence[int]) -> bool:
    """True for COCO's compressed run lengths of an image, as pycocotools reads them."""
    from pycocotools.mask import decode, encode

    if not isinstance(counts, (str, bytes)) or not _decodes_safely():
        return False
    packed = counts.encode() if isinstance(counts, str) else counts
    # whatever is cut off or goes beyond the image comes back as something else
    pixels = np.asfortranarray(decode({'size': list(size), 'counts': packed}))
    again: bytes = encode(pixels)['counts']
    return again == packed


@functools.lru_cache(maxsize=1)
def _decodes_safely() -> bool:
    """True if pycocotools checks the bounds of run lengths: since 2.0.5 it does."""
    version = read_versions(['pycocotools']).get('pycocotools', '0')
    return Version(version) >= Version('2.0.5')


def index_truth(backend: Any, dataset: dict[str, Any]) -> Any:
    """Makes a COCO object of pycocotools' replacement from ground truth in memory."""
    truth = backend.COCO()
    truth.dataset = dataset
    truth.createIndex()
    return truth


def _tabulate(metric: Any, results: Sequence[Any], _: str) -> dict[str, Results]:
    """Stands in for ``results2json``: keeps the results in memory."""
    found = [
        ImageResults(result.get('img_id', index), result)
        for index, result in enumerate(results)
        if len(result['labels'])
    ]
    if not {each.image_id for each in found} <= metric._coco_api.imgs.keys():
        raise ValueError(phrase('results are of images that ann_file does not have'))
    boxes = Results(tabulate_boxes(found, metric.cat_ids))
    tables = {'bbox': boxes, 'proposal': boxes}
    if 'segm' in metric.metrics and 'masks' in results[0]:
        images = metric._coco_api.imgs
        tables['segm'] = Results(list(list_masks(found, metric.cat_ids, images)))
    return tables


class ImageResults(NamedTuple):
    """Results of a model for one image: boxes, scores, labels and masks by name."""

    image_id: int
    results: Mapping[str, Any]


def tabulate_boxes(
    found: Sequence[ImageResults], categories: Sequence[int]
) -> NDArray[np.float64]:
    """Makes one table (COCO's rows) of the boxes of all images.

    Args:
        found: The images that have results.
        categories: Ids by label.

    Raises:
        ValueError: If a figure is not finite, or there are not as many of each.
    """
    results = [each.results for each in found]
    counts = [len(result['labels']) for result in results]
    table = np.empty((sum(counts), 7))
    if not found:
        return table
    table[:, 0] = np.repeat([float(each.image_id) for each in found], counts)
    corners = np.concatenate([result['bboxes'] for result in results])
    table[:, 1:5] = corners[:, :4]
    # in float64, as Python's own numbers are subtracted
    table[:, 3:5] -= table[:, 1:3]
    table[:, 5] = np.concatenate([result['scores'] for result in results])
    labels = np.concatenate([result['labels'] for result in results])
    table[:, 6] = np.asarray(categories)[labels]
    if not np.isfinite(table).all():
        raise ValueError(phrase('a box or a score is not finite'))
    return table


def list_masks(
    found: Sequence[ImageResults],
    categories: Sequence[int],
    images: Mapping[int, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yields all masks of all images in COCO's result format.

    Args:
        found: The images that have results.
        categories: Ids by label.
        images: Those of the ground truth, by id.

    Raises:
        ValueError: If a score is not finite, there are not as many of each, or a mask
            is of another size than its image, over which backends hang for ever.
    """
    for image_id, result in found:
        size = [images[image_id]['height'], images[image_id]['width']]
        scores = np.asarray(result.get('mask_scores', result['scores']), np.float64)
        if not np.isfinite(scores).all():
            raise ValueError(phrase('the score of a mask is not finite'))
        labels, masks = result['labels'].tolist(), result['masks']
        if not len(labels) == len(scores) == len(masks):
            raise ValueError(phrase('an image has not as many masks as labels'))
        for label, score, mask in zip(labels, scores.tolist(), masks):
            counts = mask['counts']
            if list(mask['size']) != size:
                raise ValueError(phrase('a mask is of another size than its image'))
            if isinstance(counts, bytes):
                counts = counts.decode()
            yield {
                'image_id': image_id,
                'category_id': categories[label],
                'score': score,
                'segmentation': {'size': mask['size'], 'counts': counts},
            }


def _with_encoded_masks(sample: Any) -> Any:
    """Returns a sample with its masks encoded, or the same sample if it has none."""
    found = sample.get('pred_instances') if isinstance(sample, dict) else None
    if not isinstance(found, dict) or 'masks' not in found:
        return sample
    try:
        encoded = encode_masks(found['masks'])
    except RuntimeError:
        # the card has no room for the copy: CocoMetric makes it in memory of the host
        encoded = None
    if encoded is None:
        return sample
    return {**sample, 'pred_instances': {**found, 'masks': encoded}}


def encode_masks(masks: Any) -> list[dict[str, Any]] | None:
    """Encodes masks as COCO's run lengths, byte for byte as MMDetection does.

    Run lengths go by column and masks lie by row. MMDetection copies each into the
    other order by numpy, which takes four fifths of the time. Here the card does it, if
    masks are there, and else OpenCV.

    Args:
        masks: Of shape (masks, height, width).

    Returns:
        ``None`` for anything but a tensor of bool or uint8.
    """
    import torch
    from pycocotools.mask import encode

    if not isinstance(masks, torch.Tensor) or masks.dim() != 3:
        return None
    pixels = masks.shape[1] * masks.shape[2]
    if not pixels or masks.dtype not in (torch.bool, torch.uint8):
        return None
    found: list[dict[str, Any]] = []
    if not len(masks):
        return found
    for chunk in masks.detach().split(max(_CHUNK_BYTES // pixels, 1)):
        found += encode(_transpose(chunk).transpose(2, 1, 0))
    return found


def _transpose(masks: Any) -> NDArray[np.uint8]:
    """Copies masks to host memory in column order, as COCO's encoder reads them."""
    import cv2

    if masks.device.type != 'cpu':
        found: NDArray[np.uint8] = masks.permute(0, 2, 1).contiguous().cpu().numpy()
        return found.view(np.uint8)
    rows = masks.numpy().view(np.uint8)
    columns = np.empty((len(masks), rows.shape[2], rows.shape[1]), np.uint8)
    for mask, transposed in zip(rows, columns):
        cv2.transpose(mask, transposed)
    return columns
