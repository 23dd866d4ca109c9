"""The model of a config, built as training would, but for its pretrained weights."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgpu_hooks.config.loading import silence
from mmgpu_hooks.experiment.late_training import late_in_training
from mmgpu_hooks.experiment.padded_size import type_name
from mmgpu_hooks.experiment.synthetic_batch import SyntheticBatches


class ModelError(Exception):
    """The config gives no model; the message is one sentence."""


@dataclass(frozen=True)
class ConfigModel:
    """What a config trains."""

    config: Any
    """As MMEngine loaded it, with the changes that were made for the CPU."""
    model: Any
    """On the CPU, in training mode."""
    notes: tuple[str, ...]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the model's own code find what it registered, and what a training tells
        it, and keep it quiet.
        """
        with silence(), _scope(self.config), late_in_training(self.config):
            yield

    def make_batches(self) -> SyntheticBatches:
        """What makes batches for it.

        Raises:
            NoSampleError: If the config's transforms cannot make any.
        """
        with self.running():
            from mmengine.registry import TRANSFORMS

            return SyntheticBatches(self.config, TRANSFORMS.build)

    @property
    def optimizer(self) -> tuple[str, Mapping[str, Any]] | None:
        """Class and arguments; ``None`` for several, or when there is none."""
        optimizer = (self.config.get('optim_wrapper') or {}).get('optimizer')
        return (type_name(optimizer), optimizer) if optimizer else None

    @property
    def is_mixed_precision(self) -> bool:
        """Whether the config trains with autocast."""
        wrapper = self.config.get('optim_wrapper') or {}
        return type_name(wrapper) == 'AmpOptimWrapper'

    @property
    def averaged_copies(self) -> int:
        """Hooks that keep an averaged copy of the model."""
        hooks = [
            *(self.config.get('custom_hooks') or ()),
            *(self.config.get('default_hooks') or {}).values(),
        ]
        return sum(type_name(hook).endswith('EMAHook') for hook in hooks if hook)

    @property
    def tries_cudnn_algorithms(self) -> bool:
        """Whether cuDNN may choose the fastest algorithm, whatever memory it takes."""
        return bool((self.config.get('env_cfg') or {}).get('cudnn_benchmark'))

    @property
    def batch_size(self) -> int | None:
        """Images per batch and rank."""
        size = (self.config.get('train_dataloader') or {}).get('batch_size')
        return int(size) if size else None


def read_config_model(path: Path) -> ConfigModel:
    """Load a config and build its model on the CPU; nothing is downloaded.

    Pretrained weights are left out, and resizing of whole batches is left to whoever
    makes them.

    Raises:
        ModelError: If there is no such config, or no model in it.
    """
    if not path.is_file():
        raise ModelError(f'expected a config file, found none at {path}.')
    notes: list[str] = []
    with silence():
        try:
            from mmengine.config import Config
        except ImportError as error:
            raise ModelError(
                f'expected MMEngine, with which the config is loaded, found none '
                f'({error}); install what the training needs.'
            ) from error
        try:
            config = Config.fromfile(os.path.abspath(path))
        except (Exception, SystemExit) as error:
            raise ModelError(f'{path} cannot be loaded: {_fold(error)}.') from error
    if not config.get('model'):
        raise ModelError(f'expected a config with a model, found none in {path}.')
    prepared = _without_pretrained(config.model)
    preprocessor = prepared.get('data_preprocessor') or {}
    if preprocessor.get('batch_augments'):
        preprocessor['batch_augments'] = None
    with silence(), _scope(config):
        model = _build(path, prepared, config.get('data_preprocessor'))
        try:
            model.init_weights()
        except Exception as error:  # noqa: BLE001, any code of a model
            notes.append(f'Its weights were not initialised: {_fold(error)}.')
        model.train()
    return ConfigModel(config, model, tuple(notes))


def _build(path: Path, prepared: Any, preprocessor: Any) -> Any:
    from mmengine.registry import MODELS

    if preprocessor is not None:
        # as MMEngine's Runner does where a config has it apart from the model
        prepared.setdefault('data_preprocessor', preprocessor)
    try:
        return MODELS.build(prepared)
    except Exception as error:
        raise ModelError(
            f'the model of {path} cannot be built: {_fold(error)}.'
        ) from error


@contextlib.contextmanager
def _scope(config: Any) -> Iterator[None]:
    """Names of classes belong to the config's project."""
    from mmengine.registry import DefaultScope

    with DefaultScope.overwrite_default_scope(config.get('default_scope')):
        yield


def _without_pretrained(part: Any) -> Any:
    """A copy that downloads nothing."""
    if isinstance(part, Mapping):
        copy: Any = type(part)()
        for name, value in part.items():
            if name == 'pretrained' or (
                name == 'init_cfg'
                and isinstance(value, Mapping)
                and type_name(value) in ('Pretrained', 'PretrainedInit')
            ):
                copy[name] = None
            else:
                copy[name] = _without_pretrained(value)
        return copy
    if isinstance(part, (list, tuple)):
        return type(part)(_without_pretrained(value) for value in part)
    return part


def _fold(error: BaseException) -> str:
    text = ' '.join(str(error).split())
    text = text if len(text) <= 200 else text[:197] + '...'
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
