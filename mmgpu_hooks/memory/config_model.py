"""Builds a config's model on the CPU as training would, without pretrained weights."""

from __future__ import annotations

import contextlib
import copy
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgpu_hooks.config.loading import expect_file, silence
from mmgpu_hooks.memory.padded_size import each_transform, type_name
from mmgpu_hooks.schema.errors import SaidError, UserError
from mmgpu_hooks.schema.text import phrase


@dataclass(frozen=True)
class ConfigModel:
    """Model built from a config on the CPU, in training mode, with that config."""

    config: Any
    """Complete training config as MMEngine loaded it from the file."""
    model: Any
    """Built model, on the CPU and in training mode."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Returns a context for running the model as in the last epoch, without output.

        It sets the registry's scope and the message hub's values of that epoch.
        """
        from mmengine.logging import MessageHub

        # TOOD assigns its targets by the epoch
        hub = MessageHub.get_current_instance()
        hub.update_info_dict(find_progress(self.config))
        with silence(), _scope(self.config):
            yield

    def make_batch(self, images: int, height: int, width: int) -> dict[str, list[Any]]:
        """Makes an artificial batch like the data loader's; call it inside `running`.

        Args:
            images: In the batch.
            height: Of each, in pixels.
            width: The same.

        Returns:
            Lists of inputs and of data samples.

        Raises:
            CannotRunError: If the config's transforms want more than an image with
                boxes, or none of them packs.
        """
        from mmengine.registry import TRANSFORMS

        transforms = list(each_transform(self.config))
        load = [
            transform
            for transform in transforms
            if type_name(transform).endswith('LoadAnnotations')
        ]
        pack = [
            transform
            for transform in transforms
            if type_name(transform).startswith('Pack')
        ]
        if not pack:
            raise CannotRunError(
                phrase('the train pipeline has no transform that packs')
            )
        samples = []
        try:
            steps = [TRANSFORMS.build(part) for part in (*load[:1], pack[-1])]
            for number in range(images):
                sample = _raw(number, height, width)
                for step in steps:
                    sample = step(sample)
                samples.append(sample)
        except Exception as error:
            raise CannotRunError(
                phrase(
                    'its annotations cannot be made up ({error})',
                    error=shorten_error(error),
                )
            ) from error
        return {name: [sample[name] for sample in samples] for name in samples[0]}


def read_config_model(path: Path) -> ConfigModel:
    """Loads a config and builds its model on the CPU; downloads nothing.

    Pretrained weights and the resizing of whole batches are left out.

    Raises:
        UserError: If there is no such config, or no model in it.
    """
    expect_file(path)
    with silence():
        try:
            from mmengine.config import Config
        except ImportError as error:
            raise UserError(
                phrase(
                    'expected MMEngine, with which the config is loaded, found none '
                    '({error}); install what the training needs.',
                    error=error,
                )
            ) from error
        try:
            config = Config.fromfile(os.path.abspath(path))
        except (Exception, SystemExit) as error:
            raise UserError(
                phrase(
                    '{path} cannot be loaded: {error}.',
                    path=path,
                    error=shorten_error(error),
                )
            ) from error
    if not config.get('model'):
        raise UserError(
            phrase('expected a config with a model, found none in {path}.', path=path)
        )
    prepared = copy.deepcopy(config.model)
    # as MMEngine's Runner does where a config has it apart from the model
    preprocessor = copy.deepcopy(config.get('data_preprocessor'))
    if preprocessor is not None:
        prepared.setdefault('data_preprocessor', preprocessor)
    _leave_out(prepared)
    with silence(), _scope(config):
        from mmengine.registry import MODELS

        try:
            model = MODELS.build(prepared)
        except Exception as error:
            raise UserError(
                phrase(
                    'the model of {path} cannot be built: {error}.',
                    path=path,
                    error=shorten_error(error),
                )
            ) from error
        # any code of a model; what its weights are does not matter
        with contextlib.suppress(Exception):
            model.init_weights()
        model.train()
    return ConfigModel(config, model)


@contextlib.contextmanager
def _scope(config: Any) -> Iterator[None]:
    """Resolves class names in the config's ``default_scope``, in a ``with`` block."""
    from mmengine.registry import DefaultScope

    with DefaultScope.overwrite_default_scope(config.get('default_scope')):
        yield


def _leave_out(part: Any) -> None:
    """Removes pretrained weights and the resizing of whole batches from a config."""
    if isinstance(part, dict):
        init = part.get('init_cfg')
        if isinstance(init, dict) and type_name(init).startswith('Pretrained'):
            part['init_cfg'] = None
        for name in {'pretrained', 'batch_augments'} & part.keys():
            part[name] = None
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for inner in part:
            _leave_out(inner)


def shorten_error(error: BaseException) -> str:
    """Returns an exception as ``Type: message``, cut to fit into a sentence."""
    text = textwrap.shorten(str(error), 200, placeholder=' ...')
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def find_progress(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message hub's epoch and iteration values at the end of training.

    What a config leaves open is as in a training of one epoch, of one iteration.

    Examples:
        >>> find_progress({'train_cfg': {'max_epochs': 12}})['epoch']
        11
    """
    train = config.get('train_cfg') or {}
    epochs, iterations = train.get('max_epochs') or 1, train.get('max_iters') or 1
    return {
        'loop_stage': 'train',
        'epoch': epochs - 1,
        'iter': iterations - 1,
        'max_epochs': epochs,
        'max_iters': iterations,
    }


BOXES = 7
"""Number of boxes in each artificial image; COCO has 7.3 on average."""


class CannotRunError(SaidError):
    """Raised when a config's model cannot be run on the CPU; the message says why."""


def _raw(number: int, height: int, width: int) -> dict[str, Any]:
    """Returns an artificial sample, as transforms get it after loading an image."""
    import numpy as np

    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3))
    return {
        'img': pixels.astype(np.uint8),
        'img_id': number,
        'img_path': '',
        'img_shape': (height, width),
        'ori_shape': (height, width),
        'height': height,
        'width': width,
        'scale_factor': (1.0, 1.0),
        'flip': False,
        'flip_direction': None,
        'instances': [_instance(number, height, width) for number in range(BOXES)],
    }


def _instance(number: int, height: int, width: int) -> dict[str, Any]:
    """Returns an artificial annotated object with sides of 8 to 40 % of the image's.

    The mask is the outline of the box.
    """
    share = 0.08 * 1.5 ** (number % 5)
    # multiples of the golden ratio and its square, which spread evenly
    middle_x = width * (0.2 + 0.6 * (0.618 * number % 1))
    middle_y = height * (0.2 + 0.6 * (0.382 * number % 1))
    left, right = middle_x - width * share / 2, middle_x + width * share / 2
    top, bottom = middle_y - height * share / 2, middle_y + height * share / 2
    left, right = max(left, 0.0), min(right, float(width))
    top, bottom = max(top, 0.0), min(bottom, float(height))
    return {
        'bbox': [left, top, right, bottom],
        'bbox_label': 0,
        'ignore_flag': 0,
        'mask': [[left, top, right, top, right, bottom, left, bottom]],
    }
