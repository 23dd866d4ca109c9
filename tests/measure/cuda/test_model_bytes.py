"""Held against what PyTorch itself keeps, and against what it would save."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.cuda import ModelBytesWatch

torch = pytest.importorskip('torch', exc_type=ImportError)
optim = pytest.importorskip('mmengine.optim', exc_type=ImportError)
nn = torch.nn

FLOAT = 4


def saved_bytes(value: Any) -> int:
    """Bytes of the tensors that come back from a checkpoint of ``value``."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    storages: dict[int, int] = {}

    def walk(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, dict):
            for value in part.values():
                walk(value)
        elif isinstance(part, (list, tuple)):
            for value in part:
                walk(value)

    walk(loaded)
    return sum(storages.values())


class Small(nn.Module):
    """66 trained numbers, 15 frozen ones and some buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 3)
        self.body = nn.Linear(3, 10)
        self.norm = nn.BatchNorm1d(10)
        self.head = nn.Linear(10, 3, bias=False)
        self.tied = nn.Linear(3, 10, bias=False)
        self.tied.weight = self.body.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.body(self.frozen(x)))).sum()


TRAINED = (3 * 10 + 10 + 10 + 10 + 10 * 3) * FLOAT
FROZEN = (4 * 3 + 3) * FLOAT
BUFFERS = (10 + 10) * FLOAT + 8


def wrap(model: Any, kind: str = 'SGD', **options: Any) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    return optim.OptimWrapper(getattr(torch.optim, kind)(trained, lr=0.1, **options))


def step(model: Any, wrapper: Any) -> None:
    wrapper.update_params(model(torch.ones(2, 4)))


@pytest.mark.parametrize(
    ('kind', 'options', 'copies', 'steps'),
    [
        ('SGD', {}, 0, 0),
        ('SGD', dict(momentum=0.9), 1, 0),
        ('Adam', {}, 2, 5),
        ('AdamW', dict(amsgrad=True), 3, 5),
    ],
)
def test_each_optimizers_state(kind, options, copies, steps):
    model = Small()
    wrapper = wrap(model, kind, **options)
    watch = ModelBytesWatch(wrapper)
    step(model, wrapper)
    record = watch.read(model, [], 1)
    assert record is not None
    assert record.iteration == 1
    assert record.parameters == (TRAINED + FROZEN) // FLOAT
    assert record.parameter_bytes == TRAINED + FROZEN
    assert record.trainable_bytes == TRAINED
    assert record.gradient_bytes == TRAINED
    # each trained tensor has a step count besides
    assert record.optimizer_state_bytes == copies * TRAINED + steps * FLOAT
    assert record.buffer_bytes == BUFFERS
    assert record.ema_bytes == 0
    state = wrapper.state_dict()['state']
    assert record.optimizer_state_bytes == saved_bytes(state)
    assert record.parameter_bytes + record.buffer_bytes == (
        saved_bytes(model.state_dict())
    )


def test_it_is_counted_once_and_leaves_the_wrapper_as_it_was():
    model = Small()
    wrapper = wrap(model)
    before = dict(vars(wrapper))
    watch = ModelBytesWatch(wrapper)
    assert 'zero_grad' in vars(wrapper)
    step(model, wrapper)
    assert vars(wrapper).keys() == before.keys()
    assert all(p.grad is None for p in model.parameters())
    assert watch.read(model, [], 1) is not None
    step(model, wrapper)
    assert watch.read(model, [], 2) is None


def test_accumulation_waits_for_the_first_step():
    model = Small()
    wrapper = wrap(model, 'SGD', momentum=0.9)
    wrapper._accumulative_counts = 3
    wrapper.initialize_count_status(model, 0, 9)
    watch = ModelBytesWatch(wrapper)
    records = []
    for iteration in (1, 2, 3):
        step(model, wrapper)
        records.append(watch.read(model, [], iteration))
    assert records[:2] == [None, None]
    assert records[2] is not None
    assert records[2].iteration == 3
    assert records[2].optimizer_state_bytes == records[2].gradient_bytes == TRAINED


def test_zeroing_before_the_backward_pass_does_not_fool_it():
    model = Small()
    wrapper = wrap(model)
    watch = ModelBytesWatch(wrapper)
    for iteration in (1, 2):
        wrapper.zero_grad()
        model(torch.ones(2, 4)).backward()
        wrapper.step()
        record = watch.read(model, [], iteration)
    assert record is not None
    assert record.gradient_bytes == TRAINED


def count_to_the_end(watch: ModelBytesWatch, model: Any) -> Any:
    records = [watch.read(model, [], iteration) for iteration in range(1, 1002)]
    found = [record for record in records if record is not None]
    assert len(found) == 1
    return found[0]


def test_code_that_never_calls_the_wrapper_is_counted_in_the_end():
    model = Small()
    wrapper = wrap(model)
    watch = ModelBytesWatch(wrapper)
    model(torch.ones(2, 4)).backward()
    assert count_to_the_end(watch, model).gradient_bytes == TRAINED
    assert 'zero_grad' not in vars(wrapper)


def test_patience_is_counted_in_iterations_however_often_it_is_asked():
    model = Small()
    watch = ModelBytesWatch(wrap(model))
    for iteration in (50, 100, 1049):
        assert watch.read(model, [], iteration) is None
    record = watch.read(model, [], 1050)
    assert record is not None
    assert (record.iteration, record.gradient_bytes) == (1050, None)
    assert watch.read(model, [], 1100) is None


def test_at_the_end_it_counts_what_there_is():
    model = Small()
    wrapper = wrap(model)
    watch = ModelBytesWatch(wrapper)
    assert watch.read(model, [], 10) is None
    record = watch.read(model, [], 12, final=True)
    assert record is not None
    assert (record.iteration, record.gradient_bytes) == (12, None)
    assert record.parameter_bytes == TRAINED + FROZEN
    assert 'zero_grad' not in vars(wrapper)
    assert watch.read(model, [], 12, final=True) is None


def test_without_any_gradient_they_are_unknown():
    model = Small()
    record = count_to_the_end(ModelBytesWatch(wrap(model)), model)
    assert record.gradient_bytes is None
    assert record.parameter_bytes == TRAINED + FROZEN


def test_every_optimizer_of_several_is_waited_for():
    first, second = Small(), Small()
    wrappers = optim.OptimWrapperDict(a=wrap(first), b=wrap(second, 'Adam'))
    watch = ModelBytesWatch(wrappers)
    both = nn.ModuleList([first, second])
    step(first, wrappers['a'])
    assert watch.read(both, [], 1) is None
    step(second, wrappers['b'])
    record = watch.read(both, [], 2)
    assert record is not None
    assert record.gradient_bytes == record.trainable_bytes == 2 * TRAINED
    assert record.optimizer_state_bytes == 2 * TRAINED + 5 * FLOAT


def test_averaged_copies_are_counted_apart():
    from mmengine.model import ExponentialMovingAverage

    model = Small()
    wrapper = wrap(model)
    hook = SimpleNamespace(ema_model=ExponentialMovingAverage(model))
    hooks = [object(), hook, SimpleNamespace(ema_model=None)]
    watch = ModelBytesWatch(wrapper)
    step(model, wrapper)
    record = watch.read(model, hooks, 1)
    assert record is not None
    # the copy has a step count of 8 bytes besides
    assert record.ema_bytes == TRAINED + FROZEN + BUFFERS + 8
    assert record.parameter_bytes == TRAINED + FROZEN


def test_sparse_expanded_sharded_and_absent_tensors():
    model = nn.Module()
    model.table = nn.Embedding(100, 4, sparse=True)
    model.register_buffer('wide', torch.zeros(1).expand(50))
    model.register_buffer('view', torch.zeros(6)[2:4])
    model.register_buffer('ghost', torch.zeros(9, device='meta'))
    local = torch.zeros(3)
    shard = SimpleNamespace(to_local=lambda: local, requires_grad=True)
    parameters: list[Any] = [*model.parameters(), shard]
    model.parameters = lambda: iter(parameters)
    wrapper = optim.OptimWrapper(torch.optim.SGD(model.table.parameters(), lr=0.1))
    watch = ModelBytesWatch(wrapper)
    wrapper.update_params(model.table(torch.tensor([1, 2])).sum())
    record = watch.read(model, [], 1)
    assert record is not None
    assert record.gradient_bytes == 2 * 8 + 2 * 4 * FLOAT
    assert record.parameter_bytes == 400 * FLOAT + 3 * FLOAT
    assert record.buffer_bytes == FLOAT + 2 * FLOAT


def test_the_shard_of_a_zero_redundancy_optimizer():
    model = Small()
    wrapper = wrap(model, 'Adam')
    wrapper.optimizer.optim = SimpleNamespace(state={'p': {'shard': torch.zeros(5)}})
    watch = ModelBytesWatch(wrapper)
    step(model, wrapper)
    record = watch.read(model, [], 1)
    assert record is not None
    assert record.optimizer_state_bytes == 5 * FLOAT


def test_an_optimizer_without_state_leaves_it_unknown():
    model = Small()
    wrapper = wrap(model)
    wrapper.optimizer.optim = object()
    watch = ModelBytesWatch(wrapper)
    step(model, wrapper)
    record = watch.read(model, [], 1)
    assert record is not None
    assert record.optimizer_state_bytes is None


def test_a_failure_of_ours_never_reaches_training():
    model = Small()
    wrapper = wrap(model)
    watch = ModelBytesWatch(wrapper)
    groups = wrapper.optimizer.param_groups
    wrapper.optimizer.param_groups = [{}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrapper.optimizer, 'zero_grad', lambda: None)
        wrapper.zero_grad()
    wrapper.optimizer.param_groups = groups
    with pytest.raises(SourceError, match="KeyError: 'params'"):
        watch.read(model, [], 1)
    assert watch.read(model, [], 2) is None
    assert 'zero_grad' not in vars(wrapper)


def test_an_odd_model_is_an_error_that_is_said_once():
    wrapper = wrap(Small())
    watch = ModelBytesWatch(wrapper)
    step(Small(), wrapper)
    model = Small()
    model(torch.ones(2, 4)).backward()
    wrapper.optimizer.param_groups[0]['params'] = list(model.parameters())
    wrapper.zero_grad()
    with pytest.raises(SourceError, match='cannot be counted'):
        watch.read(SimpleNamespace(parameters=lambda: [7]), [], 1)


@pytest.mark.parametrize('ours_last', [True, False])
def test_another_wrapper_around_zero_grad_stays(ours_last: bool):
    model = Small()
    wrapper = wrap(model)
    calls = []

    def others(original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(**kwargs: Any) -> None:
            calls.append('other')
            original(**kwargs)

        return zero_grad

    if ours_last:
        theirs = wrapper.zero_grad = others(wrapper.zero_grad)
        watch = ModelBytesWatch(wrapper)
    else:
        watch = ModelBytesWatch(wrapper)
        theirs = wrapper.zero_grad = others(wrapper.zero_grad)
    for _ in range(2):
        step(model, wrapper)
    assert vars(wrapper)['zero_grad'] is theirs
    assert calls == ['other', 'other']
    record = watch.read(model, [], 2)
    assert record is not None and record.gradient_bytes == TRAINED


def test_closing_early_gives_the_method_back():
    model = Small()
    wrapper = wrap(model)
    watch = ModelBytesWatch(wrapper)
    watch.close()
    watch.close()
    assert 'zero_grad' not in vars(wrapper)
    step(model, wrapper)
    assert watch.read(model, [], 1) is None


@pytest.fixture(scope='module')
def detector() -> Any:
    """RTMDet-tiny as MMDetection ships it, its stem frozen."""
    pytest.importorskip('mmdet', exc_type=ImportError)
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    from mmengine.hub import get_config

    register_all_modules(init_default_scope=False)
    config = get_config('mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py')
    config.model.backbone.init_cfg = None  # no download
    model = MODELS.build(dict(config.model, _scope_='mmdet'))
    model.backbone.stem.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ('kind', 'options'),
    [('SGD', {}), ('SGD', dict(momentum=0.9)), ('Adam', {}), ('AdamW', {})],
)
def test_a_real_detector(detector: Any, kind: str, options: dict[str, float]):
    detector.train()
    wrapper = wrap(detector, kind, **options)
    watch = ModelBytesWatch(wrapper)
    features = detector.extract_feat(torch.zeros(2, 3, 64, 64))
    outputs = detector.bbox_head(features)
    loss = sum(level.sum() for kind_of in outputs for level in kind_of)
    wrapper.update_params(loss)
    record = watch.read(detector, [], 1)
    assert record is not None
    trained = sum(p.numel() * 4 for p in detector.parameters() if p.requires_grad)
    assert record.trainable_bytes == record.gradient_bytes == trained
    assert record.parameter_bytes is not None and record.parameter_bytes > trained
    state = wrapper.state_dict()['state']
    assert record.optimizer_state_bytes == saved_bytes(state)
    assert record.parameter_bytes + record.buffer_bytes == saved_bytes(
        [detector.state_dict(), dict(detector.named_buffers())]
    )
