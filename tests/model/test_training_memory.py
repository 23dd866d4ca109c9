from __future__ import annotations

import pytest

from mmgpu_hooks.model.training_memory import (
    fit_activations,
    predict_activations,
    predict_state_bytes,
)
from mmgpu_hooks.schema.memory import ActivationPoint

torch = pytest.importorskip('torch', exc_type=ImportError)

SIZES = [(5, 3), (7,), (1,)]


def kept_by_torch(name: str, options: dict[str, object], dtype: object) -> int:
    parameters = [torch.nn.Parameter(torch.ones(size, dtype=dtype)) for size in SIZES]
    frozen = torch.nn.Parameter(torch.ones(9))
    optimizer = getattr(torch.optim, name)([*parameters, frozen], lr=0.1, **options)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return sum(
        value.nelement() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('SGD', {}),
        ('SGD', {'momentum': 0.9, 'nesterov': True}),
        ('AdamW', {'weight_decay': 0.05}),
        ('Adam', {'amsgrad': True}),
        *((name, {}) for name in ('NAdam', 'RAdam', 'Adamax', 'Adadelta', 'RMSprop')),
        ('RMSprop', {'momentum': 0.9, 'centered': True}),
        ('Adagrad', {}),
    ],
)
def test_state_is_what_torch_keeps(name, options):
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        parameters = [(torch.Size(shape).numel(), size) for shape in SIZES]
        if name == 'Adagrad':  # it keeps some for parameters without a gradient, too
            parameters.append((9, 4))
        predicted = predict_state_bytes(name, options, parameters)
        assert predicted == kept_by_torch(name, options, dtype)


def test_an_optimizer_that_nobody_knows_is_unknown():
    assert predict_state_bytes('Lion', {}, [(1000, 4)]) is None


def planted(batch: int, side: int, **parts: float) -> ActivationPoint:
    pixels = side * side
    size = (
        parts.get('fixed', 0)
        + batch * parts.get('image', 0)
        + batch * pixels * parts.get('pixel', 0)
        + batch * pixels**2 * parts.get('squared', 0)
    )
    return ActivationPoint(batch, side, side, round(size))


LAWS = [
    {'pixel': 1600},
    {'pixel': 1200, 'image': 30e6},
    {'pixel': 1200, 'fixed': 20e6},
    {'pixel': 1300, 'squared': 3e-4},
    {'pixel': 1300, 'squared': 3e-4, 'image': 9e6, 'fixed': 8e6},
]


@pytest.mark.parametrize('law', LAWS)
def test_a_planted_growth_is_found(law):
    points = [
        planted(batch, side, **law)
        for batch, side in [(2, 256), (1, 256), (2, 384), (1, 384), (1, 512)]
    ]
    fit = fit_activations(points)
    assert fit.residual_pct <= 0.5
    far = planted(32, 1024, **law)
    assert predict_activations(fit, 32, 1024 * 1024) == pytest.approx(
        far.saved_bytes, rel=0.02
    )


def test_noise_makes_no_curve():
    # half a per cent up and down: a curve through it would be far off at 1024
    noise = (1.004, 0.996, 1.003, 0.997, 1.004)
    places = [(2, 256), (1, 256), (2, 384), (1, 384), (1, 512)]
    points = [
        ActivationPoint(b, s, s, round(n * b * s * s * 1600))
        for n, (b, s) in zip(noise, places, strict=True)
    ]
    fit = fit_activations(points)
    assert (fit.squared_pixel_bytes, fit.image_bytes, fit.fixed_bytes) == (0, 0, 0)
    assert fit.pixel_bytes == pytest.approx(1600, rel=0.005)
    assert fit.residual_pct == pytest.approx(0.4, abs=0.1)


def test_one_point_is_no_growth():
    with pytest.raises(ValueError, match='two different points'):
        fit_activations([planted(1, 256, pixel=9), planted(1, 256, pixel=9)])
