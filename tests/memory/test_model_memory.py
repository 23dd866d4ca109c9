"""Tests memory estimates of small MMDetection models against real training steps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.pooled import make_pooled
from fakes.runs import write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.config.loading import silence
from mmgpu_hooks.memory import activations, config_model
from mmgpu_hooks.memory.estimate import estimate_memory, predict_activations
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.memory import ImageSize, MemoryEstimate

torch = pytest.importorskip('torch', exc_type=ImportError)
pytest.importorskip('mmdet', exc_type=ImportError)

RTMDET = """\
_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
model = dict(
    backbone=dict(widen_factor=0.125),
    neck=dict(in_channels=[32, 64, 128], out_channels=32),
    bbox_head=dict(num_classes=2, in_channels=32, feat_channels=32))
"""
RETINANET = """\
_base_ = 'mmdet::retinanet/retinanet_r18_fpn_1x_coco.py'
model = dict(
    backbone=dict(base_channels=8),
    neck=dict(in_channels=[8, 16, 32, 64], out_channels=16),
    bbox_head=dict(in_channels=16, feat_channels=16, stacked_convs=1))
optim_wrapper = dict(type='AmpOptimWrapper')
"""
OWN = """\
model = dict(type='{module}.{name}')
optim_wrapper = dict(optimizer=dict(type='Lion', lr=1e-4))
train_cfg = dict(max_epochs=6)
train_dataloader = dict(batch_size=3, dataset=dict(pipeline=[
    dict(type='mmdet.Resize', scale=(96, 64)), dict(type='mmdet.PackDetInputs')]))
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('estimates')
    (folder / 'rtmdet.py').write_text(RTMDET)
    (folder / 'retinanet.py').write_text(RETINANET)
    for name in ('CudaOnly', 'Own', 'Staged'):
        text = OWN.format(module='estimate_models', name=name)
        (folder / f'{name}.py').write_text(text)
    return folder


@pytest.fixture(scope='module')
def rtmdet(folder: Path) -> MemoryEstimate:
    return estimate(folder / 'rtmdet.py', image_size=ImageSize(128, 128))


@pytest.fixture(scope='module')
def retinanet(folder: Path) -> MemoryEstimate:
    return estimate(folder / 'retinanet.py', image_size=ImageSize(64, 128))


def estimate(config: Path, **options: Any) -> MemoryEstimate:
    return estimate_memory(config, (1, 4), **options)


@contextlib.contextmanager
def loss_of(config: Path, images: int, *size: int) -> Iterator[tuple[Any, Any, int]]:
    """Context with a model, its loss, and its saved bytes counted by autograd hooks."""
    built = config_model.read_config_model(config)
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    with built.running(), activations.as_on_cuda():
        batch = built.make_batch(images, *size)
        data = built.model.data_preprocessor(batch, True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss, _ = built.model.parse_losses(built.model(**data, mode='loss'))
        own = {t.data_ptr() for t in built.model.state_dict().values()}
        for tensor in kept:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
        yield built.model, loss, sum(saved.values())


def state_bytes(optimizer: Any) -> int:
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


@pytest.mark.parametrize(
    'name', [pytest.param('rtmdet', marks=pytest.mark.slow), 'retinanet']
)
def test_static_bytes_are_those_of_a_real_step(folder, request, name):
    answer = request.getfixturevalue(name).static
    with loss_of(folder / f'{name}.py', 2, 128, 128) as (model, loss, _):
        loss.backward()
        make = {'rtmdet': torch.optim.AdamW, 'retinanet': torch.optim.SGD}[name]
        more = {'momentum': 0.9} if name == 'retinanet' else {}
        optimizer = make(model.parameters(), lr=0.0, **more)
        optimizer.step()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert answer.gradient_bytes == sum(grad.nbytes for grad in grads)
        assert answer.parameter_bytes == sum(p.nbytes for p in model.parameters())
        assert answer.buffer_bytes == sum(b.nbytes for b in model.buffers())
    assert answer.optimizer == make.__name__
    assert answer.optimizer_state_bytes == state_bytes(optimizer)
    # the stem and the first stage of a ResNet are frozen
    is_frozen = answer.gradient_bytes < answer.parameter_bytes
    assert is_frozen == (name == 'retinanet')


def test_the_averaged_copy_is_mmengines(folder, rtmdet, retinanet):
    from mmengine.hooks import EMAHook

    built = config_model.read_config_model(folder / 'rtmdet.py')
    hook = EMAHook(ema_type='ExponentialMovingAverage')
    with silence():
        hook.before_run(SimpleNamespace(model=built.model))
    copies = [*hook.ema_model.parameters(), *hook.ema_model.buffers()]
    assert rtmdet.static.ema_bytes == sum(tensor.nbytes for tensor in copies)
    assert retinanet.static.ema_bytes == 0


def test_activations_of_a_larger_batch_than_was_run_are_predicted_within_5_percent(
    folder, rtmdet
):
    assert rtmdet.fit is not None
    assert max(point.batch_size for point in rtmdet.fit.points) == 2
    with loss_of(folder / 'rtmdet.py', 5, 128, 192) as (_, _, saved):
        predicted = predict_activations(rtmdet.fit, 5, 128 * 192)
        assert predicted == pytest.approx(saved, rel=0.05)


def test_mixed_precision_keeps_less(folder, retinanet):
    assert retinanet.mixed_precision
    full = folder / 'full.py'
    full.write_text(RETINANET.replace('AmpOptimWrapper', 'OptimWrapper'))
    without = estimate(full, image_size=ImageSize(64, 128))
    assert not without.mixed_precision
    share = retinanet.activation_bytes[4] / without.activation_bytes[4]
    assert 0.4 < share < 0.9


def test_what_stands_in_for_a_kernel_changes_no_number(folder, monkeypatch):
    def grads() -> tuple[float, list[Any], int]:
        with loss_of(folder / 'full.py', 1, 64, 64) as (model, loss, saved):
            loss.backward()
            found = [p.grad for p in model.parameters() if p.grad is not None]
            return loss.item(), found, saved

    (folder / 'full.py').write_text(RETINANET.replace('AmpOptim', 'Optim'))
    torch.manual_seed(1)
    ours = grads()
    monkeypatch.setattr(activations, '_STAND_INS', ())
    torch.manual_seed(1)
    plain = grads()
    assert ours[0] == plain[0]
    for gradient, plain_gradient in zip(ours[1], plain[1], strict=True):
        torch.testing.assert_close(gradient, plain_gradient)
    # of 80 classes, the chain of operations keeps several copies
    assert ours[2] < plain[2]


@pytest.fixture
def own_models(monkeypatch) -> None:
    """Registers models of a user's own module."""
    import sys

    from mmengine.logging import MessageHub
    from mmengine.model import BaseModel

    class CudaOnly(BaseModel):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(10, 2)

        def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
            raise RuntimeError('needs\nCUDA')

    class Own(CudaOnly):
        def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
            # saves 10 numbers of 4 bytes for each image, another 7 for the batch, and
            # the layer's weights
            rows = torch.ones(len(inputs), 10, requires_grad=True)
            fixed = torch.ones(7, requires_grad=True)
            return {'loss': self.layer(rows).sum() + (fixed * torch.ones(7)).sum()}

    class Staged(CudaOnly):
        """Model that computes another loss in its first epochs, as TOOD does."""

        def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
            is_early = MessageHub.get_current_instance().get_info('epoch') < 5
            rows = torch.ones(len(inputs), 10, requires_grad=True)
            return {'loss': self.layer(rows.exp().exp() if is_early else rows).sum()}

    module = SimpleNamespace(CudaOnly=CudaOnly, Own=Own, Staged=Staged)
    monkeypatch.setitem(sys.modules, 'estimate_models', module)


@pytest.mark.usefixtures('own_models')
def test_a_model_that_does_not_run_here_has_its_static_part(folder):
    answer = estimate_memory(folder / 'CudaOnly.py')
    assert answer.static.gradient_bytes == answer.static.parameter_bytes == 4 * 22
    assert (answer.fit, dict(answer.activation_bytes)) == (None, {3: None})
    assert 'does not run on the CPU (RuntimeError: needs CUDA).' in answer.notes[0]
    assert answer.static.optimizer_state_bytes is None
    assert 'Lion' in answer.notes[1]


@pytest.mark.usefixtures('own_models')
def test_storage_is_counted_once_and_parameters_never(folder):
    answer = estimate_memory(folder / 'Own.py', (1, 3))
    assert answer.image_size == (64, 96)
    assert dict(answer.activation_bytes) == {1: 40 + 28, 3: 120 + 28}


@pytest.mark.usefixtures('own_models')
@pytest.mark.parametrize(
    ('words', 'batches'),
    [
        (('--fit', '24GiB'), (2**16, 2**16)),
        # of 21.1 GiB, where a batch of 4 came to 9
        (('--fit', '24g', '--run', 'RUN'), (2**16, 10)),
    ],
)
def test_the_command_fills_a_card(folder, tmp_path, capsys, words, batches):
    run = str(write_run(tmp_path, make_pooled(4)))
    config = tmp_path / 'own.py'
    config.write_text((folder / 'Own.py').read_text().replace('Lion', 'SGD'))
    command = ['estimate-memory', str(config)]
    words = [run if word == 'RUN' else word for word in words]
    assert main([*command, *words, '--format', 'json']) == 0
    card = json.loads(capsys.readouterr().out)['card']
    assert card['card_bytes'] == 24 * 2**30
    assert (card['batch_size'], card['safe_batch_size']) == batches


def test_a_run_that_cannot_correct_is_one_sentence(tmp_path, capsys):
    on_cpu = str(write_run(tmp_path, make_pooled(4, device='cpu')))
    for words, sentence in (
        (['--run', on_cpu, '--fit', '24g'], 'on the CPU there is no such peak'),
        (['--run', on_cpu], 'say how large the card is'),
    ):
        assert main(['estimate-memory', 'config.py', *words]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count('\n')) == ('', 1)
        assert sentence in printed.err


@pytest.mark.usefixtures('own_models')
def test_a_model_is_run_as_in_its_last_epoch(folder):
    assert dict(estimate_memory(folder / 'Staged.py').activation_bytes) == {3: 120}
    for train in (None, {}, {'by_epoch': True}):
        found = config_model.find_progress({'train_cfg': train})
        assert (found['epoch'], found['max_epochs'], found['max_iters']) == (0, 1, 1)


def test_small_images_of_the_same_shape_are_run():
    choose = activations.choose_probe_sizes
    assert choose(ImageSize(1344, 800)) == [(384, 256), (640, 384), (896, 512)]
    assert choose(ImageSize(608, 608))[-1] == (608, 608)
    assert choose(ImageSize(128, 128)) == [(128, 128)]
    assert choose(None)[0] == (256, 256)


@pytest.mark.parametrize(
    ('text', 'sentence'),
    [
        ('model = dict(type="NoSuchModel")', 'cannot be built: '),
        ('optim_wrapper = dict()', 'expected a config with a model'),
        ('model = [', 'cannot be loaded: '),
        ('raise SystemExit', 'cannot be loaded: SystemExit'),
    ],
)
def test_a_config_without_a_model_is_refused(tmp_path, text, sentence):
    config = tmp_path / 'config.py'
    config.write_text(text)
    with pytest.raises(UserError, match=sentence):
        config_model.read_config_model(config)
